"""Which of Slurm's limits hold for SlurmUser, as whom podbridge submits: each case asked of real daemons as both users.

``docs/reference/admission.md`` shows the outcome as a table; ``admission/field_policy.py`` guards what Slurm does not.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.config.hub import Config
from bridge.errors import SlurmFederationError, SlurmRefusedError
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.versions import ApiVersion
from cluster import Cluster
from cluster.polling import eventually
from cluster.systems.slurm import ACCOUNTING
from tests.fakes.slurm_suite import ask, free_nodes

pytestmark = pytest.mark.real

PARTITIONS = {
    "for-bob": "AllowGroups=bob",
    "for-root": "RootOnly=yes",
    "short": "MaxTime=10",
    "physics-only": "AllowAccounts=physics",
    "high-only": "AllowQos=high",
}
RUNS, REFUSED = "runs", "refused"


class AsUser(SlurmClient):
    """A client for users who may not write ``admin_comment``."""

    @property
    def version(self) -> ApiVersion:
        return replace(super().version, admin_comment=False)


class Slurm:
    """One Slurm, and the same request as SlurmUser and as an ordinary user."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        config = Config(slurm_rest_api=cluster.slurm_rest_url)
        self.admin = SlurmClient(config, cluster.token())
        self.alice = AsUser(config, cluster.token(user="alice"))

    def run(self, *words: str) -> str:
        return str(self.cluster.run_slurm(*words))

    def both(self, **fields: Any) -> tuple[str, str]:
        """Return the outcomes for SlurmUser and for alice."""
        return self.outcome(self.admin, **fields), self.outcome(self.alice, **fields)

    def outcome(self, client: SlurmClient, **fields: Any) -> str:
        """``runs``, or ``refused``: at once, or by a reason that keeps the job pending for good."""
        try:
            job_id = client.submit(ask(client, external=False, **fields)).job_id
        except SlurmRefusedError:
            return REFUSED
        try:
            return str(eventually(lambda: self.settled(job_id)))  # type: ignore[arg-type]
        finally:
            self.admin.cancel(job_id)

    def settled(self, job_id: int) -> str:
        state, _, reason = self.run("squeue", "-h", "-j", str(job_id), "-o", "%T %r").strip().partition(" ")
        if state == "RUNNING":
            return RUNS
        held = any(word in reason for word in ("Partition", "not permitted", "not in group"))
        return REFUSED if state == "PENDING" and held else ""


def reserve(slurm: Slurm) -> None:
    words = ("ReservationName=course", "starttime=now", "duration=60", "users=bob", "nodes=node-1")
    slurm.run("scontrol", "create", "reservation", *words)


@pytest.fixture
def slurm(slurm_cluster: Any) -> Iterator[Slurm]:
    """Slurm without accounting, with partitions and a reservation that alice may not use."""
    free_nodes(slurm_cluster)
    made = Slurm(slurm_cluster)
    names = [name for name in PARTITIONS if name != "high-only"]  # QOS are of the accounting
    for name in names:
        made.run("scontrol", "create", f"PartitionName={name}", "Nodes=node-0", "State=UP", PARTITIONS[name])
    reserve(made)
    yield made
    made.run("scontrol", "delete", "ReservationName=course")
    for name in names:
        eventually(lambda n=name: made.cluster.run_slurm("squeue", "-h", "-p", n) == "")  # type: ignore[misc]
        made.run("scontrol", "delete", f"PartitionName={name}")


def test_partitions_and_reservations_are_not_kept_from_slurm_user(slurm: Slurm) -> None:
    assert slurm.both() == (RUNS, RUNS)
    assert slurm.both(partition="for-bob") == (RUNS, REFUSED)
    assert slurm.both(partition="for-root") == (RUNS, REFUSED)
    passed = REFUSED if slurm.cluster.options.slurm == "22.05" else RUNS
    assert slurm.both(reservation="course") == (passed, REFUSED)
    assert slurm.both(partition="short", time_limit=60) == (REFUSED, REFUSED)
    if slurm.cluster.options.slurm != "22.05":  # without accounting, later versions believe anybody's account
        assert slurm.both(partition="physics-only", account="physics") == (RUNS, RUNS)


def test_a_group_by_name_is_refused_where_slurmrestd_would_end(slurm: Slurm) -> None:
    """slurmrestd 24.11.5 ends with "fatal: invalid type" when it gets the name of a group."""
    fields = {"user_id": "alice", "group_id": "alice"}
    version = slurm.admin.version
    if version.group_names:
        assert slurm.outcome(slurm.admin, **fields) == RUNS
        return
    with pytest.raises(SlurmRefusedError, match="can't"):
        slurm.admin.submit(ask(slurm.admin, external=False, **fields))
    slurm.admin.ping()
    if version.other_users:
        assert slurm.outcome(slurm.admin, user_id="alice", group_id="20001") == RUNS


@pytest.fixture(scope="module")
def accounted(state_folder: Path) -> Iterator[Slurm]:
    """Slurm with accounting: alice is of account chemistry; SlurmUser of all, as podbridge would need it."""
    lines = [f"PartitionName={name} Nodes=node-[0-1] State=UP {limit}" for name, limit in PARTITIONS.items()]
    conf = [ACCOUNTING, "AccountingStorageEnforce=associations,limits,qos", "Licenses=matlab:4", *lines]
    with Cluster(state_folder / "limits", slurm="24.11", nodes=2, kube=False, slurm_conf=conf) as cluster:
        slurm = Slurm(cluster)
        for words in ("qos high", "account chemistry", "account physics"):
            slurm.run("sacctmgr", "-i", "add", *words.split())
        for user, account in (("alice", "chemistry"), ("bob", "physics"), ("slurm", "chemistry")):
            slurm.run("sacctmgr", "-i", "add", "user", user, f"account={account}")
        reserve(slurm)
        yield slurm


def test_accounts_and_qos_are_those_of_slurm_user_not_of_the_author(accounted: Slurm) -> None:
    both = accounted.both
    eventually(lambda: both() == (RUNS, RUNS))
    # as long as SlurmUser has no association either, Slurm refuses both
    assert both(account="physics") == (REFUSED, REFUSED)
    assert both(qos="high") == (REFUSED, REFUSED)
    assert both(account="physics", partition="physics-only") == (REFUSED, REFUSED)
    # given to SlurmUser for one namespace, they are open to every pod
    accounted.run("sacctmgr", "-i", "add", "user", "slurm", "account=physics")
    accounted.run("sacctmgr", "-i", "modify", "user", "slurm", "set", "qos+=high,normal")
    eventually(lambda: accounted.outcome(accounted.admin, account="physics", qos="high") == RUNS)
    assert both(account="physics") == (RUNS, REFUSED)
    assert both(qos="high") == (RUNS, REFUSED)
    assert both(account="physics", partition="physics-only") == (RUNS, REFUSED)
    assert both(qos="high", partition="high-only") == (RUNS, REFUSED)


def test_what_slurm_keeps_from_slurm_user_too(accounted: Slurm) -> None:
    assert accounted.both(partition="physics-only", account="chemistry") == (REFUSED, REFUSED)
    assert accounted.both(partition="high-only") == (REFUSED, REFUSED)
    assert accounted.both(licenses="matlab:2") == (RUNS, RUNS)
    assert accounted.both(licenses="matlab:9") == (REFUSED, REFUSED)


def test_a_job_in_the_name_of_a_user_has_the_limits_of_that_user(accounted: Slurm) -> None:
    for fields in ({"partition": "for-bob"}, {"partition": "for-root"}, {"reservation": "course"}, {"qos": "high"}):
        assert accounted.outcome(accounted.admin, user_id="alice", group_id="20001", **fields) == REFUSED


def test_a_job_of_a_federation_is_cancelled_and_refused(accounted: Slurm) -> None:
    """The last test: the cluster joins a federation, of which it is the only member, and leaves it."""
    name = re.findall(r"ClusterName\s*=\s*(\S+)", accounted.run("scontrol", "show", "config"))[0]
    accounted.run("sacctmgr", "-i", "add", "federation", "all", f"clusters={name}")
    try:
        eventually(lambda: "all" in accounted.run("scontrol", "show", "federation"), "slurmctld has joined")
        with pytest.raises(SlurmFederationError, match="is in a federation") as told:
            accounted.admin.submit(ask(accounted.admin, external=False))
        job_id = str(told.value).split()[1]
        show = ("scontrol", "show", "job", job_id)
        eventually(lambda: "JobState=CANCELLED" in accounted.run(*show), f"the end of job {job_id}", timeout=10)
    finally:
        accounted.run("sacctmgr", "-i", "delete", "federation", "all")
    eventually(lambda: "all" not in accounted.run("scontrol", "show", "federation"), "slurmctld has left")
    assert accounted.outcome(accounted.admin) == RUNS
