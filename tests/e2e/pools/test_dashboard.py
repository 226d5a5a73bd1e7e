"""The web page in a real browser, on a real cluster with pools."""

from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import yaml

from cluster import places
from cluster.pools import NAMESPACE
from cluster.systems import dashboard
from cluster.systems.browser import Browser
from cluster.world import World

pytestmark = pytest.mark.real
POOL = "local-site"
USERS = ("reader", "nobody")


@pytest.fixture(scope="module")
def browser(pools_world):
    with Browser(pools_world.cluster.state / "browser") as opened:
        yield opened


@pytest.fixture(scope="module")
def page(pools_world, browser):
    """The address of the page, which the browser has opened with the token."""
    with dashboard.served(pools_world) as served:
        browser.size(1280, 900)
        browser.open(served.url)
        assert "token" not in browser.url
        yield browser.url.rstrip("/")


def of_account(cluster):
    """Write a kubeconfig of the account of config/rbac-dashboard.yaml, without the administrator's certificate."""
    cluster.kubectl("apply", "-f", str(places.CHECKOUT / "config" / "rbac-dashboard.yaml"))
    token = cluster.kubectl("create", "token", "podbridge-dashboard", "-n", "podbridge").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    file = cluster.state / "dashboard.kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
    return file


def contrast(browser, selector):
    """Return the ratio of the luminance of a text and of the page's ground (WCAG 2.2, 1.4.3)."""
    script = """
    const light = (color) => {
      const canvas = document.createElement('canvas').getContext('2d');
      canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
      const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
        .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const text = light(getComputedStyle(document.querySelector(arguments[0])).color);
    const ground = light(getComputedStyle(document.body).backgroundColor);
    return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);"""
    return browser.run(script, selector)


class TestLocal:
    def test_a_pod_on_a_pool_from_its_creation_to_its_log(self, pools_world, browser, page):
        browser.open(f"{page}/pods?q=watched")
        assert "No pod matches" in browser.text()
        secret = {"name": "PASSWORD", "value": "hunter2"}
        script = "for i in 1 2 3 4 5 6; do echo line $i of $i; sleep 1; done"
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], "env": [secret]}
        pod = pools_world.create_pod({"containers": [container], "restartPolicy": "Never"}, POOL, "watched")
        browser.wait(lambda b: "running" in b.text("td"), "the list is live")  # no reload
        browser.click("tbody th a")
        browser.wait(lambda b: f"on pool {POOL}" in b.text(), "the page of the pod")
        assert {"Created", "Bound", "BridgeSubmitted"} <= set(browser.text(".steps").split())
        browser.click("main .button")
        browser.wait(lambda b: "line 2 of 2" in b.text("#log"), "the log")
        browser.wait(lambda b: "line 6 of 6" in b.text("#log"), "the log is followed")
        browser.wait(lambda b: "has ended" in b.text("#log-state"), "the end of the log")
        pools_world.ended(pod)
        browser.open(f"{page}/pods/{NAMESPACE}/watched")
        assert "succeeded" in browser.text(".summary")
        assert "hunter2" not in browser.run("return document.documentElement.outerHTML")
        assert browser.problems() == []
        pools_world.delete(pod)

    def test_a_pod_on_slurm_has_the_allocation_of_its_job(self, pools_world, browser, page):
        world = World(pools_world.cluster)
        pod = world.running(world.create("allocated"))
        browser.open(f"{page}/pods/{pod['metadata']['namespace']}/allocated")
        steps = browser.text(".steps").split()
        assert {"Created", "Allocated", "Bound"} <= set(steps)
        assert steps.index("Allocated") < steps.index("Bound")
        world.delete(pod, grace=1)
        world.gone(pod)

    def test_why_a_pod_waits(self, pools_world, browser, page):
        needs = {"requests": {"cpu": "5000"}}
        container = {"name": "main", "image": "busybox", "resources": needs}
        pod = pools_world.create_pod({"containers": [container]}, POOL, "too-large")
        browser.open(page)
        browser.wait(lambda b: "too-large" in b.text(), "named on the first page")
        browser.open(f"{page}/pods/{NAMESPACE}/too-large")
        browser.wait(lambda b: "too little cpu" in b.text(".report"), "explained")
        assert "too little cpu" in pools_world.explain(pod)
        pools_world.delete(pod)
        browser.wait(lambda b: "Error 404" in b.text() or "not updated: 404" in b.text("#live"), "gone")

    def test_keyboard_colors_and_a_phone(self, browser, page, tmp_path):
        browser.open(page)
        browser.press("Tab")
        assert browser.run("return document.activeElement.className") == "skip"
        browser.press("Enter", "Tab")
        assert browser.run("return document.activeElement.classList.contains('tile')")
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        browser.press("Enter")
        assert browser.url.endswith("/pods?state=waiting")
        grounds = []
        for scheme in ("dark", "light"):
            browser.prefer(scheme)
            grounds.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
            for selector in ("h1", ".count", "header nav a"):
                assert contrast(browser, selector) >= 4.5, (scheme, selector)
            browser.screenshot(tmp_path / f"{scheme}.png")
        assert grounds[0] != grounds[1]
        browser.click("#theme")
        assert browser.text("#theme") == "Theme: dark"
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == grounds[0]
        browser.click("#theme")
        browser.click("#theme")
        browser.size(360, 740)
        for path in ("/", "/pods", "/nodes"):
            browser.open(page + path)
            assert browser.run("return document.documentElement.scrollWidth") <= 360, path
        browser.screenshot(tmp_path / "phone.png")
        browser.size(1280, 900)
        pictures = [(tmp_path / f"{name}.png").read_bytes() for name in ("dark", "light", "phone")]
        assert all(pictures) and len(set(pictures)) == 3


@contextmanager
def busy_slurm(world):
    """Keep a job of alice and a pod on Slurm, and a drained node; yield the pod."""
    job = world.slurm(
        "sbatch", "--parsable", "--uid=alice", "--chdir=/", "--output=/dev/null", "--job-name=secret-work",
        "-n1", "-c3", "--mem=100", "--wrap=sleep 600",
    ).strip()  # fmt: skip
    world.slurm("scontrol", "update", "nodename=node-1", "state=drain", "reason=bad fan")
    pod = world.running(world.create("mapped", cpu="2"))
    try:
        yield pod
    finally:
        world.slurm("scontrol", "update", "nodename=node-1", "state=resume")
        world.slurm("scancel", job)
        world.delete(pod, grace=1)
        world.gone(pod)


class TestPlaces:
    def test_the_map_has_the_pods_and_other_jobs_as_sums(self, pools_world, browser, page):
        world = World(pools_world.cluster)
        browser.problems()  # those of earlier tests
        with busy_slurm(world) as pod:
            node = pod["spec"]["nodeName"]
            browser.open(f"{page}/map?partition=main")
            cell = f"document.querySelector('a[href*=\"node={node}\"]').title"
            browser.wait(lambda b: "2 of" in b.run(f"return {cell}"), "the pod on the map", 40)
            browser.wait(lambda b: "bad fan" in b.run("return document.body.innerHTML"), "the drain", 40)
            browser.wait(lambda b: "3 for other jobs" in b.text(".sums"), "the job of alice", 40)
            shown = browser.run("return document.documentElement.outerHTML")
            assert "alice" not in shown and "secret-work" not in shown
            browser.run("document.querySelector('.cell').focus()")
            assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
            browser.press("Enter")
            browser.wait(lambda b: "memory:" in b.text(".summary"), "the amounts of the node")
            browser.size(360, 740)
            for path in ("/map", "/map?node=node-1"):
                browser.open(page + path)
                assert browser.run("return document.documentElement.scrollWidth") <= 360, path
            browser.size(1280, 900)
            assert browser.problems() == []

    def test_the_queue_has_a_waiting_pod_its_position_and_its_next_step(self, pools_world, browser, page):
        world = World(pools_world.cluster)
        browser.problems()
        with busy_slurm(world):
            whole = str(world.kube_node("node-0")["status"]["allocatable"]["cpu"])
            waits = world.create("waits", cpu=whole)
            world.seen(waits, "pending", lambda pod: "SlurmPending" in str(pod))
            browser.open(f"{page}/queue?place=main&sort=position")
            browser.wait(lambda b: "1 of 1" in b.text("tr:has(a[href$='/waits'])"), "the position", 60)
            assert browser.text("[aria-sort=ascending]").startswith("Position")
            browser.wait(lambda b: "1 running" in b.text("[data-live=places]"), "the job of alice", 40)
            shown = browser.run("return document.documentElement.outerHTML")
            assert "alice" not in shown and "secret-work" not in shown
            browser.click("[aria-sort=ascending] a")
            browser.wait(lambda b: b.url.endswith("?place=main&sort=-position"), "the other direction, with the filter")
            browser.size(360, 740)
            for path in ("/queue", "/queue?sort=-start"):
                browser.open(page + path)
                assert browser.run("return document.documentElement.scrollWidth") <= 360, path
            browser.size(1280, 900)
            assert browser.problems() == []
            world.delete(waits, grace=1)
            world.gone(waits)


class TestSignIn:
    def test_each_user_sees_what_roles_allow(self, pools_world, browser):
        cluster = pools_world.cluster
        for name in USERS:
            cluster.kubectl("create", "serviceaccount", name, "-n", NAMESPACE, check=False)  # exists on a kept cluster
        bound = ("--clusterrole=view", f"--serviceaccount={NAMESPACE}:{USERS[0]}")
        cluster.kubectl("create", "rolebinding", "reader", "-n", NAMESPACE, *bound, check=False)
        reader, nobody = (cluster.kubectl("create", "token", name, "-n", NAMESPACE).strip() for name in USERS)
        pod = pools_world.run("echo for-readers", POOL, "shared")
        pools_world.ended(pod)
        with dashboard.served(pools_world, "--sign-in", kubeconfig=of_account(cluster)) as page:
            url = page.url
            assert "token" not in url
            assert urlsplit(url).hostname == "127.0.0.1"
            self._sign_in(browser, url, reader)
            browser.wait(lambda b: "You may not list nodes" in b.text(), "no nodes")
            browser.open(f"{url}nodes")
            assert "You may not list nodes" in browser.text()
            browser.open(f"{url}pods?q=shared")
            browser.wait(lambda b: "shared" in b.text("tbody"), "the pod")
            browser.open(f"{url}pods/{NAMESPACE}/shared/logs")
            browser.wait(lambda b: "for-readers" in b.text("#log"), "the log")
            browser.click("form button")
            browser.wait(lambda b: b.url.endswith("/sign-in"), "signed out")
            self._sign_in(browser, url, nobody)
            browser.open(f"{url}pods?q=shared")
            assert "No pod matches" in browser.text()
            browser.open(f"{url}map")
            browser.wait(lambda b: "node-0" in b.text(), "the map, which all users may see", 40)
            assert POOL not in browser.run("return document.documentElement.outerHTML")
            for path in ("pods/{}/shared", "pods/{}/shared/logs"):
                browser.open(url + path.format(NAMESPACE))
                assert "Error 403" in browser.text(), path
            browser.open(f"{url}log/{NAMESPACE}/shared/main")
            assert "for-readers" not in browser.text("body")
            assert "forbidden" in browser.text("body")
        pools_world.delete(pod)

    @staticmethod
    def _sign_in(browser, url, token):
        browser.open(url)
        browser.run("document.querySelector('input[name=token]').value = arguments[0]", token)
        browser.click("main button")
        browser.wait(lambda b: "Overview" in b.text("h1"), "signed in")
