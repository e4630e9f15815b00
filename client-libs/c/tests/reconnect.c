/* A session whose daemon goes and comes back: the same handles go on. Says "answered" for each time that calls succeed again, and waits for
 * a line before it looks next.
 *
 *   reconnect SOCKET TOKEN TIMES
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../examples/example.h"
#include "hotel.tollgate_service.h"

/* So often is the daemon asked until it is back, 10 ms apart. */
enum { PATIENCE = 3000 };

int main(int argc, char **argv)
{
    const struct timespec pause = {0, 10 * 1000 * 1000};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session = open_session(argc, argv, status);
    tollgate_client *client;
    int times = argc > 3 ? atoi(argv[3]) : 1, tried = 0;
    expect(hotel_Echo_client(session, "", &client, status), TOLLGATE_OK, "binding", status);
    while (times > 0) {
        hotel_EchoMessage_value request = {0};
        hotel_EchoMessage_view view;
        tollgate_message *reply;
        tollgate_code code = hotel_Echo_Echo_call(client, &request, NULL, &view, &reply, status);
        tollgate_message_free(reply);
        if (code == TOLLGATE_OK) {
            puts("answered");
            fflush(stdout);
            times--;
            tried = 0;
            if (getchar() == EOF) {
                break;
            }
            continue;
        }
        if (tried++ == PATIENCE) {
            expect(code, TOLLGATE_OK, "calling", status);
        }
        expect(code, TOLLGATE_UNAVAILABLE, "calling", status);
        nanosleep(&pause, NULL);
    }
    tollgate_client_free(client);
    close_session(session, status);
    tollgate_status_free(status);
    return times == 0 ? 0 : 1;
}
