"""The commands of OpenPBS as a site's submitter uses them: a directory of records, and one real process for each job.

Written after the manual pages and the code of OpenPBS 23.06; no real PBS was compared. ``install`` makes the commands.
Set ``FAKE_PBS`` to the directory of the records. Files in it change what the commands do: ``no-history``, ``down``,
``slots`` (jobs that run at once).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMANDS = ("qsub", "qselect", "qstat", "qdel", "pbsnodes")
SERVER = "fakepbs"
KILL_DELAY = 2.0
KILLED_FOR_WALLTIME, TERMINATED, FINISHED, FAILED = -29, 91, 92, 93


def install(folder: Path) -> Path:
    """Write the commands below a directory and return the path of their own."""
    (folder / "records").mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in COMMANDS:
        command = folder / "bin" / name
        command.write_text(
            f'#!/bin/sh\nFAKE_PBS={folder}/records exec {sys.executable} -S {Path(__file__).resolve()} {name} "$@"\n'
        )
        command.chmod(0o755)
    return folder / "bin"


class Records:
    def __init__(self) -> None:
        self.path = Path(os.environ["FAKE_PBS"])

    @contextlib.contextmanager
    def locked(self) -> Any:
        with (self.path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def all(self) -> dict[str, dict[str, Any]]:
        files = sorted(self.path.glob("*.json"), key=lambda file: int(file.stem))
        return {f"{file.stem}.{SERVER}": json.loads(file.read_text()) for file in files}

    def write(self, job_id: str, record: dict[str, Any]) -> None:
        aside = self.path / f".{job_id}"
        aside.write_text(json.dumps(record))
        aside.rename(self.path / f"{job_id.partition('.')[0]}.json")

    def change(self, job_id: str, **fields: Any) -> dict[str, Any]:
        with self.locked():
            record = {**self.all()[job_id], **fields}
            self.write(job_id, record)
        return record

    def has(self, name: str) -> bool:
        return (self.path / name).exists()


def fail(command: str, text: str, code: int) -> int:
    print(f"{command}: {text}", file=sys.stderr)
    return code


def options(words: list[str], with_value: str) -> tuple[list[tuple[str, str]], list[str]]:
    found, rest = [], list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        found.append((word, rest.pop(0) if word[1:] in with_value else ""))
    return found, rest


def qsub(records: Records, words: list[str]) -> int:
    given, rest = options(words, "NSrjoWlqA")
    if rest:
        return fail("qsub", f"script file:: {rest[0]}: No such file or directory", 2)
    asked = dict(value.split("=", 1) for option, value in given if option == "-l")
    named = {option: value for option, value in given if option != "-l"}
    chunk = dict(item.split("=") for item in asked["select"].split(":")[1:])
    if int(chunk["ncpus"]) > 4:
        return fail("qsub", "Job exceeds queue and/or server resource limits", 188)
    if named.get("-q", "workq") != "workq":
        return fail("qsub", "Unknown queue", 170)
    script = sys.stdin.read()
    with records.locked():
        number = len(records.all()) + 1
        job_id = f"{number}.{SERVER}"
        record = {
            "Job_Name": named["-N"],
            "Job_Owner": f"{pwd.getpwuid(os.geteuid()).pw_name}@host",
            "job_state": "Q",
            "queue": "workq",
            "ctime": time.ctime(),
            "Resource_List": {**chunk, **asked},
            "substate": 10,
            "Account_Name": named.get("-A"),
            "comment": "Not Running: Insufficient amount of resource: ncpus",
        }
        (records.path / f"{number}.script").write_text(script)
        records.write(job_id, record)
    with open(os.devnull, "r+b") as null:
        subprocess.Popen(
            [sys.executable, "-S", __file__, "run", job_id],
            stdin=null,
            stdout=null,
            stderr=null,
            start_new_session=True,
        )
    print(job_id)
    return 0


def run(records: Records, words: list[str]) -> int:
    """Wait for a place, run the script, and write how it ended: the daemons' part."""
    (job_id,) = words
    slots = int((records.path / "slots").read_text()) if records.has("slots") else 8
    while True:
        with records.locked():
            jobs = records.all()
            record = jobs[job_id]
            if record["job_state"] == "F":
                return 0
            if sum(job["job_state"] == "R" for job in jobs.values()) < slots:
                script = (records.path / f"{job_id.partition('.')[0]}.script").open()
                environment = {"PATH": os.defpath, "HOME": "/", "PBS_JOBID": job_id}
                child = subprocess.Popen(
                    ["bash"], stdin=script, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
                )
                comment = f"Job run at {time.strftime('%a %b %d at %H:%M')} on (node1:ncpus=1)"
                running = {"job_state": "R", "stime": time.ctime(), "exec_host": "node1/0*1", "session_id": child.pid}
                record |= {**running, "substate": 42, "comment": comment}
                records.write(job_id, record)
                break
        time.sleep(0.1)
    walltime = record["Resource_List"].get("walltime")
    status = None
    try:
        code = child.wait(float(walltime) if walltime else None)
    except subprocess.TimeoutExpired:
        status = KILLED_FOR_WALLTIME
        end(child.pid)
        code = child.wait()
    status = (code if code >= 0 else 256 - code) if status is None else status
    deleted = records.has(f"{job_id}.deleted")
    substate, word = (TERMINATED, "terminated") if deleted else (FAILED, "failed") if status else (FINISHED, "finished")
    records.change(
        job_id, job_state="F", Exit_status=status, substate=substate, comment=f"{record['comment']} and {word}",
        history_timestamp=int(time.time()),
    )  # fmt: skip
    return 0


def end(session: int) -> None:
    """Send SIGTERM, and SIGKILL later, as pbs_mom does to all processes of a session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, number)
            for _ in range(int(KILL_DELAY / 0.1)):
                os.killpg(session, 0)
                time.sleep(0.1)


def qdel(records: Records, words: list[str]) -> int:
    code = 0
    for job_id in words:
        with records.locked():
            record = records.all().get(job_id)
            if record is None:
                code = fail("qdel", f"Unknown Job Id {job_id}", 153)
            elif record["job_state"] == "F":
                code = fail("qdel", f"Job has finished {job_id}", 35)
            else:
                (records.path / f"{job_id}.deleted").touch()
                if record["job_state"] == "Q":
                    ended = {"job_state": "F", "substate": TERMINATED, "comment": "Job deleted"}
                    records.write(job_id, {**record, **ended, "history_timestamp": int(time.time())})
        if record is not None and record["job_state"] == "R" and os.fork() == 0:
            end(int(record["session_id"]))
            os._exit(0)
    return code


def qselect(records: Records, words: list[str]) -> int:
    given, _ = options(words, "uN")
    named = dict(given)
    if "-x" in named and records.has("no-history"):
        return fail("qselect", "PBS is not configured to maintain job history", 1)
    for job_id, record in records.all().items():
        if record["job_state"] == "F" and "-x" not in named:
            continue
        if named.get("-N") in (None, record["Job_Name"]) and record["Job_Owner"].split("@")[0] == named["-u"]:
            print(job_id)
    return 0


def qstat(records: Records, words: list[str]) -> int:
    if words == ["--version"]:
        print("pbs_version = 23.06.06")
        return 0
    given, ids = options(words, "F")
    if ("-x", "") in given and records.has("no-history"):
        return fail("qstat", "PBS is not configured to maintain job history", 1)
    known, shown, code = records.all(), {}, 0
    for job_id in ids:
        if job_id not in known or (known[job_id]["job_state"] == "F" and records.has("no-history")):
            code = fail("qstat", f"Unknown Job Id {job_id}", 153)
        elif known[job_id]["job_state"] == "F" and ("-x", "") not in given:
            text = f"{job_id} Job has finished, use -x or -H to obtain historical job information"
            code = fail("qstat", text, 35)
        else:
            shown[job_id] = known[job_id]
    print(json.dumps({"timestamp": int(time.time()), "pbs_version": "23.06.06", "Jobs": shown}, indent=4))
    return code


def pbsnodes(records: Records, words: list[str]) -> int:
    used = sum(int(job["Resource_List"]["ncpus"]) for job in records.all().values() if job["job_state"] == "R")
    available = {"ncpus": 4, "mem": "4194304kb", "ngpus": 2, "host": "node1"}
    nodes: dict[str, Any] = {
        "node1": {"state": "free", "resources_available": available, "resources_assigned": {"ncpus": used}},
        "node2": {"state": "state-unknown,down", "resources_available": available, "resources_assigned": {}},
    }
    print(json.dumps({"timestamp": int(time.time()), "nodes": nodes}))
    return 0


def main() -> int:
    records, (command, *words) = Records(), sys.argv[1:]
    if records.has("down") and command != "run":
        return fail(command, "cannot connect to server fakepbs (errno=15010)", 255)
    made = {"qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel, "pbsnodes": pbsnodes, "run": run}
    return made[command](records, words)


if __name__ == "__main__":
    raise SystemExit(main())
