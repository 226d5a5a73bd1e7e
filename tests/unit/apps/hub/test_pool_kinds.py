"""The table of pool kinds: an invented kind needs one module and one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.apps.hub.hub_pools import HubPools
from bridge.apps.plugin.bodies import Creation
from bridge.apps.plugin.directory import Directory
from bridge.apps.plugin.plugin_pods import Pods
from bridge.clock import SystemClock
from bridge.config.hub import Config
from bridge.config.pool_kind import PoolKind
from bridge.config.pools import KINDS, with_kinds
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.interlink.messages import LogStruct
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.prune import prune_node
from bridge.kube.resources import NODES, PODS
from bridge.pools import registry
from bridge.pools.registry import PoolContext
from bridge.protocol.model.requests import LogOptions
from bridge.script.references import Objects
from bridge.serving.health import Health
from bridge.serving.http_error import AnswerError
from cluster.polling import eventually
from tests import builders
from tests.fakes.kube_api import FakeApi
from tests.fakes.paper_kind import DESKS, PaperSection

LINE = PoolKind("paper", PaperSection, "tests.fakes.paper_kind")
"""The line of the invented kind."""


def config(**pools: Any) -> Config:
    times = {"kubelet_port": 0, "node_address": "127.0.0.1", "submit_timeout": 1}
    section = with_kinds((*KINDS, LINE)).model_validate({**times, **pools})
    return Config().model_copy(update={"pools": section})


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeClient]:
    with FakeApi() as api:
        client = KubeClient.load(api.kubeconfig(tmp_path))
        yield client


def test_a_pod_runs_on_a_pool_of_an_invented_kind(kube: KubeClient) -> None:
    found = config(paper=[{"name": "office", "desk": "window"}])
    supervisor, events = Supervisor(), EventRecorder(kube, rate=100)
    nodes = Cache(kube, NODES, name="nodes", prune=prune_node)
    hub = HubPools(KubeDependencies(found, kube, nodes, events, SystemClock()), None, "test", "v1.0.0", "c1")
    hub.start(supervisor, Health())
    hub.loop.start(supervisor)
    supervisor.spawn("nodes", lambda: nodes.run(supervisor.stopping))
    try:
        eventually(lambda: nodes.get("", "office"), "the virtual node")
        containers = [{"name": "main", "image": "i"}]
        pod = kube.create(PODS.path("ns"), builders.pod(metadata={"name": "p"}, node="office", containers=containers))
        path, uid = PODS.path("ns", "p"), pod["metadata"]["uid"]
        eventually(lambda: kube.get(path)["status"]["phase"] == "Succeeded", "the end of the pod")
        assert DESKS["window"][uid].phase == "ended"
        assert kube.get(path)["metadata"]["annotations"]["bridge.vk.io/job"] == "office/sheet 1"
    finally:
        supervisor.stop()
        kube.close()
        assert supervisor.join(5) == []
    assert supervisor.failure is None


def test_the_plugin_serves_a_pool_of_an_invented_kind() -> None:
    made = registry.make(PoolContext(config(paper=[{"name": "office", "desk": "counter"}]), SystemClock()))
    pods = Pods(Directory(made.pools), wait=lambda _: True)
    pod = builders.pod("u7", metadata={"name": "p"}, containers=[{"name": "main", "image": "i"}])
    assert pods.create(Creation(pod, Objects())) == ("u7", "sheet 1")
    assert [each["containers"][0]["state"].keys() for each in pods.statuses([pod])] == [{"waiting"}]
    with pytest.raises(AnswerError, match="pool office has no logs"):
        pods.logs(LogStruct(namespace="ns", pod_name="p", pod_uid="u7"), LogOptions(container="main"))
    pods.delete(pod)
    assert DESKS["counter"] == {}


def test_the_line_is_all_that_the_configuration_needs() -> None:
    both = config(paper=[{"name": "a", "desk": "x"}], interlink=[{"name": "b", "url": "http://x:1"}])
    assert (both.pools.named, both.pools.enabled) == (("b", "a"), True)
    assert not config().pools.enabled
    assert list(registry.make(PoolContext(both, SystemClock()), ["paper"]).pools()) == ["a"]
    with pytest.raises(ValueError, match="more than one pool has the name a"):
        config(paper=[{"name": "a", "desk": "x"}], interlink=[{"name": "a", "url": "http://x:1"}])
    with pytest.raises(ValueError, match="desks"):
        config(paper=[{"name": "a", "desks": "x"}])
