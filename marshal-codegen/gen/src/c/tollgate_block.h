/* What the C stubs of all packages share: views that read a block in place, and a writer that builds one.
 *
 * Written by tollgate-gen beside the stubs. Do not edit.
 *
 * C11 or C++17; only the standard library's freestanding part and <string.h>; no allocation, no global state. A block's
 * format is told in Tollgate's schema crate (layout.rs). Names that end in an underscore are for generated code.
 *
 * Reading never leaves the block, whatever its slots claim: what can't be read is zero, empty, absent. A view is valid as
 * long as the block is. Text is not terminated by a zero byte.
 *
 * Writing goes into a buffer of the caller's. If that is too small, writing goes on without it, so that `len` tells how
 * many bytes it takes, as with snprintf.
 */
#ifndef TOLLGATE_BLOCK_H
#define TOLLGATE_BLOCK_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "blocks are little endian, and these stubs copy their numbers as they are"
#endif

/* Most structs on the path from the root to any struct, both included. */
#define TOLLGATE_MAX_DEPTH 64u
/* Longest image of a message in bytes, extents included. */
#define TOLLGATE_MAX_MESSAGE (16u << 20)
/* Most extents of one message. */
#define TOLLGATE_MAX_EXTENTS 64u
/* Values of at least this many bytes are better extents than copied. */
#define TOLLGATE_EXTENT_MIN 4096u
/* The bit of a slot's offset that makes it name an extent. */
#define TOLLGATE_EXTENT_FLAG 0x80000000u

/* What a struct holds for bytes, text, repeated fields and maps: an offset from the block's start, and a length. */
typedef struct tollgate_slot {
    uint32_t off;
    uint32_t len;
} tollgate_slot;

/* UTF-8 text; not terminated by a zero byte. */
typedef struct tollgate_str {
    const char *data;
    size_t len;
} tollgate_str;

typedef struct tollgate_bytes {
    const uint8_t *data;
    size_t len;
} tollgate_bytes;

/* A method as its service's descriptor set has it; its index is its place in `tollgate_service.methods`. */
typedef struct tollgate_method {
    const char *name;
    bool client_streaming;
    bool server_streaming;
} tollgate_method;

/* What an application hands to the daemon to call or to serve. */
typedef struct tollgate_service {
    const char *name;
    const tollgate_method *methods;
    size_t method_count;
    /* A serialized google.protobuf.FileDescriptorSet. */
    const uint8_t *descriptor_set;
    size_t descriptor_set_len;
    /* SHA-256 of what peers compare, in hex. */
    const char *schema_hash;
} tollgate_service;

static_assert(sizeof(bool) == 1 && sizeof(float) == 4 && sizeof(double) == 8, "the platform's numbers");

/* Text from a zero-terminated string. */
static inline tollgate_str tollgate_text(const char *text)
{
    tollgate_str value;
    value.data = text;
    value.len = strlen(text);
    return value;
}

/* Whether a value is this zero-terminated string. */
static inline bool tollgate_is(tollgate_str value, const char *text)
{
    return value.len == strlen(text) && memcmp(value.data, text, value.len) == 0;
}

/* --- Reading ---------------------------------------------------------------------------------------------------- */

/* A struct's place in a block; `len` 0: one all of whose fields have their defaults. */
typedef struct tollgate_view {
    const uint8_t *block;
    uint32_t len;
    uint32_t at;
    uint32_t depth;
} tollgate_view;

/* The array that a slot names: its first element, and how many there are. */
typedef struct tollgate_array_ {
    tollgate_view first;
    uint32_t count;
    uint32_t stride;
} tollgate_array_;

static inline tollgate_view tollgate_none_(void)
{
    tollgate_view view;
    view.block = (const uint8_t *)"";
    view.len = 0;
    view.at = 0;
    view.depth = 0;
    return view;
}

/* The root struct of a block. */
static inline tollgate_view tollgate_root_(const void *block, size_t len)
{
    tollgate_view view = tollgate_none_();
    if (len <= TOLLGATE_MAX_MESSAGE && len > 0) {
        view.block = (const uint8_t *)block;
        view.len = (uint32_t)len;
    }
    return view;
}

/* Copies bytes of the struct; zeros where the block has ended. */
static inline void tollgate_read_(tollgate_view view, size_t at, void *to, size_t size)
{
    uint64_t begin = (uint64_t)view.at + at;
    if (begin + size <= view.len) {
        memcpy(to, view.block + begin, size);
    } else {
        memset(to, 0, size);
    }
}

static inline uint32_t tollgate_get_u32_(tollgate_view view, size_t at)
{
    uint32_t value;
    tollgate_read_(view, at, &value, sizeof value);
    return value;
}

static inline int32_t tollgate_get_i32_(tollgate_view view, size_t at)
{
    int32_t value;
    tollgate_read_(view, at, &value, sizeof value);
    return value;
}

static inline uint64_t tollgate_get_u64_(tollgate_view view, size_t at)
{
    uint64_t value;
    tollgate_read_(view, at, &value, sizeof value);
    return value;
}

static inline int64_t tollgate_get_i64_(tollgate_view view, size_t at)
{
    int64_t value;
    tollgate_read_(view, at, &value, sizeof value);
    return value;
}

static inline float tollgate_get_f32_(tollgate_view view, size_t at)
{
    float value;
    tollgate_read_(view, at, &value, sizeof value);
    return value;
}

static inline double tollgate_get_f64_(tollgate_view view, size_t at)
{
    double value;
    tollgate_read_(view, at, &value, sizeof value);
    return value;
}

static inline bool tollgate_get_bool_(tollgate_view view, size_t at)
{
    uint8_t value;
    tollgate_read_(view, at, &value, sizeof value);
    return value != 0;
}

static inline tollgate_bytes tollgate_get_bytes_(tollgate_view view, size_t at)
{
    tollgate_slot slot;
    tollgate_bytes value;
    tollgate_read_(view, at, &slot, sizeof slot);
    value.data = (const uint8_t *)"";
    value.len = 0;
    if (slot.len > 0 && (uint64_t)slot.off + slot.len <= view.len) {
        value.data = view.block + slot.off;
        value.len = slot.len;
    }
    return value;
}

static inline tollgate_str tollgate_get_str_(tollgate_view view, size_t at)
{
    tollgate_bytes bytes = tollgate_get_bytes_(view, at);
    tollgate_str value;
    value.data = (const char *)bytes.data;
    value.len = bytes.len;
    return value;
}

/* The message that a reference names. It must lie behind the struct that refers to it, so that walks end. */
static inline tollgate_view tollgate_get_message_(tollgate_view view, size_t at)
{
    uint32_t child = tollgate_get_u32_(view, at);
    if (child <= view.at || child >= view.len || view.depth + 1 >= TOLLGATE_MAX_DEPTH) {
        return tollgate_none_();
    }
    view.at = child;
    view.depth += 1;
    return view;
}

static inline bool tollgate_has_message_(tollgate_view view, size_t at)
{
    return tollgate_get_message_(view, at).len != 0;
}

/* The bit of a field in the presence bitmap. */
static inline bool tollgate_has_bit_(tollgate_view view, uint32_t bit)
{
    uint8_t byte;
    tollgate_read_(view, bit / 8, &byte, sizeof byte);
    return (byte >> (bit % 8) & 1) == 1;
}

/* The view, or that of a struct of defaults. */
static inline tollgate_view tollgate_if_(tollgate_view view, bool present)
{
    return present ? view : tollgate_none_();
}

/* The array that a slot names: all of it, or nothing. */
static inline tollgate_array_ tollgate_get_array_(tollgate_view view, size_t at, size_t stride, bool of_structs)
{
    tollgate_slot slot;
    tollgate_array_ array;
    tollgate_read_(view, at, &slot, sizeof slot);
    array.first = tollgate_none_();
    array.count = 0;
    array.stride = (uint32_t)stride;
    if (slot.len > 0 && slot.off + (uint64_t)slot.len * stride <= view.len && slot.off > view.at
        && view.depth + (of_structs ? 1u : 0u) < TOLLGATE_MAX_DEPTH) {
        view.at = slot.off;
        view.depth += of_structs ? 1u : 0u;
        array.first = view;
        array.count = slot.len;
    }
    return array;
}

/* An element; behind the last, one of defaults. */
static inline tollgate_view tollgate_element_(tollgate_array_ array, size_t index)
{
    if (index >= array.count) {
        return tollgate_none_();
    }
    array.first.at += (uint32_t)index * array.stride;
    return array.first;
}

static inline bool tollgate_same_(tollgate_str a, tollgate_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* --- Writing ---------------------------------------------------------------------------------------------------- */

typedef enum tollgate_error {
    TOLLGATE_OK = 0,
    /* The buffer is too small: `len` of the writer tells the size that it takes. */
    TOLLGATE_TOO_SMALL = 1,
    /* Messages nest deeper than TOLLGATE_MAX_DEPTH. */
    TOLLGATE_TOO_DEEP = 2,
    /* The message, extents included, is longer than TOLLGATE_MAX_MESSAGE. */
    TOLLGATE_TOO_LARGE = 3
} tollgate_error;

/* A value that stays where it is, and is not part of the block. */
typedef struct tollgate_extent {
    const uint8_t *data;
    uint32_t len;
} tollgate_extent;

/* Where a message is written. May be used again for another message. */
typedef struct tollgate_writer {
    /* The buffer, which needn't be aligned; NULL with capacity 0 only measures. */
    uint8_t *data;
    size_t capacity;
    /* Where extents are listed; NULL: all values are copied into the block. */
    tollgate_extent *extents;
    size_t extent_capacity;
    /* Values of at least this many bytes are extents while there is room for them. */
    size_t extent_min;
    /* Results: bytes of the block, number of extents. */
    size_t len;
    size_t extent_count;
    tollgate_error error;
    /* Bytes of extents, and structs around the one that is being written. */
    size_t extent_bytes_;
    uint32_t depth_;
} tollgate_writer;

static inline tollgate_writer tollgate_writer_to(void *data, size_t capacity)
{
    tollgate_writer writer;
    memset(&writer, 0, sizeof writer);
    writer.data = (uint8_t *)data;
    writer.capacity = data == NULL ? 0 : capacity;
    writer.extent_min = TOLLGATE_EXTENT_MIN;
    return writer;
}

static inline const char *tollgate_error_text(tollgate_error error)
{
    switch (error) {
    case TOLLGATE_OK: return "written";
    case TOLLGATE_TOO_SMALL: return "the buffer is too small";
    case TOLLGATE_TOO_DEEP: return "messages nest too deeply";
    case TOLLGATE_TOO_LARGE: return "the message is too large";
    }
    return "an unknown error";
}

/* The gravest error stays. */
static inline void tollgate_fail_(tollgate_writer *writer, tollgate_error error)
{
    if (writer->error < error) {
        writer->error = error;
    }
}

/* Claims zeroed bytes at the next multiple of `align` and answers their offset; 0 if there can't be as many. */
static inline uint32_t tollgate_claim_(tollgate_writer *writer, size_t len, size_t align)
{
    size_t at = (writer->len + align - 1) & ~(align - 1);
    if (at > TOLLGATE_MAX_MESSAGE || len > TOLLGATE_MAX_MESSAGE - at) {
        tollgate_fail_(writer, TOLLGATE_TOO_LARGE);
        return 0;
    }
    if (at + len <= writer->capacity) {
        memset(writer->data + writer->len, 0, at + len - writer->len);
    } else {
        tollgate_fail_(writer, TOLLGATE_TOO_SMALL);
    }
    writer->len = at + len;
    return (uint32_t)at;
}

/* Writes into what was claimed. */
static inline void tollgate_put_(tollgate_writer *writer, size_t at, const void *bytes, size_t len)
{
    if (len > 0 && writer->error == TOLLGATE_OK) {
        memcpy(writer->data + at, bytes, len);
    }
}

static inline void tollgate_begin_(tollgate_writer *writer)
{
    writer->len = 0;
    writer->extent_count = 0;
    writer->extent_bytes_ = 0;
    writer->error = TOLLGATE_OK;
    writer->depth_ = 1;
}

static inline tollgate_error tollgate_end_(tollgate_writer *writer)
{
    size_t inline_len = writer->extent_count == 0 ? writer->len : (writer->len + 7) & ~(size_t)7;
    if (writer->extent_bytes_ > TOLLGATE_MAX_MESSAGE - inline_len) {
        tollgate_fail_(writer, TOLLGATE_TOO_LARGE);
    }
    return writer->error;
}

/* Begins a struct inside the current one; false if that would be too deep. */
static inline bool tollgate_enter_(tollgate_writer *writer)
{
    if (writer->depth_ >= TOLLGATE_MAX_DEPTH) {
        tollgate_fail_(writer, TOLLGATE_TOO_DEEP);
        return false;
    }
    writer->depth_ += 1;
    return true;
}

static inline void tollgate_leave_(tollgate_writer *writer)
{
    writer->depth_ -= 1;
}

/* Claims an array; answers its slot. */
static inline tollgate_slot tollgate_put_array_(tollgate_writer *writer, size_t count, size_t stride, size_t align)
{
    tollgate_slot slot = {0, 0};
    if (count > TOLLGATE_MAX_MESSAGE / stride) {
        tollgate_fail_(writer, TOLLGATE_TOO_LARGE);
    } else if (count > 0) {
        slot.off = tollgate_claim_(writer, count * stride, align);
        slot.len = slot.off == 0 ? 0 : (uint32_t)count;
    }
    return slot;
}

/* Writes an array of numbers; answers its slot. */
static inline tollgate_slot tollgate_put_scalars_(tollgate_writer *writer, const void *items, size_t count, size_t size)
{
    tollgate_slot slot = tollgate_put_array_(writer, count, size, size);
    tollgate_put_(writer, slot.off, items, slot.len * size);
    return slot;
}

/* Writes bytes into the block, whatever their length; answers their slot. */
static inline tollgate_slot tollgate_put_inline_(tollgate_writer *writer, const void *data, size_t len)
{
    return tollgate_put_scalars_(writer, data, len, 1);
}

/* Writes bytes, or lists them as an extent; answers their slot. */
static inline tollgate_slot tollgate_put_bytes_(tollgate_writer *writer, const void *data, size_t len)
{
    tollgate_slot slot;
    if (writer->extents == NULL || len == 0 || len < writer->extent_min || len > TOLLGATE_MAX_MESSAGE
        || writer->extent_count >= writer->extent_capacity || writer->extent_count >= TOLLGATE_MAX_EXTENTS) {
        return tollgate_put_inline_(writer, data, len);
    }
    slot.off = TOLLGATE_EXTENT_FLAG | (uint32_t)writer->extent_count;
    slot.len = (uint32_t)len;
    writer->extents[writer->extent_count].data = (const uint8_t *)data;
    writer->extents[writer->extent_count].len = slot.len;
    writer->extent_count += 1;
    writer->extent_bytes_ = ((writer->extent_bytes_ + 7) & ~(size_t)7) + len;
    return slot;
}

static inline tollgate_slot tollgate_put_byteses_(tollgate_writer *writer, const tollgate_bytes *items, size_t count)
{
    tollgate_slot array = tollgate_put_array_(writer, count, sizeof(tollgate_slot), 4);
    size_t i;
    for (i = 0; i < array.len; i++) {
        tollgate_slot slot = tollgate_put_bytes_(writer, items[i].data, items[i].len);
        tollgate_put_(writer, array.off + i * sizeof slot, &slot, sizeof slot);
    }
    return array;
}

static inline tollgate_slot tollgate_put_strs_(tollgate_writer *writer, const tollgate_str *items, size_t count)
{
    tollgate_slot array = tollgate_put_array_(writer, count, sizeof(tollgate_slot), 4);
    size_t i;
    for (i = 0; i < array.len; i++) {
        tollgate_slot slot = tollgate_put_bytes_(writer, items[i].data, items[i].len);
        tollgate_put_(writer, array.off + i * sizeof slot, &slot, sizeof slot);
    }
    return array;
}

#endif
