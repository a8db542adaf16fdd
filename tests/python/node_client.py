#!/usr/bin/env python3
"""A client of the Talos node API, of Aurae's API and of the Kubernetes CRI in Python's gRPC: it shares the .proto files
with the server and nothing else.

  node_client.py [--nodes NAME]... [--node NAME]... [--stall N] [--repeat N] [--parallel N]
           [--announce] [--deadline N] [--uid N] [TLS] ADDRESS PACKAGE.SERVICE/METHOD [REQUEST]
  node_client.py [TLS] ADDRESS every

The second form calls every method of the Talos node API with an empty request, and prints {"method": "...", "code":
"...", "details": "..."}; a stream that has no message within two seconds is OK. ADDRESS is unix:/path or HOST:PORT; TLS
is --ca FILE [--certificate FILE --key FILE] [--server-name NAME]. REQUEST is the request as JSON with the names of the
.proto files ({} if omitted). Each message of the reply is a line of JSON: 64-bit numbers are strings, bytes are base64,
empty fields are omitted. Exit code 3: the call failed, and the line is {"code": "NOT_FOUND", "details": "..."}. With
--stall, the client stops reading after N messages, until SIGUSR1. With --repeat, it opens a stream N times, and cancels
it after its first message. With --announce, it writes 'ready' before it calls. With --parallel, it makes N calls at
once, and fails if any of them fails. --deadline is in seconds. With --uid, it connects as another user. A method that the contracts lack is called with
an empty message.
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
CONTRACTS = ["talos", "aurae", "cri"]
DEADLINE = 60
# What a kubelet receives.
MAX_MESSAGE = 16 << 20
FIRST_MESSAGE = 2
FAILED = 3


def descriptors():
    """A pool of the messages and services of proto/talos, proto/aurae and proto/cri."""
    found = [path for folder in CONTRACTS for path in glob.glob(os.path.join(PROTO, folder, "*.proto"))]
    files = sorted(os.path.relpath(path, PROTO) for path in found)
    include = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    with tempfile.NamedTemporaryFile() as out:
        args = ["protoc", f"-I{PROTO}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out.name}", *files]
        if protoc.main(args) != 0:
            sys.exit("protoc rejects the contracts")
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
    options = [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", MAX_MESSAGE)]
    if not args.ca:
        return grpc.insecure_channel(args.address, options=options)
    if args.server_name:
        options = [("grpc.ssl_target_name_override", args.server_name)]
    read = lambda path: open(path, "rb").read() if path else None
    credentials = grpc.ssl_channel_credentials(read(args.ca), read(args.key), read(args.certificate))
    return grpc.secure_channel(args.address, credentials, options=options if args.server_name else None)


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


def call_unknown(args):
    """Calls a method with an empty message."""
    same = lambda message: message
    try:
        with connect(args) as channel:
            channel.unary_unary("/" + args.method, same, same)(b"", timeout=DEADLINE)
    except grpc.RpcError as error:
        say({"code": error.code().name, "details": error.details()})
        sys.exit(FAILED)


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
    parser.add_argument("--announce", action="store_true")
    parser.add_argument("--parallel", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=DEADLINE)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--ca")
    parser.add_argument("--server-name")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("address")
    parser.add_argument("method")
    parser.add_argument("request", nargs="?", default="{}")
    args = parser.parse_args()
    resumed = []
    signal.signal(signal.SIGUSR1, lambda *_: resumed.append(True))
    pool = descriptors()
    if args.uid:
        os.setgroups([])
        os.setresgid(args.uid, args.uid, args.uid)
        os.setresuid(args.uid, args.uid, args.uid)
    if args.method == "every":
        with connect(args) as channel:
            return call_every(channel, pool)
    service, name = args.method.split("/")
    method = pool.FindServiceByName(service).methods_by_name.get(name)
    if method is None:
        return call_unknown(args)
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
            if args.parallel:
                ask = lambda: call.future(json_format.Parse(args.request, request()), timeout=args.deadline)
                failed = False
                for future in [ask() for _ in range(args.parallel)]:
                    try:
                        say(future.result(), pool)
                    except grpc.RpcError as error:
                        failed = True
                        say({"code": error.code().name, "details": error.details()})
                sys.exit(FAILED if failed else 0)
            if args.announce:
                grpc.channel_ready_future(channel).result(timeout=args.deadline)
                print("ready", file=sys.stderr, flush=True)
            replies = call(json_format.Parse(args.request, request()), timeout=args.deadline, metadata=metadata)
            for number, message in enumerate(replies if method.server_streaming else [replies]):
                say(message, pool)
                while number + 1 == args.stall and not resumed:
                    signal.pause()
        except grpc.RpcError as error:
            say({"code": error.code().name, "details": error.details()})
            sys.exit(FAILED)


if __name__ == "__main__":
    main()
