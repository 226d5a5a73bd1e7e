"""Which images a pod may name: those of registries, and those in the folders that a site keeps for images."""

import base64
import json
import re
import subprocess
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ScriptError
from bridge.script import library
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from bridge.script.runtimes.enroot import EnrootRuntime
from bridge.script.runtimes.runtime_images import login_digest, pull_policy
from tests.unit.script import runtime_syntax
from tests.unit.script.pods import pod

RUNTIMES = ("apptainer", "singularity", "podman", "enroot", "charliecloud")
VOLUMES = {"image_dir": "/srv/images", "cvmfs_unpacked_path": "/cvmfs/unpacked", "image_paths": ["/project/sif/"]}


def built(image, kind="apptainer", root="", prefix="docker://", volumes=VOLUMES):
    annotations = {"slurm-job.vk.io/image-root": root} if root else {}
    wanted = pod({"containers": [{"name": "main", "image": image, "command": ["true"]}]}, annotations=annotations)
    config = {"runtime": {"kind": kind, "image_prefix": prefix}, "volumes": volumes}
    return build(wanted, BuildConfig.model_validate(config), Objects(), "node")


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize(
    "image",
    ["/", "/home/x", "/srv/images", "/srv/images2/x", "/srv//images/./", "/etc", "/project", "/var/tmp/podbridge"],
)
def test_a_folder_of_the_site_is_no_image(kind, image):
    with pytest.raises(
        ScriptError, match=r"spec\.containers\[0\]\.image: .* below /srv/images/, /cvmfs/unpacked/, /pro"
    ):
        built(image, kind)
    with pytest.raises(ScriptError, match="allowed at this site: images below no folder, or docker://"):
        built(image, kind, volumes={})


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize(
    "image", ["/srv/images/x.sif", "/cvmfs/unpacked/lab/x:1", "/project/sif/a/b", "/project/sif", "lab/x:1"]
)
def test_images_of_the_site(kind, image):
    built(image, kind)


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize(
    "scheme", ["instance", "docker-daemon", "docker-archive", "oci", "oci-archive", "dir", "file", "dockerd", "podman"]
)
def test_schemes_are_on_a_list(kind, scheme):
    with pytest.raises(
        ScriptError, match=rf"image: the scheme {scheme}:// is not allowed at this site; allowed: docker"
    ):
        built(f"{scheme}://x", kind)
    with pytest.raises(ScriptError, match=rf"annotation slurm-job.vk.io/image-root: the scheme {scheme}://"):
        built("x", kind, root=f"{scheme}://")


@pytest.mark.parametrize("image", ["docker://x", "oras://r/x:1", "library://a/b/c", "https://r.example/x.sif"])
def test_apptainer_pulls(image):
    built(image)


@pytest.mark.parametrize("kind", ["podman", "enroot", "charliecloud"])
@pytest.mark.parametrize("image", ["oras://r/x:1", "library://a/b/c", "https://r.example/x.sif", "shub://a/b"])
def test_what_others_can_not_pull(kind, image):
    with pytest.raises(ScriptError, match="allowed: docker://"):
        built(image, kind)


AFTER_A_SCHEME = ["/home/site", "//home/site/x.tar", "--privileged", "--volume=/:/x", "-v", ".", "./x", "", "@x", "#x"]
"""Podman and charliecloud get a name without docker://, so it would be a path of the machine, or an option."""


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("rest", AFTER_A_SCHEME)
def test_a_scheme_stands_before_a_name(kind, rest):
    with pytest.raises(ScriptError, match=r"spec\.containers\[0\]\.image: .* allowed after docker://: "):
        built(f"docker://{rest}", kind)
    with pytest.raises(ScriptError, match=r"annotation slurm-job\.vk\.io/image-root: .* allowed after docker://: "):
        built("x", kind, root=f"docker://{rest}/")


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("rest", AFTER_A_SCHEME)
def test_a_site_looks_at_the_name_again(kind, rest):
    """The script may be from an older hub."""
    text = library.text("apptainer" if kind == "singularity" else kind)
    names = f'{text}\nIMAGES=("docker://$1" "$1") IMAGE_AREAS=()'
    command = ["bash", "-c", f'{names}; for i in 0 1; do image_of $i || echo "$PROBLEM"; done', "bash", rest]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    )
    assert len(done.stdout.splitlines()) == 2, done.stdout


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("root", ["/", "/home", "/srv", "/srv/images/..", "/etc/"])
def test_an_image_root_leads_nowhere_else(kind, root):
    with pytest.raises(ScriptError, match=r"annotation slurm-job\.vk\.io/image-root"):
        built("x", kind, root=root)


@pytest.mark.parametrize("root", ["docker://registry.example/team", "/cvmfs/unpacked/", "/project/sif"])
def test_an_image_root(root):
    assert f"IMAGE_ROOT={root}\n" in built("x", root=root).script


def test_a_prefix_of_the_site_is_a_folder_for_images():
    built("x", prefix="/shared/sif")
    built("/shared/sif/y", prefix="/shared/sif")


@pytest.mark.parametrize("prefix", ["", "docker://"])
@pytest.mark.parametrize(
    "image", ["dir:/home/x", "oci:/home/x", "oci:x", "docker-archive:/home/x.tar", "containers-storage:x", "sif:x"]
)
def test_podman_reads_no_place_of_the_machine(prefix, image):
    with pytest.raises(ScriptError, match="allowed: names with a registry"):
        built(image, "podman", prefix=prefix)
    built(f"docker.io/library/{image.partition(':')[0]}:1", "podman", prefix=prefix)


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("tool", "Always"),
        ("registry.example:5000/team/tool", "Always"),
        ("tool:latest", "Always"),
        ("docker://tool", "Always"),
        ("tool:1", "IfNotPresent"),
        ("registry.example:5000/team/tool:latest-1", "IfNotPresent"),
        ("tool@sha256:" + "0" * 64, "IfNotPresent"),
        ("tool:latest@sha256:" + "0" * 64, "IfNotPresent"),
        ("/images/x.sif", "IfNotPresent"),
        ("https://r.example/x.sif", "IfNotPresent"),
    ],
)
def test_when_an_image_is_pulled(image, policy):
    """As Kubernetes has it, where the pod does not say."""
    assert pull_policy({"image": image}) == policy
    for asked in ("Always", "IfNotPresent", "Never"):
        assert pull_policy({"image": image, "imagePullPolicy": asked}) == asked


def secret(**logins):
    return json.dumps({"auths": {key.replace("_", "."): {"auth": value} for key, value in logins.items()}}).encode()


def test_pods_share_an_image_if_their_logins_for_its_registry_are_the_same():
    one, other = secret(a_example="1", b_example="2"), secret(a_example="1", b_example="3")
    assert login_digest("a.example/x", "docker://", one) == login_digest("a.example/x", "docker://", other) != ""
    assert login_digest("b.example/x", "docker://", one) != login_digest("b.example/x", "docker://", other)
    assert login_digest("c.example/x", "docker://", one) == login_digest("c.example/x", "docker://", b"") == ""
    # what is at no registry of docker's kind may be asked for with any of them
    assert login_digest("library://a/b", "docker://", one) != login_digest("library://a/b", "docker://", other)
    assert login_digest("x", "docker://a.example/team", one) == login_digest("docker://a.example/x", "", one)


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io", "registry-1.docker.io", "index.docker.io"])
@pytest.mark.parametrize("image", ["x", "team/x:1", "docker.io/x", "docker://index.docker.io/team/x", "library/x"])
def test_names_of_docker_hub(key, image):
    login = json.dumps({"auths": {key: {"auth": "1"}, "ghcr.io": {"auth": "2"}}}).encode()
    alone = json.dumps({"auths": {key: {"auth": "1"}}}).encode()
    assert login_digest(image, "docker://", login) == login_digest(image, "docker://", alone) != ""


HOSTS = st.sampled_from(["a.example", "a.example:5000", "localhost", "b.example"])
LOGINS = st.dictionaries(
    st.tuples(st.sampled_from(["", "https://", "http://"]), HOSTS, st.sampled_from(["", "/", "/v1/", "/team"])).map(
        "".join
    ),
    st.fixed_dictionaries({"auth": st.sampled_from(["1", "2"])}),
    max_size=4,
)


@given(HOSTS, LOGINS, LOGINS)
def test_other_logins_for_a_registry_never_look_the_same(host, one, other):
    """Two pods are told apart exactly where a registry could tell them apart."""

    def of(auths):
        return {key: login for key, login in auths.items() if re.sub("^https?://", "", key).split("/")[0] == host}

    files = [json.dumps({"auths": auths}).encode() for auths in (one, other)]
    digests = [login_digest(f"{host}/x:1", "docker://", file) for file in files]
    assert (digests[0] == digests[1]) == (of(one) == of(other))
    assert (digests[0] == "") == (not of(one))


def key(image, login="", form="sif"):
    """What the site's part of the library makes of it."""
    library = resources.files("bridge.script") / "lib" / "cache.bash"
    text = f'. {library}; IMAGE=$1 LOGIN=("$2") FORMAT=$3; make_key 0; printf %s "$KEY"'
    command = ["bash", "-c", text, "bash", image, login, form]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_keys_of_the_cache():
    plain, digest = key("docker://a.example/x:1"), "@sha256:" + "0a" * 32
    assert re.fullmatch("[0-9a-f]{64}", plain) and plain == key("a.example/x:1")
    others = [
        key("docker://a.example/x:2"),
        key("docker://a.example/x:1", "0" * 64),
        key("docker://a.example/x:1", form="sqsh"),
        key("oras://a.example/x:1"),
        key("docker://a.example/x:1@sha256:0a"),  # no digest
    ]
    assert len({plain, *others}) == 6
    # a digest is the name, wherever the image lies; but not for somebody with another login
    assert key(f"docker://a.example/x:1{digest}") == key(f"b.example/y{digest}") != key(f"oras://b.example/y{digest}")
    assert key(f"a.example/x{digest}") != key(f"a.example/x{digest}", "0" * 64)
    assert key(f"https://a.example/x.sif{digest}") != key(f"https://b.example/x.sif{digest}")  # nothing verifies it


TEXTS = st.text(st.sampled_from("ab$(){};\x00\x7f`'\"\\ \t\n\r\v\x1c\x85\u2028#:@/."), max_size=8)
REGISTRIES = TEXTS | st.sampled_from(["", "/", "https://", "a.example", "http://b.example/v2/"])


@given(st.dictionaries(REGISTRIES, st.tuples(TEXTS, TEXTS), max_size=3))
def test_no_login_is_a_command_or_another_login_to_enroot(logins):
    auths = {
        registry: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}
        for registry, (user, password) in logins.items()
    }
    try:
        _, text = EnrootRuntime().login(json.dumps({"auths": auths}).encode())
    except ScriptError as error:
        assert "begin with '$'" in str(error)
        return
    pairs = {f"{user}:{password}" for user, password in logins.values()}
    assert {":".join(login) for login in runtime_syntax.netrc(text.decode()).values()} <= pairs


def test_a_pod_with_a_login_that_enroot_would_execute_is_refused():
    text = json.dumps({"auths": {"registry.example": {"username": "u", "password": "$(touch${IFS}x)"}}})
    objects = Objects(secrets={"r": {"data": {".dockerconfigjson": base64.b64encode(text.encode()).decode()}}})
    spec = {"imagePullSecrets": [{"name": "r"}], "containers": [{"name": "main", "image": "x"}]}
    enroot, podman = (BuildConfig.model_validate({"runtime": {"kind": kind}}) for kind in ("enroot", "podman"))
    with pytest.raises(ScriptError, match=r"imagePullSecrets: the password for 'registry.example'") as raised:
        build(pod(spec), enroot, objects, "node")
    assert "touch" not in str(raised.value)
    assert build(pod(spec), podman, objects, "node").script
