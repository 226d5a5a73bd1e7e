import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm import hostlist, job_resources
from bridge.slurm.job_resources import GresIndices, NodeResources

# an answer of slurmrestd 26.05.5, v0.0.45; scontrol showed CPU_IDs=3-8 and GRES=gpu:3(IDX:2-4)
ENTRY = {
    "node": "node-0",
    "sockets_per_node": 128,
    "cores_per_socket": 1,
    "mem_alloc": 1000,
    "core_bitmap": "0x000000000000000000000000000001F8",
    "channel": {"set": False, "infinite": False, "number": 0},
    "gres": [{"name": "gpu", "type": "", "count": 3, "index": "2-4"}],
}


def test_an_answer_of_slurmrestd() -> None:
    cores = tuple((number, 0) for number in range(3, 9))
    assert job_resources.read(ENTRY) == NodeResources(128, 1, cores, (GresIndices("gpu", "", (2, 3, 4)),))


def test_cores_are_numbered_socket_by_socket() -> None:
    entry = {**ENTRY, "sockets_per_node": 2, "cores_per_socket": 4, "core_bitmap": "0x99", "gres": []}
    assert job_resources.read(entry).cores == ((0, 0), (0, 3), (1, 0), (1, 3))


@given(st.sets(st.integers(0, 500)))
def test_a_mask_has_the_bits_that_were_set(numbers: set[int]) -> None:
    text = f"0x{sum(1 << number for number in numbers):0128X}"
    assert job_resources.bits(text) == tuple(sorted(numbers))


@given(st.sets(st.integers(0, 200), min_size=1))
def test_indices_are_those_that_slurm_compressed(numbers: set[int]) -> None:
    bracketed = hostlist.compress(f"n{number}" for number in numbers)
    text = bracketed.removeprefix("n").strip("[]")
    assert job_resources.indices(text) == tuple(sorted(numbers))


@given(st.text(alphabet="0123456789-,x NA/()null", max_size=30))
def test_any_text_is_numbers_or_a_value_error(text: str) -> None:
    for read in (job_resources.indices, job_resources.bits):
        try:
            found = read(text)
        except ValueError:
            continue
        assert list(found) == sorted(set(found))


@pytest.mark.parametrize(
    "wrong",
    [
        {"core_bitmap": "zz"},
        {"core_bitmap": "0x1" + "0" * 40},
        {"sockets_per_node": None},
        {"cores_per_socket": 0},
        {"gres": "gpu"},
        {"gres": [{"name": "gpu", "index": "4-2"}]},
        {"gres": [{"name": "gpu", "index": "0-99999999"}]},
    ],
)
def test_what_cannot_be_read_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        job_resources.read(ENTRY | wrong)
