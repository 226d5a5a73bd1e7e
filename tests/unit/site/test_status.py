"""The status of a job, from what its script has written."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from bridge.protocol.nats import messages
from bridge.protocol.nats.envelope import LIMITS, pack
from bridge.protocol.nats.messages import Reply
from tests.unit.site.conftest import OWNER, UID

ONE = {"exitCode": 1, "reason": "Error", "finishedAt": 100}
TWO = {"exitCode": 2, "reason": "Error", "finishedAt": 200}
ANY = "".join(map(chr, random.Random(1).choices(range(0x10000, 0x110000), k=4096)))
"""Characters of four bytes each, which compression does not shorten."""


@pytest.mark.parametrize(
    ("state", "messages", "ended", "last"),
    [
        ({"state": "running", "ended": None, "last": ONE}, {"main.previous": "one"}, None, "one"),
        ({"state": "waiting", "ended": None, "last": ONE}, {"main.previous": "one"}, None, "one"),
        # the script keeps the message of a run under another name when the next run begins
        ({"state": "waiting", "ended": TWO, "last": TWO}, {"main": "two", "main.previous": "one"}, "two", "two"),
        ({"state": "terminated", "ended": TWO, "last": ONE}, {"main": "two", "main.previous": "one"}, "two", "one"),
        ({"state": "terminated", "ended": TWO, "last": TWO}, {"main": "two", "main.previous": "one"}, "two", "two"),
        ({"state": "terminated", "ended": ONE, "last": None}, {"main": "one", "main.previous": "no"}, "one", None),
        ({"state": "running", "ended": None, "last": ONE}, {"main": "no"}, None, ""),
    ],
)
def test_termination_messages(world: Any, state: Any, messages: Any, ended: str | None, last: str | None) -> None:
    world.submit()
    folder = world.folder.job(UID).path
    for name in ("started", "state", "termination"):
        (folder / name).mkdir()
    (folder / "state" / "main.json").write_text(json.dumps(state))
    for name, text in messages.items():
        (folder / "termination" / name).write_text(text)
    [container] = world.status().containers
    assert (container.ended.message if container.ended else None) == ended
    assert (container.last.message if container.last else None) == last


def started(world: Any, containers: dict[str, Any], message: str = "") -> None:
    """Submit a job whose script has recorded these states of its containers."""
    world.submit()
    world.write("started/job", "")
    for name, state in containers.items():
        world.write(f"state/{name}.json", json.dumps(state))
        for run in (name, f"{name}.previous"):
            world.write(f"termination/{run}", message)


@pytest.mark.parametrize(("count", "share"), [(1, 4096), (3, 4096), (12, 1024), (100, 122)])
def test_containers_share_the_room_for_termination_messages_as_at_a_kubelet(world: Any, count: int, share: int) -> None:
    state = {"state": "terminated", "ended": TWO, "last": ONE}
    started(world, {f"c{number}": state for number in range(count)}, "x" * 5000)
    for container in world.status().containers:
        assert (len(container.ended.message), len(container.last.message)) == (share, share)


@pytest.mark.parametrize("characters", ["\x01", ANY])
def test_the_status_of_any_job_fits_into_a_message(world: Any, characters: str) -> None:
    text = (characters * 4096)[:4096]
    run = {"exitCode": 1, "reason": text}
    state = {"state": "terminated", "reason": text, "message": text, "ended": run, "last": {**run, "exitCode": 2}}
    happened = {"reason": text[:60], "message": text[:60], "count": 2**31 - 1, "at": 1e10}
    also = {"state": "running", "occurrences": [happened] * 9}
    started(world, {f"c{number}": state if number % 2 else also for number in range(300)}, text)
    assert world.status().containers[0].occurrences
    answer = pack(Reply(body=messages.Status(status=world.status()).model_dump(mode="json")), LIMITS[Reply])
    assert len(answer) < 1024 * 1024  # max_payload of a NATS server without settings


@pytest.mark.parametrize(
    "written",
    [
        None, "x", {"reason": "Unhealthy"}, [None, 1, [], "x"],
        [{"reason": 5, "message": {}, "count": "many", "at": "now"}],
        [{"count": -7, "at": -1}],
    ],
)  # fmt: skip
def test_occurrences_that_no_script_wrote_do_no_harm(world: Any, written: Any) -> None:
    started(world, {"main": {"state": "running", "occurrences": written}})
    assert {(each.reason, each.message, each.count, each.at) for each in world.status().containers[0].occurrences} <= {
        ("", "", 1, None)
    }


def test_occurrences_reach_the_hub(world: Any) -> None:
    written = [{"reason": "Unhealthy", "message": "Liveness probe failed: no", "count": 3, "at": 100}]
    started(world, {"main": {"state": "running", "occurrences": written}})
    (found,) = world.status().containers[0].occurrences
    assert (found.reason, found.message, found.count, found.at) == ("Unhealthy", "Liveness probe failed: no", 3, 100)
    # an older hub ignores the field, and an older site does not send it
    text = messages.Status(status=world.status()).model_dump(mode="json")
    assert messages.Status.model_validate(text).status == world.status()
    text["status"]["containers"][0].pop("occurrences")
    assert messages.Status.model_validate(text).status.containers[0].occurrences == ()


def test_a_job_that_writes_text_without_a_json_form_does_not_block_answers(world: Any) -> None:
    bad = "\ud800"
    run = {"exitCode": 1, "reason": bad}
    started(world, {"main": {"state": "waiting", "reason": bad, "message": bad, "ended": run, "last": run}})
    pod = dict.fromkeys(("phase", "reason", "message", "host", "ip", "ticket"), bad)
    world.write("state/pod.json", json.dumps(pod))
    world.look()
    page = world.submitter.snapshot(OWNER, "", messages.Snapshot())
    assert [job.containers[0].message for job in page.jobs] == ["?"]
    pack(page)


def test_a_job_that_changes_the_name_of_its_pod_does_not_block_answers(world: Any) -> None:
    world.submit()
    where = world.folder.job(UID)
    where.write_meta(replace(where.meta(), name="no name"))
    world.again()
    world.look()
    [job] = world.submitter.snapshot(OWNER, "", messages.Snapshot()).jobs
    assert job.name == "pod"
