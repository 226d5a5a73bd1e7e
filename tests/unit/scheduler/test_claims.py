"""Claims of pods: what the scheduler refuses, and what it keeps of its own writes."""

from typing import Any

import pytest

from bridge.workload.devices.claimed_devices import UnsupportedClaimError
from scheduler.devices.claim_store import ClaimStore
from scheduler.job_requests import _check_shared_claims


def pod(name: str, **claim: str) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": name, "uid": f"uid-{name}", "resourceVersion": "10"}
    return {"metadata": metadata, "spec": {"resourceClaims": [{"name": "gpu", **claim}]}, "status": {}}


def test_a_claim_is_not_shared_by_components_of_one_job() -> None:
    driver, worker = pod("driver", resourceClaimName="one"), pod("worker", resourceClaimName="one")
    _check_shared_claims([[driver, worker], [pod("other", resourceClaimName="two")]])
    _check_shared_claims([[pod("a", resourceClaimTemplateName="t")], [pod("b", resourceClaimTemplateName="t")]])
    with pytest.raises(UnsupportedClaimError, match="ResourceClaim one is shared"):
        _check_shared_claims([[driver], [worker]])


def test_a_pod_whose_status_was_written_has_its_new_version_in_the_cache() -> None:
    class Kube:
        def patch(self, path: str, body: dict[str, Any], kind: str) -> dict[str, Any]:
            versions.append(body["metadata"]["resourceVersion"])
            answer = pod("p")
            answer["metadata"]["resourceVersion"] = "11"
            answer["status"] = body["status"]
            return answer

    cached: list[str] = []
    versions: list[str] = []
    store = ClaimStore(Kube(), lambda found: cached.append(found["metadata"]["resourceVersion"]))  # type: ignore[arg-type]
    spec = {"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}
    before = {**pod("p"), "spec": spec}
    before["metadata"] = {**before["metadata"], "resourceVersion": "10"}
    store.report(before, {"example.com/gpu": "class"})
    store.withdraw(before)
    assert cached == ["11", "11"]
    assert versions == ["10", "10"], "no other process has written the pod since"
