"""A client of the administrative API that has none of our code: gRPC's own Python, its reflection
and its health client. It learns the API from the daemon.

client.py TARGET TENANT, with the tenant's token in TOLLGATE_TOKEN. Prints one JSON object.
"""

import json
import os
import sys

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import proto_reflection_descriptor_database as reflection

PACKAGE = "tollgate.admin.v1"
TIME = 30


class Api:
    def __init__(self, channel):
        self.channel = channel
        self.database = reflection.ProtoReflectionDescriptorDatabase(channel)
        self.pool = DescriptorPool(self.database)

    def services(self):
        return sorted(self.database.get_services())

    def method(self, service, method):
        found = self.pool.FindServiceByName(f"{PACKAGE}.{service}")
        return found.FindMethodByName(method)

    def call(self, service, method, fields, token):
        """The answer as JSON, the first one of a stream; or its status."""
        described = self.method(service, method)
        request = message_factory.GetMessageClass(described.input_type)
        answer = message_factory.GetMessageClass(described.output_type)
        channel, is_stream = self.channel, described.server_streaming
        call = (channel.unary_stream if is_stream else channel.unary_unary)(
            f"/{PACKAGE}.{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        metadata = [("authorization", f"Bearer {token}")] if token else []
        message = json_format.ParseDict(fields, request())
        try:
            answered = call(message, metadata=metadata, timeout=TIME)
            if is_stream:
                first = next(answered)
                answered.cancel()
                answered = first
            return json_format.MessageToDict(answered)
        except grpc.RpcError as error:
            return {"status": error.code().name, "text": error.details()}


def main(target, tenant):
    token = os.environ["TOLLGATE_TOKEN"]
    # By default, the authority is the socket's path, which is none in HTTP (RFC 3986, section 3.2).
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(target, options=options) as channel:
        api = Api(channel)
        health = health_pb2_grpc.HealthStub(channel)
        service = f"{PACKAGE}.PolicyService"
        answered = {
            name: health_pb2.HealthCheckResponse.ServingStatus.Name(
                health.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIME).status
            )
            for name in ["", service]
        }
        wrong = "tg_" + "0" * 64
        said = {
            "services": api.services(),
            "health": answered,
            "listed": api.call("PolicyService", "ListPolicies", {}, token),
            "watched": api.call("PolicyService", "WatchPolicies", {}, token),
            "usage": api.call("TenantService", "ShowUsage", {"tenant": tenant}, token),
            "other": api.call("PolicyService", "ListPolicies", {"tenant": "evil"}, token),
            "wrong": api.call("PolicyService", "ListPolicies", {}, wrong),
            "operators": api.call("TenantService", "ListTenants", {}, token),
        }
    print(json.dumps(said))


main(*sys.argv[1:])
