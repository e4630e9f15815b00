// tollgate_policy.h: write a policy in C. Include it in exactly one file of the module; there is nothing to link.
//
//     clang --target=wasm32 -O2 -mbulk-memory -ffreestanding -nostdlib -Wl,--no-entry,--strip-all -o p.wasm p.c
//
// A module says what it reads in its manifest and defines one function per hook that the manifest names:
//
//     #define TG_REQUEST                     // before the include: there is a policy_request
//     #include "tollgate_policy.h"
//
//     TG_MANIFEST({ "abi": 1, "name": "rooms", "hooks": ["request"],
//         "methods": [{ "method": "hotel.Reservation/Reserve", "fields": ["room_count"] }] })
//
//     const char *policy_configure(const uint8_t *config, uint32_t len) { return 0; }
//     void policy_request(const tg_call *call, tg_answer *answer) {
//         uint64_t rooms;
//         if (tg_uint(call, 0, &rooms) && rooms > 9) tg_deny(answer, TG_PERMISSION_DENIED, "too many rooms");
//     }
//
// A call that isn't denied passes. Fields are numbered as the manifest lists them, from 0; a getter answers false if the
// field is absent or withheld: decide what that means, because a policy that lets pass what it doesn't see is no policy.
// Metadata keys are numbered behind the fields. Messages and values are copied. There is no malloc and no libc; a broken promise (a field that the manifest doesn't declare,
// more than 64 KiB of changes) is a trap, which ends the instance and denies the call. `guest-sdk/ABI.md` has the bytes.

#ifndef TOLLGATE_POLICY_H
#define TOLLGATE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// gRPC status codes: any from 1 to 16.
enum {
    TG_INVALID_ARGUMENT = 3, TG_NOT_FOUND = 5, TG_PERMISSION_DENIED = 7, TG_RESOURCE_EXHAUSTED = 8,
    TG_FAILED_PRECONDITION = 9, TG_INTERNAL = 13, TG_UNAVAILABLE = 14, TG_UNAUTHENTICATED = 16,
};

// A call, reduced to the fields that the manifest declares. `method` is a position in the manifest's `methods`.
typedef struct { uint32_t method; const uint8_t *view; } tg_call;

// Bytes that belong to somebody else: to the call during its evaluation, or to the policy.
typedef struct { const uint8_t *data; uint32_t len; } tg_bytes;

// What becomes of a call.
typedef struct { uint32_t verdict, status, address, len; } tg_answer;

// What the policy defines. `configure` answers 0, or the reason why it refuses the configuration.
const char *policy_configure(const uint8_t *config, uint32_t len);
void policy_request(const tg_call *call, tg_answer *answer);
void policy_reply(const tg_call *call, tg_answer *answer);
void policy_tick(void);
// With "state" in the manifest: `save` answers bytes that stay until the next call, `restore` true if it can go on from them.
tg_bytes policy_save(void);
bool policy_restore(uint32_t version, const uint8_t *state, uint32_t len);

// ---- Host functions. A module imports those that it calls; the manifest has to declare their capability.

#define TG_IMPORT(name) __attribute__((import_module("tollgate"), import_name(name)))
enum { TG_ERROR = 1, TG_WARNING = 2, TG_INFO = 3, TG_DEBUG = 4 };
TG_IMPORT("log") void tg_log(uint32_t level, const void *line, uint32_t len);
TG_IMPORT("counter") void tg_counter(uint32_t id, int64_t delta);
TG_IMPORT("gauge") void tg_gauge(uint32_t id, int64_t value);
TG_IMPORT("histogram") void tg_histogram(uint32_t id, int64_t value);
TG_IMPORT("now_ms") int64_t tg_now_ms(void);
TG_IMPORT("monotonic_us") int64_t tg_monotonic_us(void);
TG_IMPORT("random") void tg_random(void *bytes, uint32_t len);
TG_IMPORT("state_get") int32_t tg_state_get(const void *key, uint32_t key_len, void *room, uint32_t room_len);
TG_IMPORT("state_set") int32_t tg_state_set(const void *key, uint32_t key_len, const void *value, uint32_t value_len);
// Compare and swap: 0 done, 1 no room, 2 the value isn't `old`; old_len UINT32_MAX: there is none yet.
TG_IMPORT("state_replace") int32_t tg_state_replace(const void *key, uint32_t key_len, const void *old, uint32_t old_len, const void *value, uint32_t value_len);
TG_IMPORT("state_delete") int32_t tg_state_delete(const void *key, uint32_t key_len);
TG_IMPORT("state_add") int64_t tg_state_add(const void *key, uint32_t key_len, int64_t delta);

// ---- The manifest: plain JSON between the parentheses. It becomes the custom section `tollgate.manifest`.

#define TG_MANIFEST(...) TG_MANIFEST_TEXT(#__VA_ARGS__)
#define TG_MANIFEST_TEXT(text) TG_MANIFEST_SECTION(text)
#define TG_MANIFEST_SECTION(text) \
    __asm__(".section .custom_section.tollgate.manifest,\"\",@\n.ascii " #text "\n.text\n");

// ---- Reading a call.

static inline uint32_t tg_word(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void tg_put_word(uint8_t *at, uint32_t word) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(word >> 8 * i);
}

static inline uint32_t tg_field_count(const tg_call *call) { return tg_word(call->view + 4); }

// The 16 bytes of a field, or 0 if it is absent.
static inline const uint8_t *tg_entry(const tg_call *call, uint32_t field) {
    if (field >= tg_field_count(call)) __builtin_trap();
    const uint8_t *entry = call->view + 8 + 16 * field;
    return tg_word(entry) ? entry : 0;
}

// An unsigned integer; of other numbers their bits.
static inline bool tg_uint(const tg_call *call, uint32_t field, uint64_t *value) {
    const uint8_t *entry = tg_entry(call, field);
    if (entry) *value = (uint64_t)tg_word(entry + 8) | (uint64_t)tg_word(entry + 12) << 32;
    return entry != 0;
}

// A signed integer or enum.
static inline bool tg_int(const tg_call *call, uint32_t field, int64_t *value) {
    return tg_uint(call, field, (uint64_t *)value);
}

static inline bool tg_bool(const tg_call *call, uint32_t field, bool *value) {
    uint64_t bits;
    if (!tg_uint(call, field, &bits)) return false;
    *value = bits != 0;
    return true;
}

static inline bool tg_float(const tg_call *call, uint32_t field, float *value) {
    union { uint32_t bits; float value; } both;
    const uint8_t *entry = tg_entry(call, field);
    if (!entry) return false;
    both.bits = tg_word(entry + 8);
    *value = both.value;
    return true;
}

static inline bool tg_double(const tg_call *call, uint32_t field, double *value) {
    union { uint64_t bits; double value; } both;
    if (!tg_uint(call, field, &both.bits)) return false;
    *value = both.value;
    return true;
}

// A string (UTF-8, without a zero at its end) or bytes field.
static inline bool tg_string(const tg_call *call, uint32_t field, tg_bytes *value) {
    const uint8_t *entry = tg_entry(call, field);
    if (!entry) return false;
    value->data = call->view + tg_word(entry + 8);
    value->len = tg_word(entry + 4);
    return true;
}

// Types of a field that the configuration names: an entry { "config": "NAME" } of the manifest's `fields` stands for the
// paths in the list NAME of the configuration, so the schema decides what they are.
typedef enum {
    TG_TYPE_ABSENT = 0, TG_TYPE_BOOL = 2, TG_TYPE_INT = 3, TG_TYPE_UINT = 4, TG_TYPE_FLOAT = 5, TG_TYPE_DOUBLE = 6,
    TG_TYPE_STRING = 7, TG_TYPE_BYTES = 8, TG_TYPE_ENUM = 9,
} tg_type;

// The type of such a field, which tells its getter; 0 if it is absent or withheld. Of a field that the manifest itself
// names it is 1: its author knows the type.
static inline tg_type tg_type_of(const tg_call *call, uint32_t field) {
    const uint8_t *entry = tg_entry(call, field);
    return entry ? (tg_type)tg_word(entry) : TG_TYPE_ABSENT;
}

// How many values a metadata key has: none if it is absent or withheld.
static inline uint32_t tg_value_count(const tg_call *call, uint32_t entry) {
    const uint8_t *words = tg_entry(call, entry);
    return words ? tg_word(words) : 0;
}

// The value of a metadata key at a place, from 0: printable ASCII, or any bytes if the key ends in -bin.
static inline bool tg_value(const tg_call *call, uint32_t entry, uint32_t place, tg_bytes *value) {
    if (place >= tg_value_count(call, entry)) return false;
    const uint8_t *at = call->view + tg_word(tg_entry(call, entry) + 8);
    for (; place > 0; place--) at += 4 + tg_word(at);
    value->data = at + 4;
    value->len = tg_word(at);
    return true;
}

static inline uint32_t tg_length(const char *text) {
    uint32_t len = 0;
    while (text[len]) len++;
    return len;
}

// True if the bytes are those of a text that ends with a zero.
static inline bool tg_equals(tg_bytes bytes, const char *text) {
    uint32_t at = 0;
    while (at < bytes.len && text[at] && bytes.data[at] == (uint8_t)text[at]) at++;
    return at == bytes.len && !text[at];
}

// ---- Answering.

// Messages, records and values of one evaluation: 64 denials of 1 KiB, or 64 lists of 816 bytes and their values.
enum { TG_ARENA_BYTES = 256 << 10, TG_MESSAGE_BYTES = 1024, TG_EFFECTS = 51, TG_CHANGED_BYTES = 64 << 10 };
static uint8_t tg_arena[TG_ARENA_BYTES];
static uint32_t tg_arena_used;

static inline uint8_t *tg_take(uint32_t len) {
    if (len > TG_ARENA_BYTES - tg_arena_used) __builtin_trap();
    uint8_t *taken = tg_arena + tg_arena_used;
    tg_arena_used += len;
    return taken;
}

static inline uint8_t *tg_copy(const void *data, uint32_t len) {
    uint8_t *copy = tg_take(len);
    for (uint32_t i = 0; i < len; i++) copy[i] = ((const uint8_t *)data)[i];
    return copy;
}

// Ends the call. The caller sees 1,024 bytes of the message at most.
static inline void tg_deny_bytes(tg_answer *answer, uint32_t status, const void *message, uint32_t len) {
    if (len > TG_MESSAGE_BYTES) len = TG_MESSAGE_BYTES;
    *answer = (tg_answer){2, status, (uint32_t)(uintptr_t)tg_copy(message, len), len};
}

static inline void tg_deny(tg_answer *answer, uint32_t status, const char *message) {
    tg_deny_bytes(answer, status, message, tg_length(message));
}

// Kinds 1 to 3 are about one field, 4 and 5 about one metadata key, each later one about the call.
static inline uint32_t tg_about(uint32_t kind) { return kind <= 3 ? 1 : kind <= 5 ? 4 : kind; }

// A record of the effect list; one that is there for this field, key or kind is written over.
static inline void tg_record(tg_answer *answer, uint32_t kind, uint32_t field, uint32_t low, uint32_t high) {
    if (answer->verdict != 3)
        *answer = (tg_answer){3, 0, (uint32_t)(uintptr_t)tg_take(16 * TG_EFFECTS), 0};
    uint8_t *list = (uint8_t *)(uintptr_t)answer->address, *record = list;
    while (record < list + answer->len && (tg_word(record + 4) != field || tg_about(tg_word(record)) != tg_about(kind)))
        record += 16;
    if (record == list + answer->len) {
        if (answer->len == 16 * TG_EFFECTS) __builtin_trap();
        answer->len += 16;
    }
    tg_put_word(record, kind);
    tg_put_word(record + 4, field);
    tg_put_word(record + 8, low);
    tg_put_word(record + 12, high);
}

// Changes of an allowed message; `field` is a position in the manifest's `changes` (or `reply_changes`).
static inline void tg_clear(tg_answer *answer, uint32_t field) { tg_record(answer, 1, field, 0, 0); }
static inline void tg_set_uint(tg_answer *answer, uint32_t field, uint64_t value) {
    tg_record(answer, 2, field, (uint32_t)value, (uint32_t)(value >> 32));
}
static inline void tg_set_int(tg_answer *answer, uint32_t field, int64_t value) {
    tg_set_uint(answer, field, (uint64_t)value);
}
static inline void tg_set_string(tg_answer *answer, uint32_t field, const void *data, uint32_t len) {
    if (len > TG_CHANGED_BYTES) __builtin_trap();
    tg_record(answer, 3, field, (uint32_t)(uintptr_t)tg_copy(data, len), len);
}

// The metadata of an allowed call; `key` is a position in the manifest's `metadata_changes` (or `reply_metadata_changes`).
// One value instead of all that the key has: printable ASCII, or any bytes if the key ends in -bin.
static inline void tg_set_metadata(tg_answer *answer, uint32_t key, const void *data, uint32_t len) {
    if (len > TG_CHANGED_BYTES) __builtin_trap();
    tg_record(answer, 4, key, (uint32_t)(uintptr_t)tg_copy(data, len), len);
}
static inline void tg_remove_metadata(tg_answer *answer, uint32_t key) { tg_record(answer, 5, key, 0, 0); }

// Lets an allowed call wait, a second at most: capability `delay`.
static inline void tg_delay(tg_answer *answer, uint32_t microseconds) { tg_record(answer, 6, 0, microseconds, 0); }
// 0, what all calls have, to 7, which comes first: capability `priority`.
static inline void tg_priority(tg_answer *answer, uint32_t priority) { tg_record(answer, 7, 0, priority, 0); }
// The route of an allowed request, 1 to 64 of a-z 0-9 - _ . : capability `route`.
static inline void tg_route(tg_answer *answer, const void *label, uint32_t len) {
    if (len > 64) __builtin_trap();
    tg_record(answer, 8, 0, (uint32_t)(uintptr_t)tg_copy(label, len), len);
}

// ---- The exports.

#define TG_EXPORT(name) __attribute__((export_name(name), used))
extern uint8_t __heap_base;
static uint8_t *tg_buffer;

TG_EXPORT("tollgate_abi_v1") void tg_export_abi(void) {}

// All memory behind the statics is the buffer: nobody else allocates.
TG_EXPORT("tollgate_buffer") uint32_t tg_export_buffer(uint32_t min_len) {
    uint32_t begin = ((uint32_t)(uintptr_t)&__heap_base + 7) & ~7u;
    uint32_t have = (uint32_t)__builtin_wasm_memory_size(0) << 16;
    if (min_len > UINT32_MAX - begin - 65535) __builtin_trap();
    if (begin + min_len > have) {
        uint32_t pages = (begin + min_len - have + 65535) >> 16;
        if (__builtin_wasm_memory_grow(0, pages) == (size_t)-1) __builtin_trap();
    }
    tg_buffer = (uint8_t *)(uintptr_t)begin;
    return begin;
}

TG_EXPORT("tollgate_configure") uint32_t tg_export_configure(uint32_t len) {
    const char *refusal = policy_configure(tg_buffer, len);
    if (!refusal) return 0;
    uint32_t said = tg_length(refusal);
    if (said == 0) refusal = "no reason given", said = 15;
    if (said > 1024) said = 1024;
    for (uint32_t i = 0; i < said; i++) tg_buffer[i] = (uint8_t)refusal[i];
    return said;
}

static inline uint32_t tg_judge(uint32_t count, void (*hook)(const tg_call *, tg_answer *)) {
    tg_arena_used = 0;
    for (uint8_t *entry = tg_buffer; entry < tg_buffer + 32 * count; entry += 32) {
        tg_call call = {tg_word(entry + 8), tg_buffer + tg_word(entry)};
        tg_answer answer = {1, 0, 0, 0};
        hook(&call, &answer);
        tg_put_word(entry + 12, answer.verdict);
        tg_put_word(entry + 16, answer.status);
        tg_put_word(entry + 20, answer.address);
        tg_put_word(entry + 24, answer.len);
    }
    return 0;
}

#ifdef TG_REQUEST
TG_EXPORT("tollgate_request") uint32_t tg_export_request(uint32_t count) { return tg_judge(count, policy_request); }
#endif
#ifdef TG_REPLY
TG_EXPORT("tollgate_reply") uint32_t tg_export_reply(uint32_t count) { return tg_judge(count, policy_reply); }
#endif
#ifdef TG_TICK
TG_EXPORT("tollgate_tick") uint32_t tg_export_tick(void) { policy_tick(); return 0; }
#endif
#ifdef TG_STATE
TG_EXPORT("tollgate_save") uint64_t tg_export_save(void) {
    tg_bytes state = policy_save();
    return (uint32_t)(uintptr_t)state.data | (uint64_t)state.len << 32;
}
TG_EXPORT("tollgate_restore") uint32_t tg_export_restore(uint32_t version, uint32_t len) {
    return policy_restore(version, tg_buffer, len) ? 0 : 1;
}
#endif

#endif
