"""Where things come from, with tools on PATH that only note how they were called."""

import json
from pathlib import Path

import pytest
import yaml

from cluster import places
from cluster.errors import ClusterError
from cluster.systems import debian, gang_manifests, install

ENVTEST = ("etcd", "kube-apiserver", "kubectl")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An empty cache, and a PATH with nothing but what a test puts there."""
    monkeypatch.setenv("PODBRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    (tmp_path / "path").mkdir()
    install._envtest_folder.cache_clear()
    debian._slurm_version.cache_clear()
    yield tmp_path
    install._envtest_folder.cache_clear()
    debian._slurm_version.cache_clear()


def tool(machine, name, script):
    file = machine / "path" / name
    file.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    file.chmod(0o755)


def go_that_builds(machine):
    tool(
        machine,
        "go",
        f'echo "$PWD $*" >> {machine}/go.calls; if [ "$GOBIN" ]; then mkdir -p "$GOBIN"; for word; do '
        'case $word in */*) name=${word##*/}; [ "$name" = v3 ] && name=server; '
        'echo built > "$GOBIN/$name";; esac; done; fi',
    )


def calls(machine):
    file = machine / "go.calls"
    return file.read_text().splitlines() if file.exists() else []


def test_what_is_nowhere_is_built_once(machine):
    go_that_builds(machine)
    install.ensure(kube=True)
    assert {name: path.read_text() for name, path in install.binaries().items()} == dict.fromkeys(
        install.PACKAGES, "built\n"
    )
    install.ensure(kube=True)
    (call,) = calls(machine)
    assert f"gitVersion={install.KUBERNETES}" in call
    assert not (machine / "cache" / "bin.tmp").exists()


def test_interlinks_programs_are_built_once_from_a_module_of_their_own(machine):
    go_that_builds(machine)
    install.ensure(modules=[install.INTERLINK])
    install.ensure(modules=[install.INTERLINK])
    assert {path.read_text() for path in install.binaries(install.INTERLINK.packages).values()} == {"built\n"}
    (call,) = calls(machine)
    assert call.split()[0] == str(install.INTERLINK.folder)
    assert call.split()[-2:] == list(install.INTERLINK.packages.values())
    install.ensure(kube=True, modules=[install.INTERLINK])
    assert [call.split()[0] for call in calls(machine)] == [str(install.INTERLINK.folder), str(install.TOOLS)]


def test_the_gang_controllers_manifests_are_taken_from_their_modules(machine):
    go_that_builds(machine)
    for source in gang_manifests.SOURCES.values():
        there = machine / "modules" / source.module
        (there / source.crds).mkdir(parents=True)
        (there / source.crds / "one.yaml").write_text(f"module: {source.module}\n")
        if source.webhooks:
            (there / source.webhooks).mkdir(parents=True)
            (there / source.webhooks / "manifests.yaml").write_text("kind: A\n")
            (there / source.webhooks / "kustomization.yaml").write_text("resources: []\n")
    builds = (machine / "path" / "go").read_text()
    (machine / "path" / "go").write_text(f'{builds}\nfor last; do :; done; echo "{machine}/modules/$last"\n')
    install.ensure(modules=[install.GANGS])
    folder = install.gang_manifests_folder()
    crds = list(yaml.safe_load_all((folder / gang_manifests.CRDS).read_text()))
    assert [crd["module"] for crd in crds] == [source.module for source in gang_manifests.SOURCES.values()]
    webhooks = json.loads((folder / gang_manifests.WEBHOOKS).read_text())
    assert webhooks == {"jobset": [{"kind": "A"}], "lws": [{"kind": "A"}], "scheduler-plugins": []}


def test_a_build_without_its_manifests_is_not_complete(machine):
    go_that_builds(machine)
    for _ in range(2):
        with pytest.raises(ClusterError, match=r"no folder of the Go module sigs\.k8s\.io/jobset"):
            install.ensure(modules=[install.GANGS])


@pytest.mark.parametrize("version", places.KUBERNETES)
def test_a_go_mod_pins_each_version_of_the_control_plane(machine, version):
    folder = install.TOOLS if version == places.DEFAULT_KUBERNETES else install.CONTROL_PLANES[version].folder
    assert f"k8s.io/kubernetes {places.KUBERNETES[version]} " in (folder / "go.mod").read_text()


@pytest.mark.parametrize("version", install.CONTROL_PLANES)
def test_another_control_plane_is_built_beside_the_main_one(machine, version):
    go_that_builds(machine)
    install.ensure(kube=True, modules=[install.CONTROL_PLANES[version]])
    _, call = calls(machine)
    assert call.split()[0] == str(install.CONTROL_PLANES[version].folder)
    assert f"gitVersion={places.KUBERNETES[version]}" in call
    main, other = install.control_plane(places.DEFAULT_KUBERNETES), install.control_plane(version)
    assert all(path.read_text() == "built\n" for path in other.values())
    own = {"kube-apiserver", "kube-controller-manager", "kube-scheduler"} | (
        {"kubectl"} if version == "1.37" else set()
    )
    assert {name for name in main if main[name] != other[name]} == own


def test_another_pin_also_builds_programs_again_that_the_first_cluster_did_not_need(machine):
    go_that_builds(machine)
    install.ensure(kube=True, scheduler=True)
    (machine / "cache" / "bin" / ".pinned").write_text("older\n")
    install.ensure(kube=True)
    install.ensure(kube=True, scheduler=True)
    assert [("cmd/kube-scheduler" in call, "cmd/kube-apiserver" in call) for call in calls(machine)] == [
        (True, True),
        (False, True),
        (True, False),
    ]


def test_what_the_user_has_comes_first(machine, monkeypatch):
    go_that_builds(machine)
    own = machine / "own"
    own.mkdir()
    for name in ENVTEST:
        (own / name).write_text("own\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(own))
    install.ensure(kube=True)
    assert {name for name, path in install.binaries().items() if path.read_text() == "own\n"} == set(ENVTEST)
    (call,) = calls(machine)
    assert "cmd/kwok" in call
    assert "cmd/kube-apiserver" not in call


def test_setup_envtest_is_asked_before_building(machine):
    go_that_builds(machine)
    for name in ENVTEST:
        (machine / name).write_text("downloaded\n")
    tool(machine, "setup-envtest", f"echo {machine}")
    install.ensure(kube=True)
    downloaded = {name for name, path in install.binaries().items() if path.read_text() == "downloaded\n"}
    assert downloaded == set(ENVTEST)


def test_setup_envtest_that_can_download_nothing_is_no_obstacle(machine):
    go_that_builds(machine)
    tool(machine, "setup-envtest", "echo no route to host >&2; exit 2")
    install.ensure(kube=True)
    assert all(path.read_text() == "built\n" for path in install.binaries().values())


def test_without_go_the_error_says_what_is_missing(machine):
    with pytest.raises(ClusterError, match=r"kwok must be built, and there is no Go tool chain"):
        install.ensure(kube=True)


def test_a_build_that_fails_shows_its_last_words_and_is_tried_again(machine):
    tool(machine, "go", "echo out of disk; exit 1")
    with pytest.raises(ClusterError, match=r"(?s)go build failed with 1.*out of disk"):
        install.ensure(kube=True)
    go_that_builds(machine)
    install.ensure(kube=True)
    assert len(calls(machine)) == 1


def test_the_machines_own_slurm_is_used_if_it_has_the_version(machine):
    tool(machine, "slurmctld", "echo slurm-wlm 24.11.5")
    assert debian.slurm_root("24.11") == Path("/")
    assert debian.slurm_root("26.05") == machine / "cache" / "roots" / "sid"


def test_an_unknown_version_of_slurm_is_refused(machine):
    with pytest.raises(ClusterError, match=r"no Slurm 23\.02; there are 22\.05, 24\.11, 26\.05"):
        debian.slurm_root("23.02")


def test_a_root_folder_appears_only_when_it_is_complete(machine):
    tool(machine, "debootstrap", 'for last; do :; done; mkdir -p "$last/etc"; echo E: no such suite; exit 1')
    with pytest.raises(ClusterError, match="no such suite"):
        install.ensure(["26.05"])
    assert not (machine / "cache" / "roots" / "sid").exists()

    tool(machine, "debootstrap", 'for last; do :; done; mkdir -p "$last/etc"')
    tool(machine, "chroot", "echo slurm-wlm 26.05.5")
    install.ensure(["26.05"])
    root = machine / "cache" / "roots" / "sid"
    assert "localhost" in (root / "etc" / "hosts").read_text()
    tool(machine, "debootstrap", "exit 1")
    install.ensure(["26.05"])


def test_a_suite_that_moved_on_is_told(machine):
    tool(machine, "debootstrap", 'for last; do :; done; mkdir -p "$last/etc"')
    tool(machine, "chroot", "echo slurm-wlm 27.11.0")
    with pytest.raises(ClusterError, match=r"sid holds 27\.11\.0, not 26\.05"):
        install.ensure(["26.05"])


def test_a_program_with_source_of_its_own_is_built_again_after_a_change_of_it(machine, monkeypatch):
    go_that_builds(machine)
    monkeypatch.setattr(install, "TOOLS", machine / "tools")
    folder = install.ORACLE.folder
    folder.mkdir(parents=True)
    for name in ("go.mod", "go.sum", "main.go"):
        (folder / name).write_text(name)
    for _ in range(2):
        install.ensure(modules=[install.ORACLE])
    (folder / "main.go").write_text("changed")
    install.ensure(modules=[install.ORACLE])
    assert len(calls(machine)) == 2
