// Handlers, completions and readiness that throw: each ends alone, and everything goes on. Arguments: socket, token.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "interop.tollgate_service.h"

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            std::printf("line %d: %s does not hold\n", __LINE__, #condition);     \
            std::exit(1);                                                         \
        }                                                                         \
    } while (0)

static int completed;

// Number 1 throws an exception, 2 something else, 3 after its answer; all others are answered.
static void unary(tollgate_call *call, interop_Ask_view ask, void *)
{
    const auto number = interop_Ask_get_number(ask);
    // Unwound, whatever happens.
    const std::string text(100, 'x');
    if (number == 1) {
        throw std::runtime_error("no rooms left");
    }
    if (number == 2) {
        throw 7;
    }
    interop_Answer_value answer = {};
    answer.number = number;
    interop_Semantics_Unary_reply(call, &answer, nullptr, nullptr, nullptr);
    if (number == 3) {
        throw std::logic_error(std::string(10000, 'y'));
    }
}

static void chat(tollgate_call *, void *)
{
    throw std::runtime_error("no chat");
}

static void done(void *user, tollgate_code code, tollgate_message *reply, const tollgate_status *status)
{
    tollgate_message_free(reply);
    tollgate_str text = tollgate_status_message(status);
    completed++;
    *static_cast<std::string *>(user) = std::to_string(code) + " " + std::string(text.data, text.len);
    throw std::runtime_error("in a completion");
}

static void ready(tollgate_call *, void *)
{
    throw std::runtime_error("in a readiness function");
}

static std::string ask(tollgate_session *session, tollgate_client *client, uint64_t number)
{
    std::string outcome;
    interop_Ask_value request = {};
    request.number = number;
    const int before = completed;
    CHECK(interop_Semantics_Unary_start(client, &request, nullptr, done, &outcome, nullptr, nullptr) == TOLLGATE_OK);
    while (completed == before) {
        CHECK(tollgate_session_drive(session, 10000, nullptr) == TOLLGATE_OK);
    }
    return outcome;
}

int main(int, char **argv)
{
    tollgate_session_options options = tollgate_session_options_of(argv[1], argv[2]);
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session;
    tollgate_client *client;
    tollgate_call *call;
    interop_Semantics_handlers handlers = {};
    CHECK(tollgate_session_open(&options, &session, status) == TOLLGATE_OK);
    handlers.Unary = unary;
    handlers.Chat = chat;
    CHECK(interop_Semantics_serve(session, &handlers, status) == TOLLGATE_OK);
    CHECK(interop_Semantics_client(session, "", &client, status) == TOLLGATE_OK);
    for (int round = 0; round < 3; round++) {
        CHECK(ask(session, client, 1) == "2 the handler threw an exception: no rooms left");
        CHECK(ask(session, client, 2) == "2 the handler threw an exception: it isn't a std::exception");
        CHECK(ask(session, client, 3) == "0 ");
        CHECK(ask(session, client, 4) == "0 ");
        CHECK(interop_Semantics_Chat_open(client, nullptr, &call, status) == TOLLGATE_OK);
        CHECK(tollgate_call_on_ready(call, ready, nullptr, status) == TOLLGATE_OK);
        tollgate_message *message;
        interop_Answer_view answer;
        tollgate_code code;
        while ((code = interop_Semantics_Chat_receive(call, TOLLGATE_NONBLOCK, &answer, &message, status)) == TOLLGATE_WOULD_BLOCK) {
            CHECK(tollgate_session_drive(session, 10000, nullptr) == TOLLGATE_OK);
        }
        CHECK(code == TOLLGATE_UNKNOWN);
        CHECK(std::strcmp(tollgate_status_message(status).data, "the handler threw an exception: no chat") == 0);
        tollgate_call_free(call);
    }
    tollgate_client_free(client);
    CHECK(tollgate_session_close(session, nullptr, status) == TOLLGATE_OK);
    tollgate_session_free(session);
    tollgate_status_free(status);
    std::printf("completed %d\n", completed);
    return 0;
}
