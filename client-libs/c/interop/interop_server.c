/* Serves interop.Semantics and everything.Everything: follows the instructions in requests. Handlers wait, so several threads serve.
 *
 *   interop_server SOCKET TOKEN
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>

#include "interop.h"

enum { THREADS = 16 };

/* Ends a handler that can't continue: freed without an answer, the call is answered INTERNAL. */
typedef struct answer {
    interop_Answer_value value;
    uint8_t *payload;
} answer;

static void pause_for(interop_Ask_view ask)
{
    uint32_t ms = interop_Ask_get_delay_ms(ask);
    struct timespec left;
    left.tv_sec = ms / 1000;
    left.tv_nsec = (long)(ms % 1000) * 1000000;
    if (ms > 0) {
        nanosleep(&left, NULL);
    }
}

static answer answer_number(interop_Ask_view ask, uint32_t k)
{
    answer made;
    size_t len = interop_Ask_get_response_bytes(ask);
    memset(&made, 0, sizeof made);
    made.value.number = interop_Ask_get_number(ask) + k;
    made.payload = (uint8_t *)must(malloc(len + 1));
    memset(made.payload, (int)(made.value.number & 255), len);
    made.value.payload.data = made.payload;
    made.value.payload.len = len;
    return made;
}

/* The pairs with these keys, of which there are `count`. */
static tollgate_metadata *picked(interop_Ask_view ask, bool trailers, const tollgate_metadata *from)
{
    tollgate_metadata *to = tollgate_metadata_new();
    size_t count = trailers ? interop_Ask_count_echo_as_trailers(ask) : interop_Ask_count_echo(ask);
    size_t i, j;
    for (i = 0; i < count; i++) {
        tollgate_str key = trailers ? interop_Ask_get_echo_as_trailers(ask, i) : interop_Ask_get_echo(ask, i);
        for (j = 0; j < tollgate_metadata_count(from); j++) {
            tollgate_str name;
            tollgate_bytes value;
            tollgate_metadata_get(from, j, &name, &value);
            if (name.len == key.len && memcmp(name.data, key.data, key.len) == 0) {
                char *text = (char *)must(malloc(name.len + 1));
                memcpy(text, name.data, name.len);
                text[name.len] = 0;
                tollgate_metadata_add(to, text, value.data, value.len, NULL);
                free(text);
            }
        }
    }
    return to;
}

/* Ends the call with the request's status, if it has one. */
static bool failed(tollgate_call *call, interop_Ask_view ask, const tollgate_metadata *from)
{
    int32_t code = interop_Ask_get_code(ask);
    tollgate_str message = interop_Ask_get_message(ask);
    tollgate_bytes details = interop_Ask_get_details(ask);
    tollgate_metadata *trailers;
    tollgate_status *status;
    char *text;
    if (code == 0) {
        return false;
    }
    text = (char *)must(malloc(message.len + 1));
    memcpy(text, message.data, message.len);
    text[message.len] = 0;
    trailers = picked(ask, true, from);
    status = tollgate_status_new();
    tollgate_status_set(status, code, text);
    if (details.len > 0) {
        tollgate_status_set_details(status, details.data, details.len);
    }
    tollgate_call_finish(call, status, trailers, NULL);
    tollgate_status_free(status);
    tollgate_metadata_free(trailers);
    free(text);
    return true;
}

static const tollgate_metadata *metadata_of(tollgate_call *call)
{
    const tollgate_metadata *metadata;
    tollgate_call_metadata(call, TOLLGATE_NONBLOCK, &metadata, NULL);
    return metadata;
}

static void reply(tollgate_call *call, const interop_Answer_value *value, interop_Ask_view ask, const tollgate_metadata *from)
{
    tollgate_metadata *metadata = picked(ask, false, from);
    tollgate_metadata *trailers = picked(ask, true, from);
    interop_Semantics_Unary_reply(call, value, metadata, trailers, NULL);
    tollgate_metadata_free(metadata);
    tollgate_metadata_free(trailers);
}

static void unary(tollgate_call *call, interop_Ask_view ask, void *user)
{
    const tollgate_metadata *from = metadata_of(call);
    (void)user;
    pause_for(ask);
    if (!failed(call, ask, from)) {
        answer one = answer_number(ask, 0);
        static const interop_Answer_value none;
        reply(call, interop_Ask_get_responses(ask) > 0 ? &one.value : &none, ask, from);
        free(one.payload);
    }
}

static void collect(tollgate_call *call, void *user)
{
    const tollgate_metadata *from = metadata_of(call);
    interop_Answer_value sum;
    growing payload = {NULL, 0, 0};
    tollgate_message *message, *last = NULL;
    interop_Ask_view ask, last_ask = interop_Ask_read(NULL, 0);
    tollgate_code code;
    (void)user;
    memset(&sum, 0, sizeof sum);
    while ((code = interop_Semantics_Collect_next(call, 0, &ask, &message, NULL)) == TOLLGATE_OK) {
        tollgate_bytes bytes = interop_Ask_get_payload(ask);
        tollgate_message_free(last);
        last = message;
        last_ask = ask;
        pause_for(ask);
        if (failed(call, ask, from)) {
            break;
        }
        sum.number += interop_Ask_get_number(ask);
        append(&payload, bytes.data, bytes.len);
    }
    if (code == TOLLGATE_END) {
        sum.payload.data = (const uint8_t *)payload.data;
        sum.payload.len = payload.len;
        reply(call, &sum, last_ask, from);
    }
    tollgate_message_free(last);
    free(payload.data);
}

/* Sends a request's answers; false at the end: the caller is gone, or an answer can't be sent. */
static bool respond(tollgate_call *call, interop_Ask_view ask)
{
    tollgate_status *status = tollgate_status_new();
    tollgate_code code = TOLLGATE_OK;
    uint32_t k;
    for (k = 0; k < interop_Ask_get_responses(ask) && code == TOLLGATE_OK; k++) {
        answer one = answer_number(ask, k);
        code = interop_Semantics_Spread_respond(call, &one.value, 0, status);
        free(one.payload);
    }
    if (code != TOLLGATE_OK) {
        tollgate_call_finish(call, status, NULL, NULL);
    }
    tollgate_status_free(status);
    return code == TOLLGATE_OK;
}

static void spread(tollgate_call *call, interop_Ask_view ask, void *user)
{
    const tollgate_metadata *from = metadata_of(call);
    tollgate_metadata *metadata = picked(ask, false, from);
    tollgate_metadata *trailers = picked(ask, true, from);
    (void)user;
    pause_for(ask);
    if (tollgate_call_send_metadata(call, metadata, NULL) == TOLLGATE_OK && respond(call, ask) && !failed(call, ask, from)) {
        tollgate_call_finish(call, NULL, trailers, NULL);
    }
    tollgate_metadata_free(metadata);
    tollgate_metadata_free(trailers);
}

/* No request has named the keys to echo yet: everything is echoed. */
static void chat(tollgate_call *call, void *user)
{
    const tollgate_metadata *from = metadata_of(call);
    tollgate_message *message;
    interop_Ask_view ask;
    tollgate_code code;
    bool goes_on = tollgate_call_send_metadata(call, from, NULL) == TOLLGATE_OK;
    (void)user;
    while (goes_on && (code = interop_Semantics_Chat_next(call, 0, &ask, &message, NULL)) != TOLLGATE_CANCELLED) {
        if (code != TOLLGATE_OK) {
            if (code == TOLLGATE_END) {
                tollgate_call_finish(call, NULL, from, NULL);
            }
            return;
        }
        pause_for(ask);
        goes_on = respond(call, ask) && !failed(call, ask, from);
        tollgate_message_free(message);
    }
}

/* The message as it came: a block in canonical form, as the daemon delivers it. */
static void swap(tollgate_call *call, everything_All_view all, void *user)
{
    tollgate_source same = {NULL, NULL, 0};
    (void)user;
    same.value = all.v.block;
    same.len = all.v.len;
    tollgate_call_reply(call, &same, NULL, NULL, NULL);
}

static void *serve(void *session)
{
    tollgate_status *status = tollgate_status_new();
    tollgate_session_serve((tollgate_session *)session, status);
    fprintf(stderr, "interop: %s\n", tollgate_status_message(status).data);
    tollgate_status_free(status);
    return NULL;
}

int main(int argc, char **argv)
{
    const interop_Semantics_handlers handlers = {unary, collect, spread, chat, NULL};
    const everything_Everything_handlers swapping = {swap, NULL, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session;
    pthread_t threads[THREADS];
    int i;
    if (argc != 3) {
        fputs("usage: interop_server SOCKET TOKEN\n", stderr);
        return 2;
    }
    session = open_session(argv[1], argv[2], status);
    if (interop_Semantics_serve(session, &handlers, status) != TOLLGATE_OK ||
        everything_Everything_serve(session, &swapping, status) != TOLLGATE_OK) {
        die("can't serve", status);
    }
    puts("serving");
    fflush(stdout);
    for (i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, serve, session) != 0) {
            perror("interop: pthread_create");
            return 2;
        }
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    tollgate_session_free(session);
    tollgate_status_free(status);
    return 1;
}
