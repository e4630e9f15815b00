# What `.ci/foreign` compiles with OPA's own compiler: a decision by the call's metadata, which changes it as the configuration says.
package hotel.caller

import rego.v1

default decision := {"allow": false, "status": 16, "message": "who are you"}

decision := {"allow": true, "metadata": data.set} if "ada" in input.metadata["x-user"]
