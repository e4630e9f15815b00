/* Tollgate for C: typed calls through the host's daemon, which enforces policies, marshals and
 * transports.
 *
 *   tollgate_session_open: the daemon's socket, a tenant's token
 *   tollgate_client_new: a service of the stubs, and the daemon of its servers
 *   tollgate_unary: one request, one reply; tollgate_call_open: any number of them
 *   tollgate_session_add_service, tollgate_session_serve: handlers
 *
 * A program uses this header and the stubs that `tollgate gen --lang c` writes: messages in
 * <package>.tollgate.h, and typed functions for services in <package>.tollgate_service.h.
 *
 * RESULTS. Functions return a code: TOLLGATE_OK, one of gRPC's codes, TOLLGATE_WOULD_BLOCK or
 * TOLLGATE_END. Their last parameter is a status or NULL. A status is an object of the caller that
 * holds the details; each function that gets it overwrites it. New handles are NULL unless the
 * function returns TOLLGATE_OK.
 *
 * OWNERSHIP. The caller frees every object from a pointer to a pointer or from *_new, with the
 * *_free of its type, which does nothing for NULL. A `const` result belongs to the object that
 * returned it and lives as long as that. Handles may be freed after their session was closed. A
 * function has read its arguments when it returns; it keeps no pointer except `user`.
 *
 * THREADS. The library starts no threads, except one that reopens a session after its daemon has
 * gone (tollgate_session_options.reconnect). Several threads at once may use a session, a client or
 * a call, for example one for sending and one for receiving. Statuses, metadata, messages and
 * buffers are for one thread at a time. Callbacks run on the threads that call
 * tollgate_session_serve, tollgate_session_drive or tollgate_session_close. Only writers
 * (tollgate_write_fn) run elsewhere: within the function that got the message. A writer must not
 * call the library.
 *
 * LEAVING A CALLBACK other than by return. A C++ exception ends at the callback: its call ends with
 * UNKNOWN and the exception's text, the function that ran the handler continues, and standard error
 * has a line. This requires a part of the program that was compiled as C++, with exceptions, and
 * with this header (tollgate_cpp.h). Without such a part, and in a writer, an exception ends the
 * process with a message. longjmp, pthread_exit and cancellation of the thread can't be detected
 * and must not leave a callback: the call would stay unanswered until its deadline, the library's
 * objects on the stack would leak, and later calls of the thread would have the wrong deadline. To
 * end its thread, a handler calls tollgate_session_stop; the thread ends after
 * tollgate_session_serve has returned.
 *
 * WAITING. Functions wait unless TOLLGATE_NONBLOCK is given. While they wait they drive the
 * session: they process what the daemon sends. While no function waits, nothing is processed. In an
 * event loop, wait for tollgate_session_fd and call tollgate_session_drive(session, 0, NULL).
 *
 * MISUSE. NULL for a handle or result, and a struct with an invalid size, are INVALID_ARGUMENT. A
 * call that is too late or repeated is FAILED_PRECONDITION. Use of a freed handle can't be
 * detected.
 *
 * LIMITS. Metadata of one message: 8 KiB and 64 pairs. A message:
 * tollgate_session_max_message_bytes, at most 16 MiB. Calls in flight per session: 65,536, of which
 * handlers 4,096. Messages of one call that were sent with TOLLGATE_NONBLOCK and are still queued:
 * 1. Rounds of callbacks in one tollgate_session_drive, if each round causes the next: 17; the
 * descriptor then stays readable. */
#ifndef TOLLGATE_H
#define TOLLGATE_H

#include "tollgate_block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Versions ---------------------------------------------------------------------------------------------------- */

/* The header's version. */
#define TOLLGATE_VERSION_MAJOR 0
#define TOLLGATE_VERSION_MINOR 2
#define TOLLGATE_VERSION_PATCH 0

/* The suffix of the shared library's name. A program that loads the library itself compares it with
 * tollgate_abi_version. */
#define TOLLGATE_ABI_VERSION 0
extern const uint32_t tollgate_abi_version;

/* The library's version: major << 16 | minor << 8 | patch. */
uint32_t tollgate_version(void);
const char *tollgate_version_text(void);

/* --- C++ exceptions ------------------------------------------------------------------------------------------- */

/* A function of the library that a guard runs. */
typedef void (*tollgate_run_fn)(void *state);
/* Calls `run` once with `state`. If that throws, writes the exception's text, at most `room` bytes,
 * and returns 1; otherwise returns 0. */
typedef int32_t (*tollgate_guard_fn)(tollgate_run_fn run, void *state, char *text, size_t room);
/* Runs the program's callbacks in a guard, permanently. Only the first call counts. tollgate_cpp.h
 * does this before main; programs need not. */
void tollgate_guard_with(tollgate_guard_fn guard);

/* --- Codes and statuses ------------------------------------------------------------------------------------------ */

/* TOLLGATE_OK, which is 0 and comes from tollgate_block.h, or one of these. Codes above 0 are
 * gRPC's; a peer may use others, above 16. */
typedef int32_t tollgate_code;

enum {
    TOLLGATE_CANCELLED = 1,
    TOLLGATE_UNKNOWN = 2,
    TOLLGATE_INVALID_ARGUMENT = 3,
    TOLLGATE_DEADLINE_EXCEEDED = 4,
    TOLLGATE_NOT_FOUND = 5,
    TOLLGATE_ALREADY_EXISTS = 6,
    TOLLGATE_PERMISSION_DENIED = 7,
    TOLLGATE_RESOURCE_EXHAUSTED = 8,
    TOLLGATE_FAILED_PRECONDITION = 9,
    TOLLGATE_ABORTED = 10,
    TOLLGATE_OUT_OF_RANGE = 11,
    TOLLGATE_UNIMPLEMENTED = 12,
    TOLLGATE_INTERNAL = 13,
    TOLLGATE_UNAVAILABLE = 14,
    TOLLGATE_DATA_LOSS = 15,
    TOLLGATE_UNAUTHENTICATED = 16,
    /* The operation would wait, and TOLLGATE_NONBLOCK was given. */
    TOLLGATE_WOULD_BLOCK = -1,
    /* There are no further messages: the call or its requests ended without an error. */
    TOLLGATE_END = -2
};

/* Flags of functions that may wait. */
enum {
    /* Don't wait. */
    TOLLGATE_NONBLOCK = 1
};

/* The code's name, such as "NOT_FOUND". */
const char *tollgate_code_name(tollgate_code code);

/* The result of an operation: a code, a message, details and trailers. */
typedef struct tollgate_status tollgate_status;
/* Metadata of a message: pairs of a key and a value. */
typedef struct tollgate_metadata tollgate_metadata;

/* A status with the code OK. */
tollgate_status *tollgate_status_new(void);
void tollgate_status_free(tollgate_status *status);
tollgate_code tollgate_status_code(const tollgate_status *status);
/* The message, which may be empty; a zero byte follows it. */
tollgate_str tollgate_status_message(const tollgate_status *status);
/* The error's details, a serialized google.rpc.Status by gRPC's convention; empty if there are
 * none. */
tollgate_bytes tollgate_status_details(const tollgate_status *status);
/* The recommended time in milliseconds until a retry; -1 if unknown. */
int64_t tollgate_status_retry_after_ms(const tollgate_status *status);
/* The trailers that came with the status. They include the details, as grpc-status-details-bin. */
const tollgate_metadata *tollgate_status_trailers(const tollgate_status *status);
/* Sets code, 0 or more, and message (NULL: none), for tollgate_call_finish. */
tollgate_code tollgate_status_set(tollgate_status *status, tollgate_code code, const char *message);
/* Adds details. RESOURCE_EXHAUSTED or INVALID_ARGUMENT if they don't fit into the metadata. */
tollgate_code tollgate_status_set_details(tollgate_status *status, const uint8_t *details, size_t len);
tollgate_code tollgate_status_set_retry_after_ms(tollgate_status *status, uint32_t pause_ms);

/* --- Metadata ---------------------------------------------------------------------------------------------------- */

tollgate_metadata *tollgate_metadata_new(void);
void tollgate_metadata_free(tollgate_metadata *metadata);
/* Removes all pairs. */
void tollgate_metadata_clear(tollgate_metadata *metadata);
/* Adds a pair. Keys consist of a-z 0-9 - _ . and may repeat; keys that begin with grpc- or
 * tollgate- are reserved. Values are printable ASCII; if the key ends in -bin, any bytes. */
tollgate_code tollgate_metadata_add(tollgate_metadata *metadata, const char *key, const uint8_t *value, size_t len,
                                    tollgate_status *status);
/* The number of pairs; 0 for NULL. */
size_t tollgate_metadata_count(const tollgate_metadata *metadata);
/* A pair by index, in the order of addition. */
tollgate_code tollgate_metadata_get(const tollgate_metadata *metadata, size_t index, tollgate_str *key, tollgate_bytes *value);
/* The first value of a key; false if there is none. */
bool tollgate_metadata_find(const tollgate_metadata *metadata, const char *key, tollgate_bytes *value);

/* --- Sessions ---------------------------------------------------------------------------------------------------- */

/* A connection to the daemon. */
typedef struct tollgate_session tollgate_session;
/* A service that is bound for calling. */
typedef struct tollgate_client tollgate_client;
/* An outgoing or an incoming call. */
typedef struct tollgate_call tollgate_call;
/* A received message, read in place. */
typedef struct tollgate_message tollgate_message;
/* Memory that is sent without a copy. */
typedef struct tollgate_buffer tollgate_buffer;

typedef struct tollgate_session_options {
    /* sizeof(tollgate_session_options). Zero in another field means its default. */
    size_t struct_size;
    /* Path of the daemon's socket. Empty: TOLLGATE_SOCKET; or this user's `tollgate up --dev`, if it
     * runs; or the host's daemon. */
    const char *socket;
    /* The tenant's token. NULL or empty: the token in the environment variable TOLLGATE_TOKEN, or
     * in the file that TOLLGATE_TOKEN_FILE names. It is read again whenever the session reopens. */
    const char *token;
    /* The app's name in the daemon's status. Default: the executable's. */
    const char *app;
    /* The label of this session's servers: policies can route calls to it. Default: none. */
    const char *label;
    /* Bytes for outgoing messages, and for received messages that aren't freed; 1 MiB to 1 GiB.
     * Default: the daemon's. */
    uint64_t send_heap_bytes;
    uint64_t receive_heap_bytes;
    /* How long a waiting thread spins before it sleeps, in microseconds; -1: it doesn't spin.
     * Default: 50. */
    int64_t spin_us;
    /* Whether the session reopens, and serves its services again, after the daemon has gone; -1:
     * the session ends with the daemon. Calls in flight end with UNAVAILABLE either way. Default:
     * it reopens, on a thread of the library that lives until the session is open again. */
    int64_t reconnect;
    /* The number of retries of a call with one request and one reply that ended UNAVAILABLE, if its
     * method is marked idempotent in the schema (idempotency_level). Pauses are 50 ms to 1 s and
     * respect the deadline. At most 10; -1: no retries. Default: 2. */
    int64_t retries;
} tollgate_session_options;

/* Options with socket and token; the rest has its defaults. */
static inline tollgate_session_options tollgate_session_options_of(const char *socket, const char *token)
{
    tollgate_session_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.socket = socket;
    options.token = token;
    return options;
}

/* Objects that a program hasn't freed. */
typedef struct tollgate_leaks {
    /* sizeof(tollgate_leaks). */
    size_t struct_size;
    size_t messages;
    uint64_t message_bytes;
    size_t calls;
    size_t buffers;
    uint64_t buffer_bytes;
} tollgate_leaks;

/* Connects to the daemon. UNAVAILABLE if there is none, UNAUTHENTICATED for an unknown token. */
tollgate_code tollgate_session_open(const tollgate_session_options *options, tollgate_session **session, tollgate_status *status);
/* Ends the session: waiting functions fail with CANCELLED, completions of started calls run now,
 * and all other use is FAILED_PRECONDITION from now on. Returns FAILED_PRECONDITION with a message,
 * and counts in `leaks` (which may be NULL), if objects weren't freed: they stay readable and must
 * still be freed. */
tollgate_code tollgate_session_close(tollgate_session *session, tollgate_leaks *leaks, tollgate_status *status);
/* Closes the session unless it is closed, and frees the handle. */
void tollgate_session_free(tollgate_session *session);
/* The tenant that the token belongs to. */
const char *tollgate_session_tenant(const tollgate_session *session);
/* The session's id in the daemon's status. */
uint64_t tollgate_session_id(const tollgate_session *session);
/* The longest message that may be sent. */
size_t tollgate_session_max_message_bytes(const tollgate_session *session);

/* A descriptor that is readable when the session should be driven, for level- or edge-triggered
 * watching; -1 if there can't be one. The session owns it: don't read, write or close it. */
int tollgate_session_fd(tollgate_session *session, tollgate_status *status);
/* Processes pending work and runs its callbacks: completions, readiness, handlers. If nothing is
 * pending, waits up to `timeout_ms`; -1: without limit, 0: not at all. If the session has ended,
 * fails with the reason. */
tollgate_code tollgate_session_drive(tollgate_session *session, int64_t timeout_ms, tollgate_status *status);

/* --- Messages ---------------------------------------------------------------------------------------------------- */

/* Writes a value, like the stubs' <message>_write. It is called twice, to measure and to write. If
 * another thread changes the value in between, the message is invalid and the daemon may end the
 * session. */
typedef tollgate_error (*tollgate_write_fn)(tollgate_writer *writer, const void *value);

/* An outgoing message: a value and its writer, which writes it into the send heap; or, without a
 * writer, a block in canonical form and its length. */
typedef struct tollgate_source {
    tollgate_write_fn write;
    const void *value;
    size_t len;
} tollgate_source;

static inline tollgate_source tollgate_source_of(tollgate_write_fn write, const void *value)
{
    tollgate_source source;
    source.write = write;
    source.value = value;
    source.len = 0;
    return source;
}

/* The block, for the stubs' <message>_read. */
tollgate_bytes tollgate_message_block(const tollgate_message *message);
/* Metadata and trailers of the reply to tollgate_unary. */
const tollgate_metadata *tollgate_message_metadata(const tollgate_message *message);
const tollgate_metadata *tollgate_message_trailers(const tollgate_message *message);
/* Returns the memory. Views of the message become invalid. */
void tollgate_message_free(tollgate_message *message);

/* Memory in the session's send heap, with undefined content. RESOURCE_EXHAUSTED if there is none;
 * it doesn't wait. */
tollgate_code tollgate_buffer_new(tollgate_session *session, size_t len, tollgate_buffer **buffer, tollgate_status *status);
/* The writable memory; NULL after the freeze. */
uint8_t *tollgate_buffer_data(tollgate_buffer *buffer);
/* Ends writing. The bytes can be the value of a field in any messages of this session. If they are
 * at least TOLLGATE_EXTENT_MIN, they are sent without a copy. */
tollgate_code tollgate_buffer_freeze(tollgate_buffer *buffer, tollgate_bytes *bytes, tollgate_status *status);
/* The memory is reused when the daemon has finished reading it. */
void tollgate_buffer_free(tollgate_buffer *buffer);

/* --- Calling ----------------------------------------------------------------------------------------------------- */

typedef struct tollgate_call_options {
    /* sizeof(tollgate_call_options). Zero in another field means its default. */
    size_t struct_size;
    /* The call ends with DEADLINE_EXCEEDED after this time in milliseconds. A call that a handler
     * makes on its thread also ends when the handler's caller gives up. Default: only that, and the
     * session's end, bounds it. */
    uint64_t timeout_ms;
    /* The metadata of the first request. Default: none. */
    const tollgate_metadata *metadata;
    /* TOLLGATE_NONBLOCK, for tollgate_call_open. */
    uint32_t flags;
    /* Must be 0. */
    uint32_t reserved;
} tollgate_call_options;

/* The default options. */
static inline tollgate_call_options tollgate_call_options_of(void)
{
    tollgate_call_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    return options;
}

/* Binds a service for calling. `target` is host:port of the servers' daemon; NULL or empty: a
 * server on this host. Waits for the daemon and its peer, at most 10 s. INVALID_ARGUMENT if the
 * daemon rejects the schema, UNAVAILABLE if the peer can't be reached, FAILED_PRECONDITION if its
 * schema differs, UNIMPLEMENTED if the server has none of the methods. If the server lacks a
 * method, calls of that method fail with UNIMPLEMENTED. */
tollgate_code tollgate_client_new(tollgate_session *session, const tollgate_service *service, const char *target,
                                  tollgate_client **client, tollgate_status *status);
void tollgate_client_free(tollgate_client *client);

/* Calls a method, given by index, with one request, and waits for the reply. `options` may be NULL. */
tollgate_code tollgate_unary(const tollgate_client *client, uint32_t method, const tollgate_source *request,
                             const tollgate_call_options *options, tollgate_message **reply, tollgate_status *status);

/* Runs once for each started call, with the reply, which the receiver frees, or with NULL and the
 * call's status. */
typedef void (*tollgate_done_fn)(void *user, tollgate_code code, tollgate_message *reply, const tollgate_status *status);

/* Like tollgate_unary, but doesn't wait: `done` runs when the session is driven, never within this
 * function, and only if this returns TOLLGATE_OK. `call`, unless NULL, gets a handle for
 * cancelling; freeing it cancels the call, too. */
tollgate_code tollgate_unary_start(const tollgate_client *client, uint32_t method, const tollgate_source *request,
                                   const tollgate_call_options *options, tollgate_done_fn done, void *user, tollgate_call **call,
                                   tollgate_status *status);

/* Opens a call with any number of requests and responses. `first` is its first request, or NULL if
 * that comes later. With `is_last`, no further request follows (NULL and last: no request at all). */
tollgate_code tollgate_call_open(const tollgate_client *client, uint32_t method, const tollgate_source *first, bool is_last,
                                 const tollgate_call_options *options, tollgate_call **call, tollgate_status *status);
/* Ends the requests. Doesn't wait. */
tollgate_code tollgate_call_half_close(tollgate_call *call, tollgate_status *status);
/* Cancels an outgoing call: functions that wait for it, and later ones, return CANCELLED. Callable
 * from any thread. */
tollgate_code tollgate_call_cancel(tollgate_call *call, tollgate_status *status);

/* --- Calls of either side ---------------------------------------------------------------------------------------- */

/* Sends a request, or a response to an incoming call; waits for room at the reader. CANCELLED if
 * the call is over; tollgate_call_receive returns how it ended. With TOLLGATE_NONBLOCK: queues a
 * copy if there is no room, and returns TOLLGATE_WOULD_BLOCK while a copy is queued. If the copy
 * can't be sent, the next function on this call reports it. */
tollgate_code tollgate_call_send(tollgate_call *call, const tollgate_source *message, uint32_t flags, tollgate_status *status);
/* The next message of the other side. TOLLGATE_END after the last; otherwise the code of the call's
 * end. */
tollgate_code tollgate_call_receive(tollgate_call *call, uint32_t flags, tollgate_message **message, tollgate_status *status);
/* The other side's metadata. For an outgoing call, waits until anything has come. The call owns it. */
tollgate_code tollgate_call_metadata(tollgate_call *call, uint32_t flags, const tollgate_metadata **metadata, tollgate_status *status);
/* The trailers, once tollgate_call_receive has returned TOLLGATE_END; NULL before. The trailers of
 * an error are in its status. */
const tollgate_metadata *tollgate_call_trailers(const tollgate_call *call);
/* Whether the caller no longer waits. A handler that runs long calls this from time to time; it
 * processes what the daemon sends. */
bool tollgate_call_is_cancelled(tollgate_call *call);

typedef void (*tollgate_ready_fn)(tollgate_call *call, void *user);

/* Runs `ready`, when the session is driven, whenever a function that would have waited is worth
 * another try, or the call is over. It also runs once at the start, and there may be extra runs.
 * NULL: stops this. */
tollgate_code tollgate_call_on_ready(tollgate_call *call, tollgate_ready_fn ready, void *user, tollgate_status *status);
/* Cancels an outgoing call that hasn't ended, answers INTERNAL to an incoming one that wasn't
 * answered, and frees the handle. Does nothing with an incoming call that wasn't kept
 * (tollgate_call_keep). */
void tollgate_call_free(tollgate_call *call);

/* --- Serving ----------------------------------------------------------------------------------------------------- */

/* Handles a call. The library owns the call, and ends it with the handler: INTERNAL if it wasn't
 * answered. It may be kept (tollgate_call_keep). */
typedef void (*tollgate_handler_fn)(tollgate_call *call, void *user);

/* Serves a service from now on until the session ends. `handlers` has one entry per method, in the
 * methods' order; NULL: UNIMPLEMENTED. Waits for the daemon, at most 10 s. */
tollgate_code tollgate_session_add_service(tollgate_session *session, const tollgate_service *service,
                                           const tollgate_handler_fn *handlers, size_t handler_count, void *user,
                                           tollgate_status *status);
/* Runs handlers on this thread, one at a time, until the session ends, which is an error, or until
 * tollgate_session_stop. Several threads may call it, and run as many handlers at once. */
tollgate_code tollgate_session_serve(tollgate_session *session, tollgate_status *status);
/* Makes tollgate_session_serve return in the threads that are in it now, after their handlers. Not
 * for signal handlers. */
void tollgate_session_stop(tollgate_session *session);

/* Stops serving without losing a call: the daemon sends no further calls, other servers of the same
 * services get them, and calls in flight are handled, also on this thread, before this returns
 * TOLLGATE_OK. Then tollgate_session_serve returns in all threads, and the session can be closed.
 * Outgoing calls continue; a reopened session serves nothing. Waits at most `timeout_ms`; -1:
 * without limit. DEADLINE_EXCEEDED if calls aren't answered by then: they continue, and this may be
 * called again; in an event loop, call it with 0 from time to time. Don't call it in a handler,
 * whose call it would wait for, or in a signal handler. */
tollgate_code tollgate_session_drain(tollgate_session *session, int64_t timeout_ms, tollgate_status *status);

/* The health of a session's services, for gRPC's health service. */
typedef struct tollgate_health tollgate_health;

/* The health of a service, with the numbers of grpc.health.v1. */
enum {
    TOLLGATE_HEALTH_UNKNOWN = 0,
    TOLLGATE_HEALTH_SERVING = 1,
    TOLLGATE_HEALTH_NOT_SERVING = 2,
    /* The service isn't known any more. */
    TOLLGATE_HEALTH_SERVICE_UNKNOWN = 3
};

/* Also serves grpc.health.v1.Health, until the session ends. The server as a whole, whose name is
 * "", is SERVING. Waits for the daemon, at most 10 s. The handle sets the health; freeing it keeps
 * what was set. */
tollgate_code tollgate_health_new(tollgate_session *session, tollgate_health **health, tollgate_status *status);
/* Sets the health of the service, named with its package, to one of TOLLGATE_HEALTH_*. Callable
 * from any thread. */
tollgate_code tollgate_health_set(const tollgate_health *health, const char *service, int32_t serving, tollgate_status *status);
/* Sets everything to NOT_SERVING for good; watches end once they have reported this.
 * tollgate_session_drain does the same. */
void tollgate_health_shut_down(const tollgate_health *health);
void tollgate_health_free(tollgate_health *health);

/* The method's index in its service; -1 for an outgoing call. */
int32_t tollgate_call_method(const tollgate_call *call);
/* The time in milliseconds until the caller's deadline; -1 without a deadline. */
int64_t tollgate_call_time_left_ms(const tollgate_call *call);
/* The call outlives its handler: the program must answer and free it. */
tollgate_code tollgate_call_keep(tollgate_call *call, tollgate_status *status);
/* Sends metadata (once, before the first response) instead of with the answer. */
tollgate_code tollgate_call_send_metadata(tollgate_call *call, const tollgate_metadata *metadata, tollgate_status *status);
/* Answers with the call's one response, with metadata before it and trailers after it; each may be
 * NULL. Doesn't wait: without room in the send heap, the answer is copied, and sent when the
 * session is driven. */
tollgate_code tollgate_call_reply(tollgate_call *call, const tollgate_source *message, const tollgate_metadata *metadata,
                                  const tollgate_metadata *trailers, tollgate_status *status);
/* Ends the call: without an error if `how` is NULL or OK, after the responses that were sent;
 * otherwise with `how`. Trailers may be NULL. Doesn't wait. */
tollgate_code tollgate_call_finish(tollgate_call *call, const tollgate_status *how, const tollgate_metadata *trailers,
                                   tollgate_status *status);

/* For the stubs: a method without a handler. */
static inline void tollgate_unimplemented_(tollgate_call *call)
{
    tollgate_status *status = tollgate_status_new();
    tollgate_status_set(status, TOLLGATE_UNIMPLEMENTED, "this server has no handler for the method");
    tollgate_call_finish(call, status, NULL, NULL);
    tollgate_status_free(status);
}

#ifdef __cplusplus
}
#include "tollgate_cpp.h"
#else
/* For the stubs: does something with a message, and frees that. */
#define TOLLGATE_THEN_FREE_(message, handle) do { handle; tollgate_message_free(message); } while (0)
#endif

#endif
