"""Runs scripts for real, with bash on this machine: a job folder as the submitter makes it, and a look into it."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from cluster.polling import eventually
from tests.fakes.web_server import Handler, serving

NOBODY = 65534
UID = "8c2f7a1e-0000-4000-8000-000000000001"


class Job:
    """One job folder and, once started, the process that runs its script."""

    def __init__(
        self, folder: Path, script: str, user: int | None, environment: dict[str, str], enter: Sequence[str] = ()
    ) -> None:
        self.home = folder
        self.folder = folder / "jobs" / UID
        self.folder.mkdir(parents=True, mode=0o700)
        (folder / "changed").mkdir()
        (self.folder / "control").mkdir(mode=0o700)
        path = self.folder / "job.sh"
        path.write_text(script)
        path.chmod(0o600)
        self._user = None if enter else user
        self._enter = list(enter)
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        if user is not None:
            for each in (folder, *folder.rglob("*")):
                os.chown(each, user, user)

    def move(self, place: Path) -> None:
        """Move the site's directory to another file system, before the start."""
        shutil.copytree(self.home, place)
        shutil.rmtree(self.home)
        if self._user is not None:
            for each in (place, *place.rglob("*")):
                os.chown(each, self._user, self._user)
        self.home, self.folder = place, place / "jobs" / UID

    def start(self) -> "Job":
        self._process = self.spawn()
        return self

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "script.log").open("ab") as log:
            return subprocess.Popen(
                [*self._enter, "bash", str(self.folder / "job.sh"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user is not None else None,
                start_new_session=True,
            )

    def enter(self, *words: str, container: str = "main") -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as a site does for ``kubectl exec``."""
        return subprocess.run(
            [*self._enter, "bash", str(self.folder / "job.sh"), "session", container, "", "", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env=self._environment,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user is not None else None,
        )

    def beside(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start what runs beside the script, as a site does, with pipes for its input and output."""
        return subprocess.Popen(
            [*self._enter, "bash", str(self.folder / "job.sh"), *words],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
            user=self._user,
            group=self._user,
        )

    def wait(self, timeout: float = 60) -> int:
        assert self._process is not None
        return self._process.wait(timeout)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def pod(self) -> dict[str, Any]:
        return self._json("pod")

    def state(self, container: str) -> dict[str, Any]:
        return self._json(container)

    def ended(self, container: str = "main") -> dict[str, Any]:
        """Return how a container ended; fail with all that is known of the job if it did not."""
        found: dict[str, Any] | None = self.state(container).get("ended")
        if found is None:
            pytest.fail(f"{container} has no end: {self.state(container)}\n{self.everything()}")
        return found

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "state" / f"{name}.json").read_text()))
        except FileNotFoundError:
            return {}

    def log(self, name: str = "main") -> str:
        return (self.folder / "logs" / f"{name}.log").read_bytes().decode()

    def log_if_any(self, name: str = "main") -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def message(self, container: str = "main") -> str:
        return (self.folder / "termination" / container).read_text()

    def ask_to_stop(self, seconds: float = 30, reason: str = "Deleted") -> None:
        new = self.folder / "control" / ".stop"
        new.write_text(f"{seconds:g} {reason}\n")
        new.rename(self.folder / "control" / "stop")

    def grant(self, ticket: str) -> None:
        new = self.folder / "control" / ".grant"
        new.write_text(f"{ticket}\n")
        new.rename(self.folder / "control" / "grant")

    def asks(self) -> str:
        """Wait until the script waits for its grant; return its ticket."""
        self.eventually(lambda: (self.folder / "state" / "pod.json").exists() and self.pod()["phase"] == "Asking")
        return str(self.pod()["ticket"])

    def eventually(self, check: Callable[[], object], timeout: float = 30) -> None:
        """Wait for a true value of ``check``; the error message contains all files of the job."""
        try:
            eventually(check, timeout=timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.everything()}") from None

    def everything(self) -> str:
        texts = []
        for path in sorted(self.folder.rglob("*")):
            if (path.is_file() and path.parent.name in ("state", "logs", "termination")) or path.name == "script.log":
                texts.append(f"--- {path.relative_to(self.folder)}\n{path.read_bytes()[:4000]!r}")
        return "\n".join(texts)

    def end(self) -> None:
        """End whatever is left of the job: everything with its folder in the command line, or mounted."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and any(
                    str(self.home).encode() in (entry / name).read_bytes() for name in ("cmdline", "mountinfo")
                ):
                    os.kill(int(entry.name), 9)
            except (OSError, ProcessLookupError):
                continue


class Site:
    """Makes jobs for a site: without a container runtime, and of nothing but bash, unless the job says otherwise.

    ``enter`` are words before the command line of a job: they become the user themselves.
    """

    def __init__(self, user: int | None, enter: Sequence[str] = ()) -> None:
        self.user = user
        self.enter = enter
        self._jobs: list[Job] = []
        self._folders: list[Path] = []

    def home_for_host_path(self) -> Path:
        """A folder outside of every job that belongs to the user."""
        folder = Path(tempfile.mkdtemp(prefix="script-host-"))
        if self.user is not None:
            os.chown(folder, self.user, self.user)
        self._folders.append(folder)
        return folder

    def job(
        self,
        spec: dict[str, Any],
        objects: Objects | None = None,
        config: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        grant_wait: float | None = None,
    ) -> Job:
        pod = {
            "metadata": {
                "name": "pod",
                "namespace": "default",
                "uid": UID,
                "labels": {"app": "test"},
                "annotations": annotations or {},
            },
            "spec": {"restartPolicy": "Never", **spec},
        }
        settings = BuildConfig.model_validate({"runtime": {"kind": "none"}, **(config or {})})
        made = build(pod, settings, objects or Objects(), "virtual", grant_wait)
        home = Path(tempfile.mkdtemp(prefix="script-"))
        variables = {"PODBRIDGE_FIRST_BACKOFF_SECONDS": "1", **(environment or {})}
        job = Job(home, made.script, self.user, variables, self.enter)
        self._jobs.append(job)
        return job

    def run(self, spec: dict[str, Any], timeout: float = 60, **more: Any) -> Job:
        job = self.job(spec, **more).start()
        try:
            job.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(job.everything())
        return job

    def shell(self, text: str, **container: Any) -> dict[str, Any]:
        return {"name": "main", "image": "busybox", "command": ["sh", "-c", text], **container}

    def close(self) -> None:
        for job in self._jobs:
            job.end()
            shutil.rmtree(job.home, ignore_errors=True)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def folder_of_programs(site: Site, without: str, **programs: str) -> str:
    """Make a folder, for PATH, with all that a script needs but one program, and with shell scripts of other names.

    A script puts folders of administrators behind PATH: what is in those can't be left out.
    """
    folder = site.home_for_host_path()
    for source in (Path("/bin"), Path("/usr/bin"), Path("/usr/sbin")):
        for program in source.iterdir():
            if program.name != without and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    for name, text in programs.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def _homes_on_a_disk() -> Iterator[None]:
    """Scripts treat ``/dev/shm``, where other tests have their folders, like no other directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(params=["self", "nobody"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Once as whoever runs the tests, once as an ordinary user."""
    if request.param == "nobody" and os.getuid() != 0:
        pytest.skip("only root can become another user")
    made = Site(NOBODY if request.param == "nobody" else None)
    yield made
    made.close()


@pytest.fixture
def ordinary() -> Iterator[Site]:
    """As an ordinary user alone, for what takes long."""
    made = Site(NOBODY if os.getuid() == 0 else None)
    yield made
    made.close()


class _Checked(Handler):
    def respond(self) -> None:
        good = self.path == "/good?x=1" and self.headers["X-Test"] == "it's $HOME"
        self.answer(status=200 if good else 500)


@pytest.fixture
def http_port() -> Iterator[int]:
    """A port of this machine where GET /good?x=1 with a certain header is answered with 200, all else with 500."""
    with serving(_Checked, "0.0.0.0") as server:  # noqa: S104
        yield server.server_port


@pytest.fixture
def closed_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture
def python() -> str:
    """A Python that an ordinary user may run."""
    found = shutil.which("python3", path="/usr/bin:/bin")
    if found is None:
        pytest.skip("no python3 in /usr/bin")
    return found
