/* Makes reservations. With a server running (hotel_server), on this host or another one:
 *
 *   hotel_client /run/tollgate.sock TOKEN [127.0.0.1:7472] [CALLS]
 */
#include "example.h"
#include "hotel.tollgate_service.h"

int main(int argc, char **argv)
{
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session = open_session(argc, argv, status);
    tollgate_call_options options = tollgate_call_options_of();
    tollgate_str hotels[2] = {tollgate_text("ritz"), tollgate_text("astoria")};
    hotel_Stay_value stay = {0};
    hotel_ReserveRequest_value request = {0};
    hotel_AvailabilityRequest_value question = {0};
    hotel_ReserveReply_view reply;
    hotel_AvailabilityReply_view rooms;
    tollgate_client *client;
    tollgate_message *message;
    int call, calls = argc > 4 ? atoi(argv[4]) : 1;
    size_t i;
    stay.in_date = tollgate_text("2026-05-01");
    stay.out_date = tollgate_text("2026-05-03");
    request.customer_name = tollgate_text("Ada");
    request.hotel_ids.items = question.hotel_ids.items = hotels;
    request.hotel_ids.count = question.hotel_ids.count = 2;
    request.stay = question.stay = &stay;
    request.room_count = question.room_count = 2;
    options.timeout_ms = 10000;
    expect(hotel_Reservation_client(session, argc > 3 ? argv[3] : "", &client, status), TOLLGATE_OK, "can't bind", status);
    for (call = 0; call < calls; call++) {
        expect(hotel_Reservation_Reserve_call(client, &request, &options, &reply, &message, status), TOLLGATE_OK, "Reserve",
               status);
        printf("reservation %llu at %zu hotels\n", (unsigned long long)hotel_ReserveReply_get_reservation_id(reply),
               hotel_ReserveReply_count_hotel_ids(reply));
        tollgate_message_free(message);
    }
    expect(hotel_Reservation_CheckAvailability_call(client, &question, &options, &rooms, &message, status), TOLLGATE_OK,
           "CheckAvailability", status);
    for (i = 0; i < hotel_AvailabilityReply_count_rooms_left(rooms); i++) {
        tollgate_str key = hotel_AvailabilityReply_key_rooms_left(rooms, i);
        printf("%.*s has %u rooms left\n", (int)key.len, key.data,
               (unsigned)hotel_AvailabilityReply_get_rooms_left(rooms, i));
    }
    tollgate_message_free(message);
    tollgate_client_free(client);
    close_session(session, status);
    tollgate_status_free(status);
    return 0;
}
