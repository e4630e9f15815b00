/* The smallest server: it echoes each call of hotel.Echo.
 *
 *   hello_server SOCKET TOKEN
 */
#include <stdio.h>

#include "hotel.tollgate_service.h"

static void echo(tollgate_call *call, hotel_EchoMessage_view request, void *user)
{
    hotel_EchoMessage_value reply = {0};
    (void)user;
    reply.payload = hotel_EchoMessage_get_payload(request);
    hotel_Echo_Echo_reply(call, &reply, NULL, NULL, NULL);
}

int main(int argc, char **argv)
{
    const hotel_Echo_handlers handlers = {echo, NULL};
    tollgate_session_options options = tollgate_session_options_of(argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL);
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session = NULL;
    if (tollgate_session_open(&options, &session, status) == TOLLGATE_OK
        && hotel_Echo_serve(session, &handlers, status) == TOLLGATE_OK) {
        puts("serving");
        fflush(stdout);
        tollgate_session_serve(session, status);
    }
    fprintf(stderr, "%s\n", tollgate_status_message(status).data);
    tollgate_session_free(session);
    tollgate_status_free(status);
    return 1;
}
