"""What an image says of its containers, with apptainer and podman and a registry on this machine."""

import pytest

from bridge.errors import ScriptError
from bridge.script.build import at_site
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from tests.builders import api_access
from tests.contract.script.containers import fixtures
from tests.contract.script.registry import Registry
from tests.pod_specs import EMPTY, mount, mounts, volumes

pytestmark = pytest.mark.real

CONFIG = {
    "WorkingDir": '/work/di"r $HOME',
    "Env": ["PATH=/bin", 'A=x"y', "HOME=/work/home", 'NOT=\\"HOME=/no\\"'],
    "Cmd": ["sh", "-c", "pwd; echo $HOME; : HOME=/no"],
    "Labels": {"x": '"WorkingDir":"/no"'},
}
"""With what a reader of JSON must tell apart."""
PLACE = 'work/di"r $HOME'


home, site = fixtures("apptainer", "podman")


@pytest.fixture(scope="module")
def image(home):
    made = Registry()
    made.put("team/image", "1", home.folder / "busybox", CONFIG, f"work:{PLACE}:work/home")
    yield f"{made.host}/team/image:1"
    made.close()


def ran(site, containers, objects=None, **spec):
    more = {"APPTAINER_NOHTTPS": "1", "CONTAINERS_REGISTRIES_CONF": str(site.own.folder / "registries.conf")}
    (site.own.folder / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    job = site.run({"containers": containers, **spec}, environment=more, objects=objects, timeout=120)
    assert job.pod()["phase"] == "Succeeded", job.everything()
    return job


def test_working_directory_and_home_are_the_images(site, image):
    """apptainer/apptainer#2844 and #388: WORKDIR and HOME of the image, unless the pod has its own."""
    show = "pwd; echo $$HOME"
    write = "(pwd; echo $HOME) >/disk/new && mv /disk/new /disk/done"
    disk = mounts(("disk", "/disk"))
    containers = [
        {"name": "own", "image": image},
        site.shell(show, name="command", image=image),
        site.shell(
            show, name="pods", image=image, workingDir="/disk", env=[{"name": "HOME", "value": "/disk/h"}], **disk
        ),
        site.shell(
            "until [ -e /disk/done ]; do sleep 0.1; done",
            name="probed",
            image=image,
            lifecycle={"postStart": {"exec": {"command": ["sh", "-c", write]}}},
            **disk,
        ),
        site.shell("cat /disk/done", name="after", image=image, **disk),
    ]
    spec = volumes(disk=EMPTY)
    containers[-1]["command"] = ["sh", "-c", "until [ -s /disk/done ]; do sleep 0.1; done; cat /disk/done"]
    job = ran(site, containers, **spec)
    said = {each["name"]: job.log(each["name"]).splitlines() for each in containers}
    usual = [f"/{PLACE}", "/work/home"]
    assert said == {"own": usual, "command": usual, "pods": ["/disk", "/disk/h"], "probed": [], "after": usual}


def test_a_working_directory_that_the_image_does_not_have(site):
    """Builders without a daemon make such images; docker would make the directory."""
    made = Registry()
    folder = site.own.folder / "busybox"
    for name, directory in (("missing", "/not/here"), ("linked", "/link/to"), ("volume", "/disk/sub")):
        made.put(f"team/{name}", "1", folder, {"WorkingDir": directory}, "work:work/to", {"link": "work"})
    disk = mounts(("disk", "/disk/sub"))
    try:
        containers = [
            site.shell("pwd -P", name=name, image=f"{made.host}/team/{name}:1", **(disk if name == "volume" else {}))
            for name in ("missing", "linked", "volume")
        ]
        # one after the other: apptainer's pulls share a cache, and two at the same time may fail
        job = ran(site, containers[2:], initContainers=containers[:2], volumes=[{"name": "disk", "emptyDir": {}}])
    finally:
        made.close()
    said = {name: job.log(name).strip() for name in ("missing", "linked", "volume")}
    missing = "/" if site.kind == "apptainer" else "/not/here"
    assert said == {"missing": missing, "linked": "/work/to", "volume": "/disk/sub"}, job.everything()


def test_home_is_the_pods_byte_by_byte(site):
    values = ["/a b", '/it\'s "$HOME"', "/x,y", "/x\\y", "/ünï"]
    containers = [
        site.shell('printf %s "$$HOME"', name=f"c{number}", env=[{"name": "HOME", "value": value.replace("$", "$$")}])
        for number, value in enumerate(values)
    ]
    job = ran(site, containers)
    assert [job.log(each["name"]) for each in containers] == values
    if site.kind == "apptainer":
        for value in ("/x:/y", "relative"):
            with pytest.raises(ScriptError, match=r"env\[0\].*HOME.*allowed: an absolute path without ':'"):
                site.job({"containers": [site.shell("", env=[{"name": "HOME", "value": value}])]})


def test_a_root_file_system_has_room(site, image):
    """apptainer/apptainer#1313: the default of apptainer is 64 MiB. A restart begins with the image as it was."""
    text = (
        "[ -e /work/once ] && exit 9; mkdir -p /work/site && dd if=/dev/zero of=/work/site/x bs=1M count=100;"
        "wc -c </work/site/x; touch /work/once"
    )
    probe = {"exec": {"command": ["test", "!", "-e", "/work/once"]}, "periodSeconds": 1}
    container = site.shell(f"{text}; [ -e /disk/2 ] || {{ touch /disk/2; exit 1; }}", image=image, readinessProbe=probe)
    container["volumeMounts"] = [mount("disk", "/disk")]
    job = ran(site, [container], volumes=[{"name": "disk", "emptyDir": {}}], restartPolicy="OnFailure")
    assert job.log().splitlines()[-1] == str(100 << 20) and job.state("main")["restarts"] == 1, job.everything()
    assert not (job.folder / "work").exists() or site.kind != "apptainer", "nothing is left"


def test_the_log_has_nothing_of_the_runtime(site, image):
    """Its warnings (no /etc/passwd in the image, no place for a directory) are no output of the program."""
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    job = ran(site, [site.shell("sleep 2; echo out; echo err >&2", image=image, livenessProbe=probe)])
    assert sorted(job.log().splitlines()) == ["err", "out"]


def test_a_small_memory_limit_is_for_the_container_alone(site):
    """kubeflow/trainer#1734: an init container with 20Mi that only sleeps."""
    small = {"resources": {"limits": {"memory": "16Mi"}}}
    containers = [site.shell("sleep 4; echo fine", **small)]
    job = ran(site, containers, initContainers=[site.shell("sleep 4", name="init", **small)])
    assert job.log() == "fine\n"


AUTOMATIC = api_access()


@pytest.mark.parametrize("may_read", [True, False])
def test_a_pod_knows_its_namespace_and_the_authorities_also_without_a_token(site, may_read):
    """Programs read their namespace from this file. In most images /var/run is a link."""
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    made = Registry()
    made.put("team/linked", "1", site.own.folder / "busybox", links={"var/run": "/run"})
    try:
        container = site.shell(
            f"ls {folder}; cat {folder}/namespace", image=f"{made.host}/team/linked:1",
            **mounts(mount(AUTOMATIC["name"], folder, readOnly=True)),
        )  # fmt: skip
        spec = {"containers": [container], "volumes": [AUTOMATIC]}
        config = BuildConfig.model_validate({"runtime": {"kind": site.kind}})
        spec = at_site({"metadata": {}, "spec": spec}, config)["spec"]
        certificates = {"kube-root-ca.crt": {"data": {"ca.crt": "a certificate"}}} if may_read else {}
        job = ran(site, spec.pop("containers"), objects=Objects(configmaps=certificates), **spec)
    finally:
        made.close()
    assert job.log().split() == [*(["ca.crt"] if may_read else []), "namespace", "default"]
