import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SiteError
from bridge.pools.nunet import dialect, peers
from bridge.pools.nunet.peers import Resources
from cluster.systems import dms
from tests.examples import json_values

JSON = json_values()
KEYS = st.sampled_from(
    ["peer_id", "is_available", "gpu_info", "available_resources", "services", "ram", "vcpu", "ntx_price"]
)


def test_the_published_peers_are_read():
    one, two, three = dialect.peers(dms.published_peers())
    assert (one.available, one.free, one.gpu_kinds) == (True, Resources(1, 4000 * 2**20, 4000), frozenset())
    assert (two.available, two.gpu_kinds) == (False, {"nvidia.tesla.p100.16gb"})
    assert three.free.gpus == {"nvidia.rtx.3080.10gb": 4, "nvidia.rtx.3090.24gb": 2}
    assert three.free.memory == 113855 * 2**20
    assert three.services == ()


def test_a_gpu_with_too_little_free_vram_does_not_count():
    told = dms.published_peers()[2]
    told["gpu_info"][0]["free_vram"] = 4096
    told["gpu_info"][1]["free_vram"] = 9900
    (peer,) = dialect.peers([told])
    assert peer.free.gpus["nvidia.rtx.3080.10gb"] == 3


@pytest.mark.parametrize("resource", ["vcpu", "ram", "tot_cpu_hz"])
def test_no_peer_makes_the_sum_of_all_peers_more_than_a_quantity(resource):
    told = [{"peer_id": f"Qm{number}", "available_resources": {resource: 9e14}} for number in range(3)]
    told += [{"peer_id": "QmHonest", "available_resources": {"vcpu": 8, "ram": 1024, "tot_cpu_hz": 24_000}}]
    summed = peers.total(peer.free for peer in dialect.peers(told))
    assert summed == Resources(8, 2**30, 24_000)


def test_a_peer_has_few_kinds_of_gpu():
    told = dms.published_peers()[2]
    told["gpu_info"] = [{"name": f"rtx x{number}", "tot_vram": 1024, "free_vram": 1024} for number in range(64)]
    (peer,) = dialect.peers([told])
    assert (len(peer.gpu_kinds), peer.gpu_kinds) == (4, peer.free.gpus.keys())


def test_a_peer_that_is_listed_twice_is_one_peer():
    told = dms.published_peers()[2]
    other = {**told, "services": [{"ID": "n5"}]}
    found = dialect.peers([{**told, "peer_id": "QmA"}, told, other, {**told, "peer_id": "QmB"}])
    assert [peer.id for peer in found] == ["QmA", "QmPeer3", "QmB"]
    assert found[1].services == ()


@pytest.mark.parametrize("text", [".", ".."])
def test_an_id_that_is_no_step_of_a_path_is_none(text):
    """The peer that has a job states its id, and a client of HTTP shortens ``DELETE /jobs/..``."""
    assert dialect.submitted_job({"job_id": text}) == ""
    (peer,) = dialect.peers([{"peer_id": "Qm", "services": [{"ID": text, "job_id": text, "ServiceName": "u-1"}]}])
    assert peer.services[0].job == ""


@given(JSON | st.lists(st.dictionaries(KEYS, JSON, max_size=9), max_size=4))
def test_no_list_of_peers_breaks_the_reader(told):
    try:
        found = dialect.peers(told)
    except SiteError:
        return
    for peer in found:
        assert peer.id
        assert peer.free.cpus >= 0
        assert peer.free.memory >= 0


@given(JSON | st.dictionaries(st.sampled_from(["jobid", "jobstatus", "starttime", "duration", "remainingtime"]), JSON))
def test_no_answer_about_a_job_breaks_the_reader(told):
    try:
        answer = dialect.job_answer(told)
    except SiteError:
        return
    assert answer.status
    for seconds in (answer.duration, answer.remaining, answer.started_at):
        assert seconds is None or seconds >= 0


def test_the_published_answer_about_a_job_is_read():
    told = {"jobid": 7, "jobstatus": "running", "starttime": "2024-03-22T10:00:00Z"}
    told |= {"duration": 12, "remainingtime": "1h2m3s"}
    answer = dialect.job_answer(told)
    assert (answer.job, answer.status, answer.started_at) == ("7", "running", 1711101600)
    assert (answer.duration, answer.remaining) == (12, 3723)
    for start, seconds in ((1711101600000, 1711101600), ("900000000", 900000000), ("soon", None)):
        assert dialect.job_answer({**told, "starttime": start}).started_at == seconds


DURATIONS = {90: ("90", 90, "1m30s"), 5400: ("1.5h",), 7205: ("2h5s",), None: ("1.2.3s", "soon", -1, True, "")}


@pytest.mark.parametrize(("value", "seconds"), [(value, key) for key, values in DURATIONS.items() for value in values])
def test_durations(value, seconds):
    assert dialect.seconds(value) == seconds


@pytest.mark.parametrize(
    ("told", "job"),
    [
        ({"job_id": "a"}, "a"),
        ({"jobid": 4}, "4"),
        ([{"ID": "x"}], "x"),
        ({"data": {"id": "y"}}, "y"),
        ("job-7", "job-7"),
        ("Job accepted", ""),
        ("<html>login 2</html>", ""),
        ({}, ""),
        (None, ""),
        ([], ""),
    ],
)
def test_the_id_in_the_answer_to_a_submission(told, job):
    assert dialect.submitted_job(told) == job


@given(JSON)
def test_no_answer_to_a_submission_breaks_the_reader(told):
    assert isinstance(dialect.submitted_job(told), str)


def test_ids_cannot_change_a_path():
    assert dialect.job_path(dialect.STATUS_PATH, "../../x?y#z") == "/api/v1/job/status/..%2F..%2Fx%3Fy%23z"
    assert dialect.job_path("/jobs/{job}/stop", "a/b") == "/jobs/a%2Fb/stop"


def test_a_service_is_found_by_id_and_by_uid():
    told = dms.published_peers()
    told[2]["services"] = [
        {"ID": "n5", "ServiceName": "x"},
        {"ID": 6, "job_id": "n6", "ServiceName": "job-u-1", "LogURL": "http://x/"},
        {"ID": 7, "ServiceName": "u-3"},
    ]
    found = dialect.peers(told)
    ((peer, service),) = dialect.services_of(found, uid="u-1")
    assert (peer.id, service.job, service.log_url) == ("QmPeer3", "n6", "http://x/")
    assert dialect.services_of(found, job="n5")[0][1].job == "n5"
    assert dialect.services_of(found, uid="u-3")[0][1].job == "", "each peer counts its rows itself"
    assert dialect.services_of(found, uid="u-2") == []
    assert dialect.services_of(found) == []


def test_only_a_whole_word_is_a_uid_and_every_claim_is_returned():
    told = dms.published_peers()
    told[0]["services"] = [{"ServiceName": "u-1"}]
    told[1]["services"] = [{"ServiceName": "u-10"}, {"ServiceName": "au-1 u-1b"}]
    told[2]["services"] = [{"note": "u-1"}]
    assert [peer.id for peer, _ in dialect.services_of(dialect.peers(told), uid="u-1")] == ["QmPeer1", "QmPeer3"]
