/* One thread, two sessions and poll(): the loop runs a server's handlers and the completions of calls.
 *
 *   event_loop SOCKET TOKEN
 */
#include <poll.h>

#include "example.h"
#include "hotel.tollgate_service.h"

enum { CALLS = 1000 };

static void echo(tollgate_call *call, hotel_EchoMessage_view request, void *user)
{
    hotel_EchoMessage_value reply = {0};
    (void)user;
    reply.payload = hotel_EchoMessage_get_payload(request);
    hotel_Echo_Echo_reply(call, &reply, NULL, NULL, NULL);
}

typedef struct progress {
    int ended;
    uint64_t bytes;
} progress;

static void done(void *user, tollgate_code code, tollgate_message *reply, const tollgate_status *status)
{
    progress *so_far = (progress *)user;
    expect(code, TOLLGATE_OK, "Echo", status);
    so_far->bytes += hotel_EchoMessage_get_payload(hotel_EchoMessage_of(reply)).len;
    so_far->ended += 1;
    tollgate_message_free(reply);
}

int main(int argc, char **argv)
{
    const hotel_Echo_handlers handlers = {echo, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *sessions[2];
    struct pollfd fds[2];
    progress so_far = {0, 0};
    hotel_EchoMessage_value request = {0};
    tollgate_client *client;
    int i;
    for (i = 0; i < 2; i++) {
        sessions[i] = open_session(argc, argv, status);
        fds[i].fd = tollgate_session_fd(sessions[i], status);
        fds[i].events = POLLIN;
    }
    expect(hotel_Echo_serve(sessions[0], &handlers, status), TOLLGATE_OK, "can't serve", status);
    expect(hotel_Echo_client(sessions[1], "", &client, status), TOLLGATE_OK, "can't bind", status);
    request.payload.data = (const uint8_t *)"around and around";
    request.payload.len = 17;
    for (i = 0; i < CALLS; i++) {
        expect(hotel_Echo_Echo_start(client, &request, NULL, done, &so_far, NULL, status), TOLLGATE_OK, "Echo", status);
    }
    while (so_far.ended < CALLS) {
        if (poll(fds, 2, 10000) <= 0) {
            fputs("nothing happens\n", stderr);
            return 1;
        }
        for (i = 0; i < 2; i++) {
            if (fds[i].revents != 0) {
                expect(tollgate_session_drive(sessions[i], 0, status), TOLLGATE_OK, "driving", status);
            }
        }
    }
    printf("%d calls, %llu bytes\n", so_far.ended, (unsigned long long)so_far.bytes);
    tollgate_client_free(client);
    close_session(sessions[1], status);
    close_session(sessions[0], status);
    tollgate_status_free(status);
    return 0;
}
