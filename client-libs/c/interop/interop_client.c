/* Makes the requested calls of interop.Semantics and everything.Everything, and reports the results: one JSON object per line, in and out.
 *
 *   interop_client SOCKET TOKEN TARGET
 *
 * The reader takes the JSON that the tests write: objects, arrays, strings with escapes, whole numbers, true, false and null.
 */
#include <ctype.h>

#include "interop.h"

/* --- JSON -------------------------------------------------------------------------------------------------------- */

typedef enum kind { NOTHING, NUMBER, TEXT, ARRAY, OBJECT } kind;

typedef struct json {
    kind kind;
    long long number;
    growing text;
    /* Elements, or members whose keys are their `key`. */
    struct json *items;
    size_t count;
    growing key;
} json;

static void bad(const char *what, const char *at)
{
    fprintf(stderr, "interop: not JSON as expected: %s at: %.40s\n", what, at);
    exit(2);
}

static void skip(const char **at)
{
    while (isspace((unsigned char)**at)) {
        *at += 1;
    }
}

static void expect(const char **at, char what)
{
    skip(at);
    if (**at != what) {
        bad("another character", *at);
    }
    *at += 1;
}

static unsigned hex4(const char *at)
{
    unsigned value = 0;
    int i;
    for (i = 0; i < 4; i++) {
        char c = at[i];
        if (!isxdigit((unsigned char)c)) {
            bad("an escape", at);
        }
        value = value * 16 + (unsigned)(isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10);
    }
    return value;
}

static void append_utf8(growing *to, unsigned point)
{
    char bytes[4];
    size_t len;
    if (point < 0x80) {
        bytes[0] = (char)point;
        len = 1;
    } else if (point < 0x800) {
        bytes[0] = (char)(0xc0 | point >> 6);
        bytes[1] = (char)(0x80 | (point & 0x3f));
        len = 2;
    } else if (point < 0x10000) {
        bytes[0] = (char)(0xe0 | point >> 12);
        bytes[1] = (char)(0x80 | (point >> 6 & 0x3f));
        bytes[2] = (char)(0x80 | (point & 0x3f));
        len = 3;
    } else {
        bytes[0] = (char)(0xf0 | point >> 18);
        bytes[1] = (char)(0x80 | (point >> 12 & 0x3f));
        bytes[2] = (char)(0x80 | (point >> 6 & 0x3f));
        bytes[3] = (char)(0x80 | (point & 0x3f));
        len = 4;
    }
    append(to, bytes, len);
}

static growing read_text(const char **at)
{
    growing text = {NULL, 0, 0};
    expect(at, '"');
    while (**at != '"') {
        const char *escapes = "\"\"\\\\//b\bf\fn\nr\rt\t";
        const char *found;
        if (**at == 0) {
            bad("an open string", *at);
        }
        if (**at != '\\') {
            append(&text, *at, 1);
            *at += 1;
            continue;
        }
        *at += 1;
        if (**at == 'u') {
            unsigned point = hex4(*at + 1);
            *at += 5;
            if (point >= 0xd800 && point < 0xdc00 && (*at)[0] == '\\' && (*at)[1] == 'u') {
                point = 0x10000 + ((point - 0xd800) << 10) + (hex4(*at + 2) - 0xdc00);
                *at += 6;
            }
            append_utf8(&text, point);
            continue;
        }
        for (found = escapes; *found != 0 && *found != **at; found += 2) {
        }
        if (*found == 0) {
            bad("an escape", *at);
        }
        append(&text, found + 1, 1);
        *at += 1;
    }
    *at += 1;
    append(&text, "", 1);
    text.len -= 1;
    return text;
}

static json read_json(const char **at)
{
    json value;
    memset(&value, 0, sizeof value);
    skip(at);
    if (**at == '{' || **at == '[') {
        char end = **at == '{' ? '}' : ']';
        value.kind = **at == '{' ? OBJECT : ARRAY;
        *at += 1;
        skip(at);
        while (**at != end) {
            growing key = {NULL, 0, 0};
            if (value.kind == OBJECT) {
                skip(at);
                key = read_text(at);
                expect(at, ':');
            }
            value.items = (json *)must(realloc(value.items, (value.count + 1) * sizeof(json)));
            value.items[value.count] = read_json(at);
            value.items[value.count].key = key;
            value.count += 1;
            skip(at);
            if (**at == ',') {
                *at += 1;
                skip(at);
            } else if (**at != end) {
                bad("no comma", *at);
            }
        }
        *at += 1;
    } else if (**at == '"') {
        value.kind = TEXT;
        value.text = read_text(at);
    } else if (**at == '-' || isdigit((unsigned char)**at)) {
        char *end;
        value.kind = NUMBER;
        value.number = (long long)(**at == '-' ? (unsigned long long)strtoll(*at, &end, 10) : strtoull(*at, &end, 10));
        *at = end;
    } else if (strncmp(*at, "true", 4) == 0) {
        value.kind = NUMBER;
        value.number = 1;
        *at += 4;
    } else if (strncmp(*at, "false", 5) == 0) {
        value.kind = NUMBER;
        *at += 5;
    } else if (strncmp(*at, "null", 4) == 0) {
        *at += 4;
    } else {
        bad("no value", *at);
    }
    return value;
}

static void free_json(json *value)
{
    size_t i;
    for (i = 0; i < value->count; i++) {
        free_json(&value->items[i]);
    }
    free(value->items);
    free(value->text.data);
    free(value->key.data);
}

static const json *member(const json *object, const char *key)
{
    static const json nothing;
    size_t i;
    for (i = 0; i < object->count; i++) {
        if (strcmp(object->items[i].key.data, key) == 0) {
            return &object->items[i];
        }
    }
    return &nothing;
}

static void write_text(growing *to, const char *text, size_t len)
{
    size_t i;
    append_text(to, "\"");
    for (i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        char escape[8];
        if (c == '"' || c == '\\' || c < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", c);
            append_text(to, escape);
        } else {
            append(to, &text[i], 1);
        }
    }
    append_text(to, "\"");
}

/* --- Base64 ------------------------------------------------------------------------------------------------------ */

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static growing decode(const growing *text)
{
    growing bytes = {NULL, 0, 0};
    unsigned long bits = 0;
    int count = 0;
    size_t i;
    for (i = 0; i < text->len && text->data[i] != '='; i++) {
        const char *digit = strchr(DIGITS, text->data[i]);
        if (digit == NULL) {
            bad("not base64", text->data);
        }
        bits = bits << 6 | (unsigned long)(digit - DIGITS);
        count += 6;
        if (count >= 8) {
            char byte = (char)(bits >> (count - 8) & 255);
            append(&bytes, &byte, 1);
            count -= 8;
        }
    }
    return bytes;
}

static void write_base64(growing *to, const uint8_t *bytes, size_t len)
{
    size_t i;
    append_text(to, "\"");
    for (i = 0; i < len; i += 3) {
        unsigned long bits = (unsigned long)bytes[i] << 16;
        char digits[4];
        bits |= i + 1 < len ? (unsigned long)bytes[i + 1] << 8 : 0;
        bits |= i + 2 < len ? (unsigned long)bytes[i + 2] : 0;
        digits[0] = DIGITS[bits >> 18];
        digits[1] = DIGITS[bits >> 12 & 63];
        digits[2] = i + 1 < len ? DIGITS[bits >> 6 & 63] : '=';
        digits[3] = i + 2 < len ? DIGITS[bits & 63] : '=';
        append(to, digits, 4);
    }
    append_text(to, "\"");
}

/* --- Cases ------------------------------------------------------------------------------------------------------- */

static bool is_binary(const char *key, size_t len)
{
    return len >= 4 && memcmp(key + len - 4, "-bin", 4) == 0;
}

static void write_metadata(growing *to, const tollgate_metadata *metadata)
{
    size_t i;
    bool first = true;
    append_text(to, "[");
    for (i = 0; i < tollgate_metadata_count(metadata); i++) {
        tollgate_str key;
        tollgate_bytes value;
        tollgate_metadata_get(metadata, i, &key, &value);
        if (tollgate_is(key, DETAILS_KEY)) {
            continue;
        }
        append_text(to, first ? "[" : ",[");
        first = false;
        write_text(to, key.data, key.len);
        append_text(to, ",");
        if (is_binary(key.data, key.len)) {
            write_base64(to, value.data, value.len);
        } else {
            write_text(to, (const char *)value.data, value.len);
        }
        append_text(to, "]");
    }
    append_text(to, "]");
}

/* A request of a case, with the memory that it points to. */
typedef struct request {
    interop_Ask_value ask;
    growing details;
    uint8_t *payload;
    tollgate_str *echo;
    tollgate_str *echo_as_trailers;
} request;

static tollgate_str *read_keys(const json *keys)
{
    tollgate_str *list = (tollgate_str *)must(calloc(keys->count + 1, sizeof *list));
    size_t i;
    for (i = 0; i < keys->count; i++) {
        list[i].data = keys->items[i].text.data;
        list[i].len = keys->items[i].text.len;
    }
    return list;
}

static request read_request(const json *object)
{
    request made;
    size_t len = (size_t)member(object, "payload_len")->number;
    const json *message = member(object, "message");
    memset(&made, 0, sizeof made);
    made.payload = (uint8_t *)must(malloc(len + 1));
    memset(made.payload, (int)member(object, "payload_byte")->number, len);
    made.details = decode(&member(object, "details")->text);
    made.echo = read_keys(member(object, "echo"));
    made.echo_as_trailers = read_keys(member(object, "echo_as_trailers"));
    made.ask.number = (uint64_t)member(object, "number")->number;
    made.ask.payload.data = made.payload;
    made.ask.payload.len = len;
    made.ask.responses = (uint32_t)member(object, "responses")->number;
    made.ask.response_bytes = (uint32_t)member(object, "response_bytes")->number;
    made.ask.code = (int32_t)member(object, "code")->number;
    made.ask.message.data = message->text.data;
    made.ask.message.len = message->text.len;
    made.ask.details.data = (const uint8_t *)made.details.data;
    made.ask.details.len = made.details.len;
    made.ask.delay_ms = (uint32_t)member(object, "delay_ms")->number;
    made.ask.echo.items = made.echo;
    made.ask.echo.count = member(object, "echo")->count;
    made.ask.echo_as_trailers.items = made.echo_as_trailers;
    made.ask.echo_as_trailers.count = member(object, "echo_as_trailers")->count;
    return made;
}

static void free_request(request *made)
{
    free(made->payload);
    free(made->details.data);
    free(made->echo);
    free(made->echo_as_trailers);
}

/* A case in progress: its call and the responses so far. */
typedef struct conversation {
    tollgate_call *call;
    tollgate_status *status;
    /* The call's end; TOLLGATE_OK while it is in flight. */
    tollgate_code end;
    growing responses;
    long long count;
    long long cancel_after;
} conversation;

static void note(conversation *it, const tollgate_message *message)
{
    interop_Answer_view view = interop_Answer_of(message);
    tollgate_bytes payload = interop_Answer_get_payload(view);
    char text[96];
    snprintf(text, sizeof text, "%s{\"number\":%llu,\"len\":%zu,\"byte\":%d}", it->count > 0 ? "," : "",
             (unsigned long long)interop_Answer_get_number(view), payload.len, payload.len > 0 ? payload.data[0] : 0);
    append_text(&it->responses, text);
    it->count += 1;
}

/* Waits for the next response, or the end; cancels when the case says so. */
static bool take(conversation *it)
{
    tollgate_message *message;
    it->end = tollgate_call_receive(it->call, 0, &message, it->status);
    if (it->end != TOLLGATE_OK) {
        return false;
    }
    note(it, message);
    tollgate_message_free(message);
    if (it->count == it->cancel_after) {
        tollgate_call_cancel(it->call, NULL);
    }
    return true;
}

/* Takes what has come. If nothing has, waits until there is something to take or room to send. */
static bool take_or_wait(conversation *it, tollgate_session *session)
{
    tollgate_message *message;
    tollgate_code code = tollgate_call_receive(it->call, TOLLGATE_NONBLOCK, &message, it->status);
    if (code == TOLLGATE_OK) {
        note(it, message);
        tollgate_message_free(message);
        if (it->count == it->cancel_after) {
            tollgate_call_cancel(it->call, NULL);
        }
    } else if (code == TOLLGATE_WOULD_BLOCK) {
        tollgate_session_drive(session, -1, NULL);
    } else {
        it->end = code;
    }
    return it->end == TOLLGATE_OK;
}

static void ready(tollgate_call *call, void *user)
{
    /* The wait is only for the session to be driven. */
    (void)call;
    (void)user;
}

/* Sends the requests. Takes responses while a request can't be sent, so that the sides don't
 * deadlock. */
static void converse(conversation *it, tollgate_session *session, request *requests, size_t count, bool lockstep)
{
    long long wanted = 0;
    size_t i;
    tollgate_call_on_ready(it->call, ready, NULL, NULL);
    for (i = 0; i < count && it->end == TOLLGATE_OK; i++) {
        tollgate_source source = tollgate_source_of(interop_Ask_write_any, &requests[i].ask);
        tollgate_code code;
        while ((code = tollgate_call_send(it->call, &source, TOLLGATE_NONBLOCK, it->status)) == TOLLGATE_WOULD_BLOCK) {
            if (!take_or_wait(it, session)) {
                return;
            }
        }
        if (code != TOLLGATE_OK && code != TOLLGATE_CANCELLED) {
            /* It can't be sent; this ends the call. */
            it->end = code;
            tollgate_call_cancel(it->call, NULL);
            return;
        }
        if (code != TOLLGATE_OK) {
            /* The call is over; receiving returns how it ended. */
            break;
        }
        wanted += requests[i].ask.responses;
        while (lockstep && it->count < wanted && take(it)) {
        }
    }
    tollgate_call_half_close(it->call, NULL);
    while (it->end == TOLLGATE_OK && take(it)) {
    }
}

/* Ends a line with the call's end, and prints it. */
static void say(growing *line, tollgate_code end, const tollgate_status *status)
{
    char text[32];
    bool well = end == TOLLGATE_END;
    tollgate_str message = tollgate_status_message(status);
    tollgate_bytes details = tollgate_status_details(status);
    snprintf(text, sizeof text, ",\"code\":%d", well ? 0 : (int)end);
    append_text(line, text);
    append_text(line, ",\"message\":");
    write_text(line, message.data, well ? 0 : message.len);
    append_text(line, ",\"details\":");
    write_base64(line, details.data, well ? 0 : details.len);
    append_text(line, "}\n");
    fwrite(line->data, 1, line->len, stdout);
    fflush(stdout);
}

/* Sends a golden vector unchanged, and prints the resulting block. */
static void swap(const tollgate_client *client, const json *what, tollgate_status *status)
{
    growing block = decode(&member(what, "block")->text), line = {NULL, 0, 0};
    tollgate_source source = {NULL, NULL, 0};
    tollgate_message *reply = NULL;
    tollgate_bytes came = {NULL, 0};
    tollgate_code end;
    source.value = block.data;
    source.len = block.len;
    end = tollgate_unary(client, everything_Everything_Swap, &source, NULL, &reply, status);
    if (end == TOLLGATE_OK) {
        end = TOLLGATE_END;
        came = tollgate_message_block(reply);
    }
    append_text(&line, "{\"responses\":[],\"metadata\":[],\"trailers\":[],\"block\":");
    write_base64(&line, came.data, came.len);
    say(&line, end, status);
    tollgate_message_free(reply);
    free(block.data);
    free(line.data);
}

static void run(tollgate_session *session, const tollgate_client *client, const json *what, tollgate_status *status)
{
    static const char *const methods[] = {"Unary", "Collect", "Spread", "Chat"};
    const json *list = member(what, "requests"), *pairs = member(what, "metadata"), *cancel = member(what, "cancel_after");
    const char *name = member(what, "method")->kind == TEXT ? member(what, "method")->text.data : "";
    tollgate_call_options options = tollgate_call_options_of();
    tollgate_metadata *metadata = tollgate_metadata_new();
    const tollgate_metadata *head = NULL, *tail = NULL;
    tollgate_message *reply = NULL;
    tollgate_code code = TOLLGATE_OK;
    request *requests = (request *)must(calloc(list->count + 1, sizeof *requests));
    conversation it;
    growing line = {NULL, 0, 0};
    uint32_t method = 0;
    size_t i;
    while (method < 4 && strcmp(methods[method], name) != 0) {
        method += 1;
    }
    if (method == 4) {
        bad("no such method", name);
    }
    memset(&it, 0, sizeof it);
    it.status = status;
    it.cancel_after = cancel->kind == NUMBER ? cancel->number : -1;
    for (i = 0; i < list->count; i++) {
        requests[i] = read_request(&list->items[i]);
    }
    for (i = 0; i < pairs->count && code == TOLLGATE_OK; i++) {
        const growing *key = &pairs->items[i].items[0].text, *value = &pairs->items[i].items[1].text;
        growing bytes = {NULL, 0, 0};
        if (is_binary(key->data, key->len)) {
            bytes = decode(value);
        } else {
            append(&bytes, value->data, value->len);
        }
        code = tollgate_metadata_add(metadata, key->data, (const uint8_t *)bytes.data, bytes.len, status);
        free(bytes.data);
    }
    options.timeout_ms = (uint64_t)member(what, "timeout_ms")->number;
    options.metadata = metadata;
    if (code != TOLLGATE_OK) {
        it.end = code;
    } else if (method == interop_Semantics_Unary && it.cancel_after != 0) {
        interop_Answer_view view;
        it.end = interop_Semantics_Unary_call(client, &requests[0].ask, &options, &view, &reply, status);
        if (it.end == TOLLGATE_OK) {
            head = tollgate_message_metadata(reply);
            tail = tollgate_message_trailers(reply);
            note(&it, reply);
            it.end = TOLLGATE_END;
        }
    } else {
        bool one = method == interop_Semantics_Spread || method == interop_Semantics_Unary;
        tollgate_source first = tollgate_source_of(interop_Ask_write_any, &requests[0].ask);
        it.end = tollgate_call_open(client, method, one ? &first : NULL, one, &options, &it.call, status);
        if (it.end == TOLLGATE_OK && it.cancel_after == 0) {
            tollgate_call_cancel(it.call, NULL);
        }
        if (it.end == TOLLGATE_OK) {
            converse(&it, session, requests, one ? 0 : list->count, member(what, "lockstep")->number != 0);
        }
        tollgate_call_metadata(it.call, TOLLGATE_NONBLOCK, &head, NULL);
        tail = tollgate_call_trailers(it.call);
    }
    if (it.end != TOLLGATE_END) {
        tail = tollgate_status_trailers(status);
    }
    append_text(&line, "{\"responses\":[");
    append(&line, it.responses.data, it.responses.len);
    append_text(&line, "],\"metadata\":");
    write_metadata(&line, head);
    append_text(&line, ",\"trailers\":");
    write_metadata(&line, tail);
    say(&line, it.end, status);
    tollgate_message_free(reply);
    tollgate_call_free(it.call);
    tollgate_metadata_free(metadata);
    for (i = 0; i < list->count; i++) {
        free_request(&requests[i]);
    }
    free(requests);
    free(it.responses.data);
    free(line.data);
}

/* The next line without its end; false at the end of the input. */
static bool read_line(growing *line)
{
    int c;
    line->len = 0;
    while ((c = getchar()) != EOF && c != '\n') {
        char byte = (char)c;
        append(line, &byte, 1);
    }
    append(line, "", 1);
    line->len -= 1;
    return c != EOF || line->len > 0;
}

int main(int argc, char **argv)
{
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session;
    tollgate_client *client, *everything;
    growing line = {NULL, 0, 0};
    if (argc != 4) {
        fputs("usage: interop_client SOCKET TOKEN TARGET\n", stderr);
        return 2;
    }
    session = open_session(argv[1], argv[2], status);
    if (interop_Semantics_client(session, argv[3], &client, status) != TOLLGATE_OK) {
        die("can't bind interop.Semantics", status);
    }
    if (everything_Everything_client(session, argv[3], &everything, status) != TOLLGATE_OK) {
        die("can't bind everything.Everything", status);
    }
    while (read_line(&line)) {
        const char *at = line.data;
        json what = read_json(&at);
        if (member(&what, "block")->kind == TEXT) {
            swap(everything, &what, status);
        } else {
            run(session, client, &what, status);
        }
        free_json(&what);
    }
    free(line.data);
    tollgate_client_free(everything);
    tollgate_client_free(client);
    if (tollgate_session_close(session, NULL, status) != TOLLGATE_OK) {
        die("the session's end", status);
    }
    tollgate_session_free(session);
    tollgate_status_free(status);
    return 0;
}
