/* Helpers of the examples: sessions from arguments, a server in its own thread, and exits with a
 * message. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <tollgate.h>

/* Ends the program unless a function returned the expected code. */
static inline void expect(tollgate_code code, tollgate_code expected, const char *what, const tollgate_status *status)
{
    if (code != expected) {
        fprintf(stderr, "%s: %s: %s\n", what, tollgate_code_name(code), tollgate_status_message(status).data);
        exit(1);
    }
}

static inline tollgate_session *open_session(int argc, char **argv, tollgate_status *status)
{
    tollgate_session_options options;
    tollgate_session *session = NULL;
    if (argc < 3) {
        fprintf(stderr, "usage: %s SOCKET TOKEN\n", argv[0]);
        exit(2);
    }
    options = tollgate_session_options_of(argv[1], argv[2]);
    expect(tollgate_session_open(&options, &session, status), TOLLGATE_OK, "can't open a session", status);
    return session;
}

/* Closes a session and checks that everything was freed. */
static inline void close_session(tollgate_session *session, tollgate_status *status)
{
    expect(tollgate_session_close(session, NULL, status), TOLLGATE_OK, "closing", status);
    tollgate_session_free(session);
}

static inline void *serve_until_stopped(void *session)
{
    tollgate_status *status = tollgate_status_new();
    expect(tollgate_session_serve((tollgate_session *)session, status), TOLLGATE_OK, "serving", status);
    tollgate_status_free(status);
    return NULL;
}

static inline pthread_t serve_in_a_thread(tollgate_session *session)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve_until_stopped, session) != 0) {
        perror("pthread_create");
        exit(1);
    }
    return thread;
}

/* Ends a server's thread and session. */
static inline void stop_serving(pthread_t thread, tollgate_session *session, tollgate_status *status)
{
    tollgate_session_stop(session);
    pthread_join(thread, NULL);
    close_session(session, status);
}

#endif
