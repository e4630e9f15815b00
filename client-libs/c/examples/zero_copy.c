/* A large value that is made in the send heap, sent twice without a copy, and read in the receive heap.
 *
 *   zero_copy SOCKET TOKEN
 */
#include "example.h"
#include "hotel.tollgate_service.h"

enum { LARGE = 1 << 20 };

static void echo(tollgate_call *call, hotel_EchoMessage_view request, void *user)
{
    hotel_EchoMessage_value reply = {0};
    (void)user;
    /* Copied once, from the receive heap into the send heap. */
    reply.payload = hotel_EchoMessage_get_payload(request);
    hotel_Echo_Echo_reply(call, &reply, NULL, NULL, NULL);
}

int main(int argc, char **argv)
{
    const hotel_Echo_handlers handlers = {echo, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *server = open_session(argc, argv, status), *session = open_session(argc, argv, status);
    hotel_EchoMessage_value request = {0};
    hotel_EchoMessage_view view;
    tollgate_buffer *buffer;
    tollgate_client *client;
    tollgate_message *reply;
    uint8_t *data;
    pthread_t thread;
    size_t i;
    int round;
    expect(hotel_Echo_serve(server, &handlers, status), TOLLGATE_OK, "can't serve", status);
    thread = serve_in_a_thread(server);
    expect(hotel_Echo_client(session, "", &client, status), TOLLGATE_OK, "can't bind", status);

    /* Made in the send heap, where the daemon reads it. */
    expect(tollgate_buffer_new(session, LARGE, &buffer, status), TOLLGATE_OK, "no room", status);
    data = tollgate_buffer_data(buffer);
    for (i = 0; i < LARGE; i++) {
        data[i] = (uint8_t)(i * 7);
    }
    expect(tollgate_buffer_freeze(buffer, &request.payload, status), TOLLGATE_OK, "freeze", status);
    for (round = 0; round < 2; round++) {
        tollgate_bytes payload;
        expect(hotel_Echo_Echo_call(client, &request, NULL, &view, &reply, status), TOLLGATE_OK, "Echo", status);
        /* In the receive heap, until the message is freed. */
        payload = hotel_EchoMessage_get_payload(view);
        printf("%zu bytes came back, %s\n", payload.len,
               payload.len == LARGE && memcmp(payload.data, request.payload.data, LARGE) == 0 ? "the same" : "others");
        tollgate_message_free(reply);
    }
    tollgate_buffer_free(buffer);
    tollgate_client_free(client);
    close_session(session, status);
    stop_serving(thread, server, status);
    tollgate_status_free(status);
    return 0;
}
