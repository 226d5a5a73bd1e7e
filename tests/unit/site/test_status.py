"""The status of a job, from what its script has written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.site.conftest import UID

ONE = {"exitCode": 1, "reason": "Error", "finishedAt": 100}
TWO = {"exitCode": 2, "reason": "Error", "finishedAt": 200}


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
