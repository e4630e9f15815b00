/* A server that drains when it is told to end (SIGTERM). Its two threads take 10 ms per call, so calls wait for a thread, too, when that
 * comes: they are answered before it ends, with 0.
 *
 *   drain SOCKET TOKEN
 */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <time.h>

#include "../examples/example.h"
#include "hotel.tollgate_service.h"

enum { THREADS = 2 };

static void echo(tollgate_call *call, hotel_EchoMessage_view request, void *user)
{
    const struct timespec work = {0, 10 * 1000 * 1000};
    hotel_EchoMessage_value reply = {0};
    (void)user;
    nanosleep(&work, NULL);
    reply.payload = hotel_EchoMessage_get_payload(request);
    hotel_Echo_Echo_reply(call, &reply, NULL, NULL, NULL);
}

int main(int argc, char **argv)
{
    const hotel_Echo_handlers handlers = {echo, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session;
    pthread_t threads[THREADS];
    sigset_t signals;
    int i, signalled;
    /* For this thread alone, which waits for it: so before there are others. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    session = open_session(argc, argv, status);
    expect(hotel_Echo_serve(session, &handlers, status), TOLLGATE_OK, "can't serve", status);
    for (i = 0; i < THREADS; i++) {
        threads[i] = serve_in_a_thread(session);
    }
    puts("serving");
    fflush(stdout);
    sigwait(&signals, &signalled);
    expect(tollgate_session_drain(session, -1, status), TOLLGATE_OK, "draining", status);
    for (i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    close_session(session, status);
    tollgate_status_free(status);
    return 0;
}
