/* Metadata of a request and of a reply, and trailers.
 *
 *   metadata SOCKET TOKEN
 */
#include "example.h"
#include "hotel.tollgate_service.h"

/* Answers with the user's name from the request's metadata, and with a call counter in a trailer. */
static void echo(tollgate_call *call, hotel_EchoMessage_view request, void *user)
{
    unsigned *asked = (unsigned *)user;
    const tollgate_metadata *from;
    tollgate_metadata *metadata = tollgate_metadata_new(), *trailers = tollgate_metadata_new();
    hotel_EchoMessage_value reply = {0};
    tollgate_bytes name;
    char count[16];
    int len = snprintf(count, sizeof count, "%u", ++*asked);
    tollgate_call_metadata(call, 0, &from, NULL);
    if (tollgate_metadata_find(from, "user", &name)) {
        tollgate_metadata_add(metadata, "greeted", name.data, name.len, NULL);
    }
    tollgate_metadata_add(trailers, "asked", (const uint8_t *)count, (size_t)len, NULL);
    reply.payload = hotel_EchoMessage_get_payload(request);
    hotel_Echo_Echo_reply(call, &reply, metadata, trailers, NULL);
    tollgate_metadata_free(metadata);
    tollgate_metadata_free(trailers);
}

static void print(const char *what, const tollgate_metadata *metadata)
{
    size_t i;
    for (i = 0; i < tollgate_metadata_count(metadata); i++) {
        tollgate_str key;
        tollgate_bytes value;
        tollgate_metadata_get(metadata, i, &key, &value);
        printf("%s: %.*s = %.*s\n", what, (int)key.len, key.data, (int)value.len, (const char *)value.data);
    }
}

int main(int argc, char **argv)
{
    static const uint8_t trace[] = {0, 255};
    unsigned asked = 0;
    hotel_Echo_handlers handlers = {echo, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *server = open_session(argc, argv, status), *session = open_session(argc, argv, status);
    tollgate_metadata *metadata = tollgate_metadata_new();
    tollgate_call_options options = tollgate_call_options_of();
    hotel_EchoMessage_value request = {0};
    hotel_EchoMessage_view view;
    tollgate_client *client;
    tollgate_message *reply;
    pthread_t thread;
    handlers.user_ = &asked;
    expect(hotel_Echo_serve(server, &handlers, status), TOLLGATE_OK, "can't serve", status);
    thread = serve_in_a_thread(server);

    expect(hotel_Echo_client(session, "", &client, status), TOLLGATE_OK, "can't bind", status);
    expect(tollgate_metadata_add(metadata, "user", (const uint8_t *)"Ada", 3, status), TOLLGATE_OK, "user", status);
    /* Keys that end in -bin take any bytes. */
    expect(tollgate_metadata_add(metadata, "trace-bin", trace, sizeof trace, status), TOLLGATE_OK, "trace-bin", status);
    expect(tollgate_metadata_add(metadata, "grpc-mine", trace, 0, status), TOLLGATE_INVALID_ARGUMENT, "a reserved key", status);
    options.metadata = metadata;
    expect(hotel_Echo_Echo_call(client, &request, &options, &view, &reply, status), TOLLGATE_OK, "Echo", status);
    print("metadata", tollgate_message_metadata(reply));
    print("trailer", tollgate_message_trailers(reply));
    tollgate_message_free(reply);
    tollgate_metadata_free(metadata);
    tollgate_client_free(client);
    close_session(session, status);
    stop_serving(thread, server, status);
    tollgate_status_free(status);
    return 0;
}
