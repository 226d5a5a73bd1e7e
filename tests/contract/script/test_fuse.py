"""Volumes that a pod's script mounts: a real FUSE file system, before containers of several runtimes."""

import os
import shlex
import subprocess

import pytest

from bridge.errors import ScriptError
from tests.contract.script.conftest import NOBODY, Site
from tests.contract.script.containers import HOMES, fixtures
from tests.contract.script.test_ends import processes_below
from tests.pod_specs import mount, spec_of, volumes

pytestmark = pytest.mark.real

SITE = {
    "limits": {"allow_fuse": True},
    "volumes": {"fuse_sleep_seconds": 10},
    "apptainer": {"fuse_mode": "host-privileged"},
}
LEFT = "grep -c bindfs /proc/mounts >left"


home, site = fixtures(*HOMES)
without_runtime = pytest.mark.parametrize("home", ["none"], indirect=True)


def folder_of(site: Site):
    folder = site.home_for_host_path()
    (folder / "sub").mkdir()
    for path in ("x", "sub/y"):
        (folder / path).write_text(f"{path}\n")
    for path in folder.rglob("*"):
        os.chown(path, NOBODY, NOBODY)
    return folder


def pod(site, text, *mounts):
    return spec_of(
        site.shell(text, volumeMounts=[{"name": "data", **mount} for mount in mounts]),
        **volumes(data={"persistentVolumeClaim": {"claimName": "none"}}),
    )


def annotation(text):
    return {"fuse.vk.io/data": text}


@pytest.mark.parametrize("option", ["", "-f"])
def test_a_mounted_volume(site, option):
    folder = folder_of(site)
    text = "cat /data/x /sub/y; echo new >/data/new; touch /ro/no || echo read-only; ls /data"
    spec = pod(
        site,
        text,
        {"mountPath": "/data"},
        {"mountPath": "/sub", "subPath": "sub"},
        {"mountPath": "/ro", "readOnly": True},
    )
    script = f'exec bindfs {option} --no-allow-other {shlex.quote(str(folder))} "$MOUNT_POINT"'
    job = site.run(spec, config={**SITE, "footer": LEFT}, annotations=annotation(script))
    lines = [line for line in job.log().splitlines() if not line.startswith("touch: ")]
    assert lines == ["x", "sub/y", "read-only", "new", "sub", "x"], job.everything()
    assert job.pod()["phase"] == "Succeeded" and (folder / "new").read_text() == "new\n"
    assert (job.folder / "left").read_text() == "0\n" and not list((job.folder / "fuse").iterdir())
    assert processes_below(job, str(folder)) == []


@pytest.mark.parametrize("home", ["apptainer"], indirect=True)
@pytest.mark.parametrize("mode", ["host", "container"])
def test_a_volume_that_apptainer_mounts(site, mode):
    folder = folder_of(site)
    for name in ("", "sub"):
        words = [*site.enter, "mksquashfs", f"{folder}/{name}", f"{folder}/{name}.sqfs", "-quiet"]
        subprocess.run(words, check=True, capture_output=True)
    spec = pod(site, "cat /data/x /deep/sub/y; ls /data", {"mountPath": "/data"})
    spec["containers"][0]["volumeMounts"].append(mount("data", "/deep/sub", "sub"))
    volumes = dict(SITE["volumes"])
    if mode == "container":
        # the script and its program run in the image, which sees volumes
        spec["containers"][0]["image"] = "/media"
        spec["volumes"].append({"name": "source", "hostPath": {"path": str(folder)}})
        spec["containers"][0]["volumeMounts"].append(mount("source", "/source"))
        volumes |= {"host_paths": [str(folder)], "image_paths": ["/media"]}
    place = "/source" if mode == "container" else str(folder)
    config = {**SITE, "volumes": volumes, "apptainer": {"fuse_mode": mode}}
    script = f'exec squashfuse_ll -f "{place}/$SUB_PATH.sqfs" "$MOUNT_POINT"'
    job = site.run(spec, config=config, annotations=annotation(script))
    lines = [line for line in job.log().splitlines() if not line.startswith("fuse")]
    assert lines == ["x", "sub/y", "sub", "x"], job.everything()
    assert job.pod()["phase"] == "Succeeded" and processes_below(job, str(folder)) == []


@without_runtime
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('echo begun; echo "no such \\"server\\"" >&2; exit 3', "the script of volume data failed (3): no such server"),
        ("echo $MOUNT_POINT; sleep 12347", "the script of volume data mounted nothing within 1 s: "),
        ("exit 0", "the script of volume data mounted nothing within 1 s: "),
    ],
)
def test_a_script_that_mounts_nothing(site, script, told):
    config = {**SITE, "volumes": {"fuse_sleep_seconds": 1}}
    job = site.run(pod(site, "echo no", {"mountPath": "/data"}), config=config, annotations=annotation(script))
    state = job.pod()
    assert (state["phase"], state["reason"]) == ("Failed", "FailedMount")
    assert state["message"].startswith(told), job.everything()
    assert job.state("main")["state"] == "waiting" and processes_below(job, "12347") == []


@without_runtime
def test_a_second_volume_that_fails_leaves_the_first_unmounted(site):
    folder = folder_of(site)
    spec = pod(site, "echo no", {"mountPath": "/data"})
    spec["volumes"].append({"name": "other", "emptyDir": {}})
    scripts = {"fuse.vk.io/data": f'bindfs --no-allow-other {folder} "$MOUNT_POINT"', "fuse.vk.io/other": "exit 1"}
    job = site.run(spec, config={**SITE, "footer": LEFT}, annotations=scripts)
    assert job.pod()["reason"] == "FailedMount" and "volume other failed (1)" in job.pod()["message"]
    assert (job.folder / "left").read_text() == "0\n" and not processes_below(job, str(folder))


@without_runtime
def test_deletion_while_a_script_is_waited_for(site):
    config = {**SITE, "volumes": {"fuse_sleep_seconds": 600}}
    job = site.job(pod(site, "echo no", {"mountPath": "/data"}), config=config, annotations=annotation("sleep 12347"))
    job.start().eventually(lambda: (job.folder / "run" / "fuse" / "data.log").exists())
    job.ask_to_stop(30)
    assert job.wait(10) == 1 and job.pod()["phase"] == "Failed" and processes_below(job, "12347") == []


@without_runtime
def test_not_where_the_site_does_not_allow_it(site):
    with pytest.raises(
        ScriptError, match=r"fuse\.vk\.io/data is not allowed at this site \(limits\.allow_fuse is false"
    ):
        site.job(pod(site, "true", {"mountPath": "/data"}), annotations=annotation("true"))


def test_cvmfs(site):
    folder = folder_of(site)
    config = {"volumes": {"cvmfs_path": str(folder)}}
    spec = pod(
        site,
        "cat /cvmfs/x /sub/y; touch /cvmfs/no; ls /cvmfs",
        {"mountPath": "/cvmfs"},
        {"mountPath": "/sub", "subPath": "sub"},
    )
    job = site.run(spec, config=config, annotations={"cvmfs.vk.io/data": "true"})
    lines = [line for line in job.log().splitlines() if not line.startswith("touch: ")]
    assert lines == ["x", "sub/y", "sub", "x"], job.everything()
    assert "ead-only file system" in job.log() and job.pod()["phase"] == "Succeeded"
    with pytest.raises(ScriptError, match="cvmfs_path is empty"):
        site.job(spec, annotations={"cvmfs.vk.io/data": "true"})
