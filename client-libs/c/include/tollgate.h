/* Tollgate for C: typed calls through the host's daemon, which enforces policies, marshals and transports.
 *
 *   tollgate_session_open ── the daemon's socket, a tenant's token
 *   tollgate_client_new   ── a service of the stubs', and where its servers are
 *   tollgate_unary        ── one request, one reply;  tollgate_call_open: any number of them
 *   tollgate_session_add_service, tollgate_session_serve ── handlers
 *
 * Beside this header a program uses the stubs that `tollgate gen --lang c` writes: messages in <package>.tollgate.h, and typed
 * functions for services in <package>.tollgate_service.h.
 *
 * RESULTS. Functions answer with a code: TOLLGATE_OK, one of gRPC's codes, TOLLGATE_WOULD_BLOCK or TOLLGATE_END. Their last parameter is a
 * status or NULL: an object of the caller's that tells more, and is overwritten by each function that it is given to. Handles that
 * functions make are NULL unless they answer TOLLGATE_OK.
 *
 * OWNERSHIP. What a function gives by a pointer to a pointer, and what *_new makes, is the caller's to free with the *_free of its type,
 * which does nothing for NULL. What is returned as `const` belongs to what it was asked of, and lives as long. Handles may be freed after
 * their session was closed. What a function is given it has read when it returns; it keeps no pointer but `user`.
 *
 * THREADS. The library starts none, but to open a session anew whose daemon has gone (tollgate_session_options.reconnect). A session, a
 * client and a call may be used by several threads at once, a call's sending by one and its receiving by another; statuses, metadata,
 * messages and buffers by one at a time. A program's functions run on the threads that call tollgate_session_serve, tollgate_session_drive
 * or tollgate_session_close. Only writers (tollgate_write_fn) run elsewhere: during the function that was given the message. A writer mustn't
 * call the library.
 *
 * LEAVING a program's function otherwise than by return. A C++ exception ends where it was thrown: its call ends with UNKNOWN and what the
 * exception says, the function that ran the handler goes on, and standard error has a line. That takes a part of the program that was compiled
 * as C++, with exceptions, and with this header (tollgate_cpp.h). In a program without, and out of a writer, an exception ends the process with a
 * message. longjmp, pthread_exit and cancellation of the thread can't be noticed, and mustn't leave these functions: the call would stay
 * unanswered until its deadline, what the library has on the stack would never be given back, and the calls that the thread makes
 * afterwards would have a deadline of another's. A handler that wants to end its thread has tollgate_session_serve return
 * (tollgate_session_stop), and ends it then.
 *
 * WAITING. Functions wait unless they are told TOLLGATE_NONBLOCK; while they do, they drive the session: look at what the daemon says. While
 * nobody waits, nobody does: what has come waits, too. From an event loop, wait for tollgate_session_fd and call
 * tollgate_session_drive(session, 0, NULL).
 *
 * MISTAKES. NULL for a handle or result, and a struct of nonsensical size, are INVALID_ARGUMENT; what comes too late, or twice, is
 * FAILED_PRECONDITION. Use of a handle after it was freed can't be detected.
 *
 * LIMITS. Metadata of one message: 8 KiB and 64 pairs; a message: tollgate_session_max_message_bytes, at most 16 MiB; calls under way
 * at once per session: 65,536, of which handlers 4,096; messages of one call that are sent without waiting and aren't out yet: 1; rounds of
 * callbacks in one tollgate_session_drive, when each brings the next: 17, and the descriptor stays readable.
 */
#ifndef TOLLGATE_H
#define TOLLGATE_H

#include "tollgate_block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Versions ---------------------------------------------------------------------------------------------------- */

/* The header's version. */
#define TOLLGATE_VERSION_MAJOR 0
#define TOLLGATE_VERSION_MINOR 1
#define TOLLGATE_VERSION_PATCH 0

/* What the name of the shared library ends in. A program that loads the library itself compares it with TOLLGATE_ABI_VERSION. */
#define TOLLGATE_ABI_VERSION 0
extern const uint32_t tollgate_abi_version;

/* The library's version: major << 16 | minor << 8 | patch. */
uint32_t tollgate_version(void);
const char *tollgate_version_text(void);

/* --- C++ exceptions ------------------------------------------------------------------------------------------- */

/* Runs something of the library's. */
typedef void (*tollgate_run_fn)(void *state);
/* Calls `run` once with `state`; if that throws, writes what the exception says, at most `room` bytes, and answers 1; otherwise 0. */
typedef int32_t (*tollgate_guard_fn)(tollgate_run_fn run, void *state, char *text, size_t room);
/* Has the program's functions run in a guard, from now on and for good; the first one counts. For tollgate_cpp.h, which does it before main, so
 * that no program need. */
void tollgate_guard_with(tollgate_guard_fn guard);

/* --- Codes and statuses ------------------------------------------------------------------------------------------ */

/* TOLLGATE_OK, which is 0 and from tollgate_block.h, or one of these. Those above 0 are gRPC's; a peer may use others, which are above 16. */
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
    /* It can't be done without waiting, and TOLLGATE_NONBLOCK was asked for. */
    TOLLGATE_WOULD_BLOCK = -1,
    /* There are no further messages: the call ended well, or its requests ended. */
    TOLLGATE_END = -2
};

/* Flags of functions that would wait. */
enum {
    /* Don't wait. */
    TOLLGATE_NONBLOCK = 1
};

/* The code's name, such as "NOT_FOUND". */
const char *tollgate_code_name(tollgate_code code);

/* How something ended: a code, a sentence, and what a server says beside it. */
typedef struct tollgate_status tollgate_status;
/* What travels beside a message: pairs of a key and a value. */
typedef struct tollgate_metadata tollgate_metadata;

/* A status that says OK. */
tollgate_status *tollgate_status_new(void);
void tollgate_status_free(tollgate_status *status);
tollgate_code tollgate_status_code(const tollgate_status *status);
/* The sentence, maybe empty; a zero byte lies behind it. */
tollgate_str tollgate_status_message(const tollgate_status *status);
/* The details of the error, a serialized google.rpc.Status by gRPC's convention; empty for none. */
tollgate_bytes tollgate_status_details(const tollgate_status *status);
/* After how long it makes sense to try again; -1 if that isn't known. */
int64_t tollgate_status_retry_after_ms(const tollgate_status *status);
/* What came with the status. Details are among them, as grpc-status-details-bin. */
const tollgate_metadata *tollgate_status_trailers(const tollgate_status *status);
/* Makes it a status of this code, 0 or more, and sentence (NULL: none), for tollgate_call_finish. */
tollgate_code tollgate_status_set(tollgate_status *status, tollgate_code code, const char *message);
/* Adds details. RESOURCE_EXHAUSTED or INVALID_ARGUMENT if they don't fit among the metadata. */
tollgate_code tollgate_status_set_details(tollgate_status *status, const uint8_t *details, size_t len);
tollgate_code tollgate_status_set_retry_after_ms(tollgate_status *status, uint32_t pause_ms);

/* --- Metadata ---------------------------------------------------------------------------------------------------- */

tollgate_metadata *tollgate_metadata_new(void);
void tollgate_metadata_free(tollgate_metadata *metadata);
/* Takes everything out. */
void tollgate_metadata_clear(tollgate_metadata *metadata);
/* Adds a pair. Keys are of a-z 0-9 - _ . and may repeat; those that begin with grpc- or tollgate- are reserved. Values are printable
 * ASCII; if the key ends in -bin, any bytes. */
tollgate_code tollgate_metadata_add(tollgate_metadata *metadata, const char *key, const uint8_t *value, size_t len,
                                    tollgate_status *status);
/* How many pairs there are; 0 of NULL. */
size_t tollgate_metadata_count(const tollgate_metadata *metadata);
/* A pair, in the order in which they were added. */
tollgate_code tollgate_metadata_get(const tollgate_metadata *metadata, size_t index, tollgate_str *key, tollgate_bytes *value);
/* The first value of a key; false if there is none. */
bool tollgate_metadata_find(const tollgate_metadata *metadata, const char *key, tollgate_bytes *value);

/* --- Sessions ---------------------------------------------------------------------------------------------------- */

/* A connection to the daemon. */
typedef struct tollgate_session tollgate_session;
/* A service that was bound for calling. */
typedef struct tollgate_client tollgate_client;
/* A call of one's own, or one that came in. */
typedef struct tollgate_call tollgate_call;
/* A message that was received, and is read in place. */
typedef struct tollgate_message tollgate_message;
/* Memory that can be sent from without a copy. */
typedef struct tollgate_buffer tollgate_buffer;

typedef struct tollgate_session_options {
    /* sizeof(tollgate_session_options). Zero in the other fields is their default. */
    size_t struct_size;
    /* Path of the daemon's socket. */
    const char *socket;
    /* The tenant's token. NULL or empty: that of the environment, which has it in TOLLGATE_TOKEN, or the path of a file with it in
     * TOLLGATE_TOKEN_FILE. It is looked for again whenever the session opens itself anew. */
    const char *token;
    /* The app's name in the daemon's status. Default: the executable's. */
    const char *app;
    /* The label under which this session serves: policies can route calls to it. Default: none. */
    const char *label;
    /* Bytes for what is sent, and for what was received and not freed; 1 MiB to 1 GiB. Default: the daemon's. */
    uint64_t send_heap_bytes;
    uint64_t receive_heap_bytes;
    /* How long a waiting thread spins before it sleeps, in microseconds; -1: not at all. Default: 50. */
    int64_t spin_us;
    /* Whether the session is opened anew, and what it serves is served anew, when its daemon has gone: -1 if not, so that its end is the
     * session's. What was in flight is UNAVAILABLE either way. Default: it is, by a thread of the library's until it has succeeded. */
    int64_t reconnect;
    /* How often a call with one request and one reply that ended UNAVAILABLE is made again, if its method is marked idempotent in the schema
     * (idempotency_level): after pauses of 50 ms to 1 s, within its deadline. At most 10; -1: never. Default: 2. */
    int64_t retries;
} tollgate_session_options;

/* Options with nothing but these. */
static inline tollgate_session_options tollgate_session_options_of(const char *socket, const char *token)
{
    tollgate_session_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.socket = socket;
    options.token = token;
    return options;
}

/* What a program hasn't given back. */
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
/* Ends the session: what waits fails with CANCELLED, completions of what was started run now, and everything else is
 * FAILED_PRECONDITION from now on. FAILED_PRECONDITION with a sentence, and with counts in `leaks` (which may be NULL), if something wasn't
 * given back: that can still be read, and has to be freed. */
tollgate_code tollgate_session_close(tollgate_session *session, tollgate_leaks *leaks, tollgate_status *status);
/* Closes the session if it wasn't, and frees the handle. */
void tollgate_session_free(tollgate_session *session);
/* The tenant that the token belongs to. */
const char *tollgate_session_tenant(const tollgate_session *session);
/* The session's number in the daemon's status. */
uint64_t tollgate_session_id(const tollgate_session *session);
/* The longest message that may be sent. */
size_t tollgate_session_max_message_bytes(const tollgate_session *session);

/* A descriptor that becomes readable when there is something to drive, to be watched by level or by edge; -1 if there can't be one.
 * It is the session's: don't read, write or close it. */
int tollgate_session_fd(tollgate_session *session, tollgate_status *status);
/* Does what there is to do and runs what it brings: completions, readiness, handlers. If there is nothing, waits for something first, at
 * most so long; -1: for ever, 0: not at all. Fails if the session has ended, with why. */
tollgate_code tollgate_session_drive(tollgate_session *session, int64_t timeout_ms, tollgate_status *status);

/* --- Messages ---------------------------------------------------------------------------------------------------- */

/* Writes a value, as the stubs' <message>_write does. Called twice, to measure and to write: a value that another thread changes in between
 * is no message any more, for which the daemon may end the session. */
typedef tollgate_error (*tollgate_write_fn)(tollgate_writer *writer, const void *value);

/* A message to be sent: a value and its writer, which writes it where it is sent from; or, without a writer, a block in canonical form
 * and its length. */
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
/* What came beside a reply to tollgate_unary, before and behind it. */
const tollgate_metadata *tollgate_message_metadata(const tollgate_message *message);
const tollgate_metadata *tollgate_message_trailers(const tollgate_message *message);
/* Gives the memory back. Views of the message end with it. */
void tollgate_message_free(tollgate_message *message);

/* Room in the session's send heap, with whatever was there before. RESOURCE_EXHAUSTED if there is none; it doesn't wait. */
tollgate_code tollgate_buffer_new(tollgate_session *session, size_t len, tollgate_buffer **buffer, tollgate_status *status);
/* Where to write; NULL once it is frozen. */
uint8_t *tollgate_buffer_data(tollgate_buffer *buffer);
/* Ends the writing. The bytes, as the value of a field of any messages of this session, are sent from where they are, if they are at
 * least TOLLGATE_EXTENT_MIN. */
tollgate_code tollgate_buffer_freeze(tollgate_buffer *buffer, tollgate_bytes *bytes, tollgate_status *status);
/* The memory goes back when the daemon doesn't read it any more. */
void tollgate_buffer_free(tollgate_buffer *buffer);

/* --- Calling ----------------------------------------------------------------------------------------------------- */

typedef struct tollgate_call_options {
    /* sizeof(tollgate_call_options). Zero in the other fields is their default. */
    size_t struct_size;
    /* The call ends with DEADLINE_EXCEEDED after so long, and when the caller of the handler that makes it gives up, on the handler's thread.
     * Default: only that, and the session's end, bounds it. */
    uint64_t timeout_ms;
    /* What is sent beside the first request. Default: nothing. */
    const tollgate_metadata *metadata;
    /* TOLLGATE_NONBLOCK, for tollgate_call_open. */
    uint32_t flags;
    /* 0. */
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

/* Binds a service for calling. `target` is host:port of the daemon to call through; NULL or empty: a server on this host. Waits, at most
 * 10 s, for the daemon and its peer. INVALID_ARGUMENT for a schema that the daemon doesn't accept, UNAVAILABLE if the peer isn't there,
 * FAILED_PRECONDITION if its schema differs, UNIMPLEMENTED if the server has none of its methods. A method that the server
 * lacks fails its calls with UNIMPLEMENTED. */
tollgate_code tollgate_client_new(tollgate_session *session, const tollgate_service *service, const char *target,
                                  tollgate_client **client, tollgate_status *status);
void tollgate_client_free(tollgate_client *client);

/* Calls a method, by its index, with one request, and waits for its reply. `options` may be NULL. */
tollgate_code tollgate_unary(const tollgate_client *client, uint32_t method, const tollgate_source *request,
                             const tollgate_call_options *options, tollgate_message **reply, tollgate_status *status);

/* Told once of each call that was started: the reply, which is the receiver's to free, or NULL and how the call ended. */
typedef void (*tollgate_done_fn)(void *user, tollgate_code code, tollgate_message *reply, const tollgate_status *status);

/* As tollgate_unary, but doesn't wait: `done` runs when the session is driven, never within this function, and only if this answers
 * TOLLGATE_OK. `call`, unless NULL, gets a handle by which the call can be cancelled; freeing that cancels, too. */
tollgate_code tollgate_unary_start(const tollgate_client *client, uint32_t method, const tollgate_source *request,
                                   const tollgate_call_options *options, tollgate_done_fn done, void *user, tollgate_call **call,
                                   tollgate_status *status);

/* Opens a call with any number of requests and responses: with its first request (NULL: later), which may be the last (or, if NULL and
 * last, there is none). */
tollgate_code tollgate_call_open(const tollgate_client *client, uint32_t method, const tollgate_source *first, bool is_last,
                                 const tollgate_call_options *options, tollgate_call **call, tollgate_status *status);
/* Says that no further requests follow. Doesn't wait. */
tollgate_code tollgate_call_half_close(tollgate_call *call, tollgate_status *status);
/* Gives up a call of one's own: what waits for it answers CANCELLED, and so does the call from now on. From any thread. */
tollgate_code tollgate_call_cancel(tollgate_call *call, tollgate_status *status);

/* --- Calls of either side ---------------------------------------------------------------------------------------- */

/* Sends a request, or a response to a call that came in; waits until its reader has room for it. CANCELLED if the call is over; how it
 * ended, tollgate_call_receive says. With TOLLGATE_NONBLOCK: takes a copy if there is no room, and answers TOLLGATE_WOULD_BLOCK while there
 * is such a copy; what keeps that from being sent is told by the next function that is called for this call. */
tollgate_code tollgate_call_send(tollgate_call *call, const tollgate_source *message, uint32_t flags, tollgate_status *status);
/* The next message of the other side. TOLLGATE_END after the last; otherwise how the call ended. */
tollgate_code tollgate_call_receive(tollgate_call *call, uint32_t flags, tollgate_message **message, tollgate_status *status);
/* What the other side sent beside its messages: of a call of one's own, waits until anything has come. It is the call's. */
tollgate_code tollgate_call_metadata(tollgate_call *call, uint32_t flags, const tollgate_metadata **metadata, tollgate_status *status);
/* What came behind the responses, once tollgate_call_receive has answered TOLLGATE_END; NULL before. Those of an error are in its status. */
const tollgate_metadata *tollgate_call_trailers(const tollgate_call *call);
/* Whether nobody waits for this call any more. A handler that takes long asks now and then; it looks at what the daemon says. */
bool tollgate_call_is_cancelled(tollgate_call *call);

typedef void (*tollgate_ready_fn)(tollgate_call *call, void *user);

/* Has `ready` run, when the session is driven, whenever something that would have blocked is worth another try, or the call is over;
 * possibly also when it isn't, and once to begin with. NULL: nothing any more. */
tollgate_code tollgate_call_on_ready(tollgate_call *call, tollgate_ready_fn ready, void *user, tollgate_status *status);
/* Cancels a call of one's own that hasn't ended, answers INTERNAL to one that came in and wasn't answered, and frees the handle. Does
 * nothing with a call that wasn't kept (tollgate_call_keep). */
void tollgate_call_free(tollgate_call *call);

/* --- Serving ----------------------------------------------------------------------------------------------------- */

/* Handles a call. The call is the library's, and ends with the handler: INTERNAL if it wasn't answered. It may be kept. */
typedef void (*tollgate_handler_fn)(tollgate_call *call, void *user);

/* Serves a service from now on until the session ends: handlers by the methods' indexes, with as many as there are methods; NULL:
 * UNIMPLEMENTED. Waits for the daemon, at most 10 s. */
tollgate_code tollgate_session_add_service(tollgate_session *session, const tollgate_service *service,
                                           const tollgate_handler_fn *handlers, size_t handler_count, void *user,
                                           tollgate_status *status);
/* Runs handlers on this thread, one at a time, until the session ends, which is an error, or tollgate_session_stop. Several threads may be
 * in it, and run as many handlers at once. */
tollgate_code tollgate_session_serve(tollgate_session *session, tollgate_status *status);
/* Has tollgate_session_serve return in the threads that are in it now, when their handlers have. Not from a signal handler. */
void tollgate_session_stop(tollgate_session *session);

/* Stops serving without a call lost: no further calls come, other servers of the same services get them, and those that came are handled,
 * also on this thread, before this answers TOLLGATE_OK. Then tollgate_session_serve does so in all threads, and the session can be closed.
 * What it calls itself goes on; it serves nothing when it is opened anew. Waits at most so long; -1: for ever. DEADLINE_EXCEEDED if calls
 * aren't answered by then: they go on, and it may be called again; with 0, from an event loop, now and then. Neither in a handler, whose
 * call it would wait for, nor in a signal handler. */
tollgate_code tollgate_session_drain(tollgate_session *session, int64_t timeout_ms, tollgate_status *status);

/* What is said of a session's services by gRPC's health service. */
typedef struct tollgate_health tollgate_health;

/* How a service is, by the numbers of grpc.health.v1. */
enum {
    TOLLGATE_HEALTH_UNKNOWN = 0,
    TOLLGATE_HEALTH_SERVING = 1,
    TOLLGATE_HEALTH_NOT_SERVING = 2,
    /* Nothing is known of it any more. */
    TOLLGATE_HEALTH_SERVICE_UNKNOWN = 3
};

/* Serves grpc.health.v1.Health besides, until the session ends. The server as a whole, whose name is "", is SERVING. Waits for the daemon, at
 * most 10 s. The handle is what it is told by; freeing it leaves what was said. */
tollgate_code tollgate_health_new(tollgate_session *session, tollgate_health **health, tollgate_status *status);
/* From now on the service, with its package, is so: one of TOLLGATE_HEALTH_*. From any thread. */
tollgate_code tollgate_health_set(const tollgate_health *health, const char *service, int32_t serving, tollgate_status *status);
/* Everything is NOT_SERVING, whatever is said later, and watches end when they have said so. tollgate_session_drain does the same. */
void tollgate_health_shut_down(const tollgate_health *health);
void tollgate_health_free(tollgate_health *health);

/* The method's index in its service; -1 of a call of one's own. */
int32_t tollgate_call_method(const tollgate_call *call);
/* How long the caller still waits; -1 without a deadline. */
int64_t tollgate_call_time_left_ms(const tollgate_call *call);
/* The call outlives its handler: it is the program's to answer and to free. */
tollgate_code tollgate_call_keep(tollgate_call *call, tollgate_status *status);
/* Sends metadata (once, before the first response) rather than with the answer. */
tollgate_code tollgate_call_send_metadata(tollgate_call *call, const tollgate_metadata *metadata, tollgate_status *status);
/* Answers with the one response of the call, with metadata before it and trailers behind it, each of which may be NULL. Doesn't wait: what
 * has no room in the send heap yet is copied, and sent when the session is driven. */
tollgate_code tollgate_call_reply(tollgate_call *call, const tollgate_source *message, const tollgate_metadata *metadata,
                                  const tollgate_metadata *trailers, tollgate_status *status);
/* Ends the call: well, if `how` is NULL or says OK, after the responses that were sent; otherwise with that. Trailers may be NULL. Doesn't
 * wait. */
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
