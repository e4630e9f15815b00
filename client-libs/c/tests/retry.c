/* Calls that are made again: those of a method that is marked idempotent, as often as the session's options say, and no others.
 *
 *   retry SOCKET TOKEN
 *
 * Prints for each way to ask how the call ended, and how often the server was asked.
 */
#include "../examples/example.h"
#include "hotel.tollgate_service.h"

/* How often it was asked, and how often it fails before it answers. One thread handles calls; who reads has its answer. */
typedef struct hotel {
    int asked;
    int fails;
} hotel;

static void fail(tollgate_call *call)
{
    tollgate_status *refusal = tollgate_status_new();
    tollgate_status_set(refusal, TOLLGATE_UNAVAILABLE, "try again");
    tollgate_call_finish(call, refusal, NULL, NULL);
    tollgate_status_free(refusal);
}

static void reserve(tollgate_call *call, hotel_ReserveRequest_view booking, void *user)
{
    (void)booking;
    ((hotel *)user)->asked++;
    fail(call);
}

static void check_availability(tollgate_call *call, hotel_AvailabilityRequest_view question, void *user)
{
    hotel *it = (hotel *)user;
    hotel_AvailabilityReply_value answer = {0};
    (void)question;
    if (it->asked++ < it->fails) {
        fail(call);
    } else {
        hotel_Reservation_CheckAvailability_reply(call, &answer, NULL, NULL, NULL);
    }
}

/* Asks once, over a session with so many retries. */
static void ask(char **argv, hotel *it, int64_t retries, bool marked, tollgate_status *status)
{
    tollgate_session_options options = tollgate_session_options_of(argv[1], argv[2]);
    tollgate_session *session;
    tollgate_client *client;
    tollgate_message *message;
    tollgate_code code;
    options.retries = retries;
    expect(tollgate_session_open(&options, &session, status), TOLLGATE_OK, "can't open a session", status);
    expect(hotel_Reservation_client(session, NULL, &client, status), TOLLGATE_OK, "can't bind", status);
    it->asked = 0;
    if (marked) {
        hotel_AvailabilityRequest_value question = {0};
        hotel_AvailabilityReply_view view;
        code = hotel_Reservation_CheckAvailability_call(client, &question, NULL, &view, &message, status);
    } else {
        hotel_ReserveRequest_value booking = {0};
        hotel_ReserveReply_view view;
        code = hotel_Reservation_Reserve_call(client, &booking, NULL, &view, &message, status);
    }
    tollgate_message_free(message);
    printf("%s, %d times\n", tollgate_code_name(code), it->asked);
    tollgate_client_free(client);
    close_session(session, status);
}

int main(int argc, char **argv)
{
    hotel it = {0, 2};
    const hotel_Reservation_handlers handlers = {reserve, check_availability, &it};
    tollgate_status *status = tollgate_status_new();
    tollgate_session *server = open_session(argc, argv, status);
    pthread_t thread;
    expect(hotel_Reservation_serve(server, &handlers, status), TOLLGATE_OK, "can't serve", status);
    thread = serve_in_a_thread(server);
    ask(argv, &it, 0, true, status);
    ask(argv, &it, 1, true, status);
    ask(argv, &it, -1, true, status);
    ask(argv, &it, 0, false, status);
    stop_serving(thread, server, status);
    tollgate_status_free(status);
    return 0;
}
