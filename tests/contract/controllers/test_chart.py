"""The Helm chart: the same objects as config/, golden files, and a real API server that validates every object."""

from __future__ import annotations

import base64
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import bridge.config.hub
from bridge.apps.cli.plugin_command import plugin
from bridge.apps.cli.token_command import renew
from bridge.config import public_config
from bridge.protocol.nats.user_keys import new_seed, public_key
from cluster import tools
from cluster.polling import eventually
from cluster.systems import crds, install
from generate import chart, manifests
from generate.manifests import template

pytestmark = pytest.mark.real

SETS = Path(__file__).parent / "chart"
NAMES = sorted(file.name.partition(".")[0] for file in SETS.glob("*.values.yaml"))
GOLDEN = {
    "colocated": ("colocated", "rest-site", "dashboard"),
    "nats-server": ("nats-server",),
    "plugin": ("nats-client", "plugin", "kueue"),
}
"""Golden file -> the sets of values of its release: together, they render each template."""
VERSION = re.escape(yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["version"])
LABELS = re.compile(
    rf"""( +)app\.kubernetes\.io/name: podbridge
\1app\.kubernetes\.io/instance: podbridge
\1app\.kubernetes\.io/component: (\S+)
\1app\.kubernetes\.io/version: "{VERSION}"
\1app\.kubernetes\.io/part-of: podbridge
(?:\1app\.kubernetes\.io/managed-by: Helm
\1helm\.sh/chart: podbridge-{VERSION}
)?"""
)
"""The labels of each object; a golden file has one line instead."""
SOURCE = re.compile(r"(?m)^# (?:Source:|Written by) .*\n")
CONFIG = chart.CHART.parents[1] / "config"
SAME = re.compile(r"(?m)^# Source: podbridge/templates/(rbac/(admission|scheduler|controllers)|policies|crds)\.yaml$")
RELEASE = f"hpc-{os.getpid()}"
PREFIX = f"{RELEASE}-podbridge"
JETSTREAM = ("--set=nats.jetstream.enabled=true", "--set=nats.persistence.enabled=true")
OWNED = "--set=crds.install=false"
"""config/crds.yaml is applied already."""
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/masterqueues.vk.io"
QUEUES = "/apis/vk.io/v1/masterqueues"
SHARE = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/flavors/items/properties/share"
"""A property of the CRD's schema, as a JSON pointer."""
MERGE = "application/merge-patch+json"
EVICTS = "--set=config.nodes.taint=true"
PUBLIC = [key for key, field in bridge.config.hub.Config.model_fields.items() if field.alias in public_config.KEYS]
SCHEDULER = "--show-only=templates/scheduler.yaml"
PARTS = ("admission", "scheduler", "controllers")


@pytest.fixture(scope="module")
def helm() -> str:
    """The path of Helm, which is built on the first use."""
    install.ensure(modules=[install.HELM])
    return str(install.binaries(install.HELM.packages)["helm"])


def rendered(*names: str) -> str:
    """Render the chart with sets of values, without what is the same in each: roles and policies."""
    text = template("--skip-tests", *map(values, names))
    documents = [each for each in re.split(r"(?m)^---\n", text) if each.strip()]
    return "---\n".join(each for each in documents if not SAME.search(each))


def named(text: str) -> list[tuple[str, str]]:
    """Return kind, name and text of each document."""
    documents = SOURCE.sub("", LABELS.sub(r"\1# the labels of \2\n", text)).split("---\n")
    return [(" ".join(re.findall(r"(?m)^(?:kind|  name): (.*)$", each)[:2]), each) for each in documents]


def golden_texts() -> dict[str, str]:
    """Return the text of each golden file: of an object in config/ or an earlier file, only the differences."""
    earlier = {
        title: (f"config/{file.name}", each)
        for file in sorted(CONFIG.glob("*.yaml"))
        for title, each in named(file.read_text())
    }
    texts = {}
    for name, sets in GOLDEN.items():
        shown = []
        for title, document in named(rendered(*sets)):
            origin, former = earlier.setdefault(title, (f"{name}.golden", document))
            if origin != f"{name}.golden":
                changes = difflib.unified_diff(former.splitlines(), document.splitlines(), n=1, lineterm="")
                head = f"# {title}: as in {origin}"
                document = re.sub(r"@@ .* @@", "@@", "\n".join([head, *list(changes)[2:]]) + "\n")
            shown.append(document)
        texts[name] = "---\n".join(shown)
    return texts


def objects(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each]


def the_object(kind: str, name: str, *arguments: str) -> dict[str, Any]:
    """Return the only object of this kind and name (or any name, if empty) that the chart renders."""
    documents = objects(template(*arguments))
    (one,) = (each for each in documents if each["kind"] == kind and name in ("", each["metadata"]["name"]))
    return dict(one)


def pod_of(kind: str, name: str, *arguments: str) -> dict[str, Any]:
    """Return the spec of the pods of the object that :func:`the_object` returns."""
    return dict(the_object(kind, name, *arguments)["spec"]["template"]["spec"])


def values(name: str) -> str:
    return f"--values={SETS / f'{name}.values.yaml'}"


def run(*command: str, fails: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_config_has_the_objects_of_the_chart(helm: str) -> None:
    wanted = {file.name: text for file, text in manifests.files().items()}
    found = {file.name: file.read_text() for file in manifests.FOLDER.iterdir()}
    assert found == wanted, "run: ./hack/generate.sh"
    listed = yaml.safe_load(wanted["kustomization.yaml"])["resources"]
    assert {
        *listed,
        "rbac-run.yaml",
        "rbac-queues.yaml",
        "rbac-race.yaml",
        "rbac-dashboard.yaml",
        "kustomization.yaml",
    } == wanted.keys()


def test_kustomize_reads_config(kubernetes: Any) -> None:
    checked = kubernetes.kubectl("apply", "--dry-run=server", "-k", str(manifests.FOLDER))
    assert "deployment.apps/podbridge-scheduler created" in checked
    assert "clusterrole.rbac.authorization.k8s.io/podbridge-scheduler unchanged" in checked


def test_releases_are_rendered_as_before(helm: str, request: pytest.FixtureRequest) -> None:
    for name, text in golden_texts().items():
        golden = SETS / f"{name}.golden"
        if request.config.getoption("--update-golden"):
            golden.write_text(text)
        assert text == golden.read_text(), "if this is meant: --update-golden"


@pytest.mark.parametrize("name", NAMES)
def test_a_set_of_values_and_its_configuration_are_valid(helm: str, name: str) -> None:
    run(helm, "lint", "--strict", "--quiet", str(chart.CHART), values(name))
    found = {(each["kind"], each["metadata"]["name"]): each for each in objects(rendered(name))}
    text = found["ConfigMap", "podbridge-config"]["data"]["config.yaml"]
    config = bridge.config.hub.parse(text)
    published = found["ConfigMap", "podbridge-public"]["data"][public_config.KEY]
    assert yaml.safe_load(published).keys() <= {*public_config.KEYS}
    public = public_config.read(published, "the ConfigMap").model_dump(include=set(PUBLIC))
    assert public == config.model_dump(include=set(PUBLIC))
    pod = found["Deployment", "podbridge-controllers"]["spec"]["template"]["spec"]
    mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    files = set(re.findall(r"/etc/podbridge/\S+", text)) - {str(config.admission.cert_dir)}
    assert {os.path.dirname(file) for file in files} <= mounts
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in pod["containers"][0]["volumeMounts"]}


def test_nats_server_accepts_what_its_init_container_writes(helm: str, tmp_path: Path) -> None:
    found = objects(template("--set=nats.enabled=true", "--set=nats.pools={alpha,beta}", *JETSTREAM))
    (server,) = (each for each in found if each["kind"] == "StatefulSet")
    pod = server["spec"]["template"]["spec"]
    secrets = {each["metadata"]["name"]: each["data"] for each in found if each["kind"] == "Secret" and "data" in each}
    for volume in pod["volumes"]:
        for source in volume.get("projected", {}).get("sources", ()):
            (item,) = source["secret"]["items"]
            file = tmp_path / "secrets" / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(base64.b64decode(secrets[source["secret"]["name"]][item["key"]]))
    keys = tmp_path / "keys"  # the ConfigMap that podbridge pool add writes
    keys.mkdir()
    (keys / "gamma.nkey").write_text(key := public_key(new_seed()))
    secret = tmp_path / "secrets"
    places = {"/etc/nats/secrets": str(secret), "/etc/nats/keys": str(keys), "/var/lib/nats": str(tmp_path / "data")}
    words = [*pod["initContainers"][0]["command"], *pod["initContainers"][0]["args"]]
    for place, there in places.items():
        words = [word.replace(place, there) for word in words]
    run(*tools.PODBRIDGE, *words[1:])
    run(
        str(Path(sys.executable).with_name("nats-server")),
        "-t",
        "-c",
        str(tmp_path / "data" / "podbridge" / "nats-server.conf"),
    )
    users = (tmp_path / "data" / "podbridge" / "users.conf").read_text()
    assert re.findall(r'user: "(.*)"', users) == ["hub", "pool-alpha", "pool-beta"]
    assert re.findall(r"nkey: (\w+)  # (.*)", users) == [(key, "pool-gamma")]
    assert base64.b64decode(secrets["podbridge-nats"]["password"]).decode() in users


def test_the_plugin_understands_its_arguments(helm: str) -> None:
    for settings in (["plugin"], ["nats-client", "--set=plugin.enabled=true", "--set=plugin.existingSecret=x"]):
        pod = pod_of("Deployment", "podbridge-plugin", values(settings[0]), *settings[1:])
        words = pod["containers"][0]["args"]
        parsed = plugin.make_context("plugin", words[1:]).params
        assert parsed["nats"] and parsed["owner"]
        mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        for key in ("seed_file", "password_file", "ca_file", "token_file"):
            assert parsed[key] is None or str(parsed[key].parent) in mounts


def test_token_renew_understands_the_arguments_of_its_cron_job(helm: str) -> None:
    where = "--show-only=templates/token-renewal.yaml"
    cron = the_object("CronJob", "podbridge-token-renewal", values("colocated"), where)
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    parsed = renew.make_context("renew", container["args"][2:]).params
    assert {key: parsed[key] for key in ("secret", "key", "namespace", "user", "lifespan")} == {
        "secret": "slurm-token",
        "key": "jwt",
        "namespace": "podbridge",
        "user": "slurm",
        "lifespan": 2592000,
    }
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert {str(parsed["key_file"].parent), str(parsed["config"].parent), "/etc/podbridge/slurm-tls"} <= mounts
    policy = the_object("NetworkPolicy", "podbridge-token-renewal", values("colocated"), where)
    (slurm,) = [each for each in policy["spec"]["egress"] if {"port": 6820, "protocol": "TCP"} in each["ports"]]
    assert slurm["to"] == [{"ipBlock": {"cidr": "198.51.100.7/32"}}]
    role = the_object("Role", "podbridge-token-renewal", values("colocated"), where)
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["slurm-token"], "verbs": ["patch"]}
    ]


def test_schedules_are_those_of_a_cron_job(helm: str) -> None:
    schedule = json.loads(chart.SCHEMA.read_text())["properties"]["slurm"]["properties"]["tokenRenewal"]["properties"]
    pattern = re.compile(schedule["schedule"]["pattern"])
    for good in ("17 3 1 * *", "*/10 0-6 1,15 JAN-JUN mon", "@weekly", "0 0 * * 1-5/2"):
        assert pattern.search(good), good
    for bad in ("", "* * * *", "* * * * * *", "@reboot", "a;b * * * *", "0 0 1 * * "):
        assert not pattern.search(bad), bad


def test_the_alerts_and_the_dashboards_are_those_of_the_files(helm: str) -> None:
    switches = ("--set=monitoring.prometheusRule.enabled=true", "--set=monitoring.dashboards.enabled=true")
    found = {each["kind"]: each for each in objects(template(*switches, "--show-only=templates/monitoring.yaml"))}
    files = chart.CHART / "files"
    assert found["PrometheusRule"]["spec"] == yaml.safe_load((files / "alerts.yaml").read_text())
    boards = {file.name: json.loads(file.read_text()) for file in (files / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in found["ConfigMap"]["data"].items()} == boards
    assert len(json.dumps(found["ConfigMap"])) < 2**20, "the API server limits a ConfigMap"


def alerts(*settings: str) -> dict[str, str]:
    """Return the expression of each alert that the chart renders with these values."""
    switches = ("monitoring.prometheusRule.enabled=true", *settings)
    where = "--show-only=templates/monitoring.yaml"
    rule_object = the_object("PrometheusRule", "", where, *(f"--set={each}" for each in switches))
    rules = [rule for group in rule_object["spec"]["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule["expr"] for rule in rules}


def test_alerts_of_what_the_values_disable_are_left_out(helm: str) -> None:
    everything = alerts()
    for setting in ("policies.enabled=false", "config.nodes.taint=false"):
        assert everything.keys() - alerts(setting).keys() == {"PodbridgeNodesUnguarded"}
    some = alerts("admission.enabled=false", "controllers.enabled=false")["PodbridgePartDown"]
    assert re.findall('"part", "([a-z]+)"', some) == ["scheduler"]
    assert "PodbridgePartDown" not in alerts(*(f"{part}.enabled=false" for part in PARTS))


def test_alerts_read_the_metrics_of_their_installation_alone(helm: str) -> None:
    everything = alerts()
    for name, expression in alerts("monitoring.serviceMonitor.enabled=true").items():
        read = re.findall(r"podbridge_[a-z_]+", expression)
        assert len(re.findall(r'podbridge_[a-z_]+\{namespace="podbridge"[,}]', expression)) == len(read) > 0
        bare = re.sub(r'\{namespace="podbridge"\}|namespace="podbridge", ', "", expression)
        assert bare == everything[name]


def test_each_alert_names_its_page_of_the_documentation_that_an_administrator_serves(helm: str) -> None:
    site = "https://docs.example.org/pod$1bridge"
    where = ("--set=monitoring.prometheusRule.enabled=true", "--show-only=templates/monitoring.yaml")
    (rule,) = objects(template(*where, f"--set=monitoring.prometheusRule.docsUrl={site}/"))
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each]
    assert alerts
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"{site}/runbooks/{alert['alert']}.html"
        assert (chart.ROOT / "docs/admins/runbooks" / f"{alert['alert']}.md").exists()


def test_policies_let_the_hub_reach_the_servers_of_its_release(helm: str) -> None:
    cidr = "192.0.2.0/24"
    found = objects(
        template(
            "--set=nats.enabled=true",
            "--set=nats.pools={alpha}",
            "--set=redis.enabled=true",
            "--set=networkPolicy.enabled=true",
            f"--set=networkPolicy.batchCidrs={{{cidr}}}",
        )
    )
    policies = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "NetworkPolicy"}
    reached = {
        (rule["ports"][0]["port"], to["podSelector"]["matchLabels"]["app.kubernetes.io/component"])
        for rule in policies["podbridge-controllers"]["egress"]
        for to in rule.get("to", ())
        if "podSelector" in to
    }
    assert reached == {(4222, "nats"), (6379, "redis")}
    egress = policies["podbridge-controllers"]["egress"]
    limited = [rule for rule in egress if {"ipBlock": {"cidr": cidr}} in rule.get("to", ())]
    assert [port["port"] for rule in limited for port in rule["ports"]] == [6820]
    (rule,) = policies["podbridge-redis"]["ingress"]
    clients = [each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in rule["from"]]
    assert clients == ["controllers", "test"]


def test_kind_sh_sets_values_that_the_chart_accepts(helm: str) -> None:
    script = (chart.ROOT / "hack" / "kind.sh").read_text()
    found = dict(re.findall(r"^\[\[ -z \$(\w+) \]\] \|\| arguments\+=\((.*)\)$", script, re.MULTILINE))
    assert found.keys() == {"pools", "kueue"}
    assert "kind: StatefulSet" in template(*shlex.split(found["pools"]))
    assert "name: podbridge-queues" in template(*shlex.split(found["kueue"]))


def test_the_ingress_reaches_the_web_page_by_its_name_and_port(helm: str) -> None:
    where = (values("dashboard"), "--show-only=templates/dashboard.yaml")
    ingress, service = (the_object(kind, "podbridge-dashboard", *where) for kind in ("Ingress", "Service"))
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert ingress["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "page-ingress"}]
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    (container,) = pod_of("Deployment", "podbridge-dashboard", *where)["containers"]
    assert {f"--allowed-host={rule['host']}", "--allowed-host=podbridge.internal:8443"} < set(container["args"])
    policy = the_object("NetworkPolicy", "podbridge-dashboard", values("dashboard"))
    (page,) = [each for each in policy["spec"]["ingress"] if {"port": 8443, "protocol": "TCP"} in each["ports"]]
    assert page["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]


def test_any_name_of_the_web_page_is_allowed_by_default_also_behind_an_ingress(helm: str) -> None:
    switches = ("enabled=true", "tls.existingSecret=x", "ingress.enabled=true", "ingress.host=page.example.org")
    where = ("--show-only=templates/dashboard.yaml", *(f"--set=dashboard.{switch}" for switch in switches))
    (container,) = pod_of("Deployment", "", *where)["containers"]
    assert not [word for word in container["args"] if word.startswith("--allowed-host")]
    assert the_object("Ingress", "", *where)["spec"]["tls"] == [{"hosts": ["page.example.org"]}]


def test_the_web_page_gets_nothing_of_the_hub(helm: str) -> None:
    secret = '--set-json=extraVolumes=[{"name":"x","secret":{"secretName":"hub-secret"}}]'
    text = template(
        "--set=dashboard.enabled=true",
        "--set=extraEnv[0].name=SLURM_JWT",
        "--set=extraArgs[0]=--hub",
        secret,
        "--show-only=templates/dashboard.yaml",
    )
    assert not any(word in text for word in ("SLURM_JWT", "--hub", "hub-secret"))


def test_the_first_ip_family_decides_where_everything_listens(helm: str) -> None:
    for family, hosts in (("IPv6", {"[::]", "::"}), ("IPv4", {"0.0.0.0"})):  # noqa: S104
        listens = set()
        for name in ("plugin", "dashboard", "nats-server"):
            text = template(values(name), f"--set=ipFamilies={{{family}}}")
            listens |= set(re.findall(r"--(?:host|listen|health|metrics|websocket-host)=(\[::\]|::|0\.0\.0\.0)", text))
        assert listens == hosts


def test_the_image_of_a_part_has_the_keys_of_the_image_of_all(helm: str) -> None:
    text = template("--set=admission.image.pullPolicy=Always", "--show-only=templates/admission.yaml")
    assert "imagePullPolicy: Always" in text
    pod = pod_of("Deployment", "podbridge-plugin", values("plugin"), "--set=plugin.image.pullPolicy=Never")
    assert pod["containers"][0]["imagePullPolicy"] == "Never"
    with pytest.raises(subprocess.CalledProcessError):
        template("--set=admission.image.tga=x")


def test_replicas_in_the_network_of_their_node_make_room_for_their_successor(helm: str) -> None:
    deployment = the_object("Deployment", "", "--set=scheduler.hostNetwork=true", SCHEDULER)
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize("race", [False, True])
def test_the_policy_lets_the_controllers_grant_only_for_late_binding(helm: str, race: bool) -> None:
    switch = f"--set=config.pools.race.enabled={str(race).lower()}"
    where = "--show-only=templates/policies.yaml"
    policy = the_object("ValidatingAdmissionPolicy", "podbridge-guarded-nodes", switch, where)
    assert ("variables.grant" in policy["spec"]["validations"][0]["expression"]) == race


@pytest.fixture(scope="module")
def namespace(kubernetes: Any) -> Iterator[str]:
    """A namespace for a second release, beside the objects of config/."""
    for name in (RELEASE, "research"):
        kubernetes.add_namespace(name)
    yield RELEASE
    for name in (RELEASE, "research"):
        kubernetes.api("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def other_crds(kubernetes: Any) -> Iterator[None]:
    """The CRDs of the Prometheus operator and of cert-manager."""
    text = crds.manifests()
    kubernetes.kubectl("apply", "--server-side", "-f", "-", input=text)
    kubernetes.kubectl("wait", "--for=condition=Established", "-f", "-", input=text)
    yield
    kubernetes.kubectl("delete", "-f", "-", input=text)


def test_the_api_server_accepts_every_object(helm: str, kubernetes: Any, namespace: str, other_crds: None) -> None:
    switches = [f"--set=monitoring.{name}.enabled=true" for name in ("prometheusRule", "dashboards", "serviceMonitor")]
    documents = objects(
        run(helm, "template", RELEASE, str(chart.CHART), "--namespace", namespace, OWNED, EVICTS, *switches)
    )
    for index, name in enumerate(NAMES):
        text = rendered(name)
        documents += objects(re.sub(r"\bpodbridge\b(?!\.)", f"{namespace}-{index}", text))
    for each in documents:
        if each["metadata"].get("namespace") not in (None, "research"):
            each["metadata"]["namespace"] = namespace
        if each["kind"] == "Pod":
            each["spec"]["serviceAccountName"] = "default"  # its own does not exist in a dry run
        if each["kind"] == "Service":
            each["spec"].pop("ipFamilies", None)  # this cluster has IPv4 alone
    kinds = {each["kind"] for each in documents}
    assert {"Certificate", "Issuer", "Ingress", "NetworkPolicy", "PrometheusRule", "ServiceMonitor"} < kinds
    dry = ("--server-side", "--dry-run=server", "--validate=strict")
    checked = kubernetes.kubectl("apply", *dry, "-f", "-", input=yaml.safe_dump_all(documents))
    assert len(checked.splitlines()) == len(documents)


def test_install_upgrade_rollback_and_uninstall(helm: str, kubernetes: Any, namespace: str) -> None:
    there = ("--kubeconfig", str(kubernetes.kubeconfig), "--namespace", namespace)
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/{PREFIX}-scheduler"
    secret = f"/api/v1/namespaces/{namespace}/secrets/{PREFIX}-webhook-tls"

    def checksum() -> str:
        template = kubernetes.api("GET", deployment)["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    nats = ("--set=nats.enabled=true", "--set=nats.pools={alpha}")
    assert "config.nodes.taint is not set" in run(helm, "install", RELEASE, str(chart.CHART), *there, *nats, fails=True)
    run(helm, "install", RELEASE, str(chart.CHART), *there, *nats, EVICTS)
    owner = kubernetes.api("GET", CRD)["metadata"].get("annotations", {})
    assert "meta.helm.sh/release-name" not in owner, "config/crds.yaml owns it"
    first = checksum()
    # what podbridge writes stays over an upgrade and a rollback
    kubernetes.api("PATCH", secret, {"data": {"tls.crt": "eA=="}}, MERGE)
    pool = f"/api/v1/namespaces/{namespace}/secrets/{PREFIX}-nats-pool-alpha"
    password = kubernetes.api("GET", pool)["data"]["password"]
    run(helm, "upgrade", RELEASE, str(chart.CHART), *there, *nats, "--set=config.partition=other")
    assert kubernetes.api("GET", pool)["data"]["password"] == password
    assert checksum() != first
    text = kubernetes.api("GET", f"/api/v1/namespaces/{namespace}/configmaps/{PREFIX}-config")["data"]["config.yaml"]
    assert yaml.safe_load(text)["partition"] == "other"
    # as docs/admins/upgrade.md hands the CRD over to a release
    owner = {f"meta.helm.sh/release-{key}": value for key, value in (("name", RELEASE), ("namespace", namespace))}
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    kubernetes.api("PATCH", CRD, {"metadata": {"annotations": owner, "labels": labels}}, MERGE)
    # an older version of the CRD, without one property
    kubernetes.api("PATCH", CRD, [{"op": "remove", "path": SHARE}], "application/json-patch+json")
    spec = {"flavors": [{"name": "far", "share": 50}]}
    queue = {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "metadata": {"name": RELEASE}, "spec": spec}

    def without_share() -> bool:
        return "share" not in kubernetes.api("POST", f"{QUEUES}?dryRun=All", queue)["spec"]["flavors"][0]

    eventually(without_share, "the older version is served")
    kubernetes.api("POST", QUEUES, queue)
    run(helm, "upgrade", RELEASE, str(chart.CHART), *there, *nats, "--set=config.partition=other")
    assert kubernetes.api("GET", CRD)["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE

    def shared() -> bool:
        patched = kubernetes.api("PATCH", f"{QUEUES}/{RELEASE}", {"spec": spec}, MERGE)
        return bool(patched["spec"]["flavors"] == spec["flavors"])

    eventually(shared, "the new version is served")
    run(helm, "rollback", RELEASE, "1", *there)
    assert checksum() == first
    assert kubernetes.api("GET", secret)["data"] == {"tls.crt": "eA=="}
    run(helm, "uninstall", RELEASE, *there)
    assert kubernetes.api("GET", f"{QUEUES}/{RELEASE}")["spec"]["flavors"] == spec["flavors"]
    kubernetes.api("DELETE", f"{QUEUES}/{RELEASE}")
    kubernetes.api("PATCH", CRD, {"metadata": {"annotations": dict.fromkeys(owner), "labels": None}}, MERGE)
    eventually(lambda: RELEASE not in kubernetes.kubectl("get", "clusterroles", "-o", "name"), "the end of the release")
    own = kubernetes.kubectl("get", "validatingadmissionpolicies,clusterroles", "-o", "name")
    assert "podbridge-guarded-nodes" in own
    assert "clusterrole.rbac.authorization.k8s.io/podbridge-scheduler" in own


def test_an_empty_list_of_pools_is_allowed(helm: str) -> None:
    assert objects(template("--set=nats.pools=null"))


@pytest.mark.parametrize(
    ("settings", "secret", "key"),
    [
        ([], "slurm-bridge-token", "auth-token"),
        (["sharedConfig.slurmJwtSecret.name=", "sharedConfig.slurmJwtSecret.key="], "slurm-bridge-token", "auth-token"),
        (["sharedConfig.slurmJwtSecret=own"], "own", "auth-token"),
        (["sharedConfig.slurmJwtSecret.name=own"], "own", "SLURM_JWT"),
        (["sharedConfig.slurmJwtSecret.name=own", "sharedConfig.slurmJwtSecret.key=x"], "own", "x"),
    ],
)
def test_the_secret_of_the_token_has_the_names_of_each_chart_of_slurm_bridge(
    helm: str, settings: list[str], secret: str, key: str
) -> None:
    pod = pod_of("Deployment", "", SCHEDULER, *(f"--set={each}" for each in settings))
    (volume,) = (each["secret"] for each in pod["volumes"] if each["name"] == "slurm-jwt")
    assert (volume["secretName"], volume["items"][0]["key"]) == (secret, key)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["fullnameOverride=Bad"], "the name of the installation is \"Bad\"; allowed: 1 to 27 of a-z, 0-9 and -"),
        (["config.leaderElection.leaderElect=false"], "scheduler.replicas: 2 is not allowed with config"),
        (["config.slurmRestApi="], "config.slurmRestApi is empty and no pool is configured; set"),
        (["config.partition=a", "schedulerConfig.partition=b"], 'schedulerConfig.partition: "b" differs from'),
        (["config.managedNamespaces={podbridge}"], "config.managedNamespaces: podbridge is the namespace"),
        (["admission.certManager.enabled=true", "admission.tls.existingSecret=x"], "set only one of them"),
        (["scheduler.image.repository=ghcr.io/slinkyproject/slurm-bridge-scheduler"], "is an image of slurm-bridge"),
        (["nats.enabled=true", "nats.pools={hub}"], 'nats.pools: "hub" is not allowed; allowed: 1 to 32 of a-z'),
        (["nats.jetstream.enabled=true"], "nats.jetstream.enabled: true requires nats.persistence.enabled"),
        (["nats.persistence.enabled=true"], "nats.persistence.enabled: true is not allowed with nats.enabled: false"),
        ([JETSTREAM[0][6:], JETSTREAM[1][6:]], "nats.jetstream.enabled: true is not allowed with nats.enabled: false"),
        (["nats.enabled=true", "nats.pools={a,a}"], 'nats.pools: ["a","a"] has a pool twice'),
        (["secretMounts[0].name=tmp", "secretMounts[0].existingSecret=x"], "secretMounts: the name tmp is reserved"),
        (
            [f"secretMounts[{i}].{key}=x" for i in (0, 1) for key in ("name", "existingSecret")],
            "secretMounts: the name x is reserved or used twice",
        ),
        ([r"commonLabels.app\.kubernetes\.io/name=x"], "commonLabels: the label app.kubernetes.io/name is not allowed"),
        ([r"nats.podLabels.app\.kubernetes\.io/component=x"], "nats.podLabels: the label app.kubernetes.io/component"),
        (
            ["scheduler.pdb.enabled=true", "scheduler.pdb.minAvailable=null", "scheduler.pdb.maxUnavailable=null"],
            "scheduler.pdb: minAvailable and maxUnavailable are null",
        ),
        (["plugin.enabled=true"], "plugin.enabled: true requires a NATS server; set nats.enabled"),
        (["plugin.enabled=true", "nats.enabled=true", "nats.pools={a}"], "plugin.existingSecret is required without"),
        (["rbac.poolNamespaces={kube-system}"], "rbac.poolNamespaces: kube-system is not allowed"),
        (["dashboard.enabled=true", "dashboard.ingress.enabled=true"], "dashboard.ingress.enabled: true requires"),
        (["dashboard.ingress.host=a b"], "'a b' does not match pattern"),
        (["nats.ingress.host=https://a"], "'https://a' does not match pattern"),
        (["slurm.tokenRenewal.enabled=true"], "slurm.tokenRenewal.existingSecret is required with"),
        (
            ["slurm.tokenRenewal.enabled=true", "slurm.tokenRenewal.existingSecret=k", "slurm.jwt.existingSecret="],
            "slurm.tokenRenewal.enabled: true requires config.slurmRestApi and slurm.jwt.existingSecret",
        ),
        (["slurm.tokenRenewal.schedule=daily"], "'daily' does not match pattern"),
        (["slurm.tokenRenewal.lifespan=60"], "minimum: got 60, want 3,600"),
        (["slurm.tokenRenewal.user=a b"], "'a b' does not match pattern"),
        (["config.admission.port=0"], "config.admission.port: 0 is not allowed"),
        (["config.serving.metricsPort=0"], "config.serving.metricsPort: 0 is not allowed"),
        (["config.pools.kubeletPort=0"], "config.pools.kubeletPort: 0 is not allowed"),
        (["config.managedNamespaces={a,kube-system}"], "config.managedNamespaces: kube-system is not allowed"),
        (["rbac.poolNamespaces={a,a}"], "items at 0 and 1 are equal"),
        (["rbac.poolNamespaces={A}"], "'A' does not match pattern"),
        (["slurm.jwt.existingSecret=a b"], "'a b' does not match pattern"),
        (["hints=null"], "missing property 'hints'"),
        (["controllers.pdb=null"], "at '/controllers': missing property 'pdb'"),
        (["config.slurmRestApi=http://u:secret@slurm:6820"], "a URL at slurm:6820 has a user, which is not allowed"),
        (["config.pools.nats.servers={nats://u:secret@n:4222}"], "a URL at n:4222 has a user, which is not allowed"),
        (["config.partitoin=a"], "additional properties 'partitoin' not allowed"),
        (["config.logging.level=loud"], "value must be one of 'debug', 'info', 'warning', 'error'"),
        (["scheduler.replcas=1"], "additional properties 'replcas' not allowed"),
        (["admission.replicas=many"], "got string, want integer"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(helm: str, settings: list[str], message: str) -> None:
    words = [EVICTS, *(f"--set={setting}" for setting in settings)]
    assert message in run(helm, "template", "podbridge", str(chart.CHART), "-n", "podbridge", *words, fails=True)


def test_the_namespace_of_the_release_is_not_managed_by_default_either(helm: str) -> None:
    words = ("template", "podbridge", str(chart.CHART), "-n", "slurm-bridge", EVICTS)
    error = run(helm, *words, fails=True)
    assert "config.managedNamespaces: slurm-bridge is the namespace of the release" in error
    run(helm, *words, "--set=config.managedNamespaceSelector.matchLabels.bridge=yes")


def test_a_first_installation_evicts_no_pods_unless_the_values_say_so(helm: str) -> None:
    words = (helm, "template", "podbridge", str(chart.CHART), "-n", "podbridge")
    for settings in ((), ("--set=config.nodes.notReady=5",)):
        error = run(*words, *settings, fails=True)
        assert "config.nodes.taint is not set" in error and "podbridge check --before-install" in error
    pools = ("--set=config.slurmRestApi=", "--set=nats.enabled=true", "--set=nats.pools={alpha}")
    allowed = (
        pools,
        ("--is-upgrade",),
        ("--set=controllers.enabled=false",),
        ("--set=config.nodes.taint=false",),
        (EVICTS,),
    )
    for settings in allowed:
        assert objects(run(*words, *settings))


@pytest.mark.parametrize("network", ["false", "true"])
def test_the_strategy_recreate_has_no_parameters_of_another(helm: str, network: str) -> None:
    switches = ("--set=scheduler.strategy.type=Recreate", f"--set=scheduler.hostNetwork={network}")
    deployment = the_object("Deployment", "", *switches, SCHEDULER)
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("hosts", "opened"), [(["peer.example.org:8443", "*.example.net"], {443, 8443, 9999}), ([], {9999})]
)
def test_the_ports_of_the_logs_of_nunet_are_open(helm: str, hosts: list[str], opened: set[int]) -> None:
    pools = json.dumps([{"name": "n", "url": "https://dms:9999", "logHosts": hosts}])
    switches = ("--set=networkPolicy.enabled=true", f"--set-json=config.pools.nunet={pools}")
    policy = the_object("NetworkPolicy", "podbridge-controllers", *switches)
    (rule,) = [each for each in policy["spec"]["egress"] if {"port": 9999, "protocol": "TCP"} in each["ports"]]
    assert {port["port"] for port in rule["ports"]} == opened | {6820}


def test_a_secret_of_the_hub_can_be_mounted_in_the_plugin(helm: str) -> None:
    text = template(
        values("plugin"),
        '--set-json=secretMounts=[{"name":"hub","existingSecret":"seed","parts":["plugin"]}]',
        "--show-only=templates/plugin/deployment.yaml",
    )
    assert "mountPath: /etc/podbridge/hub" in text and "secretName: seed" in text


def test_redis_gets_the_signals_of_its_container(helm: str, tmp_path: Path) -> None:
    (container,) = pod_of("StatefulSet", "", "--set=redis.enabled=true", "--show-only=templates/redis.yaml")[
        "containers"
    ]
    (tmp_path / "redis-server").write_text('#!/bin/sh\necho "$$ $*"\ncat\n')
    (tmp_path / "redis-server").chmod(0o700)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDIS_PASSWORD": "a$b`c \"'\\d#"}
    command = [*container["command"], "--save", "60"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        first, password = process.communicate(timeout=10)[0].splitlines()
    assert first == f"{process.pid} - --dir /data --appendonly yes --save 60", "the shell would get the signals"
    assert password == 'requirepass "a$b`c \\"\'\\\\d#"'
