import json

import pytest

from bridge import names
from bridge.errors import ScriptError
from bridge.script import hosts
from tests.unit.script.pods import pod, shell


def member(rank, ways="torch", **annotations):
    annotations = {names.PLACE_IN_JOB: f"job-a/{rank}/2", names.RENDEZVOUS: ways, **annotations}
    return pod({"containers": [shell("true")]}, uid=f"uid-{rank}", annotations=annotations)


def test_all_members_have_the_port_of_their_job_and_another_job_has_another():
    first, second = (hosts.make(member(rank)).port for rank in range(2))
    other = hosts.make(member(0, **{names.PLACE_IN_JOB: "job-b/0/2"})).port
    assert first == second != other
    assert 20_000 <= first < 30_000


@pytest.mark.parametrize(
    ("ways", "files"), [("torch", ["/etc/hosts"]), ("hostfile", ["/etc/hosts", "/etc/podbridge/hostfile"])]
)
def test_a_pod_whose_name_is_no_host_name_has_the_files_too(ways, files):
    alone = member(0, ways)
    del alone["metadata"]["annotations"][names.PLACE_IN_JOB]
    alone["metadata"]["name"] = "a.b"
    made = hosts.make(alone)
    assert (made.names, made.files, made.port is None) == ([], files, ways == "hostfile")


def test_members_with_jobs_of_their_own_are_refused():
    """Each would be the first, and run without the others."""
    group = {"kind": "job", "name": "train", "size": 3, "minimum": 3}
    alone = member(0, **{names.GROUP: json.dumps(group)})
    assert hosts.make(alone).port is not None
    del alone["metadata"]["annotations"][names.PLACE_IN_JOB]
    with pytest.raises(ScriptError, match="each of the 3 pods of the group as a job of its own"):
        hosts.make(alone)


def test_an_invalid_annotation_is_refused():
    with pytest.raises(ScriptError, match="'mpi' is not allowed; allowed: torch, hostfile, or both"):
        hosts.make(member(0, "mpi"))


@pytest.mark.parametrize(("subdomain", "found"), [("train", True), (None, False)])
def test_a_pod_of_no_group_finds_itself_by_its_stable_name(subdomain, found):
    """As the only node of a TrainJob, whose PET_MASTER_ADDR is its own name."""
    alone = pod({"containers": [shell("true")], "hostname": "train-node-0-0", "subdomain": subdomain})
    made = hosts.make(alone)
    assert ("train-node-0-0.train" in made.names, bool(made.files)) == (found, found)
