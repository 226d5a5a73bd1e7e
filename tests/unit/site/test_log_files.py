"""A reader of a log while the script's own functions cut it: bash stops after each command, and the reader reads."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.site.logs.log_files import Index, LogFiles, open_log

LIBRARY = Path(__file__).resolve().parents[3] / "bridge" / "script" / "lib" / "logs.bash"
STEP, FILES, LINE = 8192, 3, 2048
BOUND = STEP * FILES
_SCRIPT = """
. "$1"
LOG_LINE=$2 LOG_CUT=$3 INDEX_BOUND=$4
NAME=(main) ENDED=(null) NOW=0 TIME=0
note() { :; }
in_background() { "$@" </dev/null >/dev/null 2>&1 & }
stop() {
    local code
    command "$@"
    code=$?
    printf '%s\\n' "$1" >&8
    read -r -u 9 _
    return $code
}
for name in mv rm truncate stat tail head fallocate; do
    eval "$name() { stop $name \\"\\$@\\"; }"
done
index_at() { TIME=$1; index_log 0; }
restart() { close_log 0; ENDED=(1); new_log 0; }
cut() {
    index_log 0
    in_background "cut_by_$LOG_CUT" 0
    LOG_PID[0]=$!
    end_cut 0
}
while read -r -u 9 -a words; do
    "${words[@]}" 0
    printf 'end\\n' >&8
done
"""


class Run:
    """One run of a container: what it has written, by offset, and the file that it has open."""

    def __init__(self, path: Path) -> None:
        self.history = b""
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.lines = 0

    def write(self, size: int) -> None:
        """Write a line of about that length, like no other."""
        self.lines += 1
        text = f"{self.lines:07d}".encode() * (size // 7 + 1) + b"\n"
        os.write(self.file, text)
        self.history += text


class Script:
    """The functions of ``logs.bash`` in a real bash; ``pause`` is called with the name of each command that ended."""

    def __init__(self, home: Path, way: str, index_bound: int = 512 * 1024) -> None:
        self.logs = home / "logs"
        self.logs.mkdir()
        self.pause: Callable[[str], None] = lambda name: None
        self.runs: list[Run] = []
        heard, says = os.pipe()
        hears, self._said = os.pipe()
        self._heard = os.fdopen(heard, "r")
        words = ["bash", "-c", f"exec 8>&{says} 9<&{hears}\n{_SCRIPT}", "x", str(LIBRARY), str(LINE), way]
        self._process = subprocess.Popen(
            [*words, str(index_bound)],
            cwd=home,
            pass_fds=(says, hears),
            env={**os.environ, "PODBRIDGE_LOG_MAX_SIZE": str(STEP), "PODBRIDGE_LOG_MAX_FILES": str(FILES)},
        )
        os.close(says)
        os.close(hears)

    def call(self, words: str) -> None:
        os.write(self._said, f"{words}\n".encode())
        while (name := self._heard.readline().strip()) != "end":
            assert name, "bash has ended"
            self.pause(name)
            os.write(self._said, b"\n")

    def begin(self, words: str = "new_log") -> Run:
        self.call(words)
        self.runs.append(Run(self.logs / "main.log"))
        return self.runs[-1]

    def bounds(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.logs / "main.first").read_text().split()
        return ["0", "0"]

    def close(self) -> None:
        os.close(self._said)
        self._heard.close()
        self._process.wait(10)
        for run in self.runs:
            os.close(run.file)


class RenamingError(Exception):
    """The log that was to be opened is being renamed; a reader would wait."""


def no_wait(seconds: float) -> bool:
    raise RenamingError


@pytest.fixture
def script(tmp_path: Path, request: Any) -> Iterator[Script]:
    made = Script(tmp_path, request.param)
    yield made
    made.close()


both = pytest.mark.parametrize("script", ["hole", "copy"], indirect=True)


def opened(script: Script, *, previous: bool = False) -> LogFiles | None:
    return open_log(script.logs, "main", previous=previous, wait=no_wait)


def all_of(files: LogFiles) -> tuple[int, bytes]:
    with contextlib.closing(files):
        return files.block(files.bounds.first, files.end)


class Follower:
    """Reads on, and checks that each piece is what was written there, and that only what is gone is left out."""

    def __init__(self, script: Script, run: Run) -> None:
        files = opened(script)
        assert files is not None
        self.script, self.run, self.files, self.position = script, run, files, 0

    def read(self, most: int = 100_000) -> int:
        before = [int(word) for word in self.script.bounds()[:2]]
        offset, piece = self.files.read(self.position, most)
        assert piece == self.run.history[offset : offset + len(piece)]
        if offset > self.position:
            # what is no longer kept, or what was written while the log was truncated
            assert offset in before
            at_line = offset == 0 or self.run.history[offset - 1 : offset] == b"\n"
            assert at_line or b"\n" not in self.run.history[offset - LINE : offset]
        self.position = offset + len(piece)
        return len(piece)


def actions() -> st.SearchStrategy[list[tuple[str, int]]]:
    size = st.integers(1, 3000)
    some = st.tuples(st.just("write"), size) | st.tuples(st.just("read"), st.integers(1, 30_000))
    return st.lists(some | st.tuples(st.just("fresh"), st.just(0)), min_size=1, max_size=40)


@settings(max_examples=20, deadline=None)
@given(way=st.sampled_from(["hole", "copy"]), between=actions(), rounds=st.lists(st.integers(1, 25), max_size=6))
def test_whatever_is_written_and_read_while_a_log_is_cut(
    tmp_path_factory: pytest.TempPathFactory, way: str, between: list[tuple[str, int]], rounds: list[int]
) -> None:
    script = Script(tmp_path_factory.mktemp("job"), way)
    try:
        run = script.begin()
        follower = Follower(script, run)
        turn = 0

        def pause(name: str) -> None:
            nonlocal turn
            for _ in range(3):
                what, size = between[turn % len(between)]
                turn += 1
                if what == "write" and not (way == "copy" and name == "stat"):
                    run.write(size)  # not then: what is written just before the truncation is lost
                elif what == "read":
                    follower.read(size)
                elif what == "fresh" and (files := opened(script)) is not None:
                    at, content = all_of(files)
                    assert content == run.history[at : at + len(content)]
                    assert at + len(content) == len(run.history) or script.bounds()[2:] == ["moving"]

        for lines in rounds:
            for _ in range(lines):
                run.write(900)
            script.pause = pause
            live = os.fstat(run.file).st_size
            if live - (int(script.bounds()[0]) if way == "hole" else 0) > (BOUND if way == "hole" else BOUND // 2):
                script.call("cut")
            script.pause = lambda name: None
            first, _ = map(int, script.bounds())
            assert first <= max(0, len(run.history) - STEP)
        while follower.read():
            pass
        assert follower.position == len(run.history)
        assert follower.files.goes_on(follower.position)
        follower.files.close()
    finally:
        script.close()


@both
def test_what_is_kept_is_within_the_bound_and_begins_with_a_line(script: Script) -> None:
    run = script.begin()
    for _ in range(20):
        while len(run.history) - int(script.bounds()[0]) <= BOUND:
            run.write(700)
        script.call("cut")
        files = opened(script)
        assert files is not None
        at, content = all_of(files)
        assert run.history[at:] == content
        least = STEP * (FILES - 1) if files.bounds.base == 0 else BOUND // 2 - LINE
        assert least <= len(content) <= least + 2 * LINE
        assert run.history[at - 1 : at] == b"\n"
        used = sum(path.stat().st_blocks * 512 for path in script.logs.glob("main.[lk]*"))
        assert used <= BOUND + 3 * 4096


@both
def test_a_line_that_is_longer_than_the_piece_looked_at_is_cut_in(script: Script) -> None:
    run = script.begin()
    run.write(BOUND + 1)
    script.call("cut")
    files = opened(script)
    assert files is not None
    at, content = all_of(files)
    assert at == len(run.history) - (STEP * (FILES - 1) if files.bounds.base == 0 else BOUND // 2) + LINE
    assert run.history[at:] == content


@pytest.mark.parametrize("script", ["copy"], indirect=True)
def test_what_is_written_just_before_a_truncation_is_all_that_is_lost(script: Script) -> None:
    run = script.begin()
    while len(run.history) < BOUND:
        run.write(500)
    follower = Follower(script, run)
    late = []

    def pause(name: str) -> None:
        if name == "stat" and script.bounds()[2:] == ["moving"]:
            os.write(run.file, b"lost\n")
        late.append(name)

    script.pause = pause
    script.call("cut")
    assert "truncate" in late
    run.write(500)
    while follower.read():
        pass
    assert follower.position == len(run.history)


@both
def test_a_run_that_follows_another_leaves_its_log_to_it(script: Script) -> None:
    """At any moment, the current log and the previous one are each of one run, with its end."""

    def look(name: str) -> None:
        for previous in (False, True):
            try:
                files = opened(script, previous=previous)
            except RenamingError:
                assert previous and (script.logs / "main.kept").exists(), "the log has its name, what was before it not"
                continue
            if files is None:
                continue
            at, content = all_of(files)
            assert not content or b"\0" not in content
            of = [number for number, run in enumerate(script.runs) if run.history.endswith(content) and content]
            assert bool(of) or content == b"", (name, previous, at)
            assert at == 0 or len(content) >= BOUND // 2
            seen.add((previous, of[-1] if of else None))
        if follower.read() == 0:
            assert follower.position == len(follower.run.history)

    seen: set[tuple[bool, int | None]] = set()
    script.begin()
    for number in range(3):
        run = script.runs[-1]
        follower = Follower(script, run)
        while len(run.history) <= BOUND * (number + 1):
            run.write(400 + number)
        script.call("cut")
        script.pause = look
        script.begin("restart")
        look("")
        script.pause = lambda name: None
        assert not follower.files.goes_on(follower.position)
        follower.files.close()
    assert {(True, 0), (True, 1), (True, 2), (False, None), (False, 1)} <= seen


def test_a_container_that_truncates_its_log_starts_it_anew(tmp_path: Path) -> None:
    script = Script(tmp_path, "hole")
    try:
        run = script.begin()
        while len(run.history) <= BOUND:
            run.write(500)
        script.call("cut")
        os.ftruncate(run.file, 0)
        run.history = b""
        run.write(100)
        for _ in range(2):  # before the script has looked, and after
            files = opened(script)
            assert files is not None
            assert all_of(files) == (0, run.history)
            script.call("index_at 5")
        assert not (script.logs / "main.first").exists()
    finally:
        script.close()


def test_an_index_stays_small_and_its_times_right_to_a_thousandth_of_their_age(tmp_path: Path) -> None:
    script = Script(tmp_path, "hole", index_bound=64 * 1024)
    end = 100_000
    path = script.logs / "main.index"
    try:
        script.begin()
        os.ftruncate(script.runs[0].file, end)
        index = Index(path)
        lines = [f"{second} {1_700_000_000 + second}\n" for second in range(1, end)]
        path.write_text("".join(lines[: end // 2]))
        index.grow()
        with path.open("a") as file:
            file.write("".join(lines[end // 2 :]))
        script.call(f"index_at {1_700_000_000 + end}")
        assert path.stat().st_size < 256 * 1024
        index.grow()
        for second in (1, 20_000, end // 2, end - 7200, end - 600, end - 60, end):
            told = index.time_of(second)
            assert told is not None
            assert 0 <= told - 1_700_000_000 - second <= 1 + (end - second) / 1000
            older = index.written_before(1_700_000_000 + second)
            assert older is not None
            assert 0 <= second - older <= 2 + (end - second) / 1000
    finally:
        script.close()


def test_what_is_cut_off_goes_from_the_index(tmp_path: Path) -> None:
    script = Script(tmp_path, "hole", index_bound=0)
    try:
        run = script.begin()
        for moment in range(100):
            run.write(500)
            script.call(f"index_at {moment}")
        script.call("cut")
        script.call("index_at 100")
        lines = [tuple(map(int, line.split())) for line in (script.logs / "main.index").read_text().splitlines()]
        first = int(script.bounds()[0])
        assert first < lines[0][0] < first + 600
        assert lines == sorted(lines) and lines[-1] == (len(run.history), 100)
    finally:
        script.close()
