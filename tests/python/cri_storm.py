"""Many sandboxes at once, by the Kubernetes CRI over grpcio: each with two containers, in which programs run, and which
are stopped and removed one by one or with their sandbox. A kubelet lists them meanwhile.

usage: cri_storm.py ADDRESS IMAGE SANDBOXES
"""

import concurrent.futures
import sys
import threading

import grpc
from google.protobuf import json_format, message_factory

from node_client import descriptors

SERVICE = "runtime.v1.RuntimeService"
DEADLINE = 60
# Calls at once.
WORKERS = 4
LIST_INTERVAL = 1


class Runtime:
    """The calls of a runtime, with requests and replies as JSON."""

    def __init__(self, address):
        self.methods = descriptors().FindServiceByName(SERVICE).methods_by_name
        self.channel = grpc.insecure_channel(address, options=[("grpc.default_authority", "localhost")])

    def call(self, name, **fields):
        method = self.methods[name]
        request = message_factory.GetMessageClass(method.input_type)
        reply = message_factory.GetMessageClass(method.output_type)
        call = self.channel.unary_unary(f"/{SERVICE}/{name}", request.SerializeToString, reply.FromString)
        message = call(json_format.ParseDict(fields, request()), timeout=DEADLINE)
        return json_format.MessageToDict(message, preserving_proto_field_name=True)


def expect(found, expected):
    if found != expected:
        raise AssertionError(f"expected {expected}, found {found}")


def create(runtime, image, number):
    """A sandbox and its two running containers."""
    metadata = {"name": f"pod-{number}", "uid": f"uid-{number}", "namespace": "storm"}
    config = {"metadata": metadata, "labels": {"storm": str(number)}}
    sandbox = runtime.call("RunPodSandbox", config=config)["pod_sandbox_id"]
    containers = []
    for name in ["one", "two"]:
        container = {"metadata": {"name": name}, "image": {"image": image}, "args": ["sleep", "forever"]}
        request = {"pod_sandbox_id": sandbox, "config": container, "sandbox_config": config}
        containers.append(runtime.call("CreateContainer", **request)["container_id"])
        runtime.call("StartContainer", container_id=containers[-1])
    return sandbox, containers


def execute(runtime, container):
    cmd = ["/bin/app", "seq", "print", "here", "--", "exit", "3"]
    reply = runtime.call("ExecSync", container_id=container, cmd=cmd, timeout=30)
    # "here" and a newline, in base64.
    expect(reply, {"stdout": "aGVyZQo=", "exit_code": 3})


def remove(runtime, sandbox, containers):
    """One container is stopped and removed by itself, one with the sandbox."""
    one, two = containers
    runtime.call("StopContainer", container_id=one, timeout=30)
    expect(runtime.call("ContainerStatus", container_id=one)["status"]["state"], "CONTAINER_EXITED")
    runtime.call("RemoveContainer", container_id=one)
    runtime.call("StopPodSandbox", pod_sandbox_id=sandbox)
    expect(runtime.call("ContainerStatus", container_id=two)["status"]["state"], "CONTAINER_EXITED")
    runtime.call("RemovePodSandbox", pod_sandbox_id=sandbox)


def poll(runtime, is_done):
    """Lists as a kubelet does, with the status of what was found; a container that is removed meanwhile has none."""
    while not is_done.wait(LIST_INTERVAL):
        runtime.call("ListPodSandbox")
        for container in runtime.call("ListContainers").get("containers", []):
            try:
                runtime.call("ContainerStatus", container_id=container["id"])
            except grpc.RpcError as error:
                expect(error.code(), grpc.StatusCode.NOT_FOUND)


def main():
    _, address, image, count = sys.argv
    count = int(count)
    runtime = Runtime(address)
    is_done = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(WORKERS + 1) as pool:
        poller = pool.submit(poll, runtime, is_done)
        try:
            sandboxes = list(pool.map(lambda number: create(runtime, image, number), range(count)))
            ready = runtime.call("ListPodSandbox", filter={"state": {"state": "SANDBOX_READY"}})
            expect({item["id"] for item in ready["items"]}, {sandbox for sandbox, _ in sandboxes})
            running = runtime.call("ListContainers", filter={"state": {"state": "CONTAINER_RUNNING"}})
            expect(len(running["containers"]), 2 * count)
            every = [container for _, containers in sandboxes for container in containers]
            list(pool.map(lambda container: execute(runtime, container), every))
            list(pool.map(lambda made: remove(runtime, *made), sandboxes))
        finally:
            is_done.set()
        poller.result()
    expect(runtime.call("ListPodSandbox"), {})
    expect(runtime.call("ListContainers"), {})


if __name__ == "__main__":
    main()
