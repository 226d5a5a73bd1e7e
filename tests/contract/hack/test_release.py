"""The wheel of a release in fresh environments, without extras and with the hub's; the refusals of hack/release.sh."""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import zipfile
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bridge import __version__
from bridge.protocol.nats.envelope import parse
from bridge.protocol.nats.messages import Announce
from cluster import Cluster, places, tools
from cluster.polling import eventually
from cluster.ports import free_block, http_status
from tests.contract.hack.conftest import RELEASE, clean, run, successful
from tests.contract.nats.servers import NatsServer, World

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]


def needed(requirements, extras=("",)):
    """Return the names of packages with all that they need, by the metadata of this environment."""
    found = {}
    pending = [(Requirement(text), extras) for text in requirements]
    while pending:
        requirement, of = pending.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in of):
            continue
        name = canonicalize_name(requirement.name)
        wanted = found.setdefault(name, set())
        new = {"", *requirement.extras} - wanted
        wanted |= new
        if new:
            pending += [(Requirement(text), tuple(new)) for text in importlib.metadata.requires(name) or ()]
    return set(found)


def wheels(lock):
    """Return the wheels of a lock file, from a folder of the cache; download them once and check their digests."""
    folder = places.cache() / f"wheels-{sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not (folder / ".complete").exists():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        successful(*pip, "wheel", "--quiet", "--no-deps", "--require-hashes", "-r", str(lock), "-w", str(folder))
        (folder / ".complete").touch()
    return map(str, sorted(folder.glob("*.whl")))


def installed(wheel, folder, *extras):
    """Install the wheel with extras and the versions of the lock file; return the environment's folder of programs."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"podbridge-{__version__}.dist-info/METADATA").decode()
    wanted = needed(re.findall(r"(?m)^Requires-Dist: (.*)$", metadata), ("", *extras))
    entries = re.findall(r"(?m)^[\w.-]+==.*(?:\n +.*)*", (ROOT / "requirements.lock").read_text())
    locked = {canonicalize_name(re.split(r"==|\[", entry)[0]): entry for entry in entries}
    lock = folder / "lock"
    lock.write_text("\n".join(locked[name] for name in sorted(wanted)) + "\n")
    successful(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python"), "--disable-pip-version-check")
    install = (*pip, "install", "--quiet", "--no-deps", "--no-compile", "--no-index")
    successful(*install, *wheels(lock), str(wheel))
    assert "No broken requirements" in successful(*pip, "check")
    return folder / "venv/bin"


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The folder of programs of an environment without extras."""
    return installed(wheel, tmp_path_factory.mktemp("environment"))


@contextmanager
def running(program, *arguments, log):
    """Run a program of an environment until the end of the block; it must then end at once and without an error."""
    with log.open("wb") as output:
        process = subprocess.Popen([program, *map(str, arguments)], stderr=output, stdout=output, env=clean(), cwd="/")
    try:
        yield process
        process.terminate()
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_the_wheel_has_the_files_of_the_packages_and_nothing_else(wheel):
    packages = ("bridge", "admission", "scheduler", "controllers")
    tracked = successful("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *packages)
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == set(tracked.split())


def test_the_sdist_has_the_source_and_the_licence(built):
    with tarfile.open(built / f"podbridge-{__version__}.tar.gz") as archive:
        members = archive.getnames()
    for name in ("LICENSE", "pyproject.toml", "requirements.lock", "bridge/apps/cli/entry.py"):
        assert f"podbridge-{__version__}/{name}" in members
    assert not [name for name in members if "/build/" in name or "__pycache__" in name]


@pytest.mark.parametrize("command", [(), ("submitter",), ("plugin",), ("scheduler",)])
def test_help_needs_no_extra(programs, command):
    assert successful(str(programs / "podbridge"), *command, "--help").startswith(
        f"Usage: podbridge {' '.join(command)}"
    )


def test_a_site_needs_no_extra(programs, tmp_path):
    """The submitter reads its configuration and its credentials, and then waits for the server."""
    site, seed = tmp_path / "site.toml", tmp_path / "seed"
    site.write_text(
        f'pool = "site-a"\nfolder = "{tmp_path}/jobs"\n[batch]\nkind = "local"\n[runtime]\nkind = "none"\n'
        f'[nats]\nservers = ["nats://127.0.0.1:1"]\nseed_file = "{seed}"\n'
    )
    successful(str(programs / "podbridge"), "submitter", "config", "--check", str(site))
    done = run(str(programs / "podbridge"), "submitter", "--config", str(site))
    assert done.returncode == 1
    assert str(seed) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def nats(tmp_path):
    server = NatsServer(tmp_path).start()
    yield server
    server.kill()


def test_the_submitter_of_the_wheel_announces_its_pool(programs, nats, tmp_path):
    site, announced, hub = tmp_path / "site.toml", [], World()
    site.write_text(
        f'pool = "site-a"\nfolder = "{tmp_path}/jobs"\n[batch]\nkind = "local"\n[runtime]\nkind = "none"\n'
        f'[nats]\nservers = ["{nats.url}"]\n'
    )
    try:
        link = hub.link(nats.url)
        link.subscribe("bridge.v1.site-a.announce", lambda subject, data, respond: announced.append(data))
        with running(programs / "podbridge", "submitter", "--config", site, log=tmp_path / "log"):
            eventually(lambda: announced, "an announcement", 30)
        assert parse(Announce, announced[0]).version == __version__
    finally:
        hub.close()


def test_the_hub_of_the_wheel_becomes_ready(wheel, nats, state_folder, tmp_path):
    """All parts, with a pool over NATS and without Slurm."""
    programs = installed(wheel, tmp_path, "hub")
    port = free_block(tools.PODBRIDGE_PORTS)
    config = tools.podbridge_config("", port)
    config["pools"] = {"nats": {"servers": [nats.url]}, "kubeletPort": port + 3}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with Cluster(state_folder / "wheel", slurm=None, nodes=0, kcm=False, kwok=False) as cluster:
        words = ("run", "--config", tmp_path / "config.yaml", "--kubeconfig", cluster.kubeconfig)
        with running(programs / "podbridge", *words, log=tmp_path / "log") as process:

            def ready():
                assert process.poll() is None, (tmp_path / "log").read_text()
                return http_status(f"http://127.0.0.1:{port + 1}/readyz") == 200

            eventually(ready, "the hub is ready", 60)
            assert "podbridge-mutate" in cluster.kubectl("get", "mutatingwebhookconfigurations", "--output=name")


@pytest.mark.parametrize(
    ("program", "arguments", "extra"),
    [
        ("podbridge", ("run",), "hub"),
        ("podbridge", ("admission", "--unregister"), "hub"),
        ("podbridge", ("check",), "hub"),
        ("podbridge", ("get", "pods"), "hub"),
        ("podbridge", ("dashboard",), "hub"),
        ("kubectl-podbridge", ("get", "nodes"), "hub"),
        ("podbridge", ("plugin", "--site", "site.toml"), "plugin"),
        ("slurm-sd", ("-SlurmConfigpath", "{config}"), "plugin"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(programs, tmp_path, program, arguments, extra):
    config = tmp_path / "SlurmConfig.yaml"
    config.write_text("SidecarPort: 4000\n")
    done = run(str(programs / program), *(word.format(config=config) for word in arguments))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.endswith(f" is not installed; install the extra {extra}: pip install 'podbridge[{extra}]'")


def test_the_same_source_results_in_the_same_wheel(wheel, tmp_path):
    successful(RELEASE, "--wheel", tmp_path)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_release_with_another_version_is_refused():
    done = run(RELEASE, "--check", "7.0.0")
    assert done.returncode == 1
    assert f"error: pyproject.toml: project.version is {__version__}, not 7.0.0" in done.stderr
    assert f"error: helm/podbridge/Chart.yaml: appVersion is {__version__}, not 7.0.0" in done.stderr


@pytest.mark.parametrize("option", ["--homepage", "--url"])
def test_an_address_that_yaml_would_read_differently_is_refused(option):
    done = run(RELEASE, __version__, option, "https://x.example # y")
    assert done.returncode == 2
    assert done.stderr == "error: 'https://x.example # y' is no address; example: https://example.org\n"
