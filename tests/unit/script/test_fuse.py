"""Volumes by annotation: which are told apart, allowed and refused."""

import base64

import pytest

from bridge.errors import ScriptError
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.check import problems
from bridge.script.plan import make
from bridge.script.references import Objects
from tests.unit.script.pods import pod, shell

CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "none"}}


def with_volume(annotations, volume=CLAIM, **mount):
    mounts = [{"name": "v", "mountPath": "/v", **mount}]
    return pod({"volumes": [volume], "containers": [shell("true", volumeMounts=mounts)]}, annotations=annotations)


def config(kind="apptainer", mode="container", **more):
    limits, volumes = {"allow_fuse": True}, {"cvmfs_path": "/cvmfs"}
    return BuildConfig.model_validate(
        {"runtime": {"kind": kind}, "apptainer": {"fuse_mode": mode}, "limits": limits, "volumes": volumes, **more}
    )


@pytest.mark.parametrize("prefix", ["fuse.vk.io/", "cvmfs.vk.io/"])
def test_a_claim_is_allowed_with_an_annotation_alone(prefix):
    assert problems(with_volume({f"{prefix}v": "text"})) == []
    (found,) = problems(with_volume({}))
    assert "'persistentVolumeClaim' is not allowed" in found
    (found,) = problems(with_volume({f"{prefix}v": "x"}, {"name": "v", "secret": {"secretName": "s"}}))
    assert found.endswith("allowed: persistentVolumeClaim, emptyDir")
    found = problems(with_volume({f"{prefix}other": "x"}, {"name": "v", "emptyDir": {}}))
    assert found == [f"annotation {prefix}other: 'other' is no volume of the pod"]


@pytest.mark.parametrize("prefix", ["fuse.vk.io/", "cvmfs.vk.io/"])
def test_sites_that_allow_neither(prefix):
    with pytest.raises(ScriptError, match=rf"annotation {prefix}v is not allowed at this site"):
        make(with_volume({f"{prefix}v": "x"}), BuildConfig(), Objects(), "node")


def test_cvmfs_is_read_only_and_checked_where_the_job_runs():
    plan = make(with_volume({"cvmfs.vk.io/v": ""}), config(), Objects(), "node")
    assert plan.containers[0].mounts[-1].read_only or plan.containers[0].mounts[0].read_only
    job = build(with_volume({"cvmfs.vk.io/v": ""}), config(), Objects(), "node")
    assert "HOST_PATH[v]=/cvmfs HOST_TYPE[v]=Directory\nHOST_FREE[v]=1\n" in job.script


@pytest.mark.parametrize(
    ("kind", "mode", "expected"),
    [
        ("apptainer", "container", "container"),
        ("singularity", "host", "host"),
        ("apptainer", "host-privileged", "''"),
        ("none", "container", "''"),
        ("podman", "host", "''"),
    ],
)
def test_who_mounts(kind, mode, expected):
    text = "mount it's $(x)\n"
    job = build(with_volume({"fuse.vk.io/v": text}), config(kind, mode), Objects(), "node")
    assert f"\nFUSE=(v)\nFUSE_MODE={expected}\nFUSE_WAIT=500\n" in job.script
    assert base64.b64encode(f"{text}\n".encode()).decode() in job.script and "it's" not in job.script


@pytest.mark.parametrize("mount", [{"readOnly": True}, {"mountPath": "/a b"}])
def test_what_apptainer_can_not_mount(mount):
    wanted = with_volume({"fuse.vk.io/v": "true"}, **mount)
    with pytest.raises(ScriptError, match=r"fuse_mode is container"):
        make(wanted, config(), Objects(), "node")
    make(wanted, config(mode="host-privileged"), Objects(), "node")
    make(wanted, config("podman"), Objects(), "node")


def test_a_script_that_can_not_be_told():
    with pytest.raises(ScriptError, match="NUL"):
        make(with_volume({"fuse.vk.io/v": "a\x00b"}), config(), Objects(), "node")
