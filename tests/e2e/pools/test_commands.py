"""``kubectl exec`` and ``kubectl cp`` in pods at sites, which connect to the cluster only through NATS."""

import os
import pty
import select
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.systems import install
from tests import processes
from tests.e2e.pools.cases import mount, pod, sh

pytestmark = pytest.mark.real

SITES = ("slurm-site", "condor-site", "apptainer-site")
LOTS = 2**20


def words(world, *more):
    """Return the words of a kubectl command in the namespace of the pods."""
    own = f"--kubeconfig={world.cluster.kubeconfig}", f"--cache-dir={world.cluster.state / 'kubectl-cache'}"
    return [str(install.binaries()["kubectl"]), *own, f"--namespace={NAMESPACE}", *more]


def enter(world, one, *command, flags=(), **more):
    """Run a command in a pod, and return its exit code, output and error output."""
    line = words(world, "exec", *flags, one["metadata"]["name"], "--", *command)
    done = subprocess.run(line, capture_output=True, timeout=60, **more)
    return done.returncode, done.stdout, done.stderr


class Terminal:
    """A person at ``kubectl exec -it``."""

    def __init__(self, line):
        self._pid, self._file = pty.fork()
        if not self._pid:
            os.execv(line[0], line)  # noqa: S606
        self.seen = b""

    def type(self, text, then):
        """Type text, and wait until the terminal shows ``then``."""
        os.write(self._file, text.encode())
        self.seen, until = b"", time.monotonic() + 30
        while then.encode() not in self.seen:
            assert select.select([self._file], [], [], until - time.monotonic())[0], self.seen
            self.seen += os.read(self._file, 4096)

    def code(self):
        """Wait for the end; return the exit code."""
        try:
            while os.read(self._file, 4096):
                pass
        except OSError:  # the other side has closed it
            pass
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


@pytest.fixture(scope="module", params=SITES)
def running(pools_world, request):
    """A running pod at each site."""
    container = sh("touch of-the-container; sleep 600", env=[{"name": "MARK", "value": "of the pod"}])
    one = pools_world.create_pod(pod(container), request.param)
    pools_world.running(one, 60)
    yield one
    pools_world.delete(one, 1)


def test_exit_code_output_and_what_the_container_has(pools_world, running):
    code, out, err = enter(pools_world, running, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (code, out, err) == (7, b"out\n", b"err\ncommand terminated with exit code 7\n")
    assert enter(pools_world, running, "sh", "-c", "echo $MARK") == (0, b"of the pod\n", b"")
    assert enter(pools_world, running, "ls", "of-the-container")[0] == 0
    assert enter(pools_world, running, "no-such-program")[0] == 127
    with ThreadPoolExecutor(3) as pool:
        several = [pool.submit(enter, pools_world, running, "echo", str(number)) for number in range(3)]
        assert [one.result()[:2] for one in several] == [(0, b"0\n"), (0, b"1\n"), (0, b"2\n")]


def test_what_a_command_leaves_in_the_background_does_not_delay_its_end(pools_world, running):
    """It keeps the output open: podbridge, or at a Slurm the script, waits for at most 5 seconds."""
    assert enter(pools_world, running, "sh", "-c", "sleep 300 & echo done")[:2] == (0, b"done\n")


def test_files_are_copied_in_both_directions(pools_world, running, tmp_path):
    there = f"{running['metadata']['name']}:/tmp/podbridge-{os.getpid()}-{running['metadata']['uid']}"
    (tmp_path / "in").write_bytes(os.urandom(LOTS))
    for source, target in ((tmp_path / "in", there), (there, tmp_path / "out")):
        subprocess.run(words(pools_world, "cp", source, target), check=True, capture_output=True, timeout=60)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()
    enter(pools_world, running, "rm", there.partition(":")[2])
    assert enter(pools_world, running, "sh", "-c", "test -t 1 || echo no terminal")[1] == b"no terminal\n"


def ended_containers(one):
    return [c["name"] for c in one["status"].get("containerStatuses", ()) if "terminated" in c["state"]]


def test_the_result_of_a_task_is_read_from_a_container_that_then_ends(pools_world):
    """As Airflow reads it: through the input of a shell beside a container that waits for a signal."""
    main = sh('echo "{\\"rows\\": 7}" >/result/return.json', volumeMounts=[mount("result", "/result")])
    waits = 'trap "exit 0" INT; while true; do sleep 1; done'
    beside = sh(waits, "sidecar", volumeMounts=[mount("result", "/result")])
    # its containers have PID namespaces of their own: the shell signals every "sh" that it sees
    one = pools_world.create_pod(pod(main, beside, volumes=[{"name": "result", "emptyDir": {}}]), "apptainer-site")
    bystander = pools_world.run("sleep 100", "apptainer-site")
    pools_world.running(bystander, 60)
    written = pools_world.seen(one, "result written", lambda p: ended_containers(p) == ["main"], 60)
    assert written["status"]["phase"] == "Running"

    def enter_shell(line):
        return enter(pools_world, one, "/bin/sh", flags=("-i", "-c", "sidecar"), input=line)[1]

    assert enter_shell(b"cat /result/return.json\n") == b'{"rows": 7}\n'
    enter_shell(
        b'for f in /proc/[0-9]*/comm; do read c <$f && [ "$c" = sh ] && p=${f%/comm} && kill -2 ${p##*/}; done\n'
    )
    assert pools_world.ended(one)["status"]["phase"] == "Succeeded"
    assert pools_world.get(bystander)["status"]["phase"] == "Running"
    pools_world.delete(one, 1)
    pools_world.delete(bystander, 1)


def test_debug_names_exec(pools_world, running):
    line = words(pools_world, "debug", running["metadata"]["name"], "--image=busybox", "--", "true")
    told = subprocess.run(line, capture_output=True, timeout=60, text=True).stderr
    assert "spec.ephemeralContainers: cannot be added to a pod on a pool" in told and "kubectl exec" in told


def test_a_terminal(pools_world, running):
    terminal = Terminal(words(pools_world, "exec", "-it", running["metadata"]["name"], "--", "sh"))
    terminal.type("echo $TERM-$((1 + 1))\n", "xterm-2")
    terminal.type("sleep 100; echo woken\n", "sleep")
    time.sleep(0.5)
    terminal.type("\x03", "\n")
    terminal.type("echo $((2 + 2))-th\n", "4-th")
    terminal.type("exit 3\n", "exit 3")
    assert terminal.code() == 3


def test_the_end_of_kubectl_ends_the_command(pools_world, running):
    mark = f"61{os.getpid()}.5"
    line = words(pools_world, "exec", running["metadata"]["name"], "--", "sleep", mark)
    for delay in (0.2, 0.3, 0.4, 0.6):  # also while the batch system sends the command to its machine
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
            time.sleep(delay)
            client.kill()
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        eventually(lambda: processes.with_word(mark), "the command runs")
        client.kill()
    eventually(lambda: not processes.with_word(mark), "no process is left")
    assert pools_world.get(running)["status"]["phase"] == "Running"


def test_the_end_of_the_pod_ends_the_command(pools_world):
    one = pools_world.create_pod(pod(sh("sleep 600")), "slurm-site")
    pools_world.running(one, 60)
    mark = f"62{os.getpid()}.5"
    line = words(pools_world, "exec", one["metadata"]["name"], "--", "sleep", mark)
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        eventually(lambda: processes.with_word(mark), "the command runs")
        pools_world.delete(one, 1)
        assert client.wait(30) != 0
    eventually(lambda: not processes.with_word(mark), "no process is left")
