import json

from bridge.workload import services
from cluster.systems import jupyter


def test_a_pod_with_the_annotations_of_the_page_is_exposed_by_the_port_that_kubespawner_declares():
    annotations = jupyter.page_values()["hub"]["config"]["KubeSpawner"]["extra_annotations"]
    container = {"ports": [{"name": "notebook-port", "containerPort": 61234}]}
    assert services.exposed_ports({"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}) == (
        61234,
    )


def test_the_packages_of_the_proxy_are_pinned_by_digests_and_name_no_registry():
    packages = json.loads((jupyter.TOOLS / "package-lock.json").read_text())["packages"]
    assert all(found["integrity"] for name, found in packages.items() if name)
    assert not any("resolved" in found for found in packages.values())
