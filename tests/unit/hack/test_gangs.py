import json
from pathlib import Path

import pytest
import yaml

from cluster import gang_manifests, gangs, kuberay, trainer
from cluster.errors import ClusterError
from cluster.options import Options


def setup(folder, first_port=20000):
    binaries = {name: Path("/bin") / name for name in gangs.DAEMONS}
    return gangs.GangSetup(folder / "gangs", first_port, binaries, folder / "manifests", folder / "kubeconfig")


def configuration(kind, *paths):
    hooks = [{"name": path, "clientConfig": {"service": {"name": "s", "path": path}}} for path in paths]
    return {"kind": kind, "metadata": {"name": "configuration"}, "webhooks": hooks}


def kustomization(folder, patch, *configurations):
    (folder / "manifests.yaml").write_text("---\n" + yaml.safe_dump_all(configurations))
    target = {"kind": configurations[0]["kind"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"patches": [{"path": "p.yaml", "target": target}]}))
    (folder / "p.yaml").write_text(yaml.safe_dump([patch]))


def test_each_controller_has_ports_of_its_own(tmp_path):
    group = setup(tmp_path)
    group.write()
    text = json.dumps(group.daemons()) + "".join(file.read_text() for file in group.folder.glob("*.json"))
    assert {port for port in range(20000, 20010) if str(port) in text} == set(range(20000, 20000 + gangs.PORTS))


def test_the_manifest_of_training_jobs_has_the_crds_and_what_the_controller_waits_for(tmp_path, monkeypatch):
    bases = tmp_path / "module" / "manifests" / "base" / "crds"
    bases.mkdir(parents=True)
    (bases / "kustomization.yaml").write_text("kind: Kustomization\n")
    (bases / "trainer.kubeflow.org_trainjobs.yaml").write_text("kind: CustomResourceDefinition\n")
    monkeypatch.setattr(gang_manifests, "module_folder", lambda tools, module: tmp_path / "module")
    trainer.take(tmp_path, tmp_path / "manifests")
    found = [item["kind"] for item in yaml.safe_load_all((tmp_path / "manifests" / trainer.CRDS).read_text())]
    assert found == ["CustomResourceDefinition", "Namespace", "Secret", "ValidatingWebhookConfiguration"]


def test_the_operator_of_kuberay_has_no_batch_scheduler_and_its_own_crds(tmp_path, monkeypatch):
    made = kuberay.KubeRaySetup(tmp_path, 9, Path("/bin/operator"), tmp_path / "manifests", tmp_path / "kubeconfig")
    (command,) = made.daemons().values()
    assert "--health-probe-bind-address=127.0.0.1:9" in command
    assert not [word for word in command if "batch-scheduler" in word]
    assert not made.answers(kuberay.OPERATOR)
    bases = tmp_path / "module" / "config" / "crd" / "bases"
    bases.mkdir(parents=True)
    for name in ("ray.io_rayclusters.yaml", "ray.io_rayjobs.yaml"):
        (bases / name).write_text(f"file: {name}\n")
    monkeypatch.setattr(gang_manifests, "module_folder", lambda tools, module: tmp_path / "module")
    kuberay.take(tmp_path, tmp_path / "manifests")
    found = [item["file"] for item in yaml.safe_load_all(made.crds.read_text())]
    assert found == ["ray.io_rayclusters.yaml", "ray.io_rayjobs.yaml"]


def test_patches_replace_whole_webhooks(tmp_path):
    new = configuration("A", "/narrow")["webhooks"][0]
    original = configuration("MutatingWebhookConfiguration", "/one", "/two")
    other = configuration("ValidatingWebhookConfiguration", "/three")
    kustomization(tmp_path, {"op": "replace", "path": "/webhooks/1", "value": new}, original, other)
    found = gang_manifests.webhook_configurations(tmp_path)
    assert [[hook["name"] for hook in item["webhooks"]] for item in found] == [["/one", "/narrow"], ["/three"]]


@pytest.mark.parametrize(
    "patch",
    [
        {"op": "add", "path": "/webhooks/0", "value": {}},
        {"op": "replace", "path": "/webhooks/0/rules", "value": []},
        {"op": "replace", "path": "/webhooks/1", "value": {}},
    ],
)
def test_other_patches_are_refused(tmp_path, patch):
    kustomization(tmp_path, patch, configuration("MutatingWebhookConfiguration", "/one"))
    with pytest.raises(ClusterError, match="only replace of /webhooks/N is supported"):
        gang_manifests.webhook_configurations(tmp_path)


def test_webhooks_are_called_by_url(tmp_path):
    item = configuration("MutatingWebhookConfiguration", "/mutate--v1-pod")
    path, body = gang_manifests.addressed(item, "jobset", "https://127.0.0.1:20000", "Q0E=")
    assert path == "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    assert body["metadata"] == {"name": "jobset-configuration"}
    assert body["webhooks"][0]["clientConfig"] == {"url": "https://127.0.0.1:20000/mutate--v1-pod", "caBundle": "Q0E="}
    assert "service" in item["webhooks"][0]["clientConfig"], "the input stays as it is"


@pytest.mark.parametrize("option", ["gangs", "kueue"])
@pytest.mark.parametrize("options", [{"kube": False}, {"kcm": False}])
def test_the_controllers_need_those_of_their_jobs(option, options):
    with pytest.raises(ClusterError, match=f"option {option}: needs kube and kcm"):
        Options(**{option: True}, **options)


def test_a_version_of_kubernetes_that_no_module_pins_is_refused():
    known = r"1\.32, 1\.33, 1\.34, 1\.35, 1\.36, 1\.37"
    with pytest.raises(ClusterError, match=rf"option kubernetes: no version 1\.31; there are {known}"):
        Options(kubernetes="1.31")


@pytest.mark.parametrize(("option", "needed"), [("kuberay", "gangs"), ("dra", "real_node")])
def test_an_option_that_adds_to_another_one_needs_it(option, needed):
    with pytest.raises(ClusterError, match=f"option {option}: needs {needed}"):
        Options(**{option: True})
