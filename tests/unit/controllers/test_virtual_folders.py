"""The choice of a site's folder, and the node's condition if there are several."""

from __future__ import annotations

import pytest

from bridge import names
from bridge.protocol.model.announcement import Readiness
from bridge.protocol.nats.messages import Announce
from controllers.virtual import virtual_node_decide
from controllers.virtual.pool_state import choose_folder
from tests.unit.controllers.test_virtual_nodes import announce, decide, made, settled, state, view


def heard(*folders: str) -> dict[str, Announce]:
    return {
        folder: announce().model_copy(update={"folder": folder, "submitter": f"host-{folder}"}) for folder in folders
    }


@pytest.mark.parametrize(
    ("recorded", "current", "seen", "bound", "remembered", "chosen", "problem"),
    [
        ("", "", [], 0, 0, "", ""),
        ("", "f1", ["f1"], 0, 0, "f1", ""),
        ("f1", "f1", ["f1"], 3, 0, "f1", ""),
        ("f1", "", [], 3, 0, "f1", ""),
        # a hub that was restarted hears the other one first: the node remembers
        ("f1", "f2", ["f2"], 3, 0, "f1", "only another is announced"),
        ("f1", "f2", ["f2"], None, 0, "f1", "only another is announced"),
        ("f1", "f2", ["f2"], 0, 2, "f1", "only another is announced"),
        ("f1", "f2", ["f1", "f2"], 3, 0, "f1", "different folders"),
        ("f1", "f1", ["f1", "f2"], 0, 0, "f1", "different folders"),
        # nobody has a pod there: a folder that was made anew is taken
        ("f1", "f1", ["f2"], 0, 0, "f2", ""),
        # the administrator has removed the annotation
        ("", "f1", ["f2"], 3, 0, "f2", ""),
        ("", "f1", ["f1", "f2"], 3, 0, "f1", "different folders"),
    ],
)
def test_the_folder_that_is_believed(
    recorded: str, current: str, seen: list[str], bound: int | None, remembered: int, chosen: str, problem: str
) -> None:
    choice = choose_folder("site", recorded, current, heard(*seen), bound=bound, remembered=remembered)
    assert choice.folder == chosen
    assert problem in choice.problem
    assert bool(problem) == bool(choice.problem)
    for folder in seen if problem else ():
        assert f"{folder} (submitter host-{folder})" in choice.problem


def test_the_node_remembers_the_folder_and_says_what_is_wrong() -> None:
    written, node = settled()
    with_folder = state()
    object.__setattr__(with_folder, "folder", "f1")
    (action,) = decide(view(with_folder, node=node, written=written))
    assert isinstance(action, virtual_node_decide.Describe)
    assert action.patch["metadata"]["annotations"] == {names.SITE_FOLDER: "f1"}
    node["metadata"]["annotations"][names.SITE_FOLDER] = "f1"
    object.__setattr__(with_folder, "folder_problem", "two folders")
    (action,) = decide(view(with_folder, node=node, written=written))
    assert isinstance(action, virtual_node_decide.ReportStatus)
    (ready,) = [c for c in action.status["conditions"] if c["type"] == "Ready"]
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "SiteProblem", "two folders")


def test_a_buildconfig_that_can_not_be_used_is_a_condition_of_the_node() -> None:
    node = made()
    bad = state()
    problem = Readiness(
        "BuildConfigUnusable", "the site's BuildConfig is invalid: runtime.kind: Input should be 'apptainer'"
    )
    object.__setattr__(bad, "readiness", problem)
    (action,) = decide(view(bad, node=node))
    found = {c["type"]: c for c in action.status["conditions"]}
    assert (found["BuildConfigAccepted"]["status"], found["BuildConfigAccepted"]["reason"]) == (
        "False",
        "BuildConfigUnusable",
    )
    assert "runtime.kind" in found["BuildConfigAccepted"]["message"]
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "SiteProblem")
    assert "runtime.kind" in found["Ready"]["message"]
    (action,) = decide(view(state(), node=node))
    found = {c["type"]: c for c in action.status["conditions"]}
    assert found["BuildConfigAccepted"]["status"] == "True"
