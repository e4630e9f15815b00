/* gRPC's health service as a server in C tells it: to who asks, and to who watches, until the server drains.
 *
 *   health SOCKET TOKEN
 */
#include "../examples/example.h"
#include "grpc.health.v1.tollgate_service.h"

#define ROOMS "hotel.Reservation"

static tollgate_status *status;

/* What a service is, or -1 if it isn't known. */
static int asked(const tollgate_client *client, const char *service)
{
    grpc_health_v1_HealthCheckRequest_value request = {0};
    grpc_health_v1_HealthCheckResponse_view view;
    tollgate_message *message;
    int serving;
    request.service = tollgate_text(service);
    if (grpc_health_v1_Health_Check_call(client, &request, NULL, &view, &message, status) == TOLLGATE_NOT_FOUND) {
        return -1;
    }
    expect(tollgate_status_code(status), TOLLGATE_OK, "Check", status);
    serving = grpc_health_v1_HealthCheckResponse_get_status(view);
    tollgate_message_free(message);
    return serving;
}

/* What a watch hears next. */
static int heard(tollgate_call *watch)
{
    grpc_health_v1_HealthCheckResponse_view view;
    tollgate_message *message;
    int serving;
    expect(grpc_health_v1_Health_Watch_receive(watch, 0, &view, &message, status), TOLLGATE_OK, "Watch", status);
    serving = grpc_health_v1_HealthCheckResponse_get_status(view);
    tollgate_message_free(message);
    return serving;
}

int main(int argc, char **argv)
{
    const grpc_health_v1_HealthCheckRequest_value whole = {0};
    tollgate_session *server, *session;
    tollgate_client *client;
    tollgate_health *health;
    tollgate_message *message;
    tollgate_call *watch;
    pthread_t thread;
    status = tollgate_status_new();
    server = open_session(argc, argv, status);
    session = open_session(argc, argv, status);
    expect(tollgate_health_new(server, NULL, status), TOLLGATE_INVALID_ARGUMENT, "no room for a handle", status);
    expect(tollgate_health_new(server, &health, status), TOLLGATE_OK, "serving health", status);
    thread = serve_in_a_thread(server);
    expect(grpc_health_v1_Health_client(session, "", &client, status), TOLLGATE_OK, "binding", status);

    printf("%d %d\n", asked(client, ""), asked(client, ROOMS));
    expect(tollgate_health_set(health, ROOMS, TOLLGATE_HEALTH_SERVING, status), TOLLGATE_OK, "SERVING", status);
    printf("%d\n", asked(client, ROOMS));
    expect(tollgate_health_set(health, ROOMS, TOLLGATE_HEALTH_NOT_SERVING, status), TOLLGATE_OK, "NOT_SERVING", status);
    printf("%d\n", asked(client, ROOMS));
    expect(tollgate_health_set(health, ROOMS, TOLLGATE_HEALTH_SERVICE_UNKNOWN, status), TOLLGATE_OK, "forgotten", status);
    printf("%d\n", asked(client, ROOMS));
    expect(tollgate_health_set(health, ROOMS, 4, status), TOLLGATE_INVALID_ARGUMENT, "no status", status);
    expect(tollgate_health_set(health, NULL, 1, status), TOLLGATE_INVALID_ARGUMENT, "no name", status);

    expect(grpc_health_v1_Health_Watch_open(client, &whole, NULL, &watch, status), TOLLGATE_OK, "Watch", status);
    printf("%d\n", heard(watch));
    /* A watch doesn't keep a server from ending. */
    expect(tollgate_session_drain(server, -1, status), TOLLGATE_OK, "draining", status);
    pthread_join(thread, NULL);
    printf("%d\n", heard(watch));
    expect(tollgate_call_receive(watch, 0, &message, status), TOLLGATE_END, "the watch's end", status);

    tollgate_call_free(watch);
    tollgate_health_shut_down(health);
    tollgate_health_free(health);
    tollgate_health_free(NULL);
    tollgate_health_shut_down(NULL);
    tollgate_client_free(client);
    close_session(session, status);
    close_session(server, status);
    tollgate_status_free(status);
    return 0;
}
