"""The commands of the how-to pages, read from the pages, on one cluster with a Slurm, slurmdbd and two sites.

What a page tells to edit or to write, its test does. ``tests/docs_blocks.py`` lists the pages.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from urllib.request import urlopen

import pytest
import yaml

import bridge.config.hub
from bridge import names
from bridge.slurm.auth import claims
from cluster import Cluster, places
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE as REMOTE
from cluster.ports import free_block
from cluster.systems import kube
from cluster.systems.slurm import ACCOUNTING, Size
from cluster.tools import ANYTHING
from cluster.world import NAMESPACE
from tests.contract.nats.servers import certificate, listens
from tests.docs_blocks import DOCS, Block, Shell, command, commands, manifests
from tests.e2e.rendezvous import container, lines

pytestmark = pytest.mark.real

LAB, POOL = "lab", "slurm-site"
SITES = {"site-a": POOL, "site-b": "local-site"}
INPUTS = Path(__file__).parents[1] / "unit/apps/conversion/inputs"
CONF = [
    # docs/admins/billing.md
    ACCOUNTING,
    "AccountingStorageEnforce=associations,limits,qos,wckeys",
    "AccountingStoreFlags=job_comment",
    "TrackWCKey=yes",
    # docs/admins/external-nodes.md
    "MaxNodeCount=200",
    "NodeSet=k8s Feature=k8s",
    "PartitionName=k8s Nodes=k8s MaxTime=INFINITE State=UP",
    # docs/users/from-sbatch.md
    "PartitionName=gpu Nodes=node-[0-1] MaxTime=INFINITE State=UP",
]
POLICIES = [
    {"namespaces": [LAB], "default": {"userId": "alice", "groupId": "20001", "account": "chemistry", "wckey": "lab"}},
    {"namespaces": ["*"], "mayNameScheduler": True, "allowed": ANYTHING},
]


@pytest.fixture(scope="module")
def world(state_folder):
    """The cluster of all pages."""
    settings = {
        "slurm": {"pollIdle": 0.5},
        "managedNamespaces": [NAMESPACE, REMOTE, LAB],
        "namespacePolicies": POLICIES,
        "nodes": {"externalNotReady": 2},
    }
    state = state_folder / "pages"
    with Cluster(state, slurm="26.05", nodes=2, slurm_conf=CONF, pools=list(SITES.values()), podbridge=settings) as up:
        for name in (LAB, "research", "physics", "calico-system"):
            up.add_namespace(name)
        accounts, *_ = commands("admins/billing.md")
        Shell({**os.environ, **up.env}, state).run(accounts)
        yield PoolWorld.started(up)


@pytest.fixture
def shell(world, tmp_path):
    """A shell in an empty directory, with the programs of podbridge's Python environment."""
    home = tmp_path / "home"
    (home / ".config").mkdir(parents=True)
    env = {**os.environ, **world.cluster.env, "HOME": str(home)}
    env["PATH"] = f"{env['PATH']}:{Path(sys.executable).parent}"
    return Shell(env, tmp_path, {" config/": f" {places.CHECKOUT}/config/", "~/podbridge/bin/": "", **SITES})


@pytest.fixture
def background():
    """Return a function that starts a block which does not end; it ends after the test."""
    started = []

    def start(shell, block, replaced=None):
        text = shell.text(block, replaced)
        started.append(subprocess.Popen(["bash", "-c", f"exec {text}"], cwd=shell.folder, env=shell.env))
        return started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def node(world, name):
    world.api.ensure("/api/v1/nodes", kube.node_object(name, Size(cpus=8, memory=16_000, gpus=0)))


def test_users(world, shell):
    pod = world.running(world.create())
    words = {"pod NAME": f"pod {pod['metadata']['name']} -n {NAMESPACE}", "NAMESPACE": NAMESPACE}
    told, deleted = shell.page("users/run-pods.md", words)
    job = str(world.job_of(pod))
    assert pod["metadata"]["name"] in told
    assert job in told
    assert "deleted" in deleted
    world.gone(pod)


def test_from_sbatch(world, shell):
    """Each manifest of the page runs, and becomes the job of Slurm that the page promises."""
    page, own = "users/from-sbatch.md", shell.folder / "kubeconfig"
    shutil.copy(world.cluster.kubeconfig, own)  # the first command changes it
    shell = Shell({**shell.env, "KUBECONFIG": str(own)}, shell.folder)
    texts = manifests(page)
    for name, text in texts.items():
        (shell.folder / f"{name}.yaml").write_text(text)
    select, create, then = commands(page)
    files = " ".join(f"-f {name}.yaml" for name in texts)
    shell.run(select)
    shell.run(create)
    shell.run(Block(page, 0, f"kubectl apply {files}", ""))
    shell.run(then)
    jobs = " ".join(f"job/{name}" for name in texts if name != "notebook")
    shell.run(Block(page, 0, f"kubectl wait --for=condition=Complete --timeout=60s {jobs}", ""))
    notebook = world.running(world.api("GET", world.path("notebook")))

    def slurm_jobs(name):
        ids = {world.job_of(pod) for pod in world.pods(selector=f"job-name={name}")}
        return [world.job(job) for job in ids]

    assert len(slurm_jobs("array")) == 4
    (fit,), (train,), (mpi,) = map(slurm_jobs, ("fit", "train", "mpi"))
    assert fit["TimeLimit"] == "04:00:00"
    assert (train["Partition"], train["TimeLimit"]) == ("gpu", "1-12:00:00")
    assert mpi["NumNodes"] == "2"
    assert world.job(world.job_of(notebook))["TimeLimit"] == "08:00:00"
    shell.run(Block(page, 0, f"kubectl delete {files}", ""))
    world.gone(notebook)


def test_groups_at_a_pool(world, shell):
    """The pods of each example of groups.md find each other, in one job of the site."""
    ring = container("$MASTER_ADDR", "$MASTER_PORT", "$RANK", "$WORLD_SIZE")
    programs = {"[python3, train.py]": ring["command"], "[solve]": ["sh", "-c", "echo $PMI_RANK of $PMI_SIZE"]}
    said = {}
    examples = manifests("users/groups.md")
    for text in examples.values():
        for old, new in {**programs, "site-a": POOL}.items():
            text = text.replace(old, new if isinstance(new, str) else json.dumps(new))
        body = yaml.safe_load(text)
        body["spec"]["template"]["spec"]["containers"][0]["env"] = ring["env"]
        world.api("POST", f"/apis/batch/v1/namespaces/{REMOTE}/jobs", body)
    for name in examples:
        pods = eventually(lambda n=name: len(p := world.pods(REMOTE, f"job-name={n}")) == 2 and p, "two pods", 30)
        ended = [world.ended(pod) for pod in pods]
        assert len({world.remote_job(pod) for pod in ended}) == 1
        said[name] = sorted(world.logs(pod).strip() for pod in ended)
    address = said["torch"][0].rpartition(" ")[2]
    assert address.startswith("torch-0")
    assert said == {"torch": lines(address, 2), "solve": ["0 of 2", "1 of 2"]}
    for name in said:
        world.api("DELETE", f"/apis/batch/v1/namespaces/{REMOTE}/jobs/{name}", {"propagationPolicy": "Background"})


def test_billing(world, shell):
    _, pod, usage, hours = commands("admins/billing.md")
    shown = shell.run(pod)
    assert "UserId=alice(" in shown
    assert "Account=chemistry" in shown
    assert "WCKey=lab" in shown
    world.cluster.kubectl("delete", "pod", "billed", f"--namespace={LAB}", "--grace-period=1")
    eventually(lambda: f"{LAB}/billed" in shell.run(usage), "sacct names the pod", 20)
    assert f"{LAB} chemistry alice " in shell.run(hours)


def test_external_nodes(world, shell):
    node(world, "worker-7")
    register, show = commands("admins/external-nodes.md")
    shell.run(register)
    eventually(lambda: "NodeName=worker-7" in world.slurm("scontrol", "show", "nodes"), "it is in Slurm", 30)
    eventually(lambda: "ExternalNode" in shell.run(show), "an Event", 20)
    pod = world.running(world.create(job={"partition": "k8s"}))
    assert pod["spec"]["nodeName"] == "worker-7"
    world.delete(pod)
    world.gone(pod)
    world.cluster.kubectl("delete", "node", "worker-7")
    eventually(lambda: "NodeName=worker-7" not in world.slurm("scontrol", "show", "nodes"), "it is gone", 30)


def test_security(world, shell):
    node(world, "named")
    exempt, name = shell.page("admins/security.md", {"worker-7": "named"})
    assert exempt.strip() == "namespace/calico-system labeled"
    assert name.strip() == "node/named labeled"
    world.cluster.kubectl("delete", "node", "named")


def test_several_schedulers(world, shell):
    objects, taint = commands("admins/several-schedulers.md")
    made = shell.run(objects).splitlines()
    assert any("podbridge-b-scheduler" in line for line in made)
    shell.run(taint, {"NODE": "node-1"})

    def tainted():
        found = world.kube_node("node-1")["spec"].get("taints") or ()
        return any(each["key"] == names.MANAGED_TAINT for each in found)

    eventually(tainted, "its scheduler takes the node again", 30)
    text = shell.text(objects).replace("apply -f -", "delete -f - --wait=false")
    subprocess.run(["bash", "-c", text], env=shell.env, check=True, capture_output=True)


def test_pools(world, shell):
    nodes, access, consent = shell.page("admins/pools.md")
    assert "slurm-site" in nodes
    assert "local-site" in nodes
    assert access.count("rolebinding") == 2
    assert consent.strip() == "namespace/research annotated"
    assert "podbridge-pools" in world.cluster.kubectl("get", "rolebindings", "--namespace=research")


def test_sites(world, shell):
    init, folder = commands("sites/sites.md")
    nats = world.cluster.nats
    own = {"wss://podbridge.example:443": f"{nats.websocket_url} --ca-file {nats.ca_file} --batch local"}
    printed = shell.run(init, own)
    assert "it does not know this key yet" in printed
    assert "podbridge pool add my-pool --key U" in printed
    files = shell.folder / "home/.config/podbridge/my-pool"
    assert {file.name: file.stat().st_mode & 0o777 for file in files.iterdir()} == dict.fromkeys(
        ("site.toml", "site.seed", "ca.crt"), 0o600
    )
    assert (shell.folder / "home/.config/systemd/user/podbridge-my-pool.service").exists()
    assert shell.run(folder, {"<pool>": POOL}).strip() == f"node/{POOL} annotated"
    world.ready(POOL)


def test_nats(world, shell, background):
    first = free_block(2)
    authority, cert, key = certificate(shell.folder, "nats.example.org")
    replaced = {
        "/etc/podbridge/nats": f"{shell.folder}/nats",
        "--websocket-port 8080": f"--listen 127.0.0.1:{first} --websocket-port {first + 1}",
        "/etc/ssl/nats/chain.pem": str(cert),
        "/etc/ssl/nats/key.pem": str(key),
        "/etc/ssl/nats/ca.pem": str(authority),
        "--context prod ": "",
        "--context test get namespace kube-system": "get namespace default",
    }
    write, check, start, *later = commands("admins/nats.md")
    shell.run(write, replaced)
    shell.run(check, replaced)
    background(shell, start, replaced)
    eventually(lambda: listens(first) and listens(first + 1), "the server listens")
    for block in later:
        shell.run(block, replaced)
    assert {file.name for file in (shell.folder / "nats" / "hubs").iterdir()} >= {"prod.seed", "test.seed"}
    for name in ("n1", "n2", "n3"):
        assert (shell.folder / "nats" / f"nats-server-{name}.conf").exists()


def test_the_plugin(world, shell, background):
    other = free_block(1)
    config, start, ask, over_nats = commands("sites/plugin.md")
    shell.run(config)
    file = shell.folder / "site.toml"
    site = 'pool = "here"\nfolder = "{}"\n[batch]\nkind = "local"\n[runtime]\nkind = "none"\n'
    file.write_text(site.format(shell.folder / "jobs"))
    background(shell, start)
    socket = Path(shell.env["HOME"]) / ".interlink" / "plugin.sock"
    eventually(socket.exists, "the plugin listens")
    assert "here" in shell.run(ask)
    uid = world.api("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"]
    nats = world.cluster.nats
    words = {"tls://nats.example.org:4222": nats.url, "hub.seed": str(nats.seed("hub")), "ca.crt": str(nats.ca_file)}
    background(
        shell, over_nats, {**words, "--owner UID": f"--owner {uid} --listen 127.0.0.1:{other} --allow-local-users"}
    )

    def pools():
        with urlopen(f"http://127.0.0.1:{other}/system-info") as answer:
            return POOL in answer.read().decode()

    eventually(lambda: listens(other) and pools(), "the plugin has the pools", 30)


def test_hints(shell, tmp_path):
    pipes, script, token, send, ended, consumer = commands("admins/slurm-hints.md")
    hint = tmp_path / "podbridge-hint"
    own = {
        "-o podbridge -g slurm": "-o root -g root",
        "chown slurm": "chown root",
        "/run/podbridge": str(tmp_path / "pipes"),
        "/etc/slurm/podbridge-hint": str(hint),
        "/etc/slurm/": f"{tmp_path}/",
        "kcat -b kafka.example.org:9092 -G podbridge-hints slurm-start slurm-end -u": "echo '{\"jobid\": 17}'",
    }
    shell.run(pipes, own)
    assert (tmp_path / "pipes").stat().st_mode & 0o7777 == 0o2750
    hint.write_text(shell.text(script, own) + "\n")
    hint.chmod(0o755)
    shell.run(token, own)
    assert (tmp_path / "hint-token").stat().st_mode & 0o777 == 0o600
    reader = Shell({**shell.env, "SLURM_JOB_ID": "17", "JOBID": "17"}, tmp_path)
    for block in (send, ended, consumer):
        reader.run(block, own)


def test_air_gapped(shell):
    shell = Shell({**shell.env, "PASSWORD": "secret"}, shell.folder)
    (made,) = shell.page("admins/air-gapped.md")
    assert made.strip() == "secret/registry-login created"


def test_switching(world, shell):
    slurm = 'SbatchPath: "/usr/bin/sbatch"\nDataRootFolder: "/tmp/x/"\n'
    (shell.folder / "SlurmConfig.yaml").write_text(slurm)
    (shell.folder / "build.conf").write_text('[slurm]\npartition = "batch"\n')
    for name, source in (("old", "nats-plugin"), ("slurm-bridge", "slurm-bridge")):
        (shell.folder / f"{name}.yaml").write_text((INPUTS / f"{source}.yaml").read_text())
    flavor = {"name": "sites", "poolFlavor": {"poolRegExp": "^none$"}}
    queue = {
        "apiVersion": "vk.io/v1",
        "kind": "MasterQueue",
        "metadata": {"name": "old"},
        "spec": {"flavors": [flavor]},
    }
    world.api.ensure("/apis/vk.io/v1/masterqueues", queue)
    for name in ("from-interlink-slurm", "from-interlink", "from-nats-plugin", "from-slurm-bridge"):
        world.cluster.kubectl("annotate", "namespace", "research", "bridge.vk.io/pools-", "bridge.vk.io/pool-secrets-")
        shell.page(f"admins/switch/{name}.md", {"/etc/interlink/": ""})
    assert "slurmRestApi" in (shell.folder / "values.yaml").read_text()
    assert "name: old" in (shell.folder / "queues.yaml").read_text()
    world.api("DELETE", "/apis/vk.io/v1/masterqueues/old")


def test_kustomize(shell):
    """The two files of docs/admins/install.md replace image and configuration of config/."""
    page = (DOCS / "admins/install.md").read_text().partition("## Install without Helm")[2]
    files = re.findall(r"(?s)`site/([\w.]+)`.*?```yaml\n(.*?) *```", page)
    assert [name for name, _ in files] == ["kustomization.yaml", "config.yaml"]
    shutil.copytree(places.CHECKOUT / "config", shell.folder / "config")
    (shell.folder / "site").mkdir()
    for name, text in files:
        (shell.folder / "site" / name).write_text(dedent(text))
    block = command("admins/install.md", "kubectl kustomize")
    shown, applied = (Block(block.page, block.line, line, "") for line in block.text.splitlines())
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(shell.run(shown))}
    text = found["ConfigMap", "podbridge-config"]["data"]["config.yaml"]
    config = bridge.config.hub.parse(text)
    assert config.managed_namespaces == ["physics"]
    original = next(
        each["data"]["config.yaml"]
        for each in yaml.safe_load_all((places.CHECKOUT / "config" / "podbridge.yaml").read_text())
        if each["kind"] == "ConfigMap"
    )
    assert yaml.safe_load(text).items() >= yaml.safe_load(original).items()
    deployments = [each for (kind, _), each in found.items() if kind == "Deployment"]
    containers = [pod for each in deployments for pod in each["spec"]["template"]["spec"]["containers"]]
    assert {each["image"] for each in containers} == {f"registry.example.org/podbridge:{bridge.__version__}"}
    made = shell.run(applied, {"apply": "apply --dry-run=server"})
    assert "deployment.apps/podbridge-scheduler created (server dry run)" in made


def test_install_without_helm(world, shell):
    """The first steps change nothing here, since the cluster has these objects; the last ones uninstall podbridge."""

    def block(text):
        return command("admins/install.md", text)

    assert "unchanged" in shell.run(block("apply -f config/rbac.yaml"))
    assert "unchanged" in shell.run(block("apply -f config/policies.yaml"))
    shell.run(block("nats config"))
    shell.run(block("> /path/to/token"), {"/path/to/token": "token"})
    assert claims((shell.folder / "token").read_text())["sun"] == "slurm"
    assert stat.S_IMODE((shell.folder / "token").stat().st_mode) == 0o600
    checked = shell.run(block("podbridge check"), {"config.yaml": str(world.cluster.state / "podbridge.yaml")})
    assert "node-0" in checked

    pod = world.running(world.create())
    shown = block("TAINTS:.spec.taints")
    assert names.MANAGED_TAINT in shell.run(shown)
    world.cluster.stop_podbridge()
    world.cluster.start_podbridge(config_overrides={"nodes": {"selector": {"matchLabels": {"podbridge": "uninstall"}}}})
    eventually(lambda: names.MANAGED_TAINT not in shell.run(shown), "the nodes are released", 30)
    world.cluster.stop_podbridge()
    shell.run(block("--unregister"))
    assert f'node "{POOL}" deleted' in shell.run(block("delete nodes"))

    def patch(*words):
        world.cluster.kubectl("patch", "pod", pod["metadata"]["name"], "-n", NAMESPACE, *words)

    patch("-p", '{"metadata": {"finalizers": ["example.org/foreign"]}}')
    shell.run(block("finalizers"))
    assert len(world.get(pod)["metadata"]["finalizers"]) == 2  # its containers run
    patch("--subresource=status", "-p", '{"status": {"phase": "Succeeded"}}')
    shell.run(block("finalizers"))
    assert world.get(pod)["metadata"]["finalizers"] == ["example.org/foreign"]
    patch("-p", '{"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.org/foreign"]}}')
