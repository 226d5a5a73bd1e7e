import pytest
import yaml

from bridge.config.hub import parse
from cluster import tools
from cluster.bench import bench_kueue
from cluster.demo import demo_kueue
from cluster.errors import ClusterError
from cluster.systems import kueue, kueue_manifests
from controllers.queues import offers, specification


def hook(name, group):
    return {"name": name, "clientConfig": {"service": {"path": f"/{name}"}}, "rules": [{"apiGroups": [group]}]}


def kustomization(folder, **content):
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))


def crd(name, strategy):
    spec = {"group": "g"}
    if strategy:
        spec["conversion"] = {"strategy": strategy, "webhook": {"clientConfig": {"service": {"path": "/convert"}}}}
    return {"metadata": {"name": name}, "spec": spec}


def test_patches_set_the_conversion_of_crds(tmp_path):
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(crd("ones", None)))
    (tmp_path / "patch.yaml").write_text(yaml.safe_dump({**crd("ones", "Webhook"), "spec": {"conversion": {"a": 1}}}))
    kustomization(tmp_path, resources=["one.yaml"], patches=[{"path": "patch.yaml"}])
    (found,) = kueue_manifests.custom_resources(tmp_path)
    assert found["spec"] == {"group": "g", "conversion": {"a": 1}}
    (tmp_path / "patch.yaml").write_text(yaml.safe_dump(crd("ones", "Webhook")))
    with pytest.raises(ClusterError, match=r"only a patch of spec\.conversion is supported"):
        kueue_manifests.custom_resources(tmp_path)


def test_patches_set_fields_of_webhooks_by_name(tmp_path):
    item = {"kind": "A", "webhooks": [hook("one", ""), hook("two", "")]}
    (tmp_path / "manifests.yaml").write_text(yaml.safe_dump(item))
    patch = {"kind": "A", "webhooks": [{"name": "two", "namespaceSelector": {"x": 1}}]}
    kustomization(tmp_path, patches=[{"patch": yaml.safe_dump(patch)}])
    (found,) = kueue_manifests.webhook_configurations(tmp_path)
    assert found["webhooks"] == [hook("one", ""), {**hook("two", ""), "namespaceSelector": {"x": 1}}]
    kustomization(tmp_path, patches=[{"path": "patch.yaml"}])
    with pytest.raises(ClusterError, match="only inline patches are supported"):
        kueue_manifests.webhook_configurations(tmp_path)


def test_the_demonstration_has_a_valid_queue_and_valid_jobs():
    queue = specification.read(yaml.safe_load(demo_kueue.MASTER_QUEUE))
    assert [flavor.name for flavor in queue.flavors] == ["local", "gpu", "sites"]
    assert parse(yaml.safe_dump(tools.merged(kueue.SETTINGS, demo_kueue.OVERRIDES))).queues.enabled
    first, second = yaml.safe_load_all(demo_kueue.jobs("story", 2, 3))
    assert (first["metadata"]["name"], second["metadata"]["name"]) == ("story-0", "story-1")
    assert first["spec"]["template"]["spec"]["tolerations"] == [kueue.TOLERATION]
    assert yaml.safe_load(demo_kueue.jobs("story", 1, 3, remote=False))["spec"]["template"]["spec"]["tolerations"] == []


def test_the_pools_of_the_benchmark_are_virtual_nodes_with_an_offer():
    node = bench_kueue.virtual_node("pool-1-001")
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    offer = offers.read([node])["pool-1-001"]
    assert (offer.state, offer.hostname, int(offer.amounts["cpu"])) == ("ready", "pool-1-001", 64)
    assert [taint["key"] for taint in offer.taints] == ["virtual-node.interlink/no-schedule"]
