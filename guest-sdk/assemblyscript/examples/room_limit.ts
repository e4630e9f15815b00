// Denies reservations of more rooms than the configuration says: a number, 10 without one. A request without a coupon
// gets the coupon "walk-in".
import { Answer, Call, Policy, Status, counter, refuse, register } from "../tollgate";
export * from "../exports";

const ROOM_COUNT: u32 = 0;
const COUPON: u32 = 1;
const CHANGE_COUPON: u32 = 0;
const DENIED: u32 = 0;

class RoomLimit extends Policy {
  constructor(private limit: u64) { super(); }

  request(call: Call, answer: Answer): void {
    if (!call.has(ROOM_COUNT)) {
      answer.deny(Status.FailedPrecondition, "the policy isn't shown room_count");
    } else if (call.uint(ROOM_COUNT) > this.limit) {
      counter(DENIED, 1);
      answer.deny(Status.PermissionDenied, "so many rooms need a group booking");
    } else if (!call.has(COUPON)) {
      answer.setText(CHANGE_COUPON, "walk-in");
    }
  }
}

register((config: Uint8Array) => {
  const text = String.UTF8.decode(config.buffer);
  if (text.length == 0) return new RoomLimit(10);
  if (text.length > 9) refuse("the configuration is the number of rooms, of nine digits at most");
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c < 0x30 || c > 0x39) refuse("the configuration is the number of rooms, in digits");
  }
  return new RoomLimit(u64.parse(text));
});
