// Denies reservations of more rooms than the configuration says: a number, 10 without one. A
// request without a coupon gets the coupon "walk-in".
package main

import (
	"errors"

	"tollgate-policy/tollgate"
)

const (
	roomCount = iota
	coupon
)

const (
	changeCoupon = 0
	denied       = 0
)

type roomLimit struct {
	tollgate.Base
	limit uint64
}

func init() {
	tollgate.Register(func(config []byte) (tollgate.Policy, error) {
		if len(config) == 0 {
			return &roomLimit{limit: 10}, nil
		}
		if len(config) > 9 {
			return nil, errors.New("the configuration is the number of rooms, of nine digits at most")
		}
		policy := &roomLimit{}
		for _, digit := range config {
			if digit < '0' || digit > '9' {
				return nil, errors.New("the configuration is the number of rooms, in digits")
			}
			policy.limit = 10*policy.limit + uint64(digit-'0')
		}
		return policy, nil
	})
}

func main() {}

func (p *roomLimit) Request(call *tollgate.Call, answer *tollgate.Answer) {
	rooms, shown := call.Uint(roomCount)
	if !shown {
		answer.Deny(tollgate.FailedPrecondition, "the policy isn't shown room_count")
	} else if rooms > p.limit {
		tollgate.Counter(denied, 1)
		answer.Deny(tollgate.PermissionDenied, "so many rooms need a group booking")
	} else if !call.Has(coupon) {
		answer.SetText(changeCoupon, "walk-in")
	}
}
