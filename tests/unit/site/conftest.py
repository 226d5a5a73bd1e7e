"""A site without NATS: a batch system in memory that outlives its submitters, and a clock that moves when told to."""

import pytest

from bridge.errors import BatchError, BatchUnknownOutcomeError
from bridge.protocol.nats.messages import Empty, SubmitMessage
from bridge.site.batch.array_files import ArrayFiles
from bridge.site.batch.batch_interface import Amount, BatchJob, Capacity, GangStarter
from bridge.site.batch_requests import BatchList, Delays
from bridge.site.config.site_config import parse
from bridge.site.jobs.site_folder import Folder
from bridge.site.submitter import Submitter
from bridge.site.watcher import Watcher
from tests.fakes.clock import FakeClock
from tests.unit.site.killer import Killer

OWNER = "c1"
UID = "0a1b2c3d-1111-2222-3333-444455556666"
TEXT = 'pool = "p"\n[limits]\nallow_user_flags = true\n[[flavors]]\nname = "f"\nmax_time_seconds = 100\n'


class MemoryBatch:
    """What a cluster would do: jobs appear when submitted, and are told of until ``forget``."""

    kind, period, lag, eager = "memory", 1.0, 2.0, False
    one_machine, gangs, arrays = False, True, True
    heterogeneous = enters = False

    def __init__(self, folder=None):
        self.files = ArrayFiles(folder)
        self.array_submits, self.most = [], 1000
        self.table, self.submits, self.cancelled, self.history = {}, [], [], {}
        self.refuse = self.silent = self.down = None
        self.swallow, self.refuses_gangs, self.refuses_heterogeneous = False, "", ""
        self.queries = 0
        self.during_submit = lambda: None
        self.refuse_array = lambda size: None

    def version(self):
        return "memory 1"

    def submit(self, request):
        self.submits.append(request)
        self.during_submit()
        if self.refuse:
            raise self.refuse
        if not self.swallow:
            job_id = str(len(self.submits))
            self.table[job_id] = BatchJob(id=job_id, uid=request.uid, phase="queued", reason="Priority")
        if self.silent or self.swallow:
            raise BatchUnknownOutcomeError("no answer", retryable=True)
        return job_id

    def most_in_array(self):
        self._ask()
        return self.most

    def submit_array(self, request, pods):
        """Each job of an array has the name of the array: its pod is known by the file alone."""
        indexes = range(len(pods))
        self.array_submits.append((request.array, list(indexes)))
        self.during_submit()
        if refuse := self.refuse_array(len(indexes)) or self.refuse:
            raise refuse
        ids = [f"{len(self.array_submits) + 1000}_{index}" for index in indexes]
        if not self.swallow:
            for index, job_id in enumerate(ids):
                uid = self.files.uid(request.array, index)
                self.table[job_id] = BatchJob(id=job_id, uid=uid, phase="queued", reason="Priority")
        if self.silent or self.swallow:
            raise BatchUnknownOutcomeError("no answer", retryable=True)
        return ids

    def find_array(self, array):
        self._ask()
        ids = {job.uid: job.id for job in self.table.values()}
        return {uid: ids[uid] for uid in self.files.uids(array) if uid in ids and "_" in ids[uid]}

    def find(self, uid):
        self._ask()
        return next((job.id for job in self.table.values() if job.uid == uid), None)

    def cancel(self, ids):
        self._ask()
        for job_id in ids:
            self.cancelled.append(job_id)
            if job_id in self.table and self.table[job_id].phase != "ended":
                self.end(job_id, "Cancelled")

    def jobs(self):
        self._ask()
        self.queries += 1
        return dict(self.table)

    def mpi_ways(self):
        return ["none", "pmix"]

    def gang_starter(self, request, mpi):
        return GangStarter()

    def pods_per_machine(self, members, per_node):
        return min(members, per_node)

    def gang_problem(self):
        self._ask()
        return self.refuses_gangs

    def heterogeneous_problem(self):
        return self.refuses_heterogeneous

    def past(self, ids):
        return {job_id: self.history[job_id] for job_id in ids if job_id in self.history}

    def capacity(self):
        self._ask()
        return Capacity(Amount(8, 2**33, {"nvidia.com/gpu": 2}), Amount(6, 2**32, {"nvidia.com/gpu": 1}))

    def _ask(self):
        if self.down:
            raise BatchError("down", retryable=True)

    def run(self, job_id):
        job = self.table[job_id]
        self.table[job_id] = BatchJob(id=job_id, uid=job.uid, phase="running", host="n1", started_at=5.0)

    def end(self, job_id, reason="", code=None):
        job = self.table[job_id]
        self.table[job_id] = BatchJob(
            id=job_id,
            uid=job.uid,
            phase="ended",
            reason=reason,
            by_itself=not reason,
            exit_code=code,
            started_at=job.started_at,
        )


class World:
    """A site whose submitters may be dropped and made anew at any moment."""

    def __init__(self, path):
        self.path, self.batch, self.clock = path / "site", MemoryBatch(path / "site"), FakeClock()
        self.events = []
        self.config = parse(TEXT)
        self.again()

    def again(self):
        """Start a new submitter, as after kill -9."""
        if hasattr(self, "watcher"):
            self.watcher.release_leadership()
        self.folder, self.watcher, self.submitter = self.start_submitter()
        assert self.watcher.take_leadership()

    def start_submitter(self):
        """Return the parts of a submitter that is not the leader."""
        folder = Folder(self.path, since=self.clock.time())
        folder.prepare()
        batch_list = BatchList(self.batch, 1.0, self.clock)
        watcher = Watcher(
            folder,
            self.batch,
            Delays(60, 60, 2),
            f"s{len(self.events)}",
            self.clock,
            lambda number, status: self.events.append((number, status)),
            lambda uid: submitter.resubmit(uid),
            batch_list,
        )
        submitter = Submitter(
            folder,
            self.batch,
            watcher,
            lambda: self.config,
            self.clock,
            lag=2,
            settle=60,
            batch_list=batch_list,
            wait=self._wait,
            wake=lambda: None,
        )
        return folder, watcher, submitter

    def _wait(self, seconds):
        self.clock.advance(seconds)
        return False

    def submit(self, uid=UID, **more):
        return self.submitter.submit(OWNER, uid, SubmitMessage(namespace="ns", name="pod", script="true\n", **more))

    def submit_lost(self):
        """Submit a job of which neither the submitter nor the batch system hears."""
        self.batch.swallow = True
        with pytest.raises(BatchUnknownOutcomeError):
            self.submit()
        self.batch.swallow = False

    def run_job(self, seconds=0.0):
        """Submit a job, have its script begin, and look at it after so many seconds."""
        self.submit()
        self.begin()
        self.look(seconds)

    def status(self, uid=UID):
        return self.submitter.status(OWNER, uid, Empty()).status

    def look(self, *seconds):
        """Let the leader look once, or after each of these times."""
        for each in seconds or (0.0,):
            self.clock.advance(each)
            self.watcher.read_changes()
            self.submitter.arrays.run(1.0)
            self.watcher.poll_batch_system()

    def write(self, name, content, uid=UID):
        path = self.folder.job(uid).path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.folder.touch(uid)

    def begin(self, uid=UID):
        """What the script does first."""
        self.batch.run(self.submitter.status(OWNER, uid, Empty()).status.job_id)
        self.write("started/job", "", uid)
        self.write("state/pod.json", '{"phase":"Running","host":"n1","ip":"10.0.0.1","startedAt":7}', uid)
        self.write("state/main.json", '{"state":"running","startedAt":7,"ready":true}', uid)

    def terminate(self):
        """What the script does last if a signal ends it."""
        self.finish(code=143)
        now = self.clock.time()
        self.write("state/pod.json", f'{{"phase":"Failed","reason":"Terminated","finishedAt":{now}}}')

    def finish(self, uid=UID, code=0, reason=""):
        """What the script does last."""
        self.write(
            "state/main.json",
            f'{{"state":"terminated","startedAt":7,"ended":{{"exitCode":{code},"startedAt":7,"finishedAt":9}}}}',
            uid,
        )
        phase = "Failed" if code else "Succeeded"
        self.write("state/pod.json", f'{{"phase":"{phase}","reason":"{reason}","startedAt":7,"finishedAt":9}}', uid)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def killer(world, monkeypatch):
    return Killer(monkeypatch, world)
