"""The cache of pulled images, with apptainer and podman and a registry on this machine."""

import base64
import contextlib
import fcntl
import json
import os
import signal
import tempfile
import uuid
from pathlib import Path

import pytest

from bridge.clock import SystemClock
from bridge.script.references import Objects
from bridge.site.config.site_config import Images
from bridge.site.images import NAME, ImageCache
from tests.contract.script.conftest import NOBODY
from tests.contract.script.containers import Containers, Podman, SidHome
from tests.contract.script.registry import Registry

pytestmark = pytest.mark.real
LOGIN = "user:very-secret"
WAITS = "while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def home():
    made = SidHome()
    yield made
    made.close()


@pytest.fixture
def registry(home):
    made = Registry()
    made.put("team/tool", "1", home.folder / "busybox", version="one\n")
    yield made
    made.close()


@pytest.fixture
def private(home):
    made = Registry(LOGIN)
    made.put("team/tool", "1", home.folder / "busybox", version="private\n")
    yield made
    made.close()


class CachingSite(Containers):
    """Jobs of one site: they share a cache."""

    def __init__(self, kind, home, place="/tmp"):
        super().__init__(kind, home)
        self.folder = Path(tempfile.mkdtemp(prefix="script-site-", dir=place))
        self._folders.append(self.folder)
        self.settings = Images()
        self.cache = ImageCache(self.folder, lambda: self.settings, SystemClock())
        self.cache.prepare()
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)

    def pod(self, image, text="cat /version", policy=None, login="", **more):
        environment = {"APPTAINER_NOHTTPS": "1", **more.pop("environment", {})}
        container = self.shell(text, image=image, **more.pop("container", {}))
        if policy:
            container["imagePullPolicy"] = policy
        spec = {"containers": [container], **more}
        objects = Objects()
        if login:
            auth = base64.b64encode(login.encode()).decode()
            content = json.dumps({"auths": {image.split("/")[0]: {"auth": auth}}}).encode()
            objects = Objects(secrets={"login": {"data": {".dockerconfigjson": base64.b64encode(content).decode()}}})
            spec["imagePullSecrets"] = [{"name": "login"}]
        job = self.job(spec, objects=objects, environment=environment)
        job.folder = job.folder.rename(job.folder.with_name(str(uuid.uuid4())))
        (job.home / NAME).symlink_to(self.folder / NAME)
        return job.start()

    def done(self, job):
        job.wait(120)
        ended = job.state("main").get("ended") or {}
        return ended.get("reason"), job.log_if_any().splitlines()[-1:], job

    def runs(self, job, says):
        assert self.done(job)[:2] == ("Completed", [says]), job.everything()

    def fails(self, job, reason):
        assert self.done(job)[0] == reason, job.everything()

    def kept(self):
        """What is in the cache, but for locks: the files of each image."""
        return sorted([sorted(os.listdir(at)) for at in (self.folder / NAME).iterdir() if len(at.name) == 64], key=len)


@pytest.fixture
def site(home):
    made = CachingSite("apptainer", home)
    yield made
    made.close()


WHOLE = ["image", "name"]
PULLS = "HEAD .*/manifests/"
"""What each pull of apptainer begins with."""


def says(job, text):
    return text in job.state("main").get("message", "")


def test_pods_at_once_pull_an_image_once(site, registry):
    """The others say what they wait for, and the next pod asks nobody."""
    registry.hold(PULLS)
    image = f"{registry.host}/team/tool:1"
    jobs = [site.pod(image) for _ in range(5)]
    jobs[0].eventually(lambda: sum(says(job, f"pulling image docker://{image}") for job in jobs) == 1)
    waits = f"waiting until another pod has pulled image docker://{image}"
    jobs[0].eventually(lambda: sum(says(job, waits) for job in jobs) == 4)
    registry.release()
    for job in jobs:
        site.runs(job, "one")
        assert "message" not in job.state("main") or not job.state("main")["message"]
    assert registry.count("GET .*/blobs/") == 2, registry.asked  # the configuration and the one layer
    asked = len(registry.asked)
    site.runs(site.pod(image, policy="Never"), "one")
    assert len(registry.asked) == asked and site.kept() == [WHOLE]
    assert not [path for job in jobs for path in (job.folder / "run").glob("main.sif*")]
    image_file = next((site.folder / NAME).glob("*/image"))
    assert image_file.stat().st_mode & 0o777 == 0o400 and image_file.stat().st_nlink == 1


@pytest.mark.parametrize("killed", ["the script", "all of it"])
def test_a_pull_that_is_killed(site, registry, killed):
    """Its lock goes with it, what it left is removed, and the next pod pulls."""
    registry.put("team/tool", "2", site.own.folder / "busybox", version=f"two {killed}\n")
    registry.hold("GET .*/blobs/")
    image = f"{registry.host}/team/tool:2"
    first, second = site.pod(image), site.pod(image)
    first.eventually(lambda: registry.count("GET .*/blobs/"))
    first.eventually(lambda: any(says(job, "waiting until another pod") for job in (first, second)))
    if says(first, "waiting"):
        first, second = second, first
    (left,) = (site.folder / NAME).glob("*/new.*")
    if killed == "the script":
        first.process.kill()
        first.wait()
    else:
        for process in _processes(first):
            os.kill(process, signal.SIGKILL)
    first.eventually(lambda: not left.exists())  # the second one is at it
    registry.release()
    site.runs(second, f"two {killed}")
    assert site.kept() == [WHOLE]
    first.eventually(lambda: not _processes(first))
    if killed == "all of it":  # then the batch system's leftovers are called for
        first.spawn("leftovers").wait(20)
    first.eventually(lambda: not list(Path("/tmp").glob(f"podbridge-{first.folder.name}*")))


def test_a_pod_that_is_deleted_while_it_pulls(site, registry):
    registry.put("team/tool", "3", site.own.folder / "busybox", version="three\n")
    registry.hold("GET .*/blobs/")
    job = site.pod(f"{registry.host}/team/tool:3")
    job.eventually(lambda: registry.count("GET .*/blobs/"))
    job.ask_to_stop(5)
    job.wait(4)
    job.eventually(lambda: not _processes(job))
    assert site.kept() == [[]] and not list(Path("/tmp").glob(f"podbridge-{job.folder.name}*"))
    site.cache.enforce_limits()
    assert site.kept() == []


def _processes(job):
    """All processes that a job has begun: they are in its folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(entry.joinpath("cwd").readlink()).startswith(str(job.home)):
                found.append(int(entry.name))
    return found


def test_an_image_that_needs_a_login_is_for_pods_that_have_it(site, private):
    image = f"{private.host}/team/tool:1"
    site.fails(site.pod(image), "ErrImagePull")
    site.runs(site.pod(image, login=LOGIN), "private")
    site.fails(site.pod(image), "ErrImagePull")
    site.fails(site.pod(image, login="user:other"), "ErrImagePull")
    site.fails(site.pod(image, policy="Never"), "ErrImageNeverPull")
    private.close()
    site.runs(site.pod(image, login=LOGIN), "private")
    site.runs(site.pod(image, login=LOGIN, policy="Never"), "private")
    assert "very-secret" not in "".join(str(path) for path in site.folder.rglob("*"))


def test_policies(site, registry):
    image = f"{registry.host}/team/tool:1"
    site.fails(site.pod(image, policy="Never"), "ErrImageNeverPull")
    site.runs(site.pod(image), "one")
    registry.put("team/tool", "1", site.own.folder / "busybox", version="changed\n")
    site.runs(site.pod(image), "one")
    site.runs(site.pod(image, policy="Always"), "changed")
    before = registry.count(PULLS)
    site.runs(site.pod(image, policy="Always"), "changed")
    one = registry.count(PULLS) - before
    assert one and site.kept() == [WHOLE]
    # a pull that has begun before a pod is none for that pod, one that begins later is for all that wait
    registry.hold(PULLS)
    jobs = [site.pod(image, policy="Always")]
    jobs[0].eventually(lambda: registry.count(PULLS) > before + one)
    registry.put("team/tool", "1", site.own.folder / "busybox", version="last\n")
    jobs += [site.pod(image, policy="Always") for _ in range(3)]
    jobs[0].eventually(lambda: all(says(job, "waiting until") for job in jobs[1:]))
    registry.release()
    for job in jobs:
        site.runs(job, "last")
    assert registry.count(PULLS) == before + 3 * one, registry.asked
    # a digest is a name of its own, whichever the tag is by now
    digest = registry.put("team/tool", "9", site.own.folder / "busybox", version="nine\n")
    site.runs(site.pod(f"{registry.host}/team/tool@{digest}"), "nine")
    site.runs(site.pod(f"{registry.host}/team/tool:9@{digest}", policy="Never"), "nine")


def test_limits_leave_images_that_are_in_use(site, registry):
    registry.put("team/other", "1", site.own.folder / "busybox", version="other\n")
    probe = {"exec": {"command": ["grep", "-q", "one", "/version"]}, "periodSeconds": 1}
    job = site.pod(f"{registry.host}/team/tool:1", WAITS, container={"readinessProbe": probe})
    job.eventually(lambda: job.state("main").get("ready"))
    site.runs(site.pod(f"{registry.host}/team/other:1"), "other")
    assert site.kept() == [WHOLE, WHOLE]
    for file in (site.folder / NAME).glob("*/image"):
        os.utime(file, (1, 1))
    site.settings = Images(cache_size="1", cache_days=1)
    site.cache.enforce_limits()
    assert site.kept() == [WHOLE]
    # even without the cache's own file the container has its image
    for file in (site.folder / NAME).glob("*/image"):
        file.unlink()
    (job.folder / "work" / "main" / "tmp" / "x").write_text("")
    job.eventually(lambda: job.state("main").get("ready"))
    assert job.state("main")["state"] == "running"
    job.ask_to_stop(0)
    job.wait()
    site.cache.enforce_limits()
    assert site.kept() == []


def test_a_site_without_a_cache(site, registry):
    """Each container pulls for itself, and nobody gets what another one pulled."""
    (site.folder / NAME / "on").unlink()
    image = f"{registry.host}/team/tool:1"
    for number in (1, 2):
        site.runs(site.pod(image), "one")
        assert registry.count(PULLS) >= number and site.kept() == []
    site.fails(site.pod(image, policy="Never"), "ErrImageNeverPull")


def test_a_cache_on_another_file_system(home, registry):
    """No links lead there: a container gets a copy."""
    site = CachingSite("apptainer", home, "/dev/shm")
    try:
        for policy in ("IfNotPresent", "Never", "Always"):
            site.runs(site.pod(f"{registry.host}/team/tool:1", policy=policy), "one")
            assert site.kept() == [WHOLE]
        assert registry.count(PULLS) == 2
    finally:
        site.close()


def test_a_lock_that_is_not_to_be_had(site, registry):
    """A pull that hangs somewhere keeps no pod waiting for ever."""
    image = f"{registry.host}/team/tool:1"
    site.runs(site.pod(image), "one")
    (lock,) = (site.folder / NAME / "locks").iterdir()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        site.runs(site.pod(image, environment={"PODBRIDGE_PULL_WAIT_SECONDS": "1"}, policy="Always"), "one")
    assert registry.count(PULLS) == 2 and site.kept() == [WHOLE]


def test_podmans_storage_asks_for_the_login_too(registry, private):
    home = Podman()
    folder = home.folder / "home" / ".config" / "containers"
    folder.mkdir(parents=True)
    places = [f'[[registry]]\nlocation = "{each.host}"\ninsecure = true\n' for each in (registry, private)]
    (folder / "registries.conf").write_text("".join(places))
    for path in (home.folder / "home").rglob("*"):
        if path.name in (".config", "containers", "registries.conf") and path.is_relative_to(folder.parent):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    site = CachingSite("podman", home)
    try:
        image = f"{private.host}/team/tool:1"
        site.runs(site.pod(image, login=LOGIN), "private")
        site.fails(site.pod(image), "ErrImagePull")
        site.fails(site.pod(image, login="user:other"), "ErrImagePull")
        site.fails(site.pod(image, policy="Never"), "ErrImageNeverPull")
        asked = len(private.asked)
        site.runs(site.pod(image, login=LOGIN, policy="Never"), "private")
        assert len(private.asked) == asked
        jobs = [site.pod(f"{registry.host}/team/tool:1") for _ in range(3)]
        for job in jobs:
            site.runs(job, "one")
        assert registry.count("GET .*/blobs/") == 2, registry.asked
        # what the site's user has put there itself is for everybody
        site.runs(site.pod("busybox:1", "echo there", policy="Never"), "there")
    finally:
        site.close()
        home.close()


def test_the_files_of_a_cache_are_private(site, registry):
    site.runs(site.pod(f"{registry.host}/team/tool:1"), "one")
    for path in [site.folder / NAME, *(site.folder / NAME).rglob("*")]:
        assert not path.stat().st_mode & 0o077 and path.owner() == "nobody", path
