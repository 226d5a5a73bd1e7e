import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.pools.submitter.persistence import MOST, JobRecord, PoolRecord, job_key, read_job, read_pool, write
from bridge.protocol.nats.envelope import GarbledError
from bridge.protocol.nats.messages import Announce, BuildConfigMessage
from tests.examples import json_values

ANNOUNCE = Announce(pool="alpha", submitter="s", sequences={"c1": 1}, time=1.0, period=5, version="1", digest="d")
CONFIG = BuildConfigMessage(pool="alpha", digest="d", config={"runtime": {"kind": "podman"}})
POOL = PoolRecord(time=1.5, announce=ANNOUNCE, buildconfig=CONFIG)
JOB = JobRecord(pool="alpha", job="u1")


def test_what_is_written_is_read_and_is_plain_json_with_a_version() -> None:
    assert read_pool("alpha", write(POOL)) == POOL
    assert read_job("alpha/u1", write(JOB)) == JOB
    assert json.loads(write(JOB))["v"] == 1
    assert json.loads(write(POOL))["announce"]["pool"] == "alpha"


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"time": -1},
        {"time": 1e300},
        {"time": "soon"},
        {"announce": {}},
        {"announce": {**ANNOUNCE.model_dump(), "pool": "beta"}},
        {"announce": {**ANNOUNCE.model_dump(), "pool": "../x"}},
        {"announce": {**ANNOUNCE.model_dump(), "digest": "e"}},
        {"buildconfig": {**CONFIG.model_dump(), "pool": "beta"}},
        {"buildconfig": {**CONFIG.model_dump(), "config": {"header": ["x"]}}},
        {"buildconfig": {**CONFIG.model_dump(), "config": {"no_such_key": "hunter2"}}},
    ],
)
def test_pools_that_can_not_be(change: dict[str, Any]) -> None:
    data = json.dumps({**POOL.model_dump(mode="json"), **change}).encode()
    with pytest.raises(GarbledError) as caught:
        read_pool("alpha", data)
    assert "hunter2" not in str(caught.value)


def test_times_that_are_none() -> None:
    for word in (b"NaN", b"Infinity"):
        with pytest.raises(GarbledError):
            read_pool("alpha", write(POOL).replace(b'"time":1.5', b'"time":' + word, 1))


@pytest.mark.parametrize("key", ["alpha/u2", "beta/u1", "u1", "", "alpha/u1/"])
def test_a_job_under_another_key(key: str) -> None:
    with pytest.raises(GarbledError):
        read_job(key, write(JOB))


def test_what_is_too_large_is_neither_written_nor_read() -> None:
    large = POOL.model_copy(update={"announce": ANNOUNCE.model_copy(update={"labels": {"a": noise(3 * MOST)}})})
    with pytest.raises(GarbledError, match="the limit is"):
        write(large)
    with pytest.raises(GarbledError, match="the limit is"):
        read_pool("alpha", write(POOL) + b" " * MOST)


def noise(size: int) -> str:
    """Text that does not get smaller."""
    import random

    return random.Random(1).randbytes(size // 2).hex()


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_do_worse_than_be_refused(data: bytes) -> None:
    for read in (read_pool, read_job):
        with pytest.raises(GarbledError):
            read("alpha", data)


@given(st.sampled_from(["v", "time", "announce", "buildconfig", "pool", "job"]), json_values())
def test_a_record_with_one_thing_changed_is_read_or_refused(key: str, value: Any) -> None:
    for record, of, read in ((POOL, "alpha", read_pool), (JOB, job_key("alpha", "u1"), read_job)):
        data = json.dumps({**record.model_dump(mode="json"), key: value}).encode()
        try:
            found = read(of, data)
        except GarbledError:
            continue
        assert read(of, write(found)) == found
