"""One table of ends: each batch system and the colocated Slurm map to its rows, and the conditions follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge import job_ends, names
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.pod_status import pod_status
from bridge.site.batch import condor_text, pbs, slurm_text
from bridge.slurm import states
from controllers.workload import workload_actions
from controllers.workload.workload_act import WorkloadActor
from tests.fakes.kube_answers import KubeAnswers

SITE_REASONS = {end.site_reason for end in job_ends.ENDS}
UID = "5e3c0000-1111-4222-8333-444455556666"
ONLY_COLOCATED = {"COMPLETED", "FAILED"}
"""States of a placeholder; at a site, the script has recorded how the pod ended."""


def test_reasons_and_texts_are_told_apart() -> None:
    assert len({end.reason for end in job_ends.ENDS}) == len({end.text for end in job_ends.ENDS}) == len(job_ends.ENDS)
    for end in job_ends.ENDS:
        assert end.source
        assert end.reason.isalnum()
        if end.at_site:
            assert end.at_site not in {other.reason for other in job_ends.ENDS}, "a kubelet's reason"


def test_a_state_of_slurm_is_the_same_end_on_colocated_nodes_and_at_a_site() -> None:
    colocated = {name: row.end for name, row in {**states.BASE_STATES, **states.FLAGS}.items() if row.end is not None}
    at_site = {name: row for name, row in slurm_text.STATES.items() if row.phase == "ended"}
    assert colocated.keys() == at_site.keys()
    for name, end in colocated.items():
        if name not in ONLY_COLOCATED:
            assert (at_site[name].reason, at_site[name].text) == (end.site_reason, end.text)


def site_ends() -> list[str]:
    """Return every reason with which a batch system reports that a job was ended from outside."""
    found = [row.reason for row in slurm_text.STATES.values() if row.phase == "ended" and not row.by_itself]
    for code in range(60):
        for status in (3, 5):
            for why in ("via condor_rm", "held: podbridge ends it", "The job attribute PeriodicRemove"):
                for last in (1, 2):
                    ad = {condor_text.UID: UID, "ClusterId": 1, "ProcId": 0, "JobStatus": status, "RemoveReason": why}
                    ads = [{**ad, "HoldReasonCode": code, "LastJobStatus": last}]
                    found += [job.reason for job in condor_text.jobs(json.dumps(ads))]
    for status in range(-40, 0):
        answer: dict[str, dict[str, Any]] = {
            "1": {"Job_Name": f"pb-{UID}", "job_state": "F", "substate": 92, "Exit_status": status}
        }
        found += [job.reason for job in pbs.parse_jobs(answer) if not job.by_itself]
    return found


def test_batch_systems_report_rows_of_the_table_only() -> None:
    found = set(site_ends())
    assert found <= SITE_REASONS
    assert {"DeadlineExceeded", "OOMKilled", "NodeFail", "Preempted", "Cancelled", "Held", "Killed"} <= found
    source = (Path(__file__).parents[2] / "bridge/site/batch/local.py").read_text()
    for reason in SITE_REASONS:
        assert f'"{reason}"' not in source, "the reasons of the local batch system come from the table too"


def failed_at_site(reason: str) -> dict[str, Any]:
    pod = {"metadata": {"namespace": "ns", "name": "p", "uid": UID}, "spec": {"containers": [{"name": "c"}]}}
    job = JobStatus(job=UID, namespace="ns", name="p", phase="ended", outcome="Failed", reason=reason)
    return pod_status(pod, job, "", 1e9)


class Hub:
    """As much of the dependencies as the end of a pod needs."""

    def __init__(self, kube: KubeAnswers) -> None:
        self.kube, self.config, self.clock = kube, self, self
        self.slurm = self.poller = self.pods = self.events = self.cluster = None
        self.scheduler_name, self.max_grace_period = "ours", 300

    def time(self) -> float:
        return 1e9


def failed_on_a_node(end: job_ends.End) -> dict[str, Any]:
    kube = KubeAnswers()
    hub: Any = Hub(kube)
    pod = {"metadata": {"namespace": "ns", "name": "p", "uid": UID}, "spec": {}}
    WorkloadActor(hub, lambda: None).act(workload_actions.End(pod, 5, end))
    return dict(kube.writes[0][2]["status"])


@pytest.mark.parametrize("end", job_ends.ENDS, ids=lambda end: end.reason)
def test_the_condition_follows_the_table_on_nodes_and_at_sites(end: job_ends.End) -> None:
    (colocated,) = failed_on_a_node(end)["conditions"]
    assert (colocated["type"], colocated["status"]) == (names.DISRUPTION_TARGET, str(end.disruption))
    assert colocated["reason"] == end.reason
    remote = [c for c in failed_at_site(end.site_reason)["conditions"] if c["type"] == names.DISRUPTION_TARGET]
    assert [(c["status"], c["reason"]) for c in remote] == ([("True", end.site_reason)] if end.disruption else [])


@pytest.mark.parametrize("reason", ["NodeFailed", "NodeFailure", "BootFailure"])
def test_a_failed_node_under_another_name_is_a_disruption(reason: str) -> None:
    """Submitters before the table, and interLink plugins."""
    found = {c["type"]: c["status"] for c in failed_at_site(reason)["conditions"]}
    assert found[names.DISRUPTION_TARGET] == "True"
