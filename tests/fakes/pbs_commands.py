"""The commands of OpenPBS as a site's submitter uses them: a directory of records, and one real process for each job.

Written after the manual pages and the code of OpenPBS 23.06; no real PBS was compared. ``install`` makes the commands.
Set ``FAKE_PBS`` to the directory of the records. Files in it change what the commands do: ``no-history``, ``down``,
``slots`` (jobs that run at once), ``nodes`` (machines that work; 1 by default), ``max-array-size``, ``max-queued``
(jobs of a user), ``slow`` (seconds of qsub after its work).

An array has a record, and each of its jobs. As with ``status_subjob`` of OpenPBS, qstat shows the attributes of the
array for a job that is queued, or that ended while there is no history; without -t it shows no job of an array.

Each task of a job has the host name of its machine. A task that pbsdsh starts has, as with pbs_mom, a session of its
own, the home directory, no output file, and none of the variables of the job's script; it is killed when that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMANDS = ("qsub", "qselect", "qstat", "qdel", "pbsnodes", "pbsdsh")
CPUS = 4
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
        files = sorted(self.path.glob("*.json"), key=lambda file: [int(part) for part in re.findall(r"\d+", file.stem)])
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

    def number(self, name: str, default: float) -> float:
        return float((self.path / name).read_text()) if self.has(name) else default

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
    given, rest = options(words, "NSrjoWlqAJ")
    if rest:
        return fail("qsub", f"script file:: {rest[0]}: No such file or directory", 2)
    asked = dict(value.split("=", 1) for option, value in given if option == "-l")
    named = {option: value for option, value in given if option != "-l"}
    chunks = parse_select(asked["select"])
    if any(int(chunk["ncpus"]) > CPUS for chunk in chunks):
        return fail("qsub", "Job exceeds queue and/or server resource limits", 188)
    if named.get("-q", "workq") != "workq":
        return fail("qsub", "Unknown queue", 170)
    indexes = []
    if "-J" in named:
        first, last = map(int, named["-J"].split("-"))
        if first >= last:
            return fail("qsub", "illegal -J value", 1)
        if named.get("-r") == "n":
            return fail("qsub", "cannot submit non-rerunable Array Job", 1)
        indexes = list(range(first, last + 1))
    if len(indexes) > records.number("max-array-size", 10000):
        return fail("qsub", "Array job exceeds server or queue size limit", 1)
    script = sys.stdin.read()
    with records.locked():
        known = records.all()
        queued = sum(job["job_state"] != "F" for job_id, job in known.items() if "[]" not in job_id)
        if queued + max(1, len(indexes)) > records.number("max-queued", 1000):
            return fail("qsub", "would exceed complex's per-user limit of jobs", 1)
        number = sum(is_listed(job_id) for job_id in known) + 1
        job_id = f"{number}[].{SERVER}" if indexes else f"{number}.{SERVER}"
        record = {
            "Job_Name": named["-N"],
            "Job_Owner": f"{pwd.getpwuid(os.geteuid()).pw_name}@host",
            "job_state": "Q",
            "queue": "workq",
            "ctime": time.ctime(),
            "Resource_List": {**total(chunks), **asked},
            "substate": 10,
            "Account_Name": named.get("-A"),
            "comment": "Not Running: Insufficient amount of resource: ncpus",
        }
        (records.path / f"{number}.script").write_text(script)
        if indexes:
            records.write(job_id, {**record, "array": True, "array_indices_submitted": named["-J"]})
        started_ids = [f"{number}[{index}].{SERVER}" for index in indexes] or [job_id]
        for started_id in started_ids:
            records.write(started_id, record)
    with open(os.devnull, "r+b") as null:
        for started_id in started_ids:
            subprocess.Popen(
                [sys.executable, "-S", __file__, "run", started_id],
                stdin=null,
                stdout=null,
                stderr=null,
                start_new_session=True,
            )
    time.sleep(records.number("slow", 0))
    print(job_id)
    return 0


def is_listed(job_id: str) -> bool:
    """Return whether it is a job or an array, not a job of an array."""
    return "[" not in job_id or "[]" in job_id


def array_of(job_id: str) -> str:
    """Return the id of the array of a job; another id unchanged."""
    return re.sub(r"\[\d+\]", "[]", job_id)


def jobs_of(known: dict[str, dict[str, Any]], array: str) -> list[str]:
    """Return the ids of the jobs of an array."""
    return [job_id for job_id in known if job_id != array and array_of(job_id) == array]


def parse_select(text: str) -> list[dict[str, str]]:
    """Return the chunks of ``2:ncpus=2:mem=64mb+1:ncpus=1``, in order."""
    chunks = []
    for part in text.split("+"):
        count, *resources = part.split(":")
        chunks += [dict(item.split("=") for item in resources)] * int(count)
    return chunks


def total(chunks: list[dict[str, str]]) -> dict[str, str]:
    """Return the sums of all chunks."""
    sums = {"ncpus": str(sum(int(chunk["ncpus"]) for chunk in chunks))}
    return {**sums, "mem": f"{sum(int(chunk['mem'].removesuffix('mb')) for chunk in chunks)}mb"}


def hosts_of(records: Records, asked: dict[str, str]) -> list[str]:
    """Return the machine of each chunk; none if there are too few."""
    count = int((records.path / "nodes").read_text()) if records.has("nodes") else 1
    machines = ["node1", *(f"node{number + 2}" for number in range(1, count))]
    chunks = parse_select(asked["select"])
    if asked.get("place") == "scatter":
        return machines[: len(chunks)] if len(chunks) <= count else []
    return [machines[0]] * len(chunks)


def start_task(
    records: Records, job_id: str, host: str, command: list[str], stdin: Any, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process on a machine, as pbs_mom does."""
    environment = {"PATH": os.defpath, "HOME": "/", "PBS_JOBID": job_id, "PBS_ENVIRONMENT": "PBS_BATCH", **variables}
    task = subprocess.Popen(
        ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *command],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment,
        start_new_session=True,
    )
    with (records.path / f"{job_id}.sessions").open("a") as sessions:
        sessions.write(f"{task.pid}\n")
    return task


def sessions_of(records: Records, job_id: str) -> list[int]:
    return [int(line) for line in (records.path / f"{job_id}.sessions").read_text().split()]


def pbsdsh(records: Records, words: list[str]) -> int:
    """Start a program once for each line of the node file, and wait for the ends."""
    if "PBS_ENVIRONMENT" not in os.environ:
        return fail("pbsdsh", "not executing under PBS", 1)
    if words[:1] != ["--"]:
        return fail("pbsdsh", "the options of this call are not in the fake", 1)
    job_id = os.environ["PBS_JOBID"]
    hosts = records.all()[job_id]["exec_host"].split("+")
    machines = [host.partition("/")[0] for host in hosts]
    indexes = {machine: index for index, machine in enumerate(dict.fromkeys(machines))}
    tasks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: Any) -> None:
        for task in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task.pid, number)
        os._exit(1)

    signal.signal(signal.SIGTERM, pass_on)
    for machine in machines:
        variables = {"PBS_NODENUM": str(indexes[machine]), "PBS_TASKNUM": f"{len(tasks) + 2:08X}"}
        tasks.append(start_task(records, job_id, machine, words[1:], subprocess.DEVNULL, variables))
    for task in tasks:
        task.wait()
    return 0


def run(records: Records, words: list[str]) -> int:
    """Wait for a place, run the script, and write how it ended: the daemons' part."""
    (job_id,) = words
    while True:
        slots = records.number("slots", 8)
        with records.locked():
            jobs = records.all()
            record = jobs[job_id]
            if record["job_state"] == "F":
                return 0
            hosts = hosts_of(records, record["Resource_List"])
            if hosts and sum(job["job_state"] == "R" for job in jobs.values()) < slots:
                number, index = re.match(r"(\d+)(?:\[(\d+)\])?", job_id).groups()
                node_file = records.path / f"{number}.nodes"
                node_file.write_text("".join(f"{host}\n" for host in hosts))
                variables = {"PBS_NODEFILE": str(node_file), "PBS_NODENUM": "0", "PBS_TASKNUM": "00000001"}
                if index is not None:
                    variables |= {"PBS_ARRAY_INDEX": index, "PBS_ARRAY_ID": array_of(job_id)}
                script = (records.path / f"{number}.script").open()
                child = start_task(records, job_id, hosts[0], ["bash"], script, variables)
                comment = f"Job run at {time.strftime('%a %b %d at %H:%M')} on ({hosts[0]}:ncpus=1)"
                exec_host = "+".join(f"{host}/0*1" for host in hosts)
                running = {"job_state": "R", "stime": time.ctime(), "exec_host": exec_host, "session_id": child.pid}
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
        end(sessions_of(records, job_id))
        code = child.wait()
    for session in sessions_of(records, job_id):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)
    status = (code if code >= 0 else 256 - code) if status is None else status
    deleted = any(records.has(f"{name}.deleted") for name in (job_id, array_of(job_id)))
    substate, word = (TERMINATED, "terminated") if deleted else (FAILED, "failed") if status else (FINISHED, "finished")
    records.change(
        job_id, job_state="F", Exit_status=status, substate=substate, comment=f"{record['comment']} and {word}",
        history_timestamp=int(time.time()),
    )  # fmt: skip
    end_array(records, array_of(job_id))
    return 0


def end_array(records: Records, array: str) -> None:
    """End an array of which all jobs have ended."""
    known = records.all()
    jobs = [known[job_id] for job_id in jobs_of(known, array)]
    if jobs and all(job["job_state"] == "F" for job in jobs):
        records.change(array, job_state="F", Exit_status=int(any(job.get("Exit_status") for job in jobs)), substate=92)


def end(sessions: list[int]) -> None:
    """Send SIGTERM, and SIGKILL later, as pbs_mom does to all processes of the sessions of a job."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for session in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, number)
        until = time.monotonic() + KILL_DELAY
        while time.monotonic() < until and any(map(lives, sessions)):
            time.sleep(0.1)


def lives(session: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, 0)
        return True
    return False


def qdel(records: Records, words: list[str]) -> int:
    code, known = 0, records.all()
    for job_id in (one for word in words for one in jobs_of(known, word) or [word]):
        with records.locked():
            known = records.all()
            record = known.get(job_id)
            if record is None:
                code = fail("qdel", f"Unknown Job Id {job_id}", 153)
            elif record["job_state"] == "F" and known[array_of(job_id)]["job_state"] != "F":
                code = fail("qdel", f"Request invalid for state of job {job_id}", 1)
            elif record["job_state"] == "F":
                code = fail("qdel", f"Job has finished {job_id}", 35)
            else:
                (records.path / f"{job_id}.deleted").touch()
                if record["job_state"] == "Q":
                    ended = {"job_state": "F", "substate": TERMINATED, "comment": "Job deleted"}
                    records.write(job_id, {**record, **ended, "history_timestamp": int(time.time())})
        if record is not None and record["job_state"] == "Q":
            end_array(records, array_of(job_id))
        if record is not None and record["job_state"] == "R" and os.fork() == 0:
            end(sessions_of(records, job_id))
            os._exit(0)
    return code


def qselect(records: Records, words: list[str]) -> int:
    given, _ = options(words, "uN")
    named = dict(given)
    if "-x" in named and records.has("no-history"):
        return fail("qselect", "PBS is not configured to maintain job history", 1)
    for job_id, record in records.all().items():
        if not is_listed(job_id) or (record["job_state"] == "F" and "-x" not in named):
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
    has_history = not records.has("no-history")
    for job_id in ids:
        listed_state = known[array_of(job_id)]["job_state"] if job_id in known else ""
        if job_id not in known or (listed_state == "F" and not has_history):
            code = fail("qstat", f"Unknown Job Id {job_id}", 153)
        elif listed_state == "F" and ("-x", "") not in given:
            text = f"{job_id} Job has finished, use -x or -H to obtain historical job information"
            code = fail("qstat", text, 35)
        else:
            more = jobs_of(known, job_id) if ("-t", "") in given else []
            shown |= {one: shown_job(known, one, has_history) for one in (job_id, *more)}
    print(json.dumps({"timestamp": int(time.time()), "pbs_version": "23.06.06", "Jobs": shown}, indent=4))
    return code


def shown_job(known: dict[str, dict[str, Any]], job_id: str, has_history: bool) -> dict[str, Any]:
    """Return the attributes of a job. The array itself begins (B) with its first job."""
    record, array = known[job_id], known[array_of(job_id)]
    if job_id.partition("]")[0].endswith("[") and record["job_state"] != "F":
        begun = any(known[one]["job_state"] != "Q" for one in jobs_of(known, job_id))
        return {**record, "job_state": "B" if begun else "Q"}
    if record is array:
        return record
    state = "X" if record["job_state"] == "F" and array["job_state"] != "F" else record["job_state"]
    if record["job_state"] == "R" or (record["job_state"] == "F" and has_history and "stime" in record):
        return {**record, "job_state": state, "array_id": array_of(job_id)}
    ends = {TERMINATED: "terminated", FAILED: "failed", FINISHED: "finished"}
    comment = f"Subjob {ends[record['substate']]}" if record["job_state"] == "F" else array["comment"]
    hidden = ("array", "array_indices_submitted")
    return {
        **{name: text for name, text in array.items() if name not in hidden},
        "job_state": state,
        "comment": comment,
    }


def pbsnodes(records: Records, words: list[str]) -> int:
    used = sum(int(job["Resource_List"]["ncpus"]) for job in records.all().values() if job["job_state"] == "R")
    available = {"ncpus": CPUS, "mem": "4194304kb", "ngpus": 2, "host": "node1"}
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
    made = {
        "qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel, "pbsnodes": pbsnodes, "pbsdsh": pbsdsh,
        "run": run,
    }  # fmt: skip
    return made[command](records, words)


if __name__ == "__main__":
    raise SystemExit(main())
