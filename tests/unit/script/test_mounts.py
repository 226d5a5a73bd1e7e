"""The mounts of a container."""

import subprocess
from importlib import resources

import pytest

from bridge.errors import ScriptError
from bridge.script.buildconfig import BuildConfig
from bridge.script.plan import make
from bridge.script.references import Objects
from tests.pod_specs import EMPTY, mount, spec_of, volumes
from tests.unit.script.pods import pod

COMMAND = {"exec": {"command": ["true"]}}


def planned(container, runtime="none", others=()):
    spec = spec_of({"name": "main", "image": "docker://x", "command": ["x"], **container}, *others, **volumes(v=EMPTY))
    config = BuildConfig.model_validate({"runtime": {"kind": runtime}})
    return make(pod(spec), config, Objects(), "n").containers[0]


@pytest.mark.parametrize(
    ("handler", "runtime", "shared"),
    [
        ({}, "none", False),
        ({}, "apptainer", False),
        ({"readinessProbe": COMMAND}, "none", True),
        ({"readinessProbe": COMMAND}, "apptainer", True),
        ({"readinessProbe": COMMAND}, "singularity", True),
        ({"startupProbe": COMMAND}, "apptainer", True),
        ({"lifecycle": {"preStop": COMMAND}}, "apptainer", True),
        ({"readinessProbe": {"tcpSocket": {"port": 80}}}, "apptainer", False),
        # these run commands inside the mounts of the container
        ({"readinessProbe": COMMAND}, "podman", False),
        ({"readinessProbe": COMMAND}, "enroot", False),
        ({"readinessProbe": COMMAND}, "charliecloud", False),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_container_may_change_a_sub_path_before_a_command_of_its_own_is_mounted(handler, runtime, shared, read_only):
    mounts = [mount("v", "/v", readOnly=read_only), mount("v", "/s", "s", readOnly=True)]
    found = {place.path: place.shared for place in planned({"volumeMounts": mounts, **handler}, runtime).mounts}
    assert found["/s"] == (shared and not read_only) and not found["/v"]


@pytest.mark.parametrize("runtime", ["none", "podman"])
def test_another_container_may_change_a_sub_path(runtime):
    place = mount("v", "/s", "s")
    other = {"name": "other", "image": "x", "command": ["x"], "volumeMounts": [mount("v", "/v")]}
    found = planned({"volumeMounts": [place]}, runtime, [other])
    assert [each.shared for each in found.mounts if each.path == "/s"] == [True]


@pytest.mark.parametrize(
    ("expression", "path"), [("$$(WHO)", "$(WHO)"), ("a/$(WHO)", "a/me"), ("$(TEXT)", "$(WHO)"), ("$(NO)", None)]
)
def test_sub_path_expr(expression, path):
    container = {
        "env": [{"name": "WHO", "value": "me"}, {"name": "TEXT", "value": "$$(WHO)"}],
        "volumeMounts": [mount("v", "/s", subPathExpr=expression)],
    }
    if path is None:
        with pytest.raises(ScriptError, match="names a variable that is not set"):
            planned(container)
        return
    assert [place.sub_path for place in planned(container).mounts if place.path == "/s"] == [path]


CHARLIECLOUD = str(resources.files("bridge.script") / "lib" / "runtime_charliecloud.bash")


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("/run", "/run/secrets"),
        ("../run", "/run/secrets"),
        ("../../../run/./x/..", "/run/secrets"),
        ("/", "/secrets"),
        ("run", None),
        ("/a:/b", None),
        ("/a\nb", None),
        ("a\\\\b", None),
        ("/a,b", None),
    ],
)
def test_a_mount_of_charliecloud_goes_where_the_links_of_the_image_lead(tmp_path, link, place):
    """A link is as hostile as its image: it leads to no place outside of it, and to no second mount."""
    (tmp_path / "image/var").mkdir(parents=True)
    (tmp_path / "image/var/run").symlink_to(link)
    script = f'. {CHARLIECLOUD}; without_links image /var/run/secrets && printf %s "$RESULT"'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert (done.stdout if done.returncode == 0 else None) == place, done.stderr
