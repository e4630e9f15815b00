/* Answers reservations from memory. Start a daemon, then:
 *
 *   hotel_server /run/tollgate.sock TOKEN
 */
#include "example.h"
#include "hotel.tollgate_service.h"

/* The most hotels in one answer. */
enum { MOST_HOTELS = 64 };

/* Repeats the requested hotels, with a reservation number. */
static void reserve(tollgate_call *call, hotel_ReserveRequest_view booking, void *user)
{
    uint64_t *reservations = (uint64_t *)user;
    tollgate_str hotels[MOST_HOTELS], name = hotel_ReserveRequest_get_customer_name(booking);
    hotel_ReserveReply_value reply = {0};
    size_t i, count = hotel_ReserveRequest_count_hotel_ids(booking);
    if (count > MOST_HOTELS) {
        tollgate_status *refusal = tollgate_status_new();
        tollgate_status_set(refusal, TOLLGATE_INVALID_ARGUMENT, "at most 64 hotels can be asked for");
        tollgate_call_finish(call, refusal, NULL, NULL);
        tollgate_status_free(refusal);
        return;
    }
    for (i = 0; i < count; i++) {
        hotels[i] = hotel_ReserveRequest_get_hotel_ids(booking, i);
    }
    printf("%.*s reserves %u rooms\n", (int)name.len, name.data, (unsigned)hotel_ReserveRequest_get_room_count(booking));
    fflush(stdout);
    reply.reservation_id = ++*reservations;
    reply.hotel_ids.items = hotels;
    reply.hotel_ids.count = count;
    hotel_Reservation_Reserve_reply(call, &reply, NULL, NULL, NULL);
}

static int by_key(const void *a, const void *b)
{
    const hotel_AvailabilityReply_RoomsLeftEntry_value *x = (const hotel_AvailabilityReply_RoomsLeftEntry_value *)a;
    const hotel_AvailabilityReply_RoomsLeftEntry_value *y = (const hotel_AvailabilityReply_RoomsLeftEntry_value *)b;
    size_t len = x->key.len < y->key.len ? x->key.len : y->key.len;
    int order = memcmp(x->key.data, y->key.data, len);
    return order != 0 ? order : (x->key.len > y->key.len) - (x->key.len < y->key.len);
}

/* A hotel has as many rooms as its name has letters. A map's entries are in key order, each key
 * once. */
static void check_availability(tollgate_call *call, hotel_AvailabilityRequest_view request, void *user)
{
    hotel_AvailabilityReply_RoomsLeftEntry_value entries[MOST_HOTELS];
    hotel_AvailabilityReply_value reply = {0};
    size_t i, count = hotel_AvailabilityRequest_count_hotel_ids(request), kept = 0;
    (void)user;
    count = count < MOST_HOTELS ? count : MOST_HOTELS;
    for (i = 0; i < count; i++) {
        entries[i].key = hotel_AvailabilityRequest_get_hotel_ids(request, i);
        entries[i].value = (uint32_t)entries[i].key.len;
    }
    qsort(entries, count, sizeof *entries, by_key);
    for (i = 0; i < count; i++) {
        if (kept == 0 || by_key(&entries[kept - 1], &entries[i]) != 0) {
            entries[kept++] = entries[i];
        }
    }
    reply.rooms_left.items = entries;
    reply.rooms_left.count = kept;
    hotel_Reservation_CheckAvailability_reply(call, &reply, NULL, NULL, NULL);
}

int main(int argc, char **argv)
{
    uint64_t reservations = 0;
    tollgate_status *status = tollgate_status_new();
    tollgate_session *session = open_session(argc, argv, status);
    hotel_Reservation_handlers handlers = {reserve, check_availability, NULL};
    handlers.user_ = &reservations;
    expect(hotel_Reservation_serve(session, &handlers, status), TOLLGATE_OK, "can't serve", status);
    printf("serving for tenant %s\n", tollgate_session_tenant(session));
    fflush(stdout);
    tollgate_session_serve(session, status);
    fprintf(stderr, "%s\n", tollgate_status_message(status).data);
    tollgate_session_free(session);
    tollgate_status_free(status);
    return 1;
}
