/* CALLS calls with one request of 64 bytes and one reply, to count instructions. With a server of hotel.Echo running:
 *
 *   cost SOCKET TOKEN CALLS
 */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "../examples/example.h"
#include "hotel.tollgate_service.h"

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int argc, char **argv)
{
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session = open_session(argc, argv, status);
    tollgate_client *client;
    tollgate_message *reply;
    hotel_EchoMessage_value request = {0};
    hotel_EchoMessage_view view;
    uint8_t payload[64] = {1};
    int call, calls = argc > 3 ? atoi(argv[3]) : 1;
    int64_t begin_ns;
    request.payload.data = payload;
    request.payload.len = sizeof payload;
    expect(hotel_Echo_client(session, "", &client, status), TOLLGATE_OK, "can't bind", status);
    begin_ns = now_ns();
    for (call = 0; call < calls; call++) {
        expect(hotel_Echo_Echo_call(client, &request, NULL, &view, &reply, status), TOLLGATE_OK, "Echo", status);
        tollgate_message_free(reply);
    }
    printf("%lld ns per call\n", (long long)((now_ns() - begin_ns) / (calls > 0 ? calls : 1)));
    tollgate_client_free(client);
    close_session(session, status);
    tollgate_status_free(status);
    return 0;
}
