"""Groups whose pods request different resources: one job with a component for each run of equal ranks."""

from __future__ import annotations

import itertools
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import BatchError, SiteRefusedError
from bridge.script.settings import Flavor
from bridge.site.batch import slurm_text as text
from bridge.site.batch import slurm_words
from bridge.site.batch.batch_interface import BatchJobRequest, GangStarter
from bridge.site.config.site_config import parse
from bridge.site.gangs import gang_request, launcher
from bridge.site.jobs.job_record import Gang, Meta, parts_of
from tests.unit.site.test_gangs import (
    GANG,
    cancel,
    cancel_all,
    check_nothing_left,
    close,
    end_all,
    start,
    statuses,
    submit,
)
from tests.unit.site.test_pbs import made as pbs
from tests.unit.site.test_slurm import slurm

LAUNCHER = Path(launcher.__file__).with_name("launcher.bash")
WRAPPER = LAUNCHER.with_name("wrapper.bash")


@pytest.fixture
def world(world: Any) -> Any:
    """A site whose batch system runs heterogeneous jobs."""
    world.batch.heterogeneous = True
    return world


def sizes(request: BatchJobRequest) -> list[tuple[int, int, int]]:
    return [(part.members, part.cpus, part.together) for part in request.components]


# --- the submitter ----------------------------------------------------------------------------------------------------
def test_a_job_whose_components_are_too_long_to_be_read_again_ends(world: Any) -> None:
    world.config = parse('pool = "p"\n[limits]\nallow_user_flags = true\n')
    for rank in range(3):
        submit(world, rank, flags=[f"--comment={rank}" + "x" * 200_000])
    world.look(3, 3)
    assert {status.reason for status in statuses(world)} == {"RequestTooLarge"} and not world.batch.submits


def test_each_run_of_equal_ranks_is_a_component(world: Any) -> None:
    for rank, more in ((2, {"cpus": 4, "per_node": 2}), (0, {}), (1, {"cpus": 4, "per_node": 2})):
        submit(world, rank, **more)
    (request,) = world.batch.submits
    assert sizes(request) == [(1, 1, 1), (2, 4, 2)]
    script = (world.folder.job(GANG).path / "job.sh").read_text()
    assert "PARTS=('1 1 0 0 0' '2 2 0 1 0')" in script
    world.again()
    assert world.folder.job(GANG).read().meta.gang.parts == parts_of(world.folder.job(GANG).read().meta)
    start(world)
    world.look()
    assert [status.phase for status in statuses(world)] == ["running"] * 3
    end_all(world)
    close(world)
    world.look(5)
    cancel_all(world)
    check_nothing_left(world)


def test_a_successor_requests_what_its_rank_had(world: Any) -> None:
    for rank in range(3):
        submit(world, rank, cpus=1 if rank == 0 else 4)
    cancel(world, 1)
    world.look(1)
    with pytest.raises(SiteRefusedError, match=r"cpus 1: .*allowed: 4") as refused:
        submit(world, 1, 1)
    assert refused.value.reason == "GangDiffers"
    assert submit(world, 1, 1, cpus=4).job_id == "1"


def test_before_the_group_is_complete_a_successor_may_request_something_else(world: Any) -> None:
    submit(world, 0)
    submit(world, 1)
    cancel(world, 1)
    world.look(1)
    submit(world, 1, 1, cpus=4)
    submit(world, 2, cpus=4)
    assert sizes(world.batch.submits[0]) == [(1, 1, 1), (2, 4, 1)]


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("cpus", [1, 2])
def test_a_group_is_complete_with_the_successor_of_a_pod_that_is_over(world: Any, forget: bool, cpus: int) -> None:
    submit(world, 0, cpus=4)
    submit(world, 1)
    cancel(world, 1, forget=forget)
    world.look(1, 1)
    assert submit(world, 2).message == "the site waits for all 3 pods of the group"
    assert world.batch.submits == []
    submit(world, 1, 1, cpus=cpus)
    assert sizes(world.batch.submits[0]) == ([(1, 4, 1), (2, 1, 1)] if cpus == 1 else [(1, 4, 1), (1, 2, 1), (1, 1, 1)])


def test_the_job_gets_the_largest_time_limit_that_the_site_allows(world: Any) -> None:
    for rank, limit in enumerate((30.0, 60.0, 50.0)):
        submit(world, rank, time_limit=limit)
    assert world.batch.submits[0].time_limit == 60.0
    assert world.batch.submits[0].others == ()
    cancel_all(world)
    check_nothing_left(world)


def test_the_limit_of_a_flavor_is_that_of_the_job(world: Any) -> None:
    submit(world, 0, time_limit=3000.0)
    submit(world, 1, time_limit=50.0, flavor="f")
    submit(world, 2, flavor="f")
    (request,) = world.batch.submits
    assert [part.flavor and part.flavor.name for part in request.components] == [None, "f"]
    assert {part.time_limit for part in request.components} == {100.0}


def test_a_refusal_for_now_is_repeated_with_all_components(world: Any) -> None:
    world.batch.refuse = BatchError("busy", retryable=True)
    for rank in range(3):
        submit(world, rank, cpus=rank + 1)
    world.batch.refuse = None
    world.look(1)
    assert sizes(world.batch.submits[-1]) == [(1, 1, 1), (1, 2, 1), (1, 3, 1)]
    assert [job.uid for job in world.batch.table.values()] == [GANG]


def test_a_refusal_names_the_size_of_the_whole_job(world: Any) -> None:
    world.batch.refuse = BatchError("too many nodes")
    for rank in range(3):
        submit(world, rank, cpus=1 if rank == 0 else 4, per_node=1 if rank == 0 else 2)
    world.look()
    assert "asks for 2 nodes for 3 pods (bridge.vk.io/members-per-node: 1, 2)" in statuses(world)[0].message


def test_pods_of_a_job_that_ended_with_one_of_its_nodes(world: Any) -> None:
    for rank in range(3):
        submit(world, rank, cpus=rank + 1)
    start(world)
    world.look()
    text = '{"phase":"Failed","reason":"Killed","message":"the processes were killed","finishedAt":9}'
    world.write("state/pod.json", text, GANG)
    world.batch.end("1", "NodeFail")
    world.look(1, 5)
    assert {(status.phase, status.reason) for status in statuses(world)} == {("ended", "NodeFail")}


# --- command lines ----------------------------------------------------------------------------------------------------
@st.composite
def requests(draw: st.DrawFn) -> BatchJobRequest:
    """Return a request with two to five components."""
    flavors = st.sampled_from([None, Flavor(name="f", partition="p:q", flags=["--constraint=a&b"])])

    def one() -> BatchJobRequest:
        members = draw(st.integers(1, 9))
        return BatchJobRequest(
            uid="a-1",
            folder=Path("/x y/jobs/a-1"),
            cpus=draw(st.integers(1, 64)),
            memory=draw(st.integers(1, 2**40)),
            gpus=draw(st.integers(0, 3)),
            gpu_resource="nvidia.com/gpu",
            flavor=draw(flavors),
            flags=draw(st.sampled_from([(), ("--exclude=:",), ("--prefer=a",)])),
            members=members,
            together=draw(st.integers(1, members)),
        )

    return replace(one(), others=tuple(one() for _ in range(draw(st.integers(1, 4)))))


def split(words: list[str]) -> list[list[str]]:
    """Return the words between words ``:``."""
    groups = itertools.groupby(words, lambda word: word == ":")
    return [list(group) for is_colon, group in groups if not is_colon]


@settings(max_examples=30, deadline=None)
@given(requests())
def test_sbatch_and_srun_get_the_options_of_each_component(tmp_path_factory: Any, request: BatchJobRequest) -> None:
    folder = tmp_path_factory.mktemp("slurm")
    batch = slurm(folder, "echo 77", "[limits]\nallow_user_flags = true")
    assert batch.submit(request) == "77"
    components = split((folder / "sbatch.words").read_text().splitlines())
    assert components == [slurm_words.words(batch._config, part, in_group=True) for part in request.components]
    for words, part in zip(components, request.components, strict=True):
        assert {
            f"--nodes={part.machines}",
            f"--ntasks={part.members}",
            f"--ntasks-per-node={part.together}",
            f"--cpus-per-task={part.cpus}",
            "--job-name=pb-a-1",
            "--no-requeue",
        } <= {*words}
        assert all(word.startswith("--") for word in words)
    program, *more = batch.gang_starter(request, "none").command
    assert program == f"{folder}/srun"
    for number, (words, part) in enumerate(zip(split(more), request.components, strict=True)):
        assert {f"--het-group={number}", f"--ntasks={part.members}", f"--cpus-per-task={part.cpus}"} <= {*words}


def test_flags_of_a_component_may_not_change_its_size(tmp_path: Path) -> None:
    request = BatchJobRequest(uid="a-1", folder=Path("/x"), flags=("--ntasks=4",))
    with pytest.raises(BatchError, match=r"'--ntasks=4' is not allowed"):
        slurm(tmp_path).submit(replace(request, others=(replace(request, cpus=2, flags=()),)))


@given(requests())
def test_pbs_gets_the_chunks_of_all_components(tmp_path_factory: Any, request: BatchJobRequest) -> None:
    flavor = request.flavor
    request = replace(request, others=tuple(replace(part, flavor=flavor) for part in request.others))
    words = pbs(tmp_path_factory.mktemp("pbs")).words(request)
    chunks = words[words.index("-l") + 1].removeprefix("select=").split("+")
    counts = [dict(word.partition("=")[::2] for word in chunk.split(":")) for chunk in chunks]
    machines = sum(part.machines for part in request.components)
    assert sum(int(next(iter(count))) for count in counts) == machines
    cpus = sum(int(next(iter(count))) * int(count["ncpus"]) for count in counts)
    assert cpus == sum(part.cpus * part.members for part in request.components)
    assert "place=scatter" in words


def test_pbs_has_one_queue_for_all(tmp_path: Path) -> None:
    request = BatchJobRequest(uid="a-1", folder=Path("/x"))
    other = replace(request, flavor=Flavor(name="f"))
    with pytest.raises(BatchError, match="flavors none, f: a job of PBS has one queue"):
        pbs(tmp_path).submit(replace(request, others=(other,)))


@settings(max_examples=20, deadline=None)
@given(requests(), st.booleans())
def test_the_launcher_finds_the_machine_and_the_gpus_of_each_rank(request: BatchJobRequest, one_machine: bool) -> None:
    if one_machine:
        together = [replace(part, together=part.members) for part in request.components]
        request = replace(together[0], others=tuple(together[1:]))
    script = launcher.script(request.components, GangStarter(), one_machine=one_machine)
    parts = next(line for line in script.splitlines() if line.startswith("PARTS="))
    size = sum(part.members for part in request.components)
    loop = f'for ((rank = 0; rank < {size}; rank++)); do find_place $rank; echo "$MACHINE $DEVICE $GPUS"; done'
    run = f". {shlex.quote(str(LAUNCHER))}\n{parts}\n{loop}"
    found = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True).stdout.split("\n")
    expected, machine, device = [], 0, 0
    for part in request.components:
        for index in range(part.members):
            first = device if one_machine else index % part.together * part.gpus
            expected.append(f"{0 if one_machine else machine + index // part.together} {first} {part.gpus}")
            device += part.gpus
        machine += part.machines
    assert found[:-1] == expected


@pytest.mark.parametrize(
    ("first", "shown"),
    [("0", "4,5 0,1 4,5"), ("2", "6,7 2,3 6,7"), ("", "6,7 2,3 6,7")],
)
def test_a_pod_gets_its_part_of_the_gpus_by_each_of_their_names(first: str, shown: str) -> None:
    """Slurm names GPUs of the machine, and those that the job may use from 0 on; srun passes on the first machine's."""
    given = "SLURM_JOB_GPUS=0,1,2,3 SLURM_STEP_GPUS=4,5,6,7 CUDA_VISIBLE_DEVICES=0,1,2,3 GPUS=2 DEVICE=2"
    run = f". {shlex.quote(str(WRAPPER))}\n{given}\nshare_devices {first}\n"
    run += 'echo "$SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS"'
    assert subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True).stdout == f"{shown}\n"


# --- what Slurm shows -------------------------------------------------------------------------------------------------
def shown(*rows: str) -> dict[str, tuple[str, str, bool]]:
    lines = "".join(f"{row}|pb-a-1|None\n" for row in rows)
    return {job.id: (job.phase, job.reason, job.by_itself) for job in text.jobs(lines)}


@pytest.mark.parametrize(
    ("rows", "phase", "reason", "by_itself"),
    [
        (("7+0|PENDING||N/A|N/A", "7+1|PENDING||N/A|N/A"), "queued", "", False),
        (("7+1|RUNNING|n2|10|20", "7+0|RUNNING|n1|10|20"), "running", "", False),
        (("7+0|COMPLETED|n1|10|20", "7+1|COMPLETING|n2|10|20"), "running", "", False),
        (("7+0|COMPLETED|n1|10|20", "7+1|COMPLETED|n2|10|20"), "ended", "", True),
        (("7+0|CANCELLED|n1|10|20", "7+1|CANCELLED|n2|10|20"), "ended", "Cancelled", False),
        (("7+0|RUNNING|n1|10|20", "7+1|NODE_FAIL|n2|10|20"), "running", "ComponentEnded", False),
        (("7+0|CANCELLED|n1|10|25", "7+1|NODE_FAIL|n2|10|20"), "ended", "NodeFail", False),
        (("7+0|FAILED|n1|10|20", "7+1|CANCELLED|n2|10|21"), "ended", "", True),
        (("7+0|FAILED|n1|10|20", "7+1|CANCELLED|n2|10|20"), "ended", "Cancelled", False),
        (("7+0|FAILED|n1|10|22", "7+1|FAILED|n2|10|21"), "ended", "", True),
    ],
)
def test_a_heterogeneous_job_is_one_job(rows: tuple[str, ...], phase: str, reason: str, by_itself: bool) -> None:
    assert shown(*rows) == {"7": (phase, reason, by_itself)}


def test_a_job_of_which_a_component_has_ended_is_cancelled(tmp_path: Path) -> None:
    rows = "7+0|RUNNING|n1|10|20|pb-a-1|None\\n7+1|NODE_FAIL|n2|10|20|pb-a-1|None\\n8|RUNNING|n1|10|20|pb-a-2|None\\n"
    assert {*slurm(tmp_path, f"printf '{rows}'").jobs()} == {"7", "8"}
    assert (tmp_path / "scancel.words").read_text() == "7\n"


def test_a_component_without_the_first_one_is_no_job() -> None:
    assert shown("7+1|CANCELLED|n2|10|20") == {}


def test_sacct_of_a_heterogeneous_job() -> None:
    (found,) = text.past_jobs("7+0|FAILED|n1|10|20|pb-a-1|1:0\n7+1|FAILED|n2|10|20|pb-a-1|1:0\n")
    assert (found.id, found.uid, found.exit_code, found.host, found.by_itself) == ("7", "a-1", 1, "n1", True)


@pytest.mark.parametrize(
    ("line", "problem"), [("sched/backfill", ""), ("sched/builtin", "SchedulerType is sched/builtin")]
)
def test_only_the_backfill_scheduler_starts_heterogeneous_jobs(tmp_path: Path, line: str, problem: str) -> None:
    assert slurm(tmp_path, f"echo 'SchedulerType           = {line}'").heterogeneous_problem().startswith(problem)


def test_without_an_answer_of_scontrol_there_are_no_heterogeneous_jobs(tmp_path: Path) -> None:
    assert "scontrol" in slurm(tmp_path, "exit 1").heterogeneous_problem()


def test_the_component_of_each_rank(world: Any) -> None:
    for rank in range(3):
        submit(world, rank, cpus=1 if rank == 1 else 2)
    meta = world.folder.job(GANG).meta()
    assert [gang_request.component_of(meta, rank) for rank in range(3)] == [0, 1, 2]


def test_a_record_of_a_job_of_equal_pods_has_one_component() -> None:
    meta = Meta("ns", "p", 2, 3, 0, "", None, (), "", 1.0, 0.0, 0.0, gang=Gang("c", 4, 2))
    (part,) = parts_of(meta)
    assert gang_request.component_of(meta, 1) is None
    assert (part.size, part.per_node, part.cpus, part.memory) == (4, 2, 2, 3)
