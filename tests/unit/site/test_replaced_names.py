"""Each name in a job's directory, replaced by a job's own code: the submitter reads and changes nothing elsewhere.

With ``sbatch --uid``, the submitter is root and the directory belongs to the user of the job. The places are those of
a job that has run: a new file of the directory is tested as soon as ``_fill`` makes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BatchError, SiteError
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import CancelMessage, Empty, File, Files
from bridge.site.batch.batch_user import hand_over
from bridge.site.files.removal import remove_tree
from bridge.site.jobs import member_record
from bridge.site.jobs.job_folder import SECRETS
from bridge.site.jobs.job_record import Cancellation, Meta
from bridge.site.jobs.site_folder import Folder
from tests.unit.site import test_gangs
from tests.unit.site.conftest import OWNER, UID, World

FOREIGN = "of somebody else"
FILES = (
    *("job.json", "job.id", "batch.json", "cancel.json", "script.log"),
    *("started/job", "state/pod.json", "state/main.json", "termination/main", "control/stop", "control/grant"),
    *(f"logs/main.{kind}" for kind in ("log", "first", "kept", "index")),
    *("volumes/token/token", "run/main.env", "run/main.env.more", "run/main.rc", *(f"{name}/x" for name in SECRETS)),
)
STATE = '{"state":"terminated","ended":{"exitCode":0},"last":{"exitCode":1},"phase":"Running"}'


def _fill(job: Path) -> None:
    for name in FILES:
        path = job / name
        if path.parent.is_file():
            continue
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(STATE if name.startswith("state/") else "5\n")


def _places() -> list[str]:
    found = {"job.sh", *FILES}
    for name in FILES:
        found |= {str(parent) for parent in Path(name).parents if str(parent) != "."}
    return sorted(name for name in found if not name.endswith("/x"))


def _link_to_folder(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def _link_to_file(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / path.name)


def _hanging_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "new")


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "x").mkdir()
    path.chmod(0o500)


def _file(path: Path, _: Path) -> None:
    path.write_bytes(b"\xff{")


def _nothing(_: Path, __: Path) -> None:
    pass


KINDS: tuple[Callable[[Path, Path], None], ...] = (
    _link_to_folder, _link_to_file, _hanging_link, _fifo, _folder, _file, _nothing,
)  # fmt: skip


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of somebody else, in which each name of a job's directory leads to something."""
    folder = tmp_path_factory.mktemp("elsewhere")
    names = {str(Path(*Path(place).parts[skip:])) for place in (*FILES, "job.sh") for skip in (0, 1, 2)} - {"."}
    for name in sorted(names, key=lambda name: -name.count("/")):
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'{{"state":"running","phase":"Running","ticket":"{FOREIGN}","reason":"{FOREIGN}"}}\n')
    return folder


@pytest.fixture(scope="module")
def site() -> Iterator[World]:
    """One site for all cases, each with a job of its own."""
    with tempfile.TemporaryDirectory() as name:
        made = World(Path(name))
        made.folder.sync = False
        yield made


def _seen(folder: Path) -> dict[str, Any]:
    """Return the state of each file; the times change with every write, link and change of mode."""
    found: dict[str, Any] = {}
    for top, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            at = os.lstat(f"{top}/{name}")
            found[f"{top}/{name}"] = (at.st_ino, at.st_mode, at.st_uid, at.st_nlink, at.st_mtime_ns, at.st_ctime_ns)
    return found


def _put_aside(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextlib.contextmanager
def _in_seconds(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError("the submitter waits for something in the directory")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _operations(world: World, uid: str) -> Iterator[Callable[[], Any]]:
    """Yield what the submitter does with a job. An error of a request is the answer to it; the others raise none."""
    job, submitter = world.folder.job(uid), world.submitter
    yield from (job.read, job.meta, job.begun, job.unfinished)
    yield lambda: submitter.status(OWNER, uid, Empty())
    for options in ({}, {"tail": 1}, {"timestamps": True}, {"previous": True}):
        yield lambda o=options: _or_error(
            lambda: b"".join(submitter.log(OWNER, uid, LogOptions(container="main", **o), lambda _: True))
        )
    for path in ("token/token", "token/a/b"):
        yield lambda p=path: _or_error(
            lambda: submitter.files(OWNER, uid, Files(files=[File(path=p, data="bmV3", mode=0o644)]))
        )
    yield lambda: job.ask_to_stop(3, "Deleted")
    yield lambda: _or_error(lambda: job.write_grant("t" * 8))
    yield lambda: _or_error(lambda: submitter.cancel(OWNER, uid, CancelMessage(grace=1)))
    yield lambda: job.write_cancel(Cancellation(1, 1))
    yield lambda: job.write_id("7")
    yield lambda: world.folder.touch(uid)
    yield lambda: world.look(10)
    yield job.drop_id
    yield job.drop_secrets
    yield lambda: world.look(4000)
    yield job.remove


def _or_error(request: Callable[[], Any]) -> Any:
    try:
        return request()
    except (SiteError, OSError) as error:
        return error


def _texts(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else repr(value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
@pytest.mark.parametrize("place", _places())
def test_nothing_elsewhere_is_read_or_changed(site: World, elsewhere: Path, place: str, kind: Any) -> None:
    uid = f"{KINDS.index(kind)}-{place.replace('/', '-').replace('.', '-')}"
    site.batch.table.clear()
    site.submit(uid)
    job = site.folder.job(uid)
    _fill(job.path)
    _put_aside(job.path / place)
    kind(job.path / place, elsewhere)
    before = _seen(elsewhere)
    answers = []
    with _in_seconds(20):
        for operation in _operations(site, uid):
            answers.append(_texts(operation()))
    assert _seen(elsewhere) == before
    assert FOREIGN not in "\n".join(answers)
    assert not job.exists()


def test_the_end_of_a_job_is_stored_in_place_of_a_folder(world: Any) -> None:
    """Else a job that makes the directory ``batch.json`` would run for ever."""
    world.submit()
    path = world.folder.job(UID).path
    (path / "batch.json" / "x").mkdir(parents=True)
    world.batch.end("1", "Cancelled")
    world.look(4000)
    assert world.watcher.index.entries[UID].status.phase == "ended"


def test_no_job_that_spoils_its_directory_stops_the_actions_for_others(world: Any, tmp_path: Path) -> None:
    test_gangs.submit_all(world)
    test_gangs.start(world)
    world.submit()
    world.look()
    control = world.folder.job(test_gangs.GANG).path / "control"
    control.symlink_to(tmp_path)
    test_gangs.cancel(world, 0)
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    for _ in range(3):
        world.look(31)
    assert world.batch.cancelled == ["2"]
    control.unlink()
    world.look(31)
    assert (control / f"kill-{test_gangs.pod(0)}").exists()


def test_a_job_that_spoils_its_directory_is_no_job_and_hides_no_other(world: Any) -> None:
    world.submit()
    spoilt = world.folder.job("spoilt")
    world.submit(spoilt.uid)
    spoilt.write_meta(spoilt.meta())
    for name in ("job.sh", "job.id"):
        (spoilt.path / name).unlink()
    (spoilt.path / "job.sh").symlink_to("job.sh")
    assert spoilt.read() is None
    world.again()
    world.look()
    assert world.status().phase == "queued"


@pytest.mark.parametrize("text", ["--user=somebody", "-u", "../../x", "7 8", "7,8", "*"])
def test_a_job_names_no_other_jobs_to_the_batch_system(world: Any, text: str) -> None:
    world.submit()
    world.begin()
    for name in ("job.id", "started/job"):
        world.write(name, f"{text}\n")
    record = world.folder.job(UID).read()
    assert (record.job_id, record.started_job, record.started) == ("", "", True)


def test_the_file_of_a_rank_is_removed_in_its_directory_alone(world: Any, tmp_path: Path) -> None:
    test_gangs.submit_all(world, 2)
    job, uid = world.folder.job(test_gangs.GANG), test_gangs.pod(0)
    for name in ("ranks", "granted"):
        _put_aside(job.path / name) if (job.path / name).exists() else None
        (job.path / name).symlink_to(tmp_path)
    for name in ("0", f"0.{uid}"):
        (tmp_path / name).touch()
    with pytest.raises(OSError, match="directory"):
        member_record.drop_rank(job, 0)
    with pytest.raises(OSError, match="directory"):
        member_record.drop_granted(job, uid, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"0", f"0.{uid}", "site"}


def test_notifications_follow_no_link(world: Any, tmp_path: Path) -> None:
    """Users of jobs may create names in ``changed``."""
    (world.folder.changed / UID).symlink_to(tmp_path / "new")
    world.folder.touch(UID)
    assert not (tmp_path / "new").exists()
    assert world.folder.take_changed() == [UID]


def test_trees_of_any_depth_and_mode_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    top = tmp_path / "tree"
    top.mkdir()
    here = os.getcwd()
    try:
        os.chdir(top)
        for number in range(1500):
            os.mkdir("d")
            if number % 500 == 0:
                os.symlink(outside, "link")
                Path("file").touch()
            os.chdir("d")
        os.mkdir("read-only", 0o500)
    finally:
        os.chdir(here)
    with _in_seconds(30):
        remove_tree(top)
    assert not top.exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500


# --- a submitter that is root -----------------------------------------------------------------------------------------
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may run jobs of other users")
USER = 65534


def as_user(code: str, *arguments: object) -> None:
    program = f"import os, sys\nos.setgroups([]); os.setgid({USER}); os.setuid({USER})\n{code}"
    subprocess.run([sys.executable, "-S", "-c", program, *map(str, arguments)], check=True)


META = Meta("ns", "p", 1, 0, 0, "", None, (), "", 30.0, 0.0, 0.0, owner=OWNER)


@pytest.fixture
def root_site() -> Iterator[Folder]:
    """A site in a directory through which every user may pass."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        folder = Folder(Path(name) / "site", sync=False)
        folder.prepare()
        yield folder


@as_root
def test_what_root_creates_for_a_user_belongs_to_the_user(root_site: Folder) -> None:
    job = root_site.job("u1")
    job.create("#!/bin/bash\n", META)
    assert hand_over(job.path, [f"--uid={USER}"]) == USER
    as_user("os.mkdir(sys.argv[1] + '/started')", job.path)
    job.ask_to_stop(5, "Deleted")
    job.write_grant("t")
    for name in ("control", "control/stop", "control/grant", "job.sh"):
        assert (job.path / name).lstat().st_uid == USER


@as_root
def test_a_second_submission_hands_over_nothing(root_site: Folder) -> None:
    """By then, the user may have moved a file of root into the directory."""
    job = root_site.job("u1")
    job.create("#!/bin/bash\n", META)
    hand_over(job.path, [f"--uid={USER}"])
    (job.path / "of-root").write_text("x")
    job.write_meta(META)
    hand_over(job.path, [f"--uid={USER}"])
    assert (job.path / "of-root").stat().st_uid == 0
    with pytest.raises(BatchError, match="belongs to user"):
        hand_over(job.path, [f"--uid={USER - 1}"])
