"""Dask with its scheduler in the cluster and its workers in jobs of a Slurm, from the example of the page.

The scheduler and the client are processes of this machine. A hosts file and forwarders stand for the cluster's DNS and
Service proxy.
"""

import contextlib
import socket
import socketserver
import subprocess
import threading

import pytest
import yaml

from cluster.polling import eventually
from cluster.ports import free_block
from cluster.systems import jupyter, machine_pods
from tests import processes
from tests.docs_blocks import DOCS, blocks

pytestmark = [pytest.mark.real, pytest.mark.long_only]
SITE, NAMESPACE, URL = "slurm-site", "dask", "tcp://scheduler:8786"
WORKERS, SIZE = 2, 200_000

CLIENT = """
import sys, time
from distributed import Client, as_completed

def part(number):
    time.sleep(0.2)
    return bytes([number]) * 200_000

def total(*parts):
    return sum(map(sum, parts))

with Client(sys.argv[1]) as client:
    client.wait_for_workers(2, timeout=120)
    workers = client.scheduler_info()["workers"]
    print(*sorted(workers), flush=True)
    names = sorted(each["name"] for each in workers.values())
    for own, other in (names, names[::-1]):  # each worker needs what the other one has
        parts = client.map(part, range(4), workers=own, pure=False)
        print(client.submit(total, *parts, workers=other, pure=False).result(60), flush=True)
    parts = client.map(part, range(120), workers=names, allow_other_workers=True, pure=False)
    done = as_completed(parts)
    for _ in range(20):
        next(done)
    print("begun", len(client.scheduler_info()["workers"]), flush=True)
    print(client.submit(total, *parts, pure=False).result(120), len(client.scheduler_info()["workers"]), flush=True)
"""


class Forwarder(socketserver.ThreadingTCPServer):
    """Forwards connections to the address that ``target`` returns, or closes them if it returns ``None``."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, address, target):
        super().__init__(address, Connection)
        self.target = target


class Connection(socketserver.BaseRequestHandler):
    def handle(self):
        if (address := self.server.target()) is None:
            return
        with contextlib.suppress(OSError), socket.create_connection(address) as other:
            back = threading.Thread(target=copy, args=(other, self.request))
            back.start()
            copy(self.request, other)
            back.join()


def copy(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def world(state_folder):
    jupyter.ensure()
    with jupyter.cluster(state_folder / "dask", [SITE], site_slurm="26.05") as cluster:
        cluster.add_namespace(NAMESPACE)
        cluster.open_to_pools(NAMESPACE)
        yield jupyter.start_podbridge(cluster)


def program(name):
    return str(jupyter.environment() / "bin" / name)


@pytest.fixture(scope="module")
def examples():
    """The worker and its Service, and the command of the scheduler."""
    found = [one.text for one in blocks(DOCS / "users/run-pods.md", ("yaml",)) if "[dask, " in one.text]
    (worker, service), (scheduler,) = (list(yaml.safe_load_all(text)) for text in found)
    return worker, service, scheduler["command"]


def endpoint(world, service):
    """Return the ready endpoint of a Service, as a Service proxy does; ``None`` if there is none."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
    for found in world.api("GET", f"{path}?labelSelector=kubernetes.io/service-name%3D{service}")["items"]:
        for end in found.get("endpoints") or ():
            if end["conditions"]["ready"]:
                return end["addresses"][0], found["ports"][0]["port"]
    return None


@pytest.fixture(scope="module")
def scheduler(world, examples):
    """Start the scheduler; return its address and the ports of the workers."""
    address, first = machine_pods.new_address(), free_block(WORKERS)
    ports = [first + number for number in range(WORKERS)]
    machine_pods.add(world.cluster, NAMESPACE, "scheduler", {"app": "scheduler"}, address, 8786)
    hosts = world.cluster.state / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{address} {' '.join(f'worker-{n}' for n in range(WORKERS))}\n")
    inside = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    command = [program("dask"), *examples[2][1:], f"--host={address}", "--no-dashboard"]
    with contextlib.ExitStack() as stack:
        stack.callback(machine_pods.remove_address, address)
        for number, port in enumerate(ports):
            forwarder = stack.enter_context(
                Forwarder((address, port), lambda name=f"worker-{number}": endpoint(world, name))
            )
            threading.Thread(target=forwarder.serve_forever, daemon=True).start()
            stack.callback(forwarder.shutdown)
        world.cluster.processes.start("dask-scheduler", [*inside, *command], {"PYTHONPATH": ""})
        stack.callback(world.cluster.processes.stop, ["dask-scheduler"])
        world.cluster.processes.wait("dask-scheduler", lambda: answers(address, 8786))
        yield address, ports


def answers(address, port):
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


def start_worker(world, examples, number, ports):
    """Create the pod and the Service of the example for a worker with this number; return the pod."""
    own, other = f"worker-{number}", f"worker-{1 - number}"
    text = yaml.safe_dump_all(examples[:2])
    for old, new in (("worker-1:9001", f"OTHER:{ports[1 - number]}"), ("worker-0", own), ("9000", str(ports[number]))):
        text = text.replace(old, new)
    pod, service = yaml.safe_load_all(text.replace("OTHER", other))
    (container,) = pod["spec"]["containers"]
    volumes, container["volumeMounts"] = jupyter.volumes()
    container |= {"image": "busybox", "command": [program("dask"), *container["command"][1:]]}
    fixed = {"schedulerName": "slurm-bridge-scheduler", "automountServiceAccountToken": False}
    pod["spec"] |= {**fixed, "restartPolicy": "Never", "volumes": volumes}
    world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/services", service)
    return world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)


def test_a_graph_is_finished_by_workers_at_a_site_also_if_one_is_deleted_meanwhile(world, examples, scheduler):
    address, ports = scheduler
    pods = [start_worker(world, examples, number, ports) for number in range(WORKERS)]
    command = [program("python"), "-c", CLIENT, f"tcp://{address}:8786"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin"}) as client:
        try:
            names = [f"tcp://worker-{number}:{port}" for number, port in enumerate(ports)]
            assert client.stdout.readline().split() == names
            assert client.stdout.readline() == client.stdout.readline() == f"{sum(range(4)) * SIZE}\n"
            assert client.stdout.readline() == "begun 2\n"
            assert processes.with_word(URL)
            world.delete(pods[0], grace=1)
            assert client.stdout.readline() == f"{sum(range(120)) * SIZE} 1\n"
            assert client.wait(30) == 0
        finally:
            client.kill()
    world.gone(pods[0], 60)
    world.delete(pods[1])
    world.gone(pods[1], 60)
    eventually(lambda: not world.jobs_at(SITE), "no job", 60)
    eventually(lambda: not processes.with_word(URL), "no worker", 30)
