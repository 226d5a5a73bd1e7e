"""What a container is given: arguments and volumes, byte by byte."""

import base64
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from bridge.errors import ScriptError
from bridge.script.references import Objects
from tests.contract.script.conftest import UID
from tests.contract.script.test_variables import NASTY
from tests.pod_specs import DISK, EMPTY, MOUNT, mount, mounts, spec_of, volumes

pytestmark = pytest.mark.real


def test_arguments_byte_by_byte(site):
    words = [value for value in NASTY.values() if value != NASTY["LONG"]]
    container = {
        "name": "main",
        "image": "x",
        "command": ["printf", "%s\\0"],
        "args": [word.replace("$", "$$") for word in words],
    }
    job = site.run({"containers": [container]})
    assert job.log().split("\0")[:-1] == words


def test_working_directory(site):
    spec = spec_of(
        site.shell("pwd", name="usual", workingDir="/usr/bin"),
        site.shell("pwd", name="volume", workingDir="/my data/new", **mounts(("disk", "/my data"))),
        **DISK,
    )
    job = site.run(spec)
    assert job.log("usual") == "/usr/bin\n" and job.log("volume") == "/my data/new\n"


def b64(text):
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


OBJECTS = Objects(
    configmaps={
        "c": {"data": {"one": "1\n", "two": "2", "it's $x": "odd"}, "binaryData": {"raw": b64(b"\x00\xff")}},
        "kube-root-ca.crt": {"data": {"ca.crt": "-----BEGIN\nCERT\n-----END\n"}},
    },
    secrets={"s": {"data": {"key": b64("secret\n"), "other": b64("x")}}},
    tokens={("api", "token"): "abc.def"},
)


def test_configmap_secret_and_projected(site):
    spec = spec_of(
        site.shell(
            'cd /v && for f in $(find . -type f | grep -v odd | sort); do echo "$f $(stat -c %a $f)"; done; '
            "cat /v/all/one /v/some/deep/er/2 /v/secret/key /var/run/secrets/kubernetes.io/serviceaccount/*;"
            'cat "/v/all/it\'s \\$x"; od -An -tx1 /v/all/raw; cat /v/down/labels /v/down/mem; ls -A /v/none',
            resources={"limits": {"memory": "64Mi"}},
            volumeMounts=[mount(name, f"/v/{name}") for name in ("all", "some", "secret", "none", "down")]
            + [mount("api", "/var/run/secrets/kubernetes.io/serviceaccount")],
        ),
        **volumes(
            all={"configMap": {"name": "c", "defaultMode": 0o440}},
            some={"configMap": {"name": "c", "items": [{"key": "two", "path": "deep/er/2", "mode": 0o600}]}},
            secret={"secret": {"secretName": "s", "defaultMode": 0o400}},
            none={"configMap": {"name": "not-there", "optional": True}},
            api={
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                        {"secret": {"name": "s", "items": [{"key": "other", "path": "sub/other"}]}},
                    ]
                }
            },
            down={
                "downwardAPI": {
                    "items": [
                        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 0o444},
                        {
                            "path": "mem",
                            "resourceFieldRef": {
                                "containerName": "main",
                                "resource": "limits.memory",
                                "divisor": "1Ki",
                            },
                        },
                    ]
                }
            },
        ),
    )
    job = site.run(spec, objects=OBJECTS)
    assert job.pod()["phase"] == "Succeeded", job.everything()
    lines = job.log()
    assert "./all/one 440\n" in lines and "./some/deep/er/2 600\n" in lines and "./secret/key 400\n" in lines
    assert "./some/one" not in lines and "./down/labels 444\n" in lines
    for text in ("1\n2secret\n", "-----BEGIN\nCERT\n-----END\n", "abc.def", "default", "odd", " 00 ff\n", 'app="test"'):
        assert text in lines
    assert "65536" in lines


@pytest.mark.parametrize("kind", ["emptyDir", "configMap", "hostPath"])
def test_read_only(site, kind):
    host = site.home_for_host_path()
    volume = {
        "emptyDir": {"emptyDir": {}},
        "configMap": {"configMap": {"name": "c"}},
        "hostPath": {"hostPath": {"path": str(host), "type": "Directory"}},
    }[kind]
    mounts = [mount("v", "/v", readOnly=True)]
    if kind != "configMap":
        mounts.append(mount("v", "/w"))
    spec = spec_of(
        site.shell(
            "touch /v/x && exit 1; "
            + ("touch /w/x && ls /v/x" if kind != "configMap" else "rm -f /v/one && exit 2; cat /v/one"),
            volumeMounts=mounts,
        ),
        volumes=[{"name": "v", **volume}],
    )
    job = site.run(spec, objects=OBJECTS, config={"volumes": {"host_paths": [str(host)]}})
    assert "Read-only file system" in job.log()
    assert job.pod()["phase"] == "Succeeded", job.everything()


def test_sub_path(site):
    spec = spec_of(
        site.shell(
            "cat /part/file; cat /etc/my/one; ls /etc/my; ls -d /etc/passwd; ls /made",
            env=[{"name": "WHO", "value": "a"}],
            **mounts(
                mount("disk", "/part", subPathExpr="$(WHO)"), ("disk", "/made", "deep/new"), ("c", "/etc/my/one", "one")
            ),
        ),
        init=[
            site.shell(
                "echo in >/all/a/file; ls /all; ln -s / /all/out",
                name="init",
                **mounts(("disk", "/all/a", "a"), ("disk", "/all")),
            )
        ],
        **volumes(disk=EMPTY, c={"configMap": {"name": "c"}}),
    )
    job = site.run(spec, objects=OBJECTS)
    assert job.log() == "in\n1\none\n/etc/passwd\n"


def test_sub_path_does_not_follow_links_out(site):
    spec = spec_of(
        *[
            site.shell("ls /x", name=name, **mounts(("disk", "/x", sub)))
            for name, sub in (("a", "out"), ("b", "up"), ("c", "out/passwd"))
        ],
        init=[site.shell("ln -s /etc /d/out; ln -s ../../../.. /d/up", name="init", **mounts(("disk", "/d")))],
        **DISK,
    )
    job = site.run(spec)
    for name in "abc":
        assert job.ended(name)["reason"] == "CreateContainerConfigError"
        assert "passwd" not in job.log(name)


def test_shared_between_containers_and_gone_at_the_end(site):
    mount = mounts(("disk", "/disk"))
    spec = spec_of(
        site.shell("echo hello >/disk/x", name="writer", **mount),
        site.shell("until [ -s /disk/x ]; do sleep 0.1; done; cat /disk/x", **mount),
        **DISK,
    )
    job = site.run(spec)
    assert job.log() == "hello\n"
    assert list((job.folder / "scratch").iterdir()) == []


def test_memory_medium_and_other_area(ordinary):
    area = ordinary.home_for_host_path()
    spec = spec_of(
        ordinary.shell("stat -f -c %T /fast; touch /slow/x; sleep 1", **mounts(("fast", "/fast"), ("slow", "/slow"))),
        **volumes(fast={"emptyDir": {"medium": "Memory"}}, slow=EMPTY),
    )
    config = {"volumes": {"scratch_area": str(area), "scratch_in_job_folder": False}}
    job = ordinary.job(spec, config=config).start()
    job.eventually(lambda: list(area.glob("podbridge-*/slow/x")))
    assert (job.wait(), job.log()) == (0, "tmpfs\n")
    assert list(area.iterdir()) == []


def test_size_limit(site):
    spec = spec_of(
        site.shell("head -c 10000000 /dev/zero >/disk/x; sleep 1000", **MOUNT),
        **volumes(disk={"emptyDir": {"sizeLimit": "5Mi"}}),
    )
    job = site.run(spec, timeout=30)
    assert (job.pod()["phase"], job.pod()["reason"]) == ("Failed", "Evicted")
    assert "sizeLimit" in job.pod()["message"]


def test_host_path_types(ordinary):
    host = ordinary.home_for_host_path()
    (host / "folder").mkdir()
    (host / "file").write_text("hello\n")
    (host / "link").symlink_to("/etc")

    def run(path, kind):
        spec = spec_of(
            ordinary.shell("ls -d /h", **mounts(("h", "/h"))),
            **volumes(h={"hostPath": {"path": str(host / path), "type": kind}}),
        )
        return ordinary.run(spec, config={"volumes": {"host_paths": [str(host)]}})

    for path, kind in (("folder", ""), ("folder", "Directory"), ("file", "File"), ("new/er", "DirectoryOrCreate")):
        assert run(path, kind).pod()["phase"] == "Succeeded", (path, kind)
    for path, kind in (("folder", "File"), ("file", "Directory"), ("nothing", "Directory"), ("link", ""), ("no", "")):
        job = run(path, kind)
        assert (job.pod()["phase"], job.pod()["reason"]) == ("Failed", "FailedMount"), (path, kind)
        assert job.wait() == 1 and job.state("main")["state"] == "waiting"


def test_host_path_that_the_site_does_not_allow(ordinary):
    spec = {**volumes(h={"hostPath": {"path": "/etc"}}), "containers": [ordinary.shell("true")]}
    with pytest.raises(ScriptError, match=re.escape("spec.volumes[0].hostPath.path: '/etc' is not allowed")):
        ordinary.job(spec)


def test_mounts_do_not_touch_the_host(site):
    spec = spec_of(
        site.shell(
            "touch /etc/script-new-place/x /script-top/x; ls /etc/passwd /usr/bin/env",
            **mounts(("v", "/etc/script-new-place"), ("v", "/script-top/deep"), ("v", "/script-top")),
        ),
        **volumes(v=EMPTY),
    )
    job = site.run(spec)
    assert job.pod()["phase"] == "Succeeded", job.everything()
    assert not Path("/etc/script-new-place").exists() and not Path("/script-top").exists()


def test_read_only_root(site):
    spec = spec_of(
        site.shell(
            "touch /v/fine && touch /tmp/script-no && exit 1; touch /script-no && exit 2; echo x >/dev/null",
            securityContext={"readOnlyRootFilesystem": True},
            **mounts(("v", "/v")),
        ),
        **volumes(v=EMPTY),
    )
    job = site.run(spec)
    assert job.pod()["phase"] == "Succeeded", job.everything()


def test_read_only_root_beside_a_mount_that_the_user_cannot_reach(site, tmp_path):
    """Container engines of root keep such mounts."""
    mount = tmp_path / "private" / "mount"
    mount.mkdir(parents=True)
    mount.parent.chmod(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "none", mount], check=True)
    try:
        test_read_only_root(site)
    finally:
        subprocess.run(["umount", mount], check=True)


def test_own_user_number(site):
    job = site.run({"containers": [site.shell("id -u; id -g")]})
    own = str(65534 if site.user is not None else os.getuid())
    assert job.log().split() == [own, own]


@pytest.mark.parametrize("kind", ["folder", "link"])
@pytest.mark.parametrize("medium", ["Memory", ""])
def test_a_scratch_folder_that_somebody_made_before_is_not_used(site, medium, kind):
    """Names of pods' folders can be guessed: another user may have made one, to read what the pod writes."""
    area = Path("/dev/shm") if medium else site.home_for_host_path()
    if not medium:
        area.chmod(0o1777)
    other = site.home_for_host_path()
    other.chmod(0o777)
    made = area / f"podbridge-{UID}"
    if kind == "link":
        made.symlink_to(other)
    else:
        made.mkdir()
        made.chmod(0o777)
    config = {} if medium else {"volumes": {"scratch_in_job_folder": False, "scratch_area": str(area)}}
    spec = spec_of(
        site.shell("echo secret >/v/x; touch /v/ready; sleep 60", **mounts(("v", "/v"))),
        **volumes(v={"emptyDir": {"medium": medium}}),
    )
    try:
        job = site.job(spec, config=config).start()
        job.eventually(lambda: [*area.glob("podbridge-*/v/ready"), *other.glob("v/ready")])
        assert not list(other.iterdir()) and (kind == "link" or not list(made.iterdir())), job.everything()
        (used,) = (path for path in area.glob(f"podbridge-{UID}.*") if (path / "v" / "ready").exists())
        assert used.stat().st_mode & 0o777 == 0o700
        job.ask_to_stop(0)
        job.wait()
        assert not used.exists()
    finally:
        made.unlink() if kind == "link" else made.rmdir()


def test_a_place_for_scratch_where_anybody_may_rename_is_refused(site):
    area = site.home_for_host_path()
    area.chmod(0o777)
    spec = {**volumes(v=EMPTY), "containers": [site.shell("true")]}
    job = site.run(spec, config={"volumes": {"scratch_in_job_folder": False, "scratch_area": str(area)}})
    assert job.pod()["reason"] == "FailedMount"
    assert "must belong to root or to this user, and be sticky" in (job.folder / "script.log").read_text()
    assert not list(area.iterdir())


def test_a_token_renewed_while_the_job_waited_is_not_overwritten(site):
    job = site.job(
        spec_of(
            site.shell("cat /t/token; echo; cat /t/token", **mounts(("api", "/t"))),
            **volumes(api={"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}),
        ),
        objects=OBJECTS,
    )
    (job.folder / "volumes" / "api").mkdir(parents=True)
    (job.folder / "volumes" / "api" / "token").write_text("newer")
    job.start()
    job.wait()
    assert job.pod()["phase"] == "Succeeded", job.everything()
    assert job.log().split() == ["newer", "newer"]


def test_the_last_of_two_sources_with_the_same_path_counts(site):
    sources = [{"configMap": {"name": name}} for name in ("a", "b")]
    spec = spec_of(
        site.shell("cat /v/key; stat -c %a /v/key", **mounts(("v", "/v"))),
        **volumes(v={"projected": {"defaultMode": 0o400, "sources": sources}}),
    )
    configmaps = {name: {"data": {"key": f"of {name}\n"}} for name in ("a", "b")}
    job = site.run(spec, objects=Objects(configmaps=configmaps))
    assert job.pod()["phase"] == "Succeeded", job.everything()
    assert job.log() == "of b\n400\n"


PLACES = [
    ("c", "/etc/ssl"),
    ("c", "/etc/script-new/er"),
    ("e", "/var/tmp"),
    ("c", "/var/script-new"),
    ("m", "/dev/shm"),
]
"""Directories of every machine, and new ones beside them: the machine's are covered by copies."""


@pytest.mark.parametrize("order", [1, -1])
def test_volumes_do_not_hide_each_other(site, order):
    """Found with ``none``: what a pod wrote to an emptyDir at /var/tmp stayed in the machine's /var/tmp."""
    text = "cat /etc/ssl/one /etc/script-new/er/one /var/script-new/one; touch /var/tmp/script-left; ls /var/tmp"
    text += "; echo shared >/dev/shm/script-left; test -c /dev/null && ls -d /dev/termination-log; sleep 1"
    reads = "until [ -s /dev/shm/script-left ]; do sleep 0.1; done; cat /dev/shm/script-left"
    sources = {"c": {"configMap": {"name": "c"}}, "e": {"emptyDir": {}}, "m": {"emptyDir": {"medium": "Memory"}}}
    spec = spec_of(
        site.shell(text, **mounts(*PLACES[::order])),
        site.shell(reads, name="reads", **mounts(("m", "/dev/shm"))),
        volumes=[{"name": name, **source} for name, source in sources.items()],
    )
    job = site.run(spec, objects=OBJECTS)
    assert job.log() == "1\n1\n1\nscript-left\n/dev/termination-log\n", job.everything()
    assert job.log("reads") == "shared\n", job.everything()
    machines = [Path(place) for place in ("/etc", "/etc/ssl", "/var", "/var/tmp", "/dev/shm")]
    assert [path for each in machines for path in each.glob("script-*")] == []


def test_a_place_in_another_volume(site):
    """Also where a link of the machine leads there; a link in the volume leads nowhere."""
    link = site.home_for_host_path() / "link"
    link.symlink_to("/etc/script-outer")
    places = [("e", "/etc/script-outer"), ("c", "/etc/script-outer/inner"), ("f", f"{link}/other")]
    names = {"e": {"emptyDir": {}}, "c": {"configMap": {"name": "c"}}, "f": {"emptyDir": {}}}
    volumes = [{"name": name, **source} for name, source in names.items()]
    text = "cat /etc/script-outer/inner/one; touch /etc/script-outer/other/x; ls -A /etc/script-outer"
    job = site.run({"volumes": volumes, "containers": [site.shell(text, **mounts(*places[::-1]))]}, objects=OBJECTS)
    assert job.log() == "1\ninner\nother\n", job.everything()
    making = site.shell("ln -s /tmp /v/out", name="init", **mounts(("e", "/v")))
    spec = {"volumes": volumes, "initContainers": [making]}
    job = site.run(
        {**spec, "containers": [site.shell("true", **mounts(("e", "/v"), ("c", "/v/out/er")))]}, objects=OBJECTS
    )
    assert job.ended()["reason"] == "ContainerCannotRun" and "/v/out/er" in job.message(), job.everything()
    assert not Path("/tmp/er").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_host_path_that_becomes_a_link_leads_nowhere(ordinary, kind):
    """An init container of the pod, or another pod, may replace what a hostPath names."""
    allowed, outside = ordinary.home_for_host_path(), ordinary.home_for_host_path()
    (outside / "x").write_text("of the site's user\n")
    source = allowed / "set" if kind == "folder" else allowed / "set" / "x"
    (allowed / "set").mkdir()
    (allowed / "set" / "x").write_text("of the pod\n")
    os.chown(allowed / "set", ordinary.user or 0, -1)
    target = outside if kind == "folder" else outside / "x"
    name = source.relative_to(allowed)
    spec = spec_of(
        ordinary.shell("cat /v/x /v", **mounts(("v", "/v"))),
        init=[
            ordinary.shell(
                f"mv /all/{name} /all/moved; ln -s {target} /all/{name}", name="init", **mounts(("all", "/all"))
            )
        ],
        **volumes(all={"hostPath": {"path": str(allowed)}}, v={"hostPath": {"path": str(source)}}),
    )
    job = ordinary.run(spec, config={"volumes": {"host_paths": [str(allowed)]}})
    assert "site's user" not in job.log(), job.everything()
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (128, "CreateContainerConfigError"), job.everything()
    assert "out of the folders that this site allows" in job.message()


def test_an_allowed_folder_in_another_one_opens_nothing(ordinary):
    """Pods may write to the outer one, so they can make a link of the inner one."""
    allowed, outside = ordinary.home_for_host_path(), ordinary.home_for_host_path()
    (allowed / "sub").symlink_to(outside)
    spec = spec_of(
        ordinary.shell("ls /v", **mounts(("v", "/v"))), **volumes(v={"hostPath": {"path": str(allowed / "sub")}})
    )
    job = ordinary.run(spec, config={"volumes": {"host_paths": [str(allowed), str(allowed / "sub")]}})
    assert job.pod()["reason"] == "FailedMount", job.everything()


def test_special_files_of_a_host_path(ordinary):
    """A pipe without a writer must not hold the start; a socket can't be opened."""
    host = ordinary.home_for_host_path()
    os.mkfifo(host / "pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(host / "socket"))
    server.listen()
    for each in ("pipe", "socket"):
        os.chown(host / each, ordinary.user or 0, -1)
    kinds = {
        "p": ("pipe", ""),
        "s": ("socket", "Socket"),
        "d": ("made/er", "DirectoryOrCreate"),
        "f": ("new", "FileOrCreate"),
    }
    spec = spec_of(
        ordinary.shell("ls -dF /p /s /d; echo x >/f", **mounts(*((name, f"/{name}") for name in kinds))),
        volumes=[
            {"name": name, "hostPath": {"path": str(host / path), "type": kind}} for name, (path, kind) in kinds.items()
        ],
    )
    with server:
        job = ordinary.run(spec, config={"volumes": {"host_paths": [str(host)]}})
    assert job.log().split() == ["/d/", "/p|", "/s="], job.everything()
    assert (host / "new").read_text() == "x\n" and (host / "made" / "er").stat().st_mode & 0o777 == 0o755


def test_scratch_that_becomes_a_link_leads_nowhere(ordinary):
    """With job-workdir, and the folder as a hostPath, a pod can move its scratch away: not even its removal follows."""
    allowed, outside = ordinary.home_for_host_path(), ordinary.home_for_host_path()
    (outside / "e").mkdir()
    (outside / "e" / "x").write_text("of the site's user\n")
    for path in (outside / "e", outside / "e" / "x"):
        os.chown(path, ordinary.user or 0, -1)
    text = f"cd /all; for f in podbridge-*; do mv $f moved; ln -s {outside} $f; done"
    spec = spec_of(
        ordinary.shell("cat /e/x", **mounts(("e", "/e"))),
        init=[ordinary.shell(text, name="init", **mounts(("all", "/all")))],
        **volumes(all={"hostPath": {"path": str(allowed)}}, e=EMPTY),
    )
    config = {"volumes": {"host_paths": [str(allowed)]}}
    job = ordinary.run(spec, config=config, annotations={"slurm-job.vk.io/job-workdir": str(allowed)})
    assert "site's user" not in job.log() and job.ended()["reason"] == "CreateContainerConfigError", job.everything()
    assert (outside / "e" / "x").exists()
