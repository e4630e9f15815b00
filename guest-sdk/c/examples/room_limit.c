// Denies reservations of more rooms than the configuration says: a number, 10 without one. A request without a coupon gets
// the coupon "walk-in".

#define TG_REQUEST
#include "../tollgate_policy.h"

TG_MANIFEST({
    "abi": 1, "name": "room-limit", "version": "1.0", "hooks": ["request"], "counters": ["denied"],
    "capabilities": ["change"],
    "methods": [{ "method": "hotel.Reservation/Reserve", "fields": ["room_count", "coupon"], "changes": ["coupon"] }]
})

enum { ROOM_COUNT, COUPON };
enum { CHANGE_COUPON };
enum { DENIED };

static uint64_t limit = 10;

const char *policy_configure(const uint8_t *config, uint32_t len) {
    if (len == 0) return 0;
    if (len > 9) return "the configuration is the number of rooms, of nine digits at most";
    limit = 0;
    for (uint32_t i = 0; i < len; i++) {
        if (config[i] < '0' || config[i] > '9') return "the configuration is the number of rooms, in digits";
        limit = 10 * limit + (config[i] - '0');
    }
    return 0;
}

void policy_request(const tg_call *call, tg_answer *answer) {
    uint64_t rooms;
    if (!tg_uint(call, ROOM_COUNT, &rooms)) {
        tg_deny(answer, TG_FAILED_PRECONDITION, "the policy isn't shown room_count");
    } else if (rooms > limit) {
        tg_counter(DENIED, 1);
        tg_deny(answer, TG_PERMISSION_DENIED, "so many rooms need a group booking");
    } else {
        tg_bytes coupon;
        if (!tg_string(call, COUPON, &coupon)) tg_set_string(answer, CHANGE_COUPON, "walk-in", 7);
    }
}
