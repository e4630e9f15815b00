/* Calls of all four types of interop.Semantics, and their server, in one program. It compiles as C and as C++.
 *
 *   streaming SOCKET TOKEN
 */
#include "example.h"
#include "interop.tollgate_service.h"

static void unary(tollgate_call *call, interop_Ask_view ask, void *user)
{
    interop_Answer_value answer;
    (void)user;
    memset(&answer, 0, sizeof answer);
    answer.number = interop_Ask_get_number(ask) + 1;
    interop_Semantics_Unary_reply(call, &answer, NULL, NULL, NULL);
}

/* Any number of requests, one reply: their sum. */
static void collect(tollgate_call *call, void *user)
{
    interop_Answer_value sum;
    tollgate_message *message;
    interop_Ask_view ask;
    (void)user;
    memset(&sum, 0, sizeof sum);
    while (interop_Semantics_Collect_next(call, 0, &ask, &message, NULL) == TOLLGATE_OK) {
        sum.number += interop_Ask_get_number(ask);
        tollgate_message_free(message);
    }
    interop_Semantics_Collect_reply(call, &sum, NULL, NULL, NULL);
}

/* One request, any number of responses. Sending waits for a slow reader, and fails once the reader
 * is gone. */
static void spread(tollgate_call *call, interop_Ask_view ask, void *user)
{
    interop_Answer_value answer;
    uint32_t k;
    (void)user;
    memset(&answer, 0, sizeof answer);
    for (k = 0; k < interop_Ask_get_responses(ask); k++) {
        answer.number = interop_Ask_get_number(ask) + k;
        if (interop_Semantics_Spread_respond(call, &answer, 0, NULL) != TOLLGATE_OK) {
            return;
        }
    }
    tollgate_call_finish(call, NULL, NULL, NULL);
}

/* A conversation: each request is answered as it comes. */
static void chat(tollgate_call *call, void *user)
{
    interop_Answer_value answer;
    tollgate_message *message;
    interop_Ask_view ask;
    (void)user;
    memset(&answer, 0, sizeof answer);
    while (interop_Semantics_Chat_next(call, 0, &ask, &message, NULL) == TOLLGATE_OK) {
        answer.number = interop_Ask_get_number(ask) * 2;
        tollgate_message_free(message);
        if (interop_Semantics_Chat_respond(call, &answer, 0, NULL) != TOLLGATE_OK) {
            return;
        }
    }
    tollgate_call_finish(call, NULL, NULL, NULL);
}

static void call_all(tollgate_session *session, tollgate_status *status)
{
    interop_Ask_value ask;
    interop_Answer_view answer;
    tollgate_client *client;
    tollgate_message *message;
    tollgate_call *call;
    uint64_t number;
    memset(&ask, 0, sizeof ask);
    expect(interop_Semantics_client(session, "", &client, status), TOLLGATE_OK, "can't bind", status);

    ask.number = 41;
    expect(interop_Semantics_Unary_call(client, &ask, NULL, &answer, &message, status), TOLLGATE_OK, "Unary", status);
    printf("unary: %llu\n", (unsigned long long)interop_Answer_get_number(answer));
    tollgate_message_free(message);

    expect(interop_Semantics_Collect_open(client, NULL, &call, status), TOLLGATE_OK, "Collect", status);
    for (number = 1; number <= 1000; number++) {
        ask.number = number;
        expect(interop_Semantics_Collect_send(call, &ask, 0, status), TOLLGATE_OK, "Collect", status);
    }
    tollgate_call_half_close(call, status);
    expect(interop_Semantics_Collect_receive(call, 0, &answer, &message, status), TOLLGATE_OK, "Collect", status);
    printf("client streaming: %llu\n", (unsigned long long)interop_Answer_get_number(answer));
    tollgate_message_free(message);
    expect(tollgate_call_receive(call, 0, &message, status), TOLLGATE_END, "Collect", status);
    tollgate_call_free(call);

    ask.number = 10;
    ask.responses = 1000;
    number = 0;
    expect(interop_Semantics_Spread_open(client, &ask, NULL, &call, status), TOLLGATE_OK, "Spread", status);
    while (interop_Semantics_Spread_receive(call, 0, &answer, &message, status) == TOLLGATE_OK) {
        number = interop_Answer_get_number(answer);
        tollgate_message_free(message);
    }
    expect(tollgate_status_code(status), TOLLGATE_END, "Spread", status);
    printf("server streaming: up to %llu\n", (unsigned long long)number);
    tollgate_call_free(call);

    expect(interop_Semantics_Chat_open(client, NULL, &call, status), TOLLGATE_OK, "Chat", status);
    for (number = 1; number <= 100;) {
        ask.number = number;
        expect(interop_Semantics_Chat_send(call, &ask, 0, status), TOLLGATE_OK, "Chat", status);
        expect(interop_Semantics_Chat_receive(call, 0, &answer, &message, status), TOLLGATE_OK, "Chat", status);
        number = interop_Answer_get_number(answer);
        tollgate_message_free(message);
    }
    tollgate_call_half_close(call, status);
    expect(tollgate_call_receive(call, 0, &message, status), TOLLGATE_END, "Chat", status);
    printf("both: %llu\n", (unsigned long long)number);
    tollgate_call_free(call);
    tollgate_client_free(client);
}

int main(int argc, char **argv)
{
    const interop_Semantics_handlers handlers = {unary, collect, spread, chat, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *server = open_session(argc, argv, status), *session = open_session(argc, argv, status);
    pthread_t thread;
    expect(interop_Semantics_serve(server, &handlers, status), TOLLGATE_OK, "can't serve", status);
    thread = serve_in_a_thread(server);
    call_all(session, status);
    close_session(session, status);
    stop_serving(thread, server, status);
    tollgate_status_free(status);
    return 0;
}
