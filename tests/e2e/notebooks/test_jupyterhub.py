"""JupyterHub with a real browser: the servers of users are pods at sites, with the values of the how-to page."""

import json
import re
import urllib.error
import urllib.request

import pytest

from cluster.polling import eventually
from cluster.systems import jupyter
from cluster.systems.browser import Browser
from cluster.systems.jupyter import JupyterHub
from cluster.systems.lab import LabUser
from tests import processes

pytestmark = [pytest.mark.real, pytest.mark.long_only]
LOCAL, SLURM = "local-site", "slurm-site"
WHERE = "import os; print(6 * 7, os.path.exists('/etc/debian_version'))"
"""The second word says whether the kernel sees the root folder of its machine, instead of that of an image."""
HUB = {LOCAL: r"http://127\.[0-9.]+:8081/hub/api", SLURM: "http://hub:8081/hub/api"}
SERVERS = "component=singleuser-server"


@pytest.fixture(scope="module")
def world(state_folder):
    """One site runs containers, the other one has no container runtime."""
    with jupyter.cluster(state_folder / "notebooks", [LOCAL, SLURM], site_slurm="26.05") as cluster:
        yield jupyter.start_podbridge(cluster)


@pytest.fixture(scope="module")
def hub(world):
    with JupyterHub(world.cluster) as started:
        yield started


@pytest.fixture(scope="module")
def browser(world):
    with Browser(world.cluster.state / "browser") as opened:
        opened.size(1280, 900)
        yield opened


@pytest.fixture
def clean(world, hub):
    """No server of a test before is left."""
    yield
    for pod in world.pods(jupyter.NAMESPACE, SERVERS):
        world.delete(pod, grace=1)
    eventually(lambda: not world.pods(jupyter.NAMESPACE, SERVERS), "no server", 60)


def server(world, name):
    """Return the pod of a user's server."""
    (found,) = world.pods(jupyter.NAMESPACE, f"hub.jupyter.org/username={name}")
    return found


def nothing_is_left(world, pod, site):
    world.gone(pod, 60)
    eventually(lambda: not world.jobs_at(site), f"no job at {site}", 60)
    for program in (str(jupyter.environment() / "bin" / "jupyterhub-singleuser"), "ipykernel_launcher"):
        eventually(lambda word=program: not processes.with_word(word), f"no {program}", 30)


@pytest.mark.parametrize("site", [LOCAL, SLURM])
def test_a_cell_runs_at_the_site_until_the_user_stops_the_server(world, hub, browser, clean, site):
    user = LabUser(browser, hub, "alice")
    user.start(site)
    pod = server(world, "alice")
    assert pod["spec"]["nodeName"] == site
    user.open_notebook()
    assert user.run(WHERE) == f"42 {site == LOCAL}"
    assert re.fullmatch(HUB[site], user.run("print(os.environ['JUPYTERHUB_API_URL'])"))
    assert browser.problems() == []
    user.stop()
    nothing_is_left(world, pod, site)


def test_a_user_does_not_reach_the_server_of_another_user(world, hub, browser, clean):
    """Both servers are processes of one machine: each has a port of its own there, which a login protects."""
    LabUser(browser, hub, "alice").start(LOCAL)
    port = next(each["containerPort"] for each in server(world, "alice")["spec"]["containers"][0]["ports"])
    bob = LabUser(browser, hub, "bob")
    bob.start(LOCAL)
    bob.open_notebook()
    for target in (f"http://127.0.0.1:{port}", hub.url, endpoint(world, "jupyter-alice")):
        code = (
            "import os, urllib.request as r, urllib.error as e\\n"
            "own = {'Authorization': 'token ' + os.environ['JUPYTERHUB_API_TOKEN']}\\n"
            f"try: print(r.urlopen(r.Request('{target}/user/alice/api/contents', headers=own)).status)\\n"
            "except e.HTTPError as error: print(error.code)"
        )
        assert bob.run(f'exec("{code}")') == "403", target
    browser.open(f"{hub.url}/user/alice/lab")
    assert "403 : You do not have permission" in browser.text("body")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{endpoint(world, 'jupyter-alice')}/user/alice/api/contents", timeout=30)


def endpoint(world, service):
    """Return the URL at which podbridge exposes a server."""
    name = f"--selector=kubernetes.io/service-name={service}"
    found = json.loads(
        world.cluster.kubectl("get", "endpointslices", name, f"--namespace={jupyter.NAMESPACE}", "--output=json")
    )
    (ours,) = [each for each in found["items"] if each["endpoints"]]
    return f"http://{ours['endpoints'][0]['addresses'][0]}:{ours['ports'][0]['port']}"


def test_a_server_whose_pod_is_deleted_can_be_started_again(world, hub, browser, clean):
    user = LabUser(browser, hub, "carol")
    user.start(SLURM)
    pod = server(world, "carol")
    user.open_notebook()
    assert user.run(WHERE) == "42 False"
    world.delete(pod)
    nothing_is_left(world, pod, SLURM)
    eventually(lambda: is_known_to_be_gone(hub, browser, "carol"), "the Hub has looked", 60, every=1)
    user.start(LOCAL)
    user.open_notebook()
    assert user.run(WHERE) == "42 True"
    assert server(world, "carol")["metadata"]["uid"] != pod["metadata"]["uid"]


def is_known_to_be_gone(hub, browser, name):
    browser.open(f"{hub.url}/user/{name}/lab")
    return "Server not running" in browser.text("body")


def test_servers_and_their_kernels_outlive_the_hub(world, hub, browser, clean):
    user = LabUser(browser, hub, "dora")
    user.start(LOCAL)
    user.open_notebook()
    assert user.run("result = 21; result") == "21"
    world.cluster.kill(jupyter.HUB)
    assert user.run("2 * result") == "42"
    hub.start_hub()
    browser.open(f"{hub.url}/hub/home")
    pod = server(world, "dora")
    user.stop()
    nothing_is_left(world, pod, LOCAL)
