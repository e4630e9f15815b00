/* How calls fail: codes, messages, details, pauses before a retry, and a server's trailers.
 *
 *   errors SOCKET TOKEN
 */
#include "example.h"
#include "hotel.tollgate_service.h"

/* A google.rpc.Status of code 8 with the message "full", in protobuf's encoding. */
static const uint8_t DETAILS[] = {0x08, 8, 0x12, 4, 'f', 'u', 'l', 'l'};

static void reserve(tollgate_call *call, hotel_ReserveRequest_view booking, void *user)
{
    (void)user;
    if (tollgate_is(hotel_ReserveRequest_get_customer_name(booking), "Mallory")) {
        tollgate_status *refusal = tollgate_status_new();
        tollgate_metadata *trailers = tollgate_metadata_new();
        tollgate_status_set(refusal, TOLLGATE_RESOURCE_EXHAUSTED, "no rooms are left");
        tollgate_status_set_details(refusal, DETAILS, sizeof DETAILS);
        tollgate_status_set_retry_after_ms(refusal, 1500);
        tollgate_metadata_add(trailers, "hotel", (const uint8_t *)"ritz", 4, NULL);
        tollgate_call_finish(call, refusal, trailers, NULL);
        tollgate_metadata_free(trailers);
        tollgate_status_free(refusal);
    }
    /* Other requests aren't answered, so the library answers INTERNAL. */
}

static void tell(const char *who, const tollgate_status *status)
{
    tollgate_bytes hotel;
    printf("%s: %s: %s\n", who, tollgate_code_name(tollgate_status_code(status)), tollgate_status_message(status).data);
    if (tollgate_status_details(status).len > 0) {
        printf("  details of %zu bytes, try again in %lld ms\n", tollgate_status_details(status).len,
               (long long)tollgate_status_retry_after_ms(status));
    }
    if (tollgate_metadata_find(tollgate_status_trailers(status), "hotel", &hotel)) {
        printf("  hotel %.*s\n", (int)hotel.len, (const char *)hotel.data);
    }
}

int main(int argc, char **argv)
{
    const hotel_Reservation_handlers handlers = {reserve, NULL, NULL};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *server = open_session(argc, argv, status), *session = open_session(argc, argv, status);
    hotel_ReserveRequest_value request = {0};
    hotel_AvailabilityRequest_value question = {0};
    hotel_ReserveReply_view reply;
    hotel_AvailabilityReply_view rooms;
    tollgate_client *client;
    tollgate_message *message;
    pthread_t thread;
    expect(hotel_Reservation_serve(server, &handlers, status), TOLLGATE_OK, "can't serve", status);
    thread = serve_in_a_thread(server);
    expect(hotel_Reservation_client(session, NULL, &client, status), TOLLGATE_OK, "can't bind", status);

    request.customer_name = tollgate_text("Mallory");
    expect(hotel_Reservation_Reserve_call(client, &request, NULL, &reply, &message, status), TOLLGATE_RESOURCE_EXHAUSTED,
           "Mallory", status);
    tell("Mallory", status);
    request.customer_name = tollgate_text("Ada");
    expect(hotel_Reservation_Reserve_call(client, &request, NULL, &reply, &message, status), TOLLGATE_INTERNAL, "Ada", status);
    tell("Ada", status);
    expect(hotel_Reservation_CheckAvailability_call(client, &question, NULL, &rooms, &message, status), TOLLGATE_UNIMPLEMENTED,
           "a method without a handler", status);
    tell("CheckAvailability", status);
    expect(tollgate_unary(client, 7, NULL, NULL, &message, status), TOLLGATE_INVALID_ARGUMENT, "a mistake", status);
    tell("a mistake", status);
    tollgate_client_free(client);
    close_session(session, status);
    stop_serving(thread, server, status);
    tollgate_status_free(status);
    return 0;
}
