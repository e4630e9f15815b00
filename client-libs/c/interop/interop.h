/* Helpers of the two interoperability programs: checked allocation, and a growable buffer. */
#ifndef INTEROP_H
#define INTEROP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tollgate.h>

#include "everything.tollgate_service.h"
#include "interop.tollgate_service.h"

/* The metadata key of a status's details, which aren't a trailer. */
#define DETAILS_KEY "grpc-status-details-bin"

static inline void *must(void *memory)
{
    if (memory == NULL) {
        fputs("interop: out of memory\n", stderr);
        exit(2);
    }
    return memory;
}

static inline void die(const char *what, const tollgate_status *status)
{
    fprintf(stderr, "interop: %s: %s: %s\n", what, tollgate_code_name(tollgate_status_code(status)),
            tollgate_status_message(status).data);
    exit(1);
}

/* A growable buffer. */
typedef struct growing {
    char *data;
    size_t len;
    size_t capacity;
} growing;

static inline void append(growing *to, const void *bytes, size_t len)
{
    if (len == 0) {
        return;
    }
    if (to->len + len > to->capacity) {
        to->capacity = (to->len + len) * 2;
        to->data = (char *)must(realloc(to->data, to->capacity));
    }
    memcpy(to->data + to->len, bytes, len);
    to->len += len;
}

static inline void append_text(growing *to, const char *text)
{
    append(to, text, strlen(text));
}

static inline tollgate_session *open_session(const char *socket, const char *token, tollgate_status *status)
{
    tollgate_session_options options = tollgate_session_options_of(socket, token);
    tollgate_session *session;
    /* A test that ends the daemon ends these programs. */
    options.reconnect = -1;
    if (tollgate_session_open(&options, &session, status) != TOLLGATE_OK) {
        die("can't open a session", status);
    }
    return session;
}

#endif
