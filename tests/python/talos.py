#!/usr/bin/env python3
"""A client of the Talos node API in Python's gRPC: it shares the .proto files with the server and nothing else.

  talos.py [--nodes NAME]... [--node NAME]... [--stall N] [--repeat N] [TLS] ADDRESS PACKAGE.SERVICE/METHOD [REQUEST]
  talos.py [TLS] ADDRESS every

The second form calls every method with an empty request, and prints {"method": "...", "code": "...", "details": "..."};
a stream that has no message within two seconds is OK. ADDRESS is unix:/path, or HOST:PORT with TLS: --ca FILE
[--certificate FILE --key FILE]. REQUEST is the request as JSON with the names of the .proto files ({} if omitted). Each
message of the reply is a line of JSON: 64-bit numbers are strings, bytes are base64, empty fields are omitted. Exit code
3: the call failed, and the line is {"code": "NOT_FOUND", "details": "..."}. With --stall, the client stops reading after
N messages. With --repeat, it opens a stream N times, and cancels it after its first message.
"""
import argparse
import glob
import json
import os
import signal
import sys
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")
DEADLINE = 60
FIRST_MESSAGE = 2
FAILED = 3


def descriptors():
    """A pool of the messages and services of proto/talos."""
    files = sorted(os.path.relpath(path, PROTO) for path in glob.glob(os.path.join(PROTO, "talos", "*.proto")))
    include = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    with tempfile.NamedTemporaryFile() as out:
        args = ["protoc", f"-I{PROTO}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out.name}", *files]
        if protoc.main(args) != 0:
            sys.exit("protoc rejects the files of proto/talos")
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return pool


def say(message, pool=None):
    """One line of JSON. Talos' type URLs have no host, so the data of an event is decoded here."""
    if not isinstance(message, dict):
        any_ = message.data if message.DESCRIPTOR.full_name == "machine.Event" else None
        inner = None
        if any_ is not None:
            kind = any_.type_url.rsplit("/", 1)[-1]
            inner = {}
            if kind:
                found = message_factory.GetMessageClass(pool.FindMessageTypeByName(kind)).FromString(any_.value)
                inner = json_format.MessageToDict(found, preserving_proto_field_name=True)
            message.ClearField("data")
        message = json_format.MessageToDict(message, preserving_proto_field_name=True)
        if inner is not None:
            message["data"] = inner
    print(json.dumps(message), flush=True)


def connect(args):
    """A channel to the server."""
    # gRPC's C core sends the socket's path as :authority, which HTTP/2 forbids; see client.py.
    options = [("grpc.default_authority", "localhost")]
    if not args.ca:
        return grpc.insecure_channel(args.address, options=options)
    read = lambda path: open(path, "rb").read() if path else None
    credentials = grpc.ssl_channel_credentials(read(args.ca), read(args.key), read(args.certificate))
    return grpc.secure_channel(args.address, credentials)


def call_every(channel, pool):
    """Calls every method of proto/talos; of a stream, reads the first message."""
    services = [service for file in pool_files(pool) for service in file.services_by_name.values()]
    for service in sorted(services, key=lambda service: service.full_name):
        for method in service.methods:
            request = message_factory.GetMessageClass(method.input_type)
            reply = message_factory.GetMessageClass(method.output_type)
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            name = f"{service.full_name}/{method.name}"
            call = make("/" + name, request.SerializeToString, reply.FromString)
            line = {"method": name, "code": "OK", "details": ""}
            try:
                replies = call(request(), timeout=FIRST_MESSAGE if method.server_streaming else DEADLINE)
                if method.server_streaming:
                    next(replies, None)
                    replies.cancel()
            except grpc.RpcError as error:
                waits = method.server_streaming and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                if not waits:
                    line.update(code=error.code().name, details=error.details())
            say(line)


def pool_files(pool):
    """The files of proto/talos."""
    names = (os.path.relpath(path, PROTO) for path in glob.glob(os.path.join(PROTO, "talos", "*.proto")))
    return [pool.FindFileByName(name) for name in sorted(names)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--nodes", action="append", default=[])
    parser.add_argument("--node", action="append", default=[])
    parser.add_argument("--stall", type=int)
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--ca")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("address")
    parser.add_argument("method")
    parser.add_argument("request", nargs="?", default="{}")
    args = parser.parse_args()
    pool = descriptors()
    if args.method == "every":
        with connect(args) as channel:
            return call_every(channel, pool)
    service, name = args.method.split("/")
    method = pool.FindServiceByName(service).methods_by_name[name]
    request = message_factory.GetMessageClass(method.input_type)
    reply = message_factory.GetMessageClass(method.output_type)
    with connect(args) as channel:
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        call = make("/" + args.method, request.SerializeToString, reply.FromString)
        metadata = [("nodes", node) for node in args.nodes] + [("node", node) for node in args.node]
        try:
            for _ in range(args.repeat):
                stream = call(json_format.Parse(args.request, request()), timeout=DEADLINE, metadata=metadata)
                next(stream)
                stream.cancel()
            if args.repeat:
                return
            replies = call(json_format.Parse(args.request, request()), timeout=DEADLINE, metadata=metadata)
            for number, message in enumerate(replies if method.server_streaming else [replies]):
                say(message, pool)
                while number + 1 == args.stall:
                    signal.pause()
        except grpc.RpcError as error:
            say({"code": error.code().name, "details": error.details()})
            sys.exit(FAILED)


main()
