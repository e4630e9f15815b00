# What `.ci/foreign` compiles with OPA's own compiler: an access list by customer, with a decision that says why.
package hotel.authz

import rego.v1

default allow := false

allow if not blocked

blocked if input.message.customer_name in data.blocked

decision := {"allow": false, "status": 9, "message": concat(" ", [input.message.customer_name, "may not reserve"])} if blocked

else := {"allow": true}
