/* What a careless program does: NULL, structs of nonsensical size, too early, too late, twice; and what it doesn't give back.
 *
 *   hostile SOCKET TOKEN
 */
#include <dirent.h>
#include <poll.h>

#include "../examples/example.h"
#include "hotel.tollgate_service.h"
#include "interop.tollgate_service.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (last status: %s)\n", __FILE__, __LINE__, #condition, \
                    tollgate_status_message(status).data); \
            exit(1); \
        } \
    } while (0)

static tollgate_status *status;

/* So many threads has this process. */
static int threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    int count = 0;
    CHECK(tasks != NULL);
    while ((entry = readdir(tasks)) != NULL) {
        count += entry->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

/* Every function with NULL for everything. */
static void null_is_refused(void)
{
    tollgate_str key;
    tollgate_bytes value;
    CHECK(tollgate_session_open(NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_session_close(NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_session_fd(NULL, status) == -1);
    CHECK(tollgate_session_drive(NULL, 0, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_session_add_service(NULL, NULL, NULL, 0, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_session_serve(NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_session_drain(NULL, 0, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_session_id(NULL) == 0 && tollgate_session_max_message_bytes(NULL) == 0);
    CHECK(strcmp(tollgate_session_tenant(NULL), "") == 0);
    CHECK(tollgate_buffer_new(NULL, 1, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_buffer_data(NULL) == NULL);
    CHECK(tollgate_buffer_freeze(NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_client_new(NULL, NULL, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_unary(NULL, 0, NULL, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_unary_start(NULL, 0, NULL, NULL, NULL, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_open(NULL, 0, NULL, false, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_send(NULL, NULL, 0, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_send_metadata(NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_half_close(NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_receive(NULL, 0, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_metadata(NULL, 0, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_trailers(NULL) == NULL);
    CHECK(tollgate_call_cancel(NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_is_cancelled(NULL));
    CHECK(tollgate_call_on_ready(NULL, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_method(NULL) == -1 && tollgate_call_time_left_ms(NULL) == -1);
    CHECK(tollgate_call_keep(NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_reply(NULL, NULL, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_finish(NULL, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_message_block(NULL).len == 0 && tollgate_message_metadata(NULL) == NULL);
    CHECK(tollgate_message_trailers(NULL) == NULL);
    CHECK(tollgate_metadata_count(NULL) == 0 && !tollgate_metadata_find(NULL, NULL, NULL));
    CHECK(tollgate_metadata_add(NULL, "key", NULL, 0, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_metadata_get(NULL, 0, &key, &value) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_status_code(NULL) == TOLLGATE_OK && tollgate_status_message(NULL).len == 0);
    CHECK(tollgate_status_details(NULL).len == 0 && tollgate_status_retry_after_ms(NULL) == -1);
    CHECK(tollgate_status_trailers(NULL) == NULL);
    CHECK(tollgate_status_set(NULL, 1, NULL) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_status_set_details(NULL, NULL, 0) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_status_set_retry_after_ms(NULL, 1) == TOLLGATE_INVALID_ARGUMENT);
    tollgate_session_stop(NULL);
    tollgate_session_free(NULL);
    tollgate_client_free(NULL);
    tollgate_call_free(NULL);
    tollgate_message_free(NULL);
    tollgate_buffer_free(NULL);
    tollgate_metadata_clear(NULL);
    tollgate_metadata_free(NULL);
    tollgate_status_free(NULL);
}

/* Structs as older, newer and mistaken headers would have them. */
static void sizes_are_checked(const char *socket, const char *token)
{
    struct {
        tollgate_session_options known;
        uint64_t added;
    } newer;
    tollgate_session_options options = tollgate_session_options_of(socket, token);
    tollgate_session *session = (tollgate_session *)&options;
    const size_t nonsense[] = {0, 1, offsetof(tollgate_session_options, token), 4097, SIZE_MAX};
    size_t i;
    for (i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        options.struct_size = nonsense[i];
        CHECK(tollgate_session_open(&options, &session, status) == TOLLGATE_INVALID_ARGUMENT && session == NULL);
        CHECK(strstr(tollgate_status_message(status).data, "options.struct_size") != NULL);
    }
    options.struct_size = offsetof(tollgate_session_options, app);
    options.app = (const char *)1;
    options.spin_us = INT64_MIN;
    CHECK(tollgate_session_open(&options, &session, status) == TOLLGATE_OK);
    tollgate_session_free(session);
    newer.known = tollgate_session_options_of(socket, token);
    newer.known.struct_size = sizeof newer;
    newer.added = 0;
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_OK);
    tollgate_session_free(session);
    newer.added = 1;
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_INVALID_ARGUMENT);
    newer.added = 0;
    newer.known.spin_us = -2;
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_INVALID_ARGUMENT);
    newer.known = tollgate_session_options_of(socket, token);
    newer.known.reconnect = -2;
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(strstr(tollgate_status_message(status).data, "options.reconnect") != NULL);
    newer.known = tollgate_session_options_of(NULL, token);
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_INVALID_ARGUMENT);
    newer.known = tollgate_session_options_of("/nowhere.sock", token);
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_UNAVAILABLE);
    newer.known = tollgate_session_options_of(socket, "guessed");
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_UNAUTHENTICATED);
    newer.known = tollgate_session_options_of("\xff", token);
    CHECK(tollgate_session_open(&newer.known, &session, status) == TOLLGATE_INVALID_ARGUMENT);
}

static tollgate_call *kept;

static void keep(tollgate_call *call, hotel_EchoMessage_view request, void *user)
{
    hotel_EchoMessage_value reply = {0};
    (void)user;
    reply.payload = hotel_EchoMessage_get_payload(request);
    /* Not the handler's yet: nothing happens. */
    tollgate_call_free(call);
    CHECK(tollgate_call_method(call) == hotel_Echo_Echo);
    CHECK(tollgate_call_cancel(call, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_call_half_close(call, status) == TOLLGATE_FAILED_PRECONDITION);
    if (kept == NULL) {
        CHECK(tollgate_call_keep(call, status) == TOLLGATE_OK);
        CHECK(tollgate_call_keep(call, status) == TOLLGATE_FAILED_PRECONDITION);
        kept = call;
        return;
    }
    CHECK(hotel_Echo_Echo_reply(call, &reply, NULL, NULL, status) == TOLLGATE_OK);
    CHECK(hotel_Echo_Echo_reply(call, &reply, NULL, NULL, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_call_finish(call, NULL, NULL, status) == TOLLGATE_FAILED_PRECONDITION);
}

typedef struct outcome {
    int times;
    tollgate_code code;
    size_t len;
} outcome;

static void done(void *user, tollgate_code code, tollgate_message *reply, const tollgate_status *how)
{
    outcome *to = (outcome *)user;
    CHECK(tollgate_status_code(how) == code);
    to->times += 1;
    to->code = code;
    to->len = hotel_EchoMessage_get_payload(hotel_EchoMessage_of(reply)).len;
    tollgate_message_free(reply);
}

/* As `done`, of a call whose reply doesn't matter. */
static void counted(void *user, tollgate_code code, tollgate_message *reply, const tollgate_status *how)
{
    outcome *to = (outcome *)user;
    (void)how;
    to->times += 1;
    to->code = code;
    tollgate_message_free(reply);
}

/* A call that is answered outside of its handler. */
static tollgate_call *postponed;

static void later(tollgate_call *call, interop_Ask_view ask, void *user)
{
    (void)ask;
    (void)user;
    CHECK(tollgate_call_keep(call, status) == TOLLGATE_OK);
    postponed = call;
}

static void drive_both(tollgate_session *a, tollgate_session *b)
{
    CHECK(tollgate_session_drive(a, 5, status) == TOLLGATE_OK);
    CHECK(tollgate_session_drive(b, 5, status) == TOLLGATE_OK);
}

static tollgate_error writes_nothing(tollgate_writer *writer, const void *value)
{
    (void)writer;
    (void)value;
    return TOLLGATE_OK;
}

static tollgate_error fails(tollgate_writer *writer, const void *value)
{
    (void)writer;
    return *(const tollgate_error *)value;
}

/* Another message each time it is asked. */
static tollgate_error changes(tollgate_writer *writer, const void *value)
{
    static int times;
    hotel_EchoMessage_value message = {0};
    (void)value;
    message.payload.data = (const uint8_t *)"change and change";
    message.payload.len = (size_t)(++times % 2 == 0 ? 1 : 17);
    return hotel_EchoMessage_write(writer, &message);
}

/* A handler's answer that comes later, completions, and the rules for messages. */
static void calls_keep_their_rules(tollgate_session *server, tollgate_session *session, const tollgate_client *client)
{
    hotel_EchoMessage_value request = {0};
    tollgate_source source = tollgate_source_of(hotel_EchoMessage_write_any, &request);
    tollgate_call_options options = tollgate_call_options_of();
    tollgate_error error = TOLLGATE_TOO_DEEP;
    tollgate_message *message;
    tollgate_call *call;
    outcome first = {0, 0, 0}, second = {0, 0, 0};
    request.payload.data = (const uint8_t *)"0123456789";
    request.payload.len = 10;
    CHECK(tollgate_unary_start(client, 0, &source, NULL, done, &first, &call, status) == TOLLGATE_OK && first.times == 0);
    while (kept == NULL) {
        drive_both(server, session);
    }
    CHECK(tollgate_unary_start(client, 0, &source, NULL, done, &second, NULL, status) == TOLLGATE_OK);
    while (second.times == 0) {
        drive_both(server, session);
    }
    CHECK(second.code == TOLLGATE_OK && second.len == 10 && first.times == 0);
    CHECK(tollgate_call_send(call, &source, 0, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_call_cancel(call, status) == TOLLGATE_OK && tollgate_call_is_cancelled(call));
    while (first.times == 0 || !tollgate_call_is_cancelled(kept)) {
        drive_both(server, session);
    }
    CHECK(first.code == TOLLGATE_CANCELLED && first.times == 1);
    CHECK(tollgate_call_receive(call, 0, &message, status) == TOLLGATE_CANCELLED && message == NULL);
    tollgate_call_free(call);
    tollgate_call_free(kept);

    CHECK(tollgate_unary(client, 1, &source, NULL, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_unary(client, 0, NULL, NULL, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_unary_start(client, 0, &source, NULL, NULL, NULL, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    options.flags = TOLLGATE_NONBLOCK;
    CHECK(tollgate_unary(client, 0, &source, &options, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    options = tollgate_call_options_of();
    options.struct_size = 3;
    CHECK(tollgate_unary(client, 0, &source, &options, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    source = tollgate_source_of(writes_nothing, &request);
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    source = tollgate_source_of(fails, &error);
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    error = TOLLGATE_TOO_LARGE;
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) == TOLLGATE_RESOURCE_EXHAUSTED);
    error = (tollgate_error)77;
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    source = tollgate_source_of(NULL, NULL);
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) == TOLLGATE_INVALID_ARGUMENT);
}

/* A value that isn't the same when it is written isn't a message: its caller learns, and the daemon may end the session. */
static void values_that_change_are_noticed(int argc, char **argv)
{
    tollgate_session_options options = tollgate_session_options_of(argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL);
    tollgate_source source = tollgate_source_of(changes, NULL);
    tollgate_session *session;
    tollgate_client *client;
    tollgate_message *message;
    /* What the library does about a session that is ended takes a thread, and these are counted. */
    options.reconnect = -1;
    CHECK(tollgate_session_open(&options, &session, status) == TOLLGATE_OK);
    CHECK(hotel_Echo_client(session, NULL, &client, status) == TOLLGATE_OK);
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) != TOLLGATE_OK && message == NULL);
    tollgate_client_free(client);
    tollgate_session_free(session);
}

/* Streams that nobody serves fast enough: what may not block says so, and takes a copy of one message. */
static void sends_that_may_not_block(tollgate_session *session)
{
    interop_Ask_value ask = {0};
    uint8_t *payload = (uint8_t *)malloc(100000);
    tollgate_source source = tollgate_source_of(interop_Ask_write_any, &ask);
    tollgate_client *client;
    tollgate_call *call;
    tollgate_message *message;
    tollgate_code code = TOLLGATE_OK;
    int sent = 0;
    CHECK(payload != NULL);
    memset(payload, 1, 100000);
    ask.payload.data = payload;
    ask.payload.len = 100000;
    CHECK(interop_Semantics_client(session, NULL, &client, status) == TOLLGATE_OK);
    CHECK(tollgate_unary(client, interop_Semantics_Chat, &source, NULL, &message, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(interop_Semantics_Chat_open(client, NULL, &call, status) == TOLLGATE_OK);
    CHECK(tollgate_call_send(call, &source, 2, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_call_receive(call, TOLLGATE_NONBLOCK, &message, status) == TOLLGATE_WOULD_BLOCK);
    CHECK(tollgate_call_reply(call, &source, NULL, NULL, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_call_finish(call, NULL, NULL, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_call_keep(call, status) == TOLLGATE_FAILED_PRECONDITION);
    while (sent < 10000 && (code = tollgate_call_send(call, &source, TOLLGATE_NONBLOCK, status)) == TOLLGATE_OK) {
        sent += 1;
    }
    CHECK(code == TOLLGATE_WOULD_BLOCK && sent > 1);
    /* What was taken has been copied. */
    memset(payload, 2, 100000);
    CHECK(tollgate_call_half_close(call, status) == TOLLGATE_OK);
    CHECK(tollgate_call_half_close(call, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_call_send(call, &source, TOLLGATE_NONBLOCK, status) == TOLLGATE_FAILED_PRECONDITION);
    tollgate_call_free(call);
    tollgate_client_free(client);
    free(payload);
}

static int rounds;

/* Always worth another try, it says. */
static void ready_again(tollgate_call *call, void *user)
{
    rounds += 1;
    CHECK(tollgate_call_on_ready(call, ready_again, user, status) == TOLLGATE_OK);
}

/* Callbacks that bring each other don't keep drive from returning, and aren't forgotten. */
static void an_event_loop_gets_a_word_in(tollgate_session *session, const tollgate_client *client)
{
    tollgate_call *call;
    struct pollfd fd;
    fd.fd = tollgate_session_fd(session, status);
    fd.events = POLLIN;
    CHECK(tollgate_call_open(client, 0, NULL, false, NULL, &call, status) == TOLLGATE_OK);
    CHECK(tollgate_call_on_ready(call, ready_again, NULL, status) == TOLLGATE_OK && rounds == 0);
    CHECK(tollgate_session_drive(session, 0, status) == TOLLGATE_OK && rounds == 17);
    CHECK(poll(&fd, 1, 0) == 1);
    CHECK(tollgate_session_drive(session, -1, status) == TOLLGATE_OK && rounds == 34);
    CHECK(tollgate_call_on_ready(call, NULL, NULL, status) == TOLLGATE_OK);
    while (poll(&fd, 1, 50) == 1) {
        CHECK(tollgate_session_drive(session, 0, status) == TOLLGATE_OK && rounds == 34);
    }
    tollgate_call_free(call);
}

/* Answers with how long its caller waits, in milliseconds. */
static void time_left(tollgate_call *call, hotel_EchoMessage_view request, void *user)
{
    int64_t left_ms = tollgate_call_time_left_ms(call);
    hotel_EchoMessage_value reply = {0};
    (void)request;
    (void)user;
    reply.payload.data = (const uint8_t *)&left_ms;
    reply.payload.len = sizeof left_ms;
    CHECK(hotel_Echo_Echo_reply(call, &reply, NULL, NULL, NULL) == TOLLGATE_OK);
}

/* Answers with what a call of its own was answered, of a client of hotel.Echo. */
static void ask_further(tollgate_call *call, interop_Ask_view ask, void *client)
{
    tollgate_call_options options = tollgate_call_options_of();
    hotel_EchoMessage_value request = {0};
    hotel_EchoMessage_view view;
    interop_Answer_value answer = {0};
    tollgate_message *message;
    (void)ask;
    options.timeout_ms = 1000 * 1000;
    CHECK(hotel_Echo_Echo_call((const tollgate_client *)client, &request, &options, &view, &message, NULL) == TOLLGATE_OK);
    answer.payload = hotel_EchoMessage_get_payload(view);
    CHECK(interop_Semantics_Unary_reply(call, &answer, NULL, NULL, NULL) == TOLLGATE_OK);
    tollgate_message_free(message);
}

/* The calls that a handler makes have its deadline, if their own is later. */
static void deadlines_pass_to_nested_calls(int argc, char **argv)
{
    const hotel_Echo_handlers last = {time_left, NULL};
    interop_Semantics_handlers first = {ask_further, NULL, NULL, NULL, NULL};
    const uint64_t timeouts_ms[] = {20 * 1000, 200 * 1000, 0};
    tollgate_session *behind = open_session(argc, argv, status), *front = open_session(argc, argv, status);
    tollgate_session *session = open_session(argc, argv, status);
    tollgate_client *further, *client;
    pthread_t threads[2];
    size_t i;
    CHECK(hotel_Echo_serve(behind, &last, status) == TOLLGATE_OK);
    CHECK(hotel_Echo_client(front, NULL, &further, status) == TOLLGATE_OK);
    first.user_ = further;
    CHECK(interop_Semantics_serve(front, &first, status) == TOLLGATE_OK);
    threads[0] = serve_in_a_thread(behind);
    threads[1] = serve_in_a_thread(front);
    CHECK(interop_Semantics_client(session, NULL, &client, status) == TOLLGATE_OK);
    for (i = 0; i < sizeof timeouts_ms / sizeof *timeouts_ms; i++) {
        tollgate_call_options options = tollgate_call_options_of();
        int64_t left_ms = 0, most_ms = timeouts_ms[i] == 0 ? 1000 * 1000 : (int64_t)timeouts_ms[i];
        interop_Ask_value ask = {0};
        interop_Answer_view answer;
        tollgate_message *message;
        options.timeout_ms = timeouts_ms[i];
        CHECK(interop_Semantics_Unary_call(client, &ask, &options, &answer, &message, status) == TOLLGATE_OK);
        CHECK(interop_Answer_get_payload(answer).len == sizeof left_ms);
        memcpy(&left_ms, interop_Answer_get_payload(answer).data, sizeof left_ms);
        CHECK(left_ms > 0 && left_ms <= most_ms);
        /* Its own, if its handler's caller has none. */
        CHECK(timeouts_ms[i] > 0 || left_ms > 300 * 1000);
        tollgate_message_free(message);
    }
    tollgate_client_free(further);
    tollgate_client_free(client);
    stop_serving(threads[0], behind, status);
    stop_serving(threads[1], front, status);
    close_session(session, status);
}

/* A drain waits for what has come, and for nothing else: another call finds nobody. */
static void drains_wait_for_what_has_come(int argc, char **argv)
{
    const interop_Semantics_handlers handlers = {later, NULL, NULL, NULL, NULL};
    interop_Ask_value ask = {0};
    interop_Answer_value answer = {0};
    tollgate_source source = tollgate_source_of(interop_Ask_write_any, &ask);
    tollgate_session *server = open_session(argc, argv, status), *session = open_session(argc, argv, status);
    tollgate_client *client;
    tollgate_message *message;
    outcome first = {0, 0, 0};
    postponed = NULL;
    CHECK(interop_Semantics_serve(server, &handlers, status) == TOLLGATE_OK);
    CHECK(interop_Semantics_client(session, NULL, &client, status) == TOLLGATE_OK);
    CHECK(tollgate_session_drain(server, -2, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_unary_start(client, 0, &source, NULL, counted, &first, NULL, status) == TOLLGATE_OK);
    while (postponed == NULL) {
        drive_both(server, session);
    }
    CHECK(tollgate_session_drain(server, 0, status) == TOLLGATE_DEADLINE_EXCEEDED);
    CHECK(tollgate_session_drain(server, 50, status) == TOLLGATE_DEADLINE_EXCEEDED);
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) == TOLLGATE_UNAVAILABLE && message == NULL);
    CHECK(interop_Semantics_Unary_reply(postponed, &answer, NULL, NULL, status) == TOLLGATE_OK);
    tollgate_call_free(postponed);
    CHECK(tollgate_session_drain(server, -1, status) == TOLLGATE_OK);
    CHECK(tollgate_session_serve(server, status) == TOLLGATE_OK);
    close_session(server, status);
    while (first.times == 0) {
        CHECK(tollgate_session_drive(session, 5, status) == TOLLGATE_OK);
    }
    CHECK(first.code == TOLLGATE_OK);
    tollgate_client_free(client);
    close_session(session, status);
}

/* What isn't given back is counted, and can still be read and freed. */
static void leaks_are_told(tollgate_session *session, tollgate_client *client, tollgate_session *server)
{
    hotel_EchoMessage_value request = {0};
    tollgate_source source = tollgate_source_of(hotel_EchoMessage_write_any, &request);
    tollgate_leaks leaks;
    tollgate_message *message;
    tollgate_buffer *buffer;
    tollgate_bytes bytes;
    outcome started = {0, 0, 0};
    pthread_t thread = serve_in_a_thread(server);
    request.payload.data = (const uint8_t *)"held";
    request.payload.len = 4;
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) == TOLLGATE_OK);
    stop_serving(thread, server, status);
    CHECK(tollgate_buffer_new(session, (size_t)1 << 40, &buffer, status) == TOLLGATE_RESOURCE_EXHAUSTED && buffer == NULL);
    CHECK(tollgate_buffer_new(session, 5000, &buffer, status) == TOLLGATE_OK);
    memset(tollgate_buffer_data(buffer), 3, 5000);
    CHECK(tollgate_buffer_freeze(buffer, &bytes, status) == TOLLGATE_OK && bytes.len == 5000);
    CHECK(tollgate_buffer_freeze(buffer, &bytes, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_buffer_data(buffer) == NULL);
    CHECK(tollgate_unary_start(client, 0, &source, NULL, done, &started, NULL, status) == TOLLGATE_OK);
    memset(&leaks, 0, sizeof leaks);
    leaks.struct_size = sizeof leaks;
    CHECK(tollgate_session_close(session, &leaks, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(started.times == 1 && started.code != TOLLGATE_OK);
    CHECK(leaks.messages == 1 && leaks.message_bytes > 0 && leaks.buffers == 1 && leaks.buffer_bytes == 5000 && leaks.calls == 0);
    CHECK(strstr(tollgate_status_message(status).data, "1 messages of") != NULL);
    CHECK(tollgate_session_close(session, &leaks, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_is(tollgate_status_message(status), "the session is closed already"));
    CHECK(tollgate_session_drive(session, 0, status) == TOLLGATE_CANCELLED);
    bytes = hotel_EchoMessage_get_payload(hotel_EchoMessage_of(message));
    CHECK(bytes.len == 4 && memcmp(bytes.data, "held", 4) == 0);
    tollgate_message_free(message);
    CHECK(tollgate_unary(client, 0, &source, NULL, &message, status) != TOLLGATE_OK && message == NULL);
    tollgate_buffer_free(buffer);
}

static void statuses_and_metadata_keep_their_limits(void)
{
    tollgate_metadata *metadata = tollgate_metadata_new();
    static uint8_t large[10000];
    tollgate_str key;
    tollgate_bytes value;
    int i;
    CHECK(tollgate_metadata_add(metadata, "Upper", NULL, 0, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_metadata_add(metadata, "key", (const uint8_t *)"\n", 1, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_metadata_add(metadata, "key", NULL, 1, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_metadata_add(metadata, "key-bin", large, sizeof large, status) == TOLLGATE_INVALID_ARGUMENT);
    for (i = 0; i < 64; i++) {
        CHECK(tollgate_metadata_add(metadata, "key-bin", large, 1, status) == TOLLGATE_OK);
    }
    CHECK(tollgate_metadata_add(metadata, "key-bin", large, 1, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_metadata_count(metadata) == 64);
    CHECK(tollgate_metadata_get(metadata, 64, &key, &value) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_metadata_get(metadata, 63, &key, &value) == TOLLGATE_OK && value.len == 1);
    CHECK(!tollgate_metadata_find(metadata, "other", &value));
    tollgate_metadata_clear(metadata);
    CHECK(tollgate_metadata_count(metadata) == 0);
    tollgate_metadata_free(metadata);
    CHECK(tollgate_status_set(status, TOLLGATE_END, "none") == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_status_set(status, 5, NULL) == TOLLGATE_OK && tollgate_status_code(status) == TOLLGATE_NOT_FOUND);
    CHECK(tollgate_status_set_details(status, large, sizeof large) != TOLLGATE_OK);
    CHECK(strcmp(tollgate_code_name(TOLLGATE_END), "END") == 0 && strcmp(tollgate_code_name(-7), "(a code without a name)") == 0);
    CHECK(tollgate_version() == (TOLLGATE_VERSION_MAJOR << 16 | TOLLGATE_VERSION_MINOR << 8 | TOLLGATE_VERSION_PATCH));
    CHECK(tollgate_abi_version == TOLLGATE_ABI_VERSION);
    CHECK(strcmp(tollgate_version_text(), "0.2.0") == 0);
}

int main(int argc, char **argv)
{
    const hotel_Echo_handlers handlers = {keep, NULL};
    /* Nobody handles what is sent. */
    const interop_Semantics_handlers idle = {NULL, NULL, NULL, NULL, NULL};
    tollgate_session *server, *session;
    tollgate_client *client;
    status = tollgate_status_new();
    deadlines_pass_to_nested_calls(argc, argv);
    drains_wait_for_what_has_come(argc, argv);
    server = open_session(argc, argv, status);
    session = open_session(argc, argv, status);
    null_is_refused();
    sizes_are_checked(argv[1], argv[2]);
    statuses_and_metadata_keep_their_limits();
    CHECK(tollgate_session_serve(session, status) == TOLLGATE_FAILED_PRECONDITION);
    CHECK(tollgate_session_drive(session, -2, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(tollgate_session_add_service(server, &hotel_Echo, NULL, 1, NULL, status) == TOLLGATE_INVALID_ARGUMENT);
    CHECK(hotel_Echo_serve(server, &handlers, status) == TOLLGATE_OK);
    CHECK(interop_Semantics_serve(server, &idle, status) == TOLLGATE_OK);
    CHECK(hotel_Echo_client(session, "nowhere", &client, status) != TOLLGATE_OK && client == NULL);
    CHECK(hotel_Echo_client(session, NULL, &client, status) == TOLLGATE_OK);
    calls_keep_their_rules(server, session, client);
    sends_that_may_not_block(session);
    an_event_loop_gets_a_word_in(session, client);
    values_that_change_are_noticed(argc, argv);
    CHECK(threads() == 1);
    leaks_are_told(session, client, server);
    tollgate_client_free(client);
    tollgate_session_free(session);
    tollgate_status_free(status);
    puts("hostile: all checks passed");
    return 0;
}
