"""``kubectl exec`` and ``kubectl cp``, through a real API server, in pods whose commands run on this machine."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import kubernetes
import pytest
from kubernetes.stream import stream as ws_stream
from kubernetes.stream import ws_client
from prometheus_client import REGISTRY

from bridge.errors import SiteDownError, SiteRefusedError, SiteUnknownOutcomeError
from cluster.polling import eventually
from tests.contract.kubelet.conftest import NAMESPACE, Site
from tests.fakes.local_session import LocalSessions

pytestmark = pytest.mark.real
SIZE = 5 * 2**20
FORMS = {"websocket": "true", "spdy": "false"}
"""What ``kubectl`` speaks to the API server, which always speaks SPDY to a kubelet."""


@pytest.fixture
def sessions(site: Site) -> Iterator[LocalSessions]:
    site.pool.sessions = made = LocalSessions()
    yield made
    site.pool.sessions = None
    for session in made.opened:
        assert session.closed.wait(10)
        session.process.wait(10)
    eventually(lambda: len(site.kubelet._streams) == 0)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", FORMS[request.param])
    return str(request.param)


def run(site: Site, *args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(site.kubectl_command(*args), input=stdin, capture_output=True, timeout=60)


def test_output_errors_and_the_exit_code(
    site: Site, sessions: LocalSessions, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = site.pod("exec-" + form, "running", "main", "side")
    with caplog.at_level(logging.INFO, "controllers.kubelet.command_sessions"):
        done = run(site, "exec", name, "-c", "side", "--", "sh", "-c", "echo out; echo secret >&2; exit 3", "")
        eventually(lambda: len(caplog.records) == 2)
    assert (done.returncode, done.stdout) == (3, b"out\n")
    assert done.stderr == b"secret\ncommand terminated with exit code 3\n"
    (session,) = sessions.opened
    assert session.options.container == "side"
    assert session.options.command[-1] == ""
    assert not session.options.stdin
    told = [vars(record) for record in caplog.records]
    assert [record["msg"] for record in told] == ["command started", "command ended"]
    assert "secret" not in caplog.text + str(told)
    pairs = str(told[1])
    for part in (f"{NAMESPACE}/{name}", "side", "pool-one", "kube-apiserver"):
        assert part in pairs
    assert run(site, "exec", name, "--", "true").returncode == 0


def test_input_arrives_and_ends(site: Site, sessions: LocalSessions, form: str) -> None:
    name = site.pod()
    sent = os.urandom(SIZE)
    done = run(site, "exec", "-i", name, "--", "cat", stdin=sent)
    assert done.returncode == 0, done.stderr
    assert done.stdout == sent
    # the command does not read its input
    assert run(site, "exec", "-i", name, "--", "sh", "-c", "exit 5", stdin=sent).returncode == 5


def test_copies_are_identical(site: Site, sessions: LocalSessions, tmp_path: Path) -> None:
    name = site.pod()
    folder = tmp_path / "of-the-pod"
    folder.mkdir()
    there, back = folder / "there", tmp_path / "back"
    (tmp_path / "sent").write_bytes(os.urandom(SIZE))
    for source, target in ((str(tmp_path / "sent"), f"{name}:{there}"), (f"{name}:{there}", str(back))):
        done = run(site, "cp", source, target)
        assert done.returncode == 0, done.stderr
    assert there.read_bytes() == back.read_bytes() == (tmp_path / "sent").read_bytes()


def test_the_python_client(site: Site, sessions: LocalSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(site.cluster.kubeconfig)))
    wanted = {"name": site.pod(), "namespace": NAMESPACE, "command": ["cat"], "stdin": True, "stdout": True}
    command = ws_stream(api.connect_get_namespaced_pod_exec, _preload_content=False, **wanted)
    command.write_stdin("hello\n")
    assert command.readline_stdout(timeout=10) == "hello"
    command.close()
    # Airflow and others with an older client: its WebSocket goes through to the kubelet
    monkeypatch.setattr(ws_client, "V5_CHANNEL_PROTOCOL", "v4.channel.k8s.io")
    command = ws_stream(api.connect_get_namespaced_pod_exec, _preload_content=False, **wanted)
    command.write_stdin("hello\n")
    assert command.readline_stdout(timeout=10) == "hello"
    command.close()
    wanted |= {"command": ["sh", "-c", "echo out; echo err >&2; exit 3"], "stdin": False, "stderr": True}
    command = ws_stream(api.connect_get_namespaced_pod_exec, _preload_content=False, **wanted)
    command.run_forever(timeout=10)
    assert (command.read_stdout(), command.read_stderr(), command.returncode) == ("out\n", "err\n", 3)


def test_the_log_of_a_container_without_input_is_attached(site: Site, form: str) -> None:
    name = site.pod()
    site.write(name, b"before\n")
    with subprocess.Popen(site.kubectl_command("attach", name), stdout=subprocess.PIPE) as attached:
        eventually(lambda: site.pool.open == 1)
        site.write(name, b"from now on\n")
        assert attached.stdout is not None
        assert attached.stdout.readline() == b"from now on\n"
        site.pool.end(site.uid(name), "main")
        assert attached.wait(20) == 0


def test_a_terminal_with_its_size(site: Site, sessions: LocalSessions, form: str) -> None:
    name = site.pod()
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = site.kubectl_command("exec", "-it", name, "--", "sh")
    shown = b""

    def expect(words: bytes) -> None:
        nonlocal shown
        while words not in shown:
            shown += os.read(master, 1000)
        shown = shown.partition(words)[2]

    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True) as shell:
        os.close(slave)
        # sizes have a stream of their own: what is typed may arrive before them
        eventually(lambda: sessions.opened and _size(sessions) == (40, 120))
        os.write(master, b"stty size; echo rea'dy'\n")
        expect(b"40 120")
        expect(b"ready")
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
        shell.send_signal(28)  # SIGWINCH: the pseudo-terminal is not the controlling terminal of kubectl
        eventually(lambda: _size(sessions) == (50, 132))
        # the process itself: before it runs, Ctrl-C would interrupt the shell alone
        os.write(master, b"sh -c 'echo begin$((1)); exec sleep 1000'; echo never\n")
        expect(b"begin1")
        os.write(master, b"\x03echo int'errupted'; exit 7\n")
        expect(b"interrupted")
        with suppress(OSError):
            while os.read(master, 1000):
                pass
        assert shell.wait(10) == 7
    os.close(master)


def _size(sessions: LocalSessions) -> tuple[int, int]:
    stdin = sessions.opened[-1]._stdin
    assert stdin is not None
    rows, columns, *_ = struct.unpack("HHHH", fcntl.ioctl(stdin, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns


def test_a_client_that_is_killed_ends_the_command(site: Site, sessions: LocalSessions, form: str) -> None:
    name = site.pod()
    command = site.kubectl_command("exec", name, "--", "sh", "-c", "echo begin; exec sleep 100")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"begin\n"
        following.kill()
    assert sessions.opened[0].closed.wait(5)
    assert sessions.opened[0].process.wait(5) == -9


def test_a_site_that_is_lost_is_told(site: Site, sessions: LocalSessions, form: str) -> None:
    name = site.pod()
    command = site.kubectl_command("exec", name, "--", "sh", "-c", "echo begin; exec sleep 100")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        assert following.stdout is not None and following.stderr is not None
        assert following.stdout.readline() == b"begin\n"
        sessions.opened[0].fail(SiteUnknownOutcomeError("pool pool-one has fallen silent"))
        assert b"pool pool-one has fallen silent" in following.stderr.read()
        assert following.wait(10) == 1


def test_several_at_once(site: Site, sessions: LocalSessions) -> None:
    name = site.pod()
    before = REGISTRY.get_sample_value("podbridge_command_bytes_total", {"direction": "out"}) or 0
    texts = [str(number).encode() * 100_000 for number in range(3)]
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda text: run(site, "exec", "-i", name, "--", "cat", stdin=text), texts))
    assert [each.stdout for each in done] == texts
    eventually(lambda: len(site.kubelet._streams) == 0)
    after = REGISTRY.get_sample_value("podbridge_command_bytes_total", {"direction": "out"})
    assert after == before + 300_000


def test_what_cannot_run_is_told_by_kubectl(site: Site, sessions: LocalSessions, form: str) -> None:
    waiting = site.pod(state="pending")
    done = run(site, "exec", waiting, "--", "ls")
    assert done.returncode == 1
    words = f'container "main" in pod "{waiting}" is not running: ContainerCreating'
    assert words.encode() in done.stderr
    name = site.pod()
    for problem in (
        SiteDownError("pool pool-one does not answer"),
        SiteRefusedError("site pool-one allows no commands", reason="NotAllowed"),
    ):
        sessions.problem = problem
        done = run(site, "exec", name, "--", "ls")
        assert done.returncode == 1
        assert str(problem).encode() in done.stderr
