/* Calls that end early, by deadline or by the caller, and a handler that notices.
 *
 *   cancellation SOCKET TOKEN
 */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "example.h"
#include "interop.tollgate_service.h"

static void nap(long ms)
{
    struct timespec time;
    time.tv_sec = ms / 1000;
    time.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&time, NULL);
}

/* Works until the caller gives up. */
static void unary(tollgate_call *call, interop_Ask_view ask, void *user)
{
    (void)ask;
    (void)user;
    while (!tollgate_call_is_cancelled(call)) {
        nap(1);
    }
    printf("the handler noticed, %s\n", tollgate_call_time_left_ms(call) < 0 ? "of a call without a deadline" : "at the deadline");
    fflush(stdout);
}

/* Sends until the reader is gone. */
static void spread(tollgate_call *call, interop_Ask_view ask, void *user)
{
    interop_Answer_value answer = {0};
    tollgate_status *status = tollgate_status_new();
    (void)ask;
    (void)user;
    while (interop_Semantics_Spread_respond(call, &answer, 0, status) == TOLLGATE_OK) {
        answer.number += 1;
    }
    printf("the stream's handler noticed: %s\n", tollgate_code_name(tollgate_status_code(status)));
    fflush(stdout);
    tollgate_status_free(status);
}

static void *cancel_soon(void *call)
{
    nap(50);
    tollgate_call_cancel((tollgate_call *)call, NULL);
    return NULL;
}

int main(int argc, char **argv)
{
    const interop_Semantics_handlers handlers = {unary, NULL, spread, NULL, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *server = open_session(argc, argv, status), *session = open_session(argc, argv, status);
    tollgate_call_options options = tollgate_call_options_of();
    interop_Ask_value ask = {0};
    interop_Answer_view answer;
    tollgate_source source = tollgate_source_of(interop_Ask_write_any, &ask);
    tollgate_client *client;
    tollgate_message *message;
    tollgate_call *call;
    tollgate_code code;
    pthread_t thread, canceller;
    int count = 0;
    expect(interop_Semantics_serve(server, &handlers, status), TOLLGATE_OK, "can't serve", status);
    thread = serve_in_a_thread(server);
    expect(interop_Semantics_client(session, "", &client, status), TOLLGATE_OK, "can't bind", status);

    options.timeout_ms = 50;
    expect(interop_Semantics_Unary_call(client, &ask, &options, &answer, &message, status), TOLLGATE_DEADLINE_EXCEEDED,
           "a call that takes too long", status);
    puts("deadline exceeded");

    /* From another thread, while this one waits. */
    expect(tollgate_call_open(client, interop_Semantics_Unary, &source, true, NULL, &call, status), TOLLGATE_OK, "Unary", status);
    if (pthread_create(&canceller, NULL, cancel_soon, call) != 0) {
        perror("pthread_create");
        return 1;
    }
    expect(tollgate_call_receive(call, 0, &message, status), TOLLGATE_CANCELLED, "a call that is given up", status);
    puts("cancelled");
    pthread_join(canceller, NULL);
    tollgate_call_free(call);

    /* Freeing an unfinished call cancels it, too. */
    expect(interop_Semantics_Spread_open(client, &ask, NULL, &call, status), TOLLGATE_OK, "Spread", status);
    while (count < 10 && (code = interop_Semantics_Spread_receive(call, 0, &answer, &message, status)) == TOLLGATE_OK) {
        tollgate_message_free(message);
        count += 1;
    }
    printf("freed after %d responses\n", count);
    tollgate_call_free(call);
    tollgate_client_free(client);
    close_session(session, status);
    stop_serving(thread, server, status);
    tollgate_status_free(status);
    return 0;
}
