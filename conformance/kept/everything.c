// A policy that uses each part of the policy ABI: all hooks, all imports, all kinds of effects, and
// a state that is handed to the next version. The customer's name selects the part, and the message
// of the denial has its result. The module of each release is kept: see README.md.

#define TG_REQUEST
#define TG_REPLY
#define TG_TICK
#define TG_STATE
#include "../../guest-sdk/c/tollgate_policy.h"

TG_MANIFEST({
    "abi": 1, "name": "everything", "version": "1.0", "hooks": ["request", "reply", "tick"], "tick_ms": 100,
    "state": { "version": 1 },
    "counters": ["calls"], "gauges": ["calls-now"], "histograms": ["rooms"],
    "capabilities": ["log", "metrics", "state", "clock", "random", "change", "delay", "priority", "route"],
    "methods": [{
        "method": "hotel.Reservation/Reserve",
        "fields": ["customer_name", "room_count", "stay.in_date"],
        "changes": ["room_count", "coupon", "stay.out_date"],
        "metadata": ["x-user"],
        "metadata_changes": ["x-seen", "x-user"],
        "reply_fields": ["reservation_id"],
        "reply_changes": ["reservation_id"],
        "reply_metadata_changes": ["x-replied"]
    }]
})

enum { CUSTOMER_NAME, ROOM_COUNT, IN_DATE, USER };
enum { CHANGE_ROOM_COUNT, CHANGE_COUPON, CHANGE_OUT_DATE };
enum { CHANGE_SEEN, CHANGE_USER };
enum { RESERVATION_ID };

static char greeting[64];
static uint32_t greeting_len;
// Requests without a name that asks for something: the state.
static uint32_t calls;
static uint32_t ticks;

static char text[256];
static uint32_t text_len;

static void put(const char *part) {
    for (uint32_t i = 0; i < tg_length(part) && text_len < sizeof text; i++) text[text_len++] = part[i];
}

static void put_number(uint64_t value) {
    char digits[21];
    uint32_t at = sizeof digits;
    digits[--at] = 0;
    do digits[--at] = (char)('0' + value % 10); while (value /= 10);
    put(digits + at);
}

static void deny(tg_answer *answer, uint32_t status) {
    tg_deny_bytes(answer, status, text, text_len);
    text_len = 0;
}

const char *policy_configure(const uint8_t *config, uint32_t len) {
    if (len > sizeof greeting) return "the configuration is a greeting of at most 64 bytes";
    for (uint32_t i = 0; i < len; i++) greeting[i] = (char)config[i];
    greeting_len = len;
    return 0;
}

static void shared_state(tg_answer *answer) {
    uint8_t value[8] = {0};
    put("sum ");
    put_number((uint64_t)tg_state_add("sum", 3, 2));
    put(", set ");
    put_number((uint64_t)tg_state_set("key", 3, "value", 5));
    put(", length ");
    put_number((uint64_t)tg_state_get("key", 3, value, sizeof value));
    put(tg_equals((tg_bytes){value, 5}, "value") ? ", equal" : ", different");
    put(", deleted ");
    put_number((uint64_t)tg_state_delete("key", 3));
    put(tg_state_get("key", 3, value, sizeof value) == -1 ? ", gone" : ", still there");
    deny(answer, TG_FAILED_PRECONDITION);
}

static void random_bytes(tg_answer *answer) {
    uint8_t bytes[32] = {0};
    uint32_t set = 0;
    tg_random(bytes, sizeof bytes);
    for (uint32_t i = 0; i < sizeof bytes; i++) set |= bytes[i];
    put(set ? "random" : "all zero");
    deny(answer, TG_UNAVAILABLE);
}

static void effects(tg_answer *answer) {
    tg_set_uint(answer, CHANGE_ROOM_COUNT, 7);
    tg_set_string(answer, CHANGE_COUPON, greeting, greeting_len);
    tg_clear(answer, CHANGE_OUT_DATE);
    tg_set_metadata(answer, CHANGE_SEEN, "yes", 3);
    tg_remove_metadata(answer, CHANGE_USER);
    tg_delay(answer, 1500);
    tg_priority(answer, 5);
    tg_route(answer, "canary", 6);
}

void policy_request(const tg_call *call, tg_answer *answer) {
    tg_bytes name, value;
    uint64_t rooms = 0;
    if (!tg_string(call, CUSTOMER_NAME, &name)) name = (tg_bytes){(const uint8_t *)"", 0};
    if (tg_equals(name, "deny")) {
        tg_deny_bytes(answer, TG_PERMISSION_DENIED, greeting, greeting_len);
    } else if (tg_equals(name, "fields")) {
        put("rooms ");
        put_number(tg_uint(call, ROOM_COUNT, &rooms) ? rooms : 0);
        put(tg_string(call, IN_DATE, &value) ? ", a date, users " : ", no date, users ");
        put_number(tg_value_count(call, USER));
        if (tg_value(call, USER, 1, &value)) put(tg_equals(value, "Grace") ? ", Grace" : ", another");
        deny(answer, TG_INVALID_ARGUMENT);
    } else if (tg_equals(name, "shared state")) {
        shared_state(answer);
    } else if (tg_equals(name, "clock")) {
        put("now ");
        put_number((uint64_t)tg_now_ms());
        deny(answer, TG_UNAVAILABLE);
    } else if (tg_equals(name, "random")) {
        random_bytes(answer);
    } else if (tg_equals(name, "metrics")) {
        tg_uint(call, ROOM_COUNT, &rooms);
        tg_log(TG_INFO, "a line of the log", 17);
        tg_counter(0, 1);
        tg_gauge(0, calls);
        tg_histogram(0, (int64_t)rooms);
    } else if (tg_equals(name, "effects")) {
        effects(answer);
    } else if (tg_equals(name, "trap")) {
        __builtin_trap();
    } else if (tg_equals(name, "calls")) {
        put("calls ");
        put_number(calls);
        deny(answer, TG_NOT_FOUND);
    } else if (tg_equals(name, "ticks")) {
        put(ticks ? "ticked" : "not yet");
        deny(answer, TG_NOT_FOUND);
    } else {
        calls++;
    }
}

void policy_reply(const tg_call *call, tg_answer *answer) {
    uint64_t id = 0;
    tg_uint(call, RESERVATION_ID, &id);
    if (id == 13) {
        tg_deny(answer, TG_INTERNAL, "an unlucky number");
    } else if (id == 14) {
        tg_set_uint(answer, RESERVATION_ID, 15);
        tg_set_metadata(answer, 0, "changed", 7);
    }
}

void policy_tick(void) { ticks++; }

tg_bytes policy_save(void) { return (tg_bytes){(const uint8_t *)&calls, sizeof calls}; }

bool policy_restore(uint32_t version, const uint8_t *state, uint32_t len) {
    if (version != 1 || len != sizeof calls) return false;
    calls = tg_word(state);
    return true;
}
