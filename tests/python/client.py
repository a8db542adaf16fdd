#!/usr/bin/env python3
"""A client of gantryd in Python's gRPC: it shares api.proto with the server and nothing else.

  client.py ADDRESS CALL [REQUEST]   CALL: get-info list-pods inspect-pod list-images inspect-image get-logs listen-events
  client.py ADDRESS health [SERVICE]
  client.py ADDRESS reflect FILE     write the server's reflection data as a FileDescriptorSet

ADDRESS is unix:/path or tcp:HOST:PORT; REQUEST is the request as JSON with the names of api.proto ({} if
omitted). Each message of the reply is a line of JSON: 64-bit numbers are strings, bytes are base64, empty fields are
omitted. Exit code 3: the call failed, and the line is {"code": "NOT_FOUND", "details": "..."}.
"""
import json
import os
import sys
import tempfile

import grpc
from google.protobuf import descriptor_pb2, json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")
FILE = "rkt/v1alpha/api.proto"
DEADLINE = 60
FAILED = 3

CALLS = {
    "get-info": "GetInfo", "list-pods": "ListPods", "inspect-pod": "InspectPod", "list-images": "ListImages",
    "inspect-image": "InspectImage", "get-logs": "GetLogs", "listen-events": "ListenEvents",
}


def compiled():
    """The modules (messages, stubs) that protoc generates from api.proto."""
    with tempfile.TemporaryDirectory() as into:
        if protoc.main(["protoc", f"-I{PROTO}", f"--python_out={into}", f"--grpc_python_out={into}", FILE]) != 0:
            sys.exit(f"protoc rejects {FILE}")
        sys.path.insert(0, into)
        from rkt.v1alpha import api_pb2, api_pb2_grpc
        sys.path.remove(into)
    return api_pb2, api_pb2_grpc


def say(message):
    """One line of JSON."""
    if not isinstance(message, dict):
        message = json_format.MessageToDict(message, preserving_proto_field_name=True)
    print(json.dumps(message), flush=True)


def call(channel, name, request):
    """One of the seven calls."""
    messages, stubs = compiled()
    method = CALLS[name]
    request = json_format.Parse(request, getattr(messages, method + "Request")())
    answer = getattr(stubs.PublicAPIStub(channel), method)(request, timeout=DEADLINE)
    if method in ("GetLogs", "ListenEvents"):
        for message in answer:
            say(message)
    else:
        say(answer)


def health(channel, service):
    """Prints the server's health status."""
    request = health_pb2.HealthCheckRequest(service=service)
    say(health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE))


def reflect(channel, path):
    """Prints the services, and writes the files that define them, with all imports."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)

    def ask(**what):
        requests = iter([reflection_pb2.ServerReflectionRequest(**what)])
        (answer,) = list(stub.ServerReflectionInfo(requests, timeout=DEADLINE))
        if answer.HasField("error_response"):
            sys.exit(f"reflection of {what}: {answer.error_response}")
        return answer

    services = sorted(service.name for service in ask(list_services="").list_services_response.service)
    files, wanted = {}, []

    def take(answer):
        for raw in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            if file.name not in files:
                files[file.name] = file
                wanted.extend(file.dependency)

    for service in services:
        take(ask(file_containing_symbol=service))
    while wanted:
        name = wanted.pop()
        if name not in files:
            take(ask(file_by_filename=name))
    with open(path, "wb") as out:
        out.write(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString())
    say({"services": services, "files": sorted(files)})


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[2] not in (*CALLS, "health", "reflect"):
        sys.exit(__doc__)
    address, what = sys.argv[1].removeprefix("tcp:"), sys.argv[2]
    extra = sys.argv[3] if len(sys.argv) == 4 else ""
    try:
        # A list is one message of any length; messages of streams keep gRPC's default limit.
        options = [("grpc.max_receive_message_length", -1)] if what in ("list-pods", "list-images") else []
        if address.startswith("unix:"):
            # gRPC's C core sends the socket's path as :authority, which HTTP/2 forbids and the server's HTTP/2
            # library refuses (grpc/grpc#38142, hyperium/h2#487). Every C core client needs this option.
            options.append(("grpc.default_authority", "localhost"))
        with grpc.insecure_channel(address, options=options) as channel:
            if what == "health":
                health(channel, extra)
            elif what == "reflect":
                reflect(channel, extra)
            else:
                call(channel, what, extra or "{}")
    except grpc.RpcError as error:
        say({"code": error.code().name, "details": error.details()})
        sys.exit(FAILED)


main()
