#!/usr/bin/env python3
"""Lists gantryd's pods through rkt's PublicAPI; with --follow, then prints events.

    pods.py [--follow] [ADDRESS]        unix:/run/gantry/api.sock, or HOST:PORT

Needs grpcio-tools (`pip install grpcio-tools`), which compiles the contract while this runs.
"""

import pathlib
import sys

import grpc

CONTRACT = pathlib.Path(__file__).resolve().parents[2] / "proto" / "rkt" / "v1alpha"
sys.path.insert(0, str(CONTRACT))
rkt, services = grpc.protos_and_services("api.proto")

OPTIONS = [
    # A list is one message: with thousands of pods, it exceeds the clients' default limit of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # gRPC's C core would send the path of a unix socket as :authority, which HTTP/2 servers reject.
    ("grpc.default_authority", "localhost"),
]


def main(address, follow):
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        api = services.PublicAPIStub(channel)
        for pod in api.ListPods(rkt.ListPodsRequest()).pods:
            print(pod.id, rkt.PodState.Name(pod.state).removeprefix("POD_STATE_"), pod.pid, pod.cgroup)
            for app in pod.apps:
                state = rkt.AppState.Name(app.state).removeprefix("APP_STATE_")
                print(" ", app.name, f"{app.image.name}:{app.image.version}", state, app.exit_code)
        if follow:
            for response in api.ListenEvents(rkt.ListenEventsRequest()):
                for event in response.events:
                    data = {pair.Key: pair.value for pair in event.data}
                    print(rkt.EventType.Name(event.type).removeprefix("EVENT_TYPE_"), getattr(event, "from"), data)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--follow"]
    try:
        main(words[0] if words else "unix:/run/gantry/api.sock", "--follow" in sys.argv)
    except KeyboardInterrupt:
        pass
    except grpc.RpcError as error:
        sys.exit(f"pods.py: {error.code().name}: {error.details()}")
