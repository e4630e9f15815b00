/* Many threads on few sessions: handlers of several threads, calls of all types from several threads over one session, cancellation from
 * beside, and an event loop that both starts calls and answers them. Nothing may get lost, doubled or stuck.
 *
 *   stress SOCKET TOKEN
 */
#include <poll.h>

#include "../examples/example.h"
#include "interop.tollgate_service.h"

enum { SERVERS = 3, CALLERS = 4, ROUNDS = 300, STREAM = 40 };

static void unary(tollgate_call *call, interop_Ask_view ask, void *user)
{
    interop_Answer_value answer = {0};
    (void)user;
    answer.number = interop_Ask_get_number(ask) + 1;
    answer.payload = interop_Ask_get_payload(ask);
    interop_Semantics_Unary_reply(call, &answer, NULL, NULL, NULL);
}

static void collect(tollgate_call *call, void *user)
{
    interop_Answer_value sum = {0};
    tollgate_message *message;
    interop_Ask_view ask;
    tollgate_code code;
    (void)user;
    while ((code = interop_Semantics_Collect_next(call, 0, &ask, &message, NULL)) == TOLLGATE_OK) {
        sum.number += interop_Ask_get_number(ask);
        tollgate_message_free(message);
    }
    if (code == TOLLGATE_END) {
        interop_Semantics_Collect_reply(call, &sum, NULL, NULL, NULL);
    }
}

static void spread(tollgate_call *call, interop_Ask_view ask, void *user)
{
    interop_Answer_value answer = {0};
    (void)user;
    for (answer.number = 0; answer.number < interop_Ask_get_responses(ask); answer.number++) {
        if (interop_Semantics_Spread_respond(call, &answer, 0, NULL) != TOLLGATE_OK) {
            return;
        }
    }
    tollgate_call_finish(call, NULL, NULL, NULL);
}

static void chat(tollgate_call *call, void *user)
{
    interop_Answer_value answer = {0};
    tollgate_message *message;
    interop_Ask_view ask;
    (void)user;
    while (interop_Semantics_Chat_next(call, 0, &ask, &message, NULL) == TOLLGATE_OK) {
        answer.number = interop_Ask_get_number(ask);
        tollgate_message_free(message);
        if (interop_Semantics_Chat_respond(call, &answer, 0, NULL) != TOLLGATE_OK) {
            return;
        }
    }
    tollgate_call_finish(call, NULL, NULL, NULL);
}

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "stress: %s\n", what);
        exit(1);
    }
}

/* Calls of all types over a client that other threads use, too. */
static void *call_all(void *user)
{
    tollgate_client *client = (tollgate_client *)user;
    tollgate_status *status = tollgate_status_new();
    interop_Ask_value ask = {0};
    interop_Answer_view answer;
    tollgate_message *message;
    tollgate_call *call;
    uint8_t payload[6000];
    uint64_t round, i;
    memset(payload, 7, sizeof payload);
    for (round = 0; round < ROUNDS; round++) {
        ask.number = round;
        ask.responses = STREAM;
        ask.payload.data = payload;
        ask.payload.len = round * 20;
        expect(interop_Semantics_Unary_call(client, &ask, NULL, &answer, &message, status), TOLLGATE_OK, "Unary", status);
        must(interop_Answer_get_number(answer) == round + 1, "the answer is another call's");
        must(interop_Answer_get_payload(answer).len == round * 20, "the payload is another call's");
        tollgate_message_free(message);

        expect(interop_Semantics_Collect_open(client, NULL, &call, status), TOLLGATE_OK, "Collect", status);
        for (i = 0; i < STREAM; i++) {
            expect(interop_Semantics_Collect_send(call, &ask, 0, status), TOLLGATE_OK, "Collect", status);
        }
        tollgate_call_half_close(call, status);
        expect(interop_Semantics_Collect_receive(call, 0, &answer, &message, status), TOLLGATE_OK, "Collect", status);
        must(interop_Answer_get_number(answer) == round * STREAM, "requests are missing");
        tollgate_message_free(message);
        tollgate_call_free(call);

        expect(interop_Semantics_Spread_open(client, &ask, NULL, &call, status), TOLLGATE_OK, "Spread", status);
        for (i = 0; i < STREAM; i++) {
            expect(interop_Semantics_Spread_receive(call, 0, &answer, &message, status), TOLLGATE_OK, "Spread", status);
            must(interop_Answer_get_number(answer) == i, "responses are out of order");
            tollgate_message_free(message);
            if (round % 3 == 0 && i == 5) {
                break;
            }
        }
        if (round % 3 != 0) {
            expect(tollgate_call_receive(call, 0, &message, status), TOLLGATE_END, "Spread", status);
        }
        tollgate_call_free(call);

        expect(interop_Semantics_Chat_open(client, NULL, &call, status), TOLLGATE_OK, "Chat", status);
        for (i = 0; i < 5; i++) {
            ask.number = i;
            expect(interop_Semantics_Chat_send(call, &ask, 0, status), TOLLGATE_OK, "Chat", status);
            expect(interop_Semantics_Chat_receive(call, 0, &answer, &message, status), TOLLGATE_OK, "Chat", status);
            must(interop_Answer_get_number(answer) == i, "the conversation is out of step");
            tollgate_message_free(message);
        }
        tollgate_call_half_close(call, status);
        expect(tollgate_call_receive(call, 0, &message, status), TOLLGATE_END, "Chat", status);
        tollgate_call_free(call);
    }
    tollgate_status_free(status);
    return NULL;
}

/* A stream that an event loop sends and receives at once; or sends only, until the one response. */
typedef struct flow {
    bool collects;
    tollgate_client *client;
    tollgate_call *call;
    uint64_t sent;
    uint64_t received;
    bool ended;
} flow;

enum { MESSAGES = 2000 };

static void go_on(tollgate_call *call, void *user)
{
    flow *it = (flow *)user;
    interop_Ask_value ask = {0};
    interop_Answer_view answer;
    tollgate_message *message;
    tollgate_code code = TOLLGATE_OK;
    while (it->sent < MESSAGES && code == TOLLGATE_OK) {
        ask.number = it->sent;
        code = interop_Semantics_Collect_send(call, &ask, TOLLGATE_NONBLOCK, NULL);
        it->sent += code == TOLLGATE_OK;
        if (it->sent == MESSAGES) {
            must(tollgate_call_half_close(call, NULL) == TOLLGATE_OK, "half-close");
        }
    }
    while ((code = interop_Semantics_Chat_receive(call, TOLLGATE_NONBLOCK, &answer, &message, NULL)) == TOLLGATE_OK) {
        if (it->collects) {
            must(interop_Answer_get_number(answer) == (uint64_t)MESSAGES * (MESSAGES - 1) / 2, "the flow's sum is wrong");
            it->received = MESSAGES - 1;
        } else {
            must(interop_Answer_get_number(answer) == it->received, "the flow is out of order");
        }
        it->received += 1;
        tollgate_message_free(message);
    }
    must(code == TOLLGATE_WOULD_BLOCK || code == TOLLGATE_END, "the flow broke");
    it->ended = code == TOLLGATE_END;
}

static void flow_in_an_event_loop(tollgate_session *session, tollgate_status *status)
{
    flow flows[3];
    tollgate_call_options options = tollgate_call_options_of();
    struct pollfd fd;
    int i, open = 3;
    memset(flows, 0, sizeof flows);
    options.flags = TOLLGATE_NONBLOCK;
    fd.fd = tollgate_session_fd(session, status);
    fd.events = POLLIN;
    for (i = 0; i < 3; i++) {
        expect(interop_Semantics_client(session, "", &flows[i].client, status), TOLLGATE_OK, "can't bind", status);
        flows[i].collects = i == 0;
        if (flows[i].collects) {
            expect(interop_Semantics_Collect_open(flows[i].client, &options, &flows[i].call, status), TOLLGATE_OK, "Collect", status);
        } else {
            expect(interop_Semantics_Chat_open(flows[i].client, &options, &flows[i].call, status), TOLLGATE_OK, "Chat", status);
        }
        expect(tollgate_call_on_ready(flows[i].call, go_on, &flows[i], status), TOLLGATE_OK, "ready", status);
        go_on(flows[i].call, &flows[i]);
    }
    while (open > 0) {
        must(poll(&fd, 1, 20000) == 1, "the flows are stuck");
        expect(tollgate_session_drive(session, 0, status), TOLLGATE_OK, "driving", status);
        for (open = 0, i = 0; i < 3; i++) {
            open += !flows[i].ended;
        }
    }
    for (i = 0; i < 3; i++) {
        must(flows[i].received == MESSAGES, "messages are missing");
        tollgate_call_free(flows[i].call);
        tollgate_client_free(flows[i].client);
    }
}

int main(int argc, char **argv)
{
    const interop_Semantics_handlers handlers = {unary, collect, spread, chat, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *server = open_session(argc, argv, status), *session = open_session(argc, argv, status);
    tollgate_session *looped = open_session(argc, argv, status);
    tollgate_client *client;
    pthread_t servers[SERVERS], callers[CALLERS];
    int i;
    expect(interop_Semantics_serve(server, &handlers, status), TOLLGATE_OK, "can't serve", status);
    for (i = 0; i < SERVERS; i++) {
        servers[i] = serve_in_a_thread(server);
    }
    expect(interop_Semantics_client(session, "", &client, status), TOLLGATE_OK, "can't bind", status);
    for (i = 0; i < CALLERS; i++) {
        must(pthread_create(&callers[i], NULL, call_all, client) == 0, "no thread");
    }
    for (i = 0; i < CALLERS; i++) {
        pthread_join(callers[i], NULL);
    }
    flow_in_an_event_loop(looped, status);
    tollgate_client_free(client);
    close_session(session, status);
    close_session(looped, status);
    tollgate_session_stop(server);
    for (i = 0; i < SERVERS; i++) {
        pthread_join(servers[i], NULL);
    }
    close_session(server, status);
    tollgate_status_free(status);
    puts("stress: nothing got lost");
    return 0;
}
