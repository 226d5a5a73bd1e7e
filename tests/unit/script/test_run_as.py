"""Users of containers: what the hub refuses, and what a script finds out on its machine.

Found in the wild: CARV-ICS-FORTH/HPK#79, sylabs/singularity-cri#29 (Spark's executors have runAsUser 185).
"""

from __future__ import annotations

import itertools
import os
import subprocess
from typing import Any

import pytest

from bridge.errors import ScriptError
from bridge.protocol.model.announcement import JobUser
from bridge.protocol.model.requests import JobSubmission
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from tests.unit.script.pods import pod, shell

OWN, OTHER, FAR = 65534, 185, 70_000
USER = JobUser(uid=OWN, gid=OWN, most_uid=65_536, most_gid=65_536)
IDS = {"own": OWN, "root": 0, "other": OTHER, "far": FAR}
GIVES: dict[str, set[str]] = {
    "apptainer": {"own"},
    "apptainer with fakeroot": {"own", "root"},
    "singularity": {"own"},
    "enroot": {"own", "root"},
    "podman": {"own", "root", "other"},
    "charliecloud": set(IDS),
    "none": set(IDS),
}
"""The users that each runtime gives to a container at a site whose user is OWN."""
CASES = [*itertools.product(GIVES, IDS)]


def config(runtime: str, setting: str = "refuse", **more: Any) -> BuildConfig:
    kind, _, fakeroot = runtime.partition(" ")
    data = {"runtime": {"kind": kind, "run_as_user": setting}, "apptainer": {"fakeroot": bool(fakeroot)}, **more}
    return BuildConfig.model_validate(data)


def made(
    context: dict[str, Any], settings: BuildConfig, jobs: JobUser | None, outer: dict[str, Any] | None = None
) -> JobSubmission:
    spec = {"securityContext": outer or {}, "containers": [shell("id", securityContext=context)]}
    return build(pod(spec), settings, Objects(), "node", jobs=jobs)


def refusal(context: dict[str, Any], settings: BuildConfig, jobs: JobUser | None) -> str:
    try:
        made(context, settings, jobs)
    except ScriptError as error:
        return error.with_hint
    return ""


@pytest.mark.parametrize(("runtime", "name"), CASES)
def test_what_a_runtime_cannot_give_is_refused_by_the_hub(runtime: str, name: str) -> None:
    said = refusal({"runAsUser": IDS[name]}, config(runtime), USER)
    if name in GIVES[runtime]:
        assert said == ""
    else:
        field = f"spec.containers[0].securityContext.runAsUser: {IDS[name]} is not allowed"
        assert said.startswith(field) and "; allowed: " in said and "run_as_user" in said


@pytest.mark.parametrize(("runtime", "name"), CASES)
def test_a_site_that_does_not_say_its_user_gets_what_it_got_before(runtime: str, name: str) -> None:
    """Submitters of earlier versions, and those whose jobs have several users."""
    before = name == "root" and runtime in ("apptainer", "singularity")
    assert bool(refusal({"runAsUser": IDS[name]}, config(runtime), None)) is before


@pytest.mark.parametrize(("runtime", "name"), CASES)
@pytest.mark.parametrize("jobs", [USER, None], ids=["known", "unknown"])
def test_a_site_may_ignore_it(runtime: str, name: str, jobs: JobUser | None) -> None:
    script = made({"runAsUser": IDS[name], "runAsGroup": 5}, config(runtime, "ignore"), jobs).script
    assert "IGNORE_USERS=1" in script and f"RUN_AS=({IDS[name]}:5)" in script.replace("'", "")


@pytest.mark.parametrize("runtime", ["apptainer", "enroot", "podman"])
def test_groups(runtime: str) -> None:
    assert refusal({"runAsGroup": OWN}, config(runtime), USER) == ""
    assert "runAsGroup: 70000 is not allowed" in refusal({"runAsGroup": FAR}, config(runtime), USER)
    unknown = JobUser(uid=OWN)
    assert refusal({"runAsUser": OWN, "runAsGroup": FAR}, config(runtime), unknown) == ""


def test_the_field_of_the_pod_is_named() -> None:
    with pytest.raises(ScriptError, match=r"^spec\.securityContext\.runAsUser: 185 is not allowed at this site"):
        made({}, config("apptainer"), USER, {"runAsUser": OTHER})


@pytest.mark.parametrize("setting", ["refuse", "ignore"])
@pytest.mark.parametrize("runtime", ["apptainer", "enroot", "charliecloud", "none"])
def test_a_site_of_root_runs_no_pod_that_forbids_it(runtime: str, setting: str) -> None:
    root = JobUser(uid=0, gid=0)
    assert "runAsNonRoot: true is not allowed" in refusal({"runAsNonRoot": True}, config(runtime, setting), root)
    assert refusal({"runAsNonRoot": True}, config(runtime, setting), USER) == ""
    ignored = refusal({"runAsNonRoot": True, "runAsUser": OTHER}, config(runtime, setting), root)
    assert bool(ignored) is (runtime in ("apptainer", "enroot"))
    assert refusal({"runAsNonRoot": True}, config("podman", setting), root) == ""  # the image's user counts


def test_with_rules_of_interlink_the_pod_selects_the_user_of_the_job_unless_the_site_ignores_it() -> None:
    rules = {"limits": {"rules": "interlink-slurm", "default_uid": 7}}
    assert made({}, config("singularity", **rules), None, {"runAsUser": OTHER}).flags == [f"--uid={OTHER}"]
    job = made({}, config("singularity", "ignore", **rules), None, {"runAsUser": OTHER})
    assert job.flags == ["--uid=7"] and "IGNORE_USERS=1" in job.script


# --- the script, on a machine whose user is OWN -----------------------------------------------------------------------
AS_FOUND = r"""
podman() { [[ $1 == unshare ]] && printf '0 %s 1\n1 300000 65536\n' "$UID"; }
unshare() { [[ $MACHINE != old ]]; }
clock
for asked in 65534 0 185 70000; do
    RUN_AS=("$asked:") NON_ROOT=("$FORBIDS_ROOT") POD_MESSAGE='' HAPPENED=()
    if users_given >/dev/null; then
        printf '%s given=%s events=%s\n' "$asked" "${RUN_AS[0]}" "${!HAPPENED[*]}"
    else
        printf '%s %s\n' "$asked" "$POD_MESSAGE"
    fi
done
exit
"""


def found(runtime: str, setting: str = "refuse", **variables: str) -> dict[str, str]:
    """Return what the script of a pod finds for each user: by bash, as the user OWN."""
    script = made({}, config(runtime, setting), None).script
    at = script.rindex("LC_ALL=C\ncase")
    text = script[:at].partition("LOCALE=${LC_ALL-}\n")[2] + AS_FOUND
    user = OWN if os.getuid() == 0 else None
    done = subprocess.run(
        ["bash", "-s"], input=text, env={"PATH": os.environ["PATH"], "FORBIDS_ROOT": "", "MACHINE": "", **variables},
        cwd="/", user=user, group=user, extra_groups=[] if user else None, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in done.stdout.splitlines()}


as_own = pytest.mark.skipif(os.getuid() not in (0, OWN), reason="only root can become another user")


@as_own
@pytest.mark.parametrize("runtime", GIVES)
def test_the_script_finds_what_the_hub_could_not_know(runtime: str) -> None:
    for name, said in zip(IDS, found(runtime).values(), strict=True):
        if name in GIVES[runtime]:
            assert said == f"given={IDS[name]}: events="
        else:
            assert said.startswith(f"container main: runAsUser: {IDS[name]} is not allowed; allowed: ")


@as_own
@pytest.mark.parametrize("runtime", GIVES)
def test_the_script_ignores_it_with_an_event(runtime: str) -> None:
    for name, said in zip(IDS, found(runtime, "ignore").values(), strict=True):
        given = name in GIVES[runtime]
        assert said == (f"given={IDS[name]}: events=" if given else "given=: events=0.RunAsUserIgnored.runAsUser:")


@as_own
def test_a_machine_without_user_namespaces_gives_its_own_user_alone() -> None:
    said = found("none", MACHINE="old")
    assert said[str(OWN)] == f"given={OWN}: events="
    assert said["185"] == f"container main: runAsUser: 185 is not allowed; allowed: {OWN}, the user of this site"


@as_own
@pytest.mark.parametrize("runtime", GIVES)
def test_root_is_refused_where_the_pod_forbids_it(runtime: str) -> None:
    said = found(runtime, FORBIDS_ROOT="1")["0"]
    if "root" in GIVES[runtime]:
        assert said == "container main: runAsNonRoot: the user of the container is root"
    else:
        assert said.startswith("container main: runAsUser: 0 is not allowed")
