"""The metrics of a real Kueue that the dashboard of queues shows."""

import json
import re
import ssl
from urllib.request import Request, urlopen

import pytest

from cluster.systems import kueue
from tests.unit.docs.test_monitoring import KUEUE

pytestmark = pytest.mark.real


def test_kueue_has_the_metrics_and_labels_of_the_dashboard(world):
    world.admitted(world.queued(world.quota({"slurm": 1}), run="1"))
    role = ("clusterrole", "kueue-metrics", "--non-resource-url=/metrics", "--verb=get")
    binding = ("clusterrolebinding", "kueue-metrics", "--clusterrole=kueue-metrics")
    for command in (role, (*binding, f"--serviceaccount={kueue.NAMESPACE}:default")):
        world.cluster.kubectl("create", *command, check=False)  # a kept cluster has it
    token = world.cluster.kubectl("create", "token", "default", f"--namespace={kueue.NAMESPACE}").strip()
    address = json.loads((world.cluster.state / "kueue" / "kueue.json").read_text())["metrics"]["bindAddress"]
    request = Request(f"https://{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:  # noqa: S323
        lines = answer.read().decode().splitlines()
    for name, labels in KUEUE.items():
        found = [line for line in lines if line.startswith(f"{name}{{")]
        assert found, f"Kueue has no metric {name}"
        assert labels <= set(re.findall(r'(\w+)="', found[0])), found[0]
