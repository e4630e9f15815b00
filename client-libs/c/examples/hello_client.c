/* The smallest client: one call of hotel.Echo.
 *
 *   hello_client SOCKET TOKEN [HOST:PORT]
 */
#include <stdio.h>

#include "hotel.tollgate_service.h"

int main(int argc, char **argv)
{
    tollgate_session_options options = tollgate_session_options_of(argc > 1 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL);
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session = NULL;
    tollgate_client *client = NULL;
    tollgate_message *reply = NULL;
    hotel_EchoMessage_value request = {0};
    hotel_EchoMessage_view view;
    tollgate_bytes payload;
    tollgate_code code;
    request.payload.data = (const uint8_t *)"hello";
    request.payload.len = 5;
    code = tollgate_session_open(&options, &session, status);
    if (code == TOLLGATE_OK) {
        code = hotel_Echo_client(session, argc > 3 ? argv[3] : "", &client, status);
    }
    if (code == TOLLGATE_OK) {
        code = hotel_Echo_Echo_call(client, &request, NULL, &view, &reply, status);
    }
    if (code == TOLLGATE_OK) {
        payload = hotel_EchoMessage_get_payload(view);
        printf("%.*s\n", (int)payload.len, (const char *)payload.data);
    } else {
        fprintf(stderr, "%s: %s\n", tollgate_code_name(code), tollgate_status_message(status).data);
    }
    tollgate_message_free(reply);
    tollgate_client_free(client);
    tollgate_session_free(session);
    tollgate_status_free(status);
    return code == TOLLGATE_OK ? 0 : 1;
}
