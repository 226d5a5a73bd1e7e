import pytest
import yaml

from cluster.errors import ClusterError
from cluster.options import Options
from cluster.systems import gang_manifests


def configuration(kind, *paths):
    hooks = [{"name": path, "clientConfig": {"service": {"name": "s", "path": path}}} for path in paths]
    return {"kind": kind, "metadata": {"name": "configuration"}, "webhooks": hooks}


def kustomization(folder, patch, *configurations):
    (folder / "manifests.yaml").write_text("---\n" + yaml.safe_dump_all(configurations))
    target = {"kind": configurations[0]["kind"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"patches": [{"path": "p.yaml", "target": target}]}))
    (folder / "p.yaml").write_text(yaml.safe_dump([patch]))


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
