"""The wait of a script for its grant, in bash itself: without its own ticket, it begins nothing."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from importlib import resources
from pathlib import Path

import pytest

from tests.fakes import nfs_names

LIBRARY = resources.files("bridge.script") / "lib"
MAIN = """
HOST=n1 ADDRESS=10.0.0.1 STOP_BY='' DEADLINE='' POD_BEGAN=1
trap 'STOP_BY=signal' TERM
GRANT_WAIT={wait}
phase=Began
await_grant || {{ phase=GaveBack; give_back >/dev/null; }}
printf '{{"phase":"%s","reason":"%s","ticket":"%s","stage":"%s"}}' "$phase" "$POD_REASON" "$TICKET" "$STAGE"
"""


class Script:
    def __init__(self, at: Path, wait: str, **environment: str) -> None:
        self.at = at / "jobs" / "u1"
        for name in ("state/.new", "control", "run"):
            (self.at / name).mkdir(parents=True)
        (at / "changed").mkdir()
        parts = [(LIBRARY / f"{name}.bash").read_text() for name in ("base", "grant")]
        pod = (LIBRARY / "pod.bash").read_text()
        active = pod[pod.index("active() {") : pod.index("\n}\n", pod.index("active() {")) + 3]
        command = ["bash", "-c", "".join([*parts, active, MAIN.format(wait=wait)])]
        environment = {**os.environ, **environment}
        self.process = subprocess.Popen(command, cwd=self.at, stdout=subprocess.PIPE, text=True, env=environment)

    def record(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.at / "state" / "pod.json").read_text()))
        except (OSError, ValueError):
            return {}

    def asks(self) -> str:
        until = time.monotonic() + 10
        while time.monotonic() < until and self.process.poll() is None:
            if self.record().get("phase") == "Asking":
                return self.record()["ticket"]
            time.sleep(0.02)
        raise AssertionError("the script does not ask")

    def put(self, name: str, text: str) -> None:
        aside = self.at / "control" / f".{name}"
        aside.write_text(text)
        aside.rename(self.at / "control" / name)

    def end(self) -> dict[str, str]:
        return dict(json.loads(self.process.communicate(timeout=20)[0]))


@pytest.fixture(scope="module")
def nfs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return nfs_names.environment(tmp_path_factory.mktemp("nfs"))


def test_it_begins_with_its_own_ticket(tmp_path: Path) -> None:
    script = Script(tmp_path, "2000")
    ticket = script.asks()
    until = time.monotonic() + 10
    while not (tmp_path / "changed" / "u1").exists():
        assert time.monotonic() < until, "the submitter is not notified"
        time.sleep(0.02)
    script.put("grant", f"{ticket}\n")
    assert script.end() == {"phase": "Began", "reason": "", "ticket": "", "stage": "init"}
    assert (script.record()["phase"], script.record()["ticket"]) == ("Running", "")


@pytest.mark.parametrize("text", ["", "\n", "11111111-2222-3333-4444-555555555555\n", "*\n"])
def test_it_gives_its_place_back_without_it(tmp_path: Path, text: str) -> None:
    script = Script(tmp_path, "60")
    ticket = script.asks()
    script.put("grant", text)
    end = script.end()
    assert end == {"phase": "GaveBack", "reason": "NoGrant", "ticket": ticket, "stage": "end"}
    assert script.record()["phase"] == "Asking"


def test_two_runs_have_two_tickets(tmp_path: Path) -> None:
    first, second = Script(tmp_path / "a", "30"), Script(tmp_path / "b", "30")
    assert first.asks() != second.asks()
    second.put("grant", f"{first.asks()}\n")
    assert (first.end()["phase"], second.end()["phase"]) == ("GaveBack", "GaveBack")


def test_a_request_to_stop_wins_over_a_grant(tmp_path: Path) -> None:
    script = Script(tmp_path, "2000")
    ticket = script.asks()
    script.put("stop", "0 Deleted\n")
    script.put("grant", f"{ticket}\n")
    assert script.end()["reason"] == "Deleted"


def test_a_signal_ends_the_wait(tmp_path: Path) -> None:
    script = Script(tmp_path, "2000")
    script.asks()
    threading.Timer(0.1, script.process.terminate).start()
    assert script.end()["reason"] == "Terminated"


@pytest.mark.parametrize("name", ["grant", "stop"])
def test_it_finds_what_it_waits_for_on_nfs(tmp_path: Path, nfs: dict[str, str], name: str) -> None:
    """With the default options of NFS, a name that was absent stays absent for half a minute."""
    script = Script(tmp_path, "2000", **nfs)
    ticket = script.asks()
    time.sleep(0.5)  # it has looked for the name
    script.put(name, f"{ticket}\n" if name == "grant" else "0 Deleted\n")
    began = time.monotonic()
    assert script.end()["phase"] == ("Began" if name == "grant" else "GaveBack")
    assert time.monotonic() - began < 10


def test_a_script_that_could_not_record_its_grant_has_begun_nothing(tmp_path: Path) -> None:
    script = Script(tmp_path, "2000")
    ticket = script.asks()
    (script.at / "state" / ".new").rmdir()  # as if the disk were full
    script.put("grant", f"{ticket}\n")
    time.sleep(0.5)
    script.put("stop", "0 Deleted\n")
    end = script.end()
    assert (end["phase"], end["ticket"]) == ("GaveBack", ticket)


def test_without_a_wait_it_begins_at_once(tmp_path: Path) -> None:
    script = Script(tmp_path, "''")
    assert script.end() == {"phase": "Began", "reason": "", "ticket": "", "stage": "init"}
    assert script.record()["phase"] == "Running"
