/* Values that the writer refuses, and readers on forged blocks. Valid C11 and C++17. */
#include <stdio.h>
#include <stdlib.h>

#include "everything.tollgate.h"
#include "hotel.tollgate.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* The documentation's request: written, and read again. */
static void a_request_is_written_and_read(void)
{
    const tollgate_str hotels[] = {tollgate_text("ritz"), tollgate_text("savoy")};
    hotel_Stay_value stay;
    hotel_ReserveRequest_value request;
    uint8_t block[256];
    tollgate_writer writer = tollgate_writer_to(block, sizeof block);
    hotel_ReserveRequest_view view;
    memset(&stay, 0, sizeof stay);
    stay.in_date = tollgate_text("2026-05-01");
    memset(&request, 0, sizeof request);
    request.customer_name = tollgate_text("Ada");
    request.hotel_ids.items = hotels;
    request.hotel_ids.count = 2;
    request.stay = &stay;
    request.room_count = 3;
    CHECK(hotel_ReserveRequest_write(&writer, &request) == TOLLGATE_OK);

    view = hotel_ReserveRequest_read(block, writer.len);
    CHECK(tollgate_is(hotel_ReserveRequest_get_customer_name(view), "Ada"));
    CHECK(hotel_ReserveRequest_count_hotel_ids(view) == 2);
    CHECK(tollgate_is(hotel_ReserveRequest_get_hotel_ids(view, 1), "savoy"));
    CHECK(tollgate_is(hotel_ReserveRequest_get_hotel_ids(view, 2), ""));
    CHECK(tollgate_is(hotel_Stay_get_in_date(hotel_ReserveRequest_get_stay(view)), "2026-05-01"));
    CHECK(hotel_ReserveRequest_get_room_count(view) == 3);
    CHECK(!hotel_ReserveRequest_has_coupon(view));
}

static tollgate_error write_nested(size_t depth)
{
    static uint8_t block[16384];
    everything_Node_value nodes[65];
    tollgate_writer writer = tollgate_writer_to(block, sizeof block);
    size_t i;
    tollgate_error error;
    memset(nodes, 0, sizeof nodes);
    for (i = 0; i + 1 < depth; i++) {
        nodes[i].next = &nodes[i + 1];
    }
    error = everything_Node_write(&writer, nodes);
    if (error == TOLLGATE_OK) {
        everything_Node_view view = everything_Node_read(block, writer.len);
        for (i = 1; i < depth; i++) {
            CHECK(everything_Node_has_next(view));
            view = everything_Node_get_next(view);
        }
        CHECK(!everything_Node_has_next(view));
    }
    return error;
}

static void a_message_nests_64_structs_and_no_more(void)
{
    CHECK(write_nested(64) == TOLLGATE_OK);
    CHECK(write_nested(65) == TOLLGATE_TOO_DEEP);
}

static tollgate_error write_payload(size_t len, bool apart)
{
    tollgate_extent extents[1];
    hotel_EchoMessage_value message;
    tollgate_writer writer = tollgate_writer_to(NULL, 0);
    uint8_t *payload = (uint8_t *)calloc(len, 1);
    tollgate_error error;
    CHECK(payload != NULL);
    memset(&message, 0, sizeof message);
    message.payload.data = payload;
    message.payload.len = len;
    if (apart) {
        writer.extents = extents;
        writer.extent_capacity = 1;
    }
    error = hotel_EchoMessage_write(&writer, &message);
    free(payload);
    return error;
}

static void a_message_has_16_mib_and_no_more(void)
{
    size_t most = TOLLGATE_MAX_MESSAGE - sizeof(hotel_EchoMessage);
    hotel_ReserveReply_value reply;
    tollgate_writer writer = tollgate_writer_to(NULL, 0);
    CHECK(write_payload(most, false) == TOLLGATE_TOO_SMALL);
    CHECK(write_payload(most + 1, false) == TOLLGATE_TOO_LARGE);
    CHECK(write_payload(most, true) == TOLLGATE_TOO_SMALL);
    CHECK(write_payload(most + 1, true) == TOLLGATE_TOO_LARGE);
    memset(&reply, 0, sizeof reply);
    reply.hotel_ids.count = SIZE_MAX;
    CHECK(hotel_ReserveReply_write(&writer, &reply) == TOLLGATE_TOO_LARGE);
    CHECK(strcmp(tollgate_error_text(writer.error), "the message is too large") == 0);
}

static void a_writer_lists_no_more_extents_than_it_has_room_for(void)
{
    const tollgate_str values[] = {tollgate_text("first"), tollgate_text("second"), tollgate_text("third")};
    tollgate_extent extents[2];
    uint8_t block[256];
    hotel_ReserveReply_value reply;
    tollgate_writer writer = tollgate_writer_to(block, sizeof block);
    memset(&reply, 0, sizeof reply);
    reply.hotel_ids.items = values;
    reply.hotel_ids.count = 3;
    writer.extents = extents;
    writer.extent_capacity = 2;
    writer.extent_min = 1;
    CHECK(hotel_ReserveReply_write(&writer, &reply) == TOLLGATE_OK);
    CHECK(writer.extent_count == 2 && extents[1].len == 6);
    CHECK(tollgate_is(hotel_ReserveReply_get_hotel_ids(hotel_ReserveReply_read(block, writer.len), 2), "third"));
}

static void services_say_what_the_daemon_is_told(void)
{
    CHECK(strcmp(hotel_Reservation.name, "hotel.Reservation") == 0);
    CHECK(hotel_Reservation_CheckAvailability == 1 && hotel_Reservation_METHODS_ == 2);
    CHECK(strcmp(hotel_Reservation.methods[1].name, "CheckAvailability") == 0);
    CHECK(strcmp(hotel_Reservation_Reserve_NAME_, "hotel.Reservation/Reserve") == 0);
    CHECK(hotel_Reservation.descriptor_set_len == sizeof hotel_descriptor_set);
    CHECK(strlen(hotel_Reservation.schema_hash) == 64);
    CHECK(everything_Everything.methods[everything_Everything_Follow].server_streaming);
    CHECK(everything_Mood_BLEAK == -7);
}

int main(void)
{
    a_request_is_written_and_read();
    a_message_nests_64_structs_and_no_more();
    a_message_has_16_mib_and_no_more();
    a_writer_lists_no_more_extents_than_it_has_room_for();
    services_say_what_the_daemon_is_told();
    return 0;
}
