import pytest

from bridge.apps.hub.hub_queues import HubQueues
from bridge.config.hub import parse
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.errors import KubeUnavailableError
from tests.fakes.kube_answers import KubeAnswers, discovery

BETA2 = "kueue.x-k8s.io/v1beta2"


def serving(*versions):
    """Return an API server with these versions of Kueue's API."""
    return KubeAnswers(discovery(dict.fromkeys(versions, ("clusterqueues", "masterqueues"))))


def shared(kube):
    return KubeDependencies(parse(""), kube, None, None, None)


@pytest.mark.parametrize(
    ("served", "found"),
    [(("vk.io/v1", BETA2, "kueue.x-k8s.io/v1beta1"), "v1beta2"), (("vk.io/v1", "kueue.x-k8s.io/v1beta1"), "v1beta1")],
)
def test_the_newest_version_of_kueues_api_is_used(served, found):
    assert HubQueues(shared(serving(*served)), None)._served() == found


def test_the_process_ends_when_the_version_is_not_served_any_more():
    kube, supervisor = serving("vk.io/v1", BETA2), Supervisor()
    queues = HubQueues(shared(kube), None)
    queues._check("v1beta2", supervisor)
    assert supervisor.failure is None
    queues._kube = KubeAnswers(default=KubeUnavailableError("down"))
    queues._check("v1beta2", supervisor)
    assert supervisor.failure is None, "without an answer nothing is known"
    queues._kube = serving("vk.io/v1", "kueue.x-k8s.io/v1beta1")
    queues._check("v1beta2", supervisor)
    assert "v1beta2 is not served any more" in supervisor.failure
    assert supervisor.stopping.is_set()
