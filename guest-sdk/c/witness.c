// What the vectors are checked with (guest-sdk/vectors/README.md): says what it reads, or answers as it is told.

#define TG_REQUEST
#define TG_REPLY
#include "tollgate_policy.h"

TG_MANIFEST({
    "abi": 1, "name": "witness", "hooks": ["request", "reply"],
    "capabilities": ["change", "delay", "priority", "route"],
    "methods": [
        { "method": "a.B/C", "changes": ["a", "b", "c"], "reply_changes": ["a", "b", "c"],
          "metadata_changes": ["x-a", "x-b-bin"], "reply_metadata_changes": ["x-a", "x-b-bin"] },
        { "method": "a.B/D" }
    ]
})

static uint8_t config[8192];
static uint32_t config_len, next_line;

const char *policy_configure(const uint8_t *bytes, uint32_t len) {
    if (len == 0 || (bytes[0] != 'w' && bytes[0] != 'p')) return "the first letter is w or p";
    if (len > sizeof config) return "the configuration is too long";
    for (uint32_t i = 0; i < len; i++) config[i] = bytes[i];
    config_len = len;
    next_line = 2;
    return 0;
}

static char text[8192];
static uint32_t text_len;

static void put(char c) {
    if (text_len == sizeof text) __builtin_trap();
    text[text_len++] = c;
}

static void put_number(uint64_t value) {
    char digits[20];
    int count = 0;
    do digits[count++] = '0' + value % 10; while (value /= 10);
    while (count) put(digits[--count]);
}

static void put_hex(tg_bytes bytes) {
    for (uint32_t i = 0; i < bytes.len; i++) {
        put("0123456789abcdef"[bytes.data[i] >> 4]);
        put("0123456789abcdef"[bytes.data[i] & 15]);
    }
}

static void put_field(const tg_call *call, uint32_t field, char kind) {
    tg_bytes bytes;
    uint64_t u;
    int64_t i;
    bool b;
    union { float value; uint32_t bits; } f;
    union { double value; uint64_t bits; } d;
    if (kind == 't' && tg_string(call, field, &bytes)) {
        for (uint32_t at = 0; at < bytes.len; at++) put((char)bytes.data[at]);
    } else if (kind == 'v') {
        uint32_t count = tg_value_count(call, field);
        if (count == 0) put('-');
        else put_number(count);
        for (uint32_t at = 0; at < count && tg_value(call, field, at, &bytes); at++) {
            put(at == 0 ? ':' : ',');
            put_hex(bytes);
        }
    } else if (kind == 'x' && tg_string(call, field, &bytes)) {
        put_hex(bytes);
    } else if (kind == 'u' && tg_uint(call, field, &u)) {
        put_number(u);
    } else if (kind == 'i' && tg_int(call, field, &i)) {
        if (i < 0) put('-');
        put_number(i < 0 ? -(uint64_t)i : (uint64_t)i);
    } else if (kind == 'b' && tg_bool(call, field, &b)) {
        put(b ? 'T' : 'F');
    } else if (kind == 'f' && tg_float(call, field, &f.value)) {
        put_number(f.bits);
    } else if (kind == 'd' && tg_double(call, field, &d.value)) {
        put_number(d.bits);
    } else {
        put('-');
    }
}

// The next line of the configuration: one per evaluated call.
static tg_bytes line(void) {
    uint32_t begin = next_line, end = begin;
    while (end < config_len && config[end] != '\n') end++;
    next_line = end + 1;
    return (tg_bytes){config + begin, end - begin};
}

static void witness(const tg_call *call, tg_answer *answer) {
    tg_bytes kinds = line();
    text_len = 0;
    put_number(call->method);
    for (uint32_t field = 0; field < kinds.len; field++) {
        put('|');
        put_field(call, field, (char)kinds.data[field]);
    }
    if (tg_field_count(call) != kinds.len) put('!');
    tg_deny_bytes(answer, TG_INTERNAL, text, text_len);
}

static uint64_t number(tg_bytes line, uint32_t *at) {
    uint64_t value = 0;
    while (*at < line.len && line.data[*at] >= '0' && line.data[*at] <= '9') value = 10 * value + (line.data[(*at)++] - '0');
    if (*at < line.len && line.data[*at] == ' ') (*at)++;
    return value;
}

static uint8_t digit(uint8_t c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

// `d STATUS HEX`, or any of `c FIELD`, `u FIELD NUMBER`, `x FIELD HEX`, `m KEY HEX`, `r KEY`, `w MICROSECONDS`, `p PRIORITY`,
// `l LABEL`, one after the other: a parrot's line each.
static void parrot(tg_answer *answer) {
    for (tg_bytes l = line(); l.len > 0; l = line()) {
        uint32_t at = 2;
        if (l.data[0] == 'l') {
            tg_route(answer, l.data + at, l.len - at);
            continue;
        }
        uint32_t first = (uint32_t)number(l, &at);
        static uint8_t bytes[4096];
        uint32_t len = 0;
        if (l.data[0] == 'c') {
            tg_clear(answer, first);
        } else if (l.data[0] == 'r') {
            tg_remove_metadata(answer, first);
        } else if (l.data[0] == 'w') {
            tg_delay(answer, first);
        } else if (l.data[0] == 'p') {
            tg_priority(answer, first);
        } else if (l.data[0] == 'u') {
            tg_set_uint(answer, first, number(l, &at));
        } else {
            for (; at + 1 < l.len; at += 2) bytes[len++] = digit(l.data[at]) << 4 | digit(l.data[at + 1]);
            if (l.data[0] == 'd') tg_deny_bytes(answer, first, bytes, len);
            else if (l.data[0] == 'm') tg_set_metadata(answer, first, bytes, len);
            else tg_set_string(answer, first, bytes, len);
        }
    }
}

static void evaluate(const tg_call *call, tg_answer *answer) {
    if (config[0] == 'w') witness(call, answer);
    else parrot(answer);
}

void policy_request(const tg_call *call, tg_answer *answer) { evaluate(call, answer); }
void policy_reply(const tg_call *call, tg_answer *answer) { evaluate(call, answer); }
