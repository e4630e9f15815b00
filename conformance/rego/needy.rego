# A policy that asks the network, which it can't have here.
package hotel.needy

import rego.v1

default allow := false

allow if http.send({"method": "get", "url": "http://localhost/"}).status_code == 200
