"""``kubectl port-forward`` and ``attach`` with pods at sites, which connect to the cluster only through NATS."""

import contextlib
import re
import shlex
import socket
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.polling import eventually
from cluster.ports import free_block
from tests import processes
from tests.e2e.pools.cases import pod, sh
from tests.e2e.pools.test_commands import Terminal, words

pytestmark = pytest.mark.real

SITES = ("condor-site", "slurm-site")
LISTENER = """
import http.server, os
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 100
Server(('127.0.0.1', int(os.environ['PORT'])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
SERVER = f"""
mkdir -p www && cd www && yes "$MARK" | head -n 10000 >page
if [ -e /bin/httpd ]; then exec httpd -f -p "127.0.0.1:$PORT"; fi
exec python3 -c {shlex.quote(LISTENER)}
"""


@pytest.fixture(scope="module", params=SITES)
def site(pools_world, request):
    """A site that permits ports; its machines have Python."""
    one = pools_world.create_pod(pod(sh("sleep 60")), request.param)
    pools_world.running(one, 60)
    line = words(pools_world, "port-forward", one["metadata"]["name"], ":80")
    assert b"limits.allow_ports" in subprocess.run(line, capture_output=True, timeout=60).stderr
    pools_world.delete(one, 1)
    pools_world.cluster.stop_submitter(request.param)
    pools_world.cluster.start_submitter(request.param, {"limits": {"allow_ports": True}})
    yield request.param
    pools_world.cluster.stop_submitter(request.param)
    pools_world.cluster.start_submitter(request.param)


@contextlib.contextmanager
def forwarding(world, one, port):
    """Run kubectl port-forward; yield its local port, and the process."""
    line = words(world, "port-forward", f"pod/{one['metadata']['name']}", f":{port}")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        told = client.stdout.readline()
        found = re.match(r"Forwarding from 127\.0\.0\.1:([0-9]+) ->", told)
        try:
            assert found, told
            yield found[1], client
        finally:
            client.kill()


def get(local):
    with urllib.request.urlopen(f"http://127.0.0.1:{local}/page", timeout=60) as answer:
        return answer.read()


def is_served(local):
    with contextlib.suppress(OSError):
        return get(local)


def reached(world, one, port):
    """Return the page that the pod serves, or the error of kubectl."""
    with forwarding(world, one, port) as (local, client):
        try:
            return get(local)
        except OSError:
            return client.stderr.readline()


def test_ports_are_forwarded(pools_world, site):
    """Many requests at once; and neither a port of the machine nor one of another pod."""
    world, port = pools_world, free_block(1)
    variables = [{"name": "MARK", "value": "of the pod"}, {"name": "PORT", "value": str(port)}]
    one, other = (world.create_pod(pod(container), site) for container in (sh(SERVER, env=variables), sh("sleep 600")))
    world.running(one, 60)
    world.running(other, 60)
    seen = []
    eventually(lambda: seen.append(reached(world, one, port)) or isinstance(seen[-1], bytes), f"served: {seen}", 40)
    with forwarding(world, one, port) as (local, _), ThreadPoolExecutor(50) as threads:
        assert set(threads.map(lambda _: get(local), range(50))) == {b"of the pod\n" * 10_000}
        with socket.create_server(("127.0.0.1", 0)) as server:
            for target, number in ((other, port), (one, server.getsockname()[1])):
                assert "connection refused" in reached(world, target, number)
        world.delete(one, 1)
        eventually(lambda: not is_served(local), "the port is closed")
    world.delete(other, 1)
    eventually(lambda: not processes.with_word("alone"), "no connector is left")


def test_a_shell_that_kubectl_run_creates(pools_world, site):
    name = f"shell-{site}"
    flags = (
        "--image=busybox",
        "--command",
        f"--annotations=bridge.vk.io/pools={site}",
        "--restart=Never",
        "-it",
        "--rm",
    )
    terminal = Terminal(words(pools_world, "run", name, *flags, "--", "sh"))
    terminal.type("\n", "$ ")
    terminal.type("echo $TERM-$((1 + 1))\n", "xterm-2")
    terminal.type("sleep 100\n", "sleep")
    terminal.type("\x03", "^C")
    terminal.type("echo $((2 + 2))-th\n", "4-th")
    terminal.type("exit 3\n", "exit 3")
    assert terminal.code() == 3
    assert name not in pools_world.cluster.kubectl("get", "pods", "-A")


def test_input_through_a_pipe_and_a_client_that_detaches(pools_world, site):
    world, name = pools_world, f"pipe-{site}"
    flags = (
        "--image=busybox",
        "--command",
        f"--annotations=bridge.vk.io/pools={site}",
        "--restart=Never",
        "-i",
        "--rm",
        "--quiet",
    )
    line = words(world, "run", name, *flags, "--", "sh", "-c", "sleep 3; sort")
    done = subprocess.run(line, input=b"c\na\nb\n", capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"a\nb\nc\n"), done.stderr
    loop = "while read line; do echo got $line; done"
    one = world.create_pod(pod(sh(loop, stdin=True)), site)
    world.running(one, 60)
    for text in ("one", "two"):
        line = words(world, "attach", "-i", one["metadata"]["name"])
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            client.stdin.write(f"{text}\n")
            client.stdin.flush()
            assert client.stdout.readline() == f"got {text}\n"
            client.kill()
    assert world.get(one)["status"]["phase"] == "Running"
    world.delete(one, 1)
    eventually(lambda: not processes.with_word("keep"), "no keeper is left")
