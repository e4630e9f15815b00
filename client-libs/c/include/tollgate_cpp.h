/* C++ additions to tollgate.h: handlers and completions may throw.
 *
 * Only code from a C++ compiler can catch exceptions. So this header registers a catching function
 * with the library, before main, in each part of the program that includes tollgate.h; the first
 * registration counts. The first part must not be unloaded (dlclose). */
#ifndef TOLLGATE_CPP_H
#define TOLLGATE_CPP_H

/* For the stubs: frees a message even if its handler throws. */
struct tollgate_owned_ {
    tollgate_message *message;
    ~tollgate_owned_() { tollgate_message_free(message); }
};
#define TOLLGATE_THEN_FREE_(message, handle) \
    do { \
        const tollgate_owned_ owned_ = {message}; \
        handle; \
    } while (0)

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)

#include <cstring>
#include <exception>

static int32_t tollgate_guard_(tollgate_run_fn run, void *state, char *text, size_t room)
{
    try {
        run(state);
        return 0;
    } catch (const std::exception &error) {
        std::strncpy(text, error.what(), room);
    } catch (...) {
        std::strncpy(text, "it isn't a std::exception", room);
    }
    return 1;
}

struct tollgate_guarded_ {
    tollgate_guarded_() { tollgate_guard_with(tollgate_guard_); }
};
static const tollgate_guarded_ tollgate_guard_is_registered_;

#endif

#endif
