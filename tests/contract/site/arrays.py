"""Equal pods of one owner at a site: their submission, and what is the same for each batch system."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from bridge.protocol.model.requests import EqualPods
from bridge.protocol.nats.messages import CancelMessage
from bridge.protocol.nats.request_table import CANCEL, SUBMIT
from cluster.polling import eventually
from tests.contract.site import jobs

OWNER = "70b00000-0000-4000-8000-000000000000"


def submit_pods(site: Any, count: int, command: str = "echo $INDEX; exit $INDEX", **more: Any) -> list[str]:
    """Submit pods that differ in their names and in what they run; return their UIDs."""
    pods = [jobs.uid() for _ in range(count)]
    for index, pod in enumerate(pods):
        text = command.replace("$INDEX", str(index))
        body = jobs.submit(text, array=EqualPods(owner=OWNER, wanted=True), name=f"w-{index}", **more)
        site.client.call(SUBMIT, pod, body)
    return pods


def check_ids(site: Any, pods: list[str], job_id: str) -> str:
    """Check that the pods are one array; return its part of their ids, of the form ``job_id``: ``ARRAY_INDEX``, ..."""
    ids = eventually(lambda: all(found := [site.status(pod).job_id for pod in pods]) and found, "all have an id")
    pattern = re.escape(job_id).replace("ARRAY", r"(\d+)").replace("INDEX", r"(\d+)")
    found = [re.fullmatch(pattern, one) for one in ids]
    assert all(found), ids
    assert [int(match[2]) for match in found if match] == list(range(len(pods)))
    (array,) = {match[1] for match in found if match}
    return array


def check_each_has_its_own_end(
    site: Any, job_id: str, restart: Callable[[], None], delete: Callable[[str], object]
) -> None:
    """Two pods end by themselves, one is cancelled by its hub, and one with ``delete``, at the site."""
    pods = submit_pods(site, 4, "echo $INDEX; [[ $INDEX == [01] ]] || sleep 600; exit $INDEX")
    for pod in pods[2:]:
        site.wait(pod, "running", site.patience)
    check_ids(site, pods, job_id)
    restart()
    for index in range(2):
        end = site.wait(pods[index], "ended", site.patience)
        assert (end.containers[0].ended.exit_code, site.log(pods[index])) == (index, f"{index}\n".encode())
    delete(site.status(pods[2]).job_id)
    # while the array has another job: a PBS without history forgets it with the last one
    assert site.wait(pods[2], "ended", site.patience).reason == "Cancelled"
    assert site.status(pods[3]).phase == "running"
    site.client.call(CANCEL, pods[3], CancelMessage(grace=0, forget=True))
    eventually(lambda: site.status(pods[3]) is None, timeout=site.patience)
    assert not (site.folder / "jobs" / pods[3]).exists()
    forget(site, pods[:3])


def check_killed_before_the_answer(site: Any, job_id: str, restart: Callable[[], object]) -> str:
    """The batch system gets the array, of which the submitter had no answer; return its part of ``job_id``."""
    before = files(site)
    pods = submit_pods(site, 3, "echo $INDEX; sleep 1")
    eventually(lambda: files(site) - before, "the file of the array")
    restart()
    ends = [site.wait(pod, "ended", 2 * site.patience) for pod in pods]
    assert {end.outcome for end in ends} == {"Succeeded"}
    array = check_ids(site, pods, job_id)
    assert len(files(site) - before) == 1
    assert [site.log(pod) for pod in pods] == [f"{index}\n".encode() for index in range(3)]
    forget(site, pods)
    return array


def files(site: Any) -> set[str]:
    """Return the arrays that were written."""
    return {path.name for path in (site.folder / "arrays").iterdir()}


def newest(site: Any) -> str:
    """Return the array that was written last."""
    return max((site.folder / "arrays").iterdir(), key=lambda path: path.stat().st_mtime).name


def forget(site: Any, pods: list[str]) -> None:
    for pod in pods:
        site.client.call(CANCEL, pod, CancelMessage(grace=0, forget=True))
    left = [site.folder / "jobs" / pod for pod in pods]
    eventually(lambda: not any(folder.exists() for folder in left), "no directory is left", 2 * site.patience)
