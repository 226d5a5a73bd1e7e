"""Sizes, flavors, flags and annotations as the interLink Slurm plugin documents them (interlink.md 3.2, 3.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ScriptError
from bridge.script import interlink_rules, site_annotations
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from tests.unit.script.pods import pod

CONFIG = {
    "limits": {
        "rules": "interlink-slurm",
        "default_memory": "1Mi",
        "probes": False,
        "allow_user_flags": True,
        "allow_pre_exec": True,
        "allow_runtime_options": True,
    },
    "flavors": [
        {"name": "cpu", "cpu": 2, "memory": "8Gi", "flags": ["--partition=normal"]},
        {"name": "gpu2", "flags": ["--gres=gpu:a100:2"], "uid": 1002},
        {"name": "gpu1", "flags": ["--gres=gpu:1"]},
    ],
}


def config(**more: Any) -> BuildConfig:
    limits = {**CONFIG["limits"], **more.pop("limits", {})}  # type: ignore[dict-item]
    return BuildConfig.model_validate({**CONFIG, **more, "limits": limits})


def container(**limits: str) -> dict[str, Any]:
    named = {
        key.replace("_", "/").replace("nvidia/", "nvidia.com/").replace("amd/", "amd.com/"): v
        for key, v in limits.items()
    }
    return {
        "name": "c",
        "image": "docker://x",
        "resources": {"limits": named, "requests": {"cpu": "50", "memory": "1Ti"}},
    }


def made(
    *containers: dict[str, Any], init: Any = (), conf: BuildConfig | None = None, **annotations: str
) -> dict[str, Any]:
    spec = {"containers": list(containers) or [container()], "initContainers": list(init)}
    return pod(spec, annotations={key.replace("__", "/").replace("_", "-"): v for key, v in annotations.items()})


def flags(wanted: dict[str, Any], conf: BuildConfig | None = None) -> list[str]:
    return site_annotations.read(wanted, conf or config()).flags


def test_the_largest_limit_of_any_container_counts_and_requests_do_not() -> None:
    wanted = made(container(cpu="1500m", memory="100Mi"), container(cpu="1"), init=[container(memory="3Gi")])
    size = interlink_rules.measure(wanted, config())
    assert (size.cpus, size.memory) == (2, 3 * 2**30)


def test_without_limits_and_flavors_one_cpu_and_one_megabyte() -> None:
    size = interlink_rules.measure(made(), config(flavors=[]))
    assert (size.cpus, size.memory, size.flavor) == (1, 2**20, "")


def test_without_limits_the_defaults_of_the_flavor_count() -> None:
    size = interlink_rules.measure(made(), config(default_flavor="cpu"))
    assert (size.cpus, size.memory, size.flavor) == (2, 8 * 2**30, "cpu")


@pytest.mark.parametrize(
    ("containers", "annotations", "flavor", "gpus", "resource", "warned"),
    [
        ([container()], {}, "cpu", 0, "", False),
        ([container(nvidia_gpu="1")], {}, "gpu1", 1, "nvidia.com/gpu", False),
        ([container(nvidia_gpu="1"), container(amd_gpu="1")], {}, "gpu2", 2, "amd.com/gpu", False),
        ([container(nvidia_gpu="7")], {}, "gpu2", 2, "nvidia.com/gpu", False),
        ([container(nvidia_gpu="1")], {"slurm-job.vk.io__flavor": "cpu"}, "cpu", 0, "", True),
        ([container()], {"slurm-job.vk.io__flavor": "odd"}, "cpu", 0, "", True),
        ([container(nvidia_gpu="1")], {"slurm-job.vk.io__flavor": "odd"}, "gpu1", 1, "nvidia.com/gpu", True),
        ([container()], {"slurm-job.vk.io__flags": "--gpus=a100:3"}, "cpu", 3, "nvidia.com/gpu", False),
    ],
)
def test_flavors(
    containers: list[Any], annotations: dict[str, str], flavor: str, gpus: int, resource: str, warned: bool
) -> None:
    wanted = made(*containers, **annotations)
    size = interlink_rules.measure(wanted, config(default_flavor="cpu"))
    assert (size.flavor, size.gpus, size.gpu_resource) == (flavor, gpus, resource)
    assert bool(interlink_rules.warnings(wanted, config(default_flavor="cpu"))) is warned


def test_gpus_that_nothing_asks_for_are_told() -> None:
    wanted = made(container(nvidia_gpu="1"))
    assert interlink_rules.measure(wanted, config(flavors=[])).gpus == 0
    assert "1 GPUs: no flag of flavor or pod asks for them" in interlink_rules.warnings(wanted, config(flavors=[]))[0]


def test_the_limit_of_a_pod_wins_over_its_flag() -> None:
    asked = "--cpus-per-task=4 --mem 5G -c8 -t 2800 --mem-per-cpu=2000"
    assert flags(made(container(), **{"slurm-job.vk.io__flags": asked})) == asked.split()
    limited = made(container(cpu="1", memory="1Gi"), **{"slurm-job.vk.io__flags": asked})
    assert flags(limited) == ["-t", "2800", "--mem-per-cpu=2000"]


def test_the_user_of_a_job() -> None:
    wanted = made()
    assert flags(wanted, config(default_flavor="gpu2")) == ["--uid=1002"]
    assert flags(wanted, config(limits={"default_uid": 7})) == ["--uid=7"]
    wanted["spec"]["securityContext"] = {"runAsUser": 5}
    assert flags(wanted, config(default_flavor="gpu2", limits={"default_uid": 7})) == ["--uid=5"]


def test_the_historical_name_of_flags() -> None:
    assert flags(made(**{"slurm-job.knoc.io__flags": "-t 5"})) == ["-t", "5"]
    assert flags(made(**{"slurm-job.knoc.io__flags": "-t 5", "slurm-job.vk.io__flags": "-t 6"})) == ["-t", "6"]
    plain = BuildConfig.model_validate({"limits": {"allow_user_flags": True}})
    assert flags(made(**{"slurm-job.knoc.io__flags": "-t 5"}), plain) == []


def test_commands_before_the_job_in_order() -> None:
    wanted = made(
        **{
            "slurm-job.vk.io__pre-exec": "third",
            "slurm-job.vk.io__singularity-commands": "second",
            "interlink.eu__wstunnel-client-commands": "first &",
            "interlink.eu__pod-ip": "10.0.0.1",
        }
    )
    assert site_annotations.read(wanted, config()).pre_exec == "export POD_IP=10.0.0.1\nfirst &\nsecond\nthird\n:"


def test_a_mesh_network_is_refused_by_name() -> None:
    wanted = made(**{"slurm-job.vk.io__pre-exec": "cat <<'EOFMESH' >mesh.sh\nx\nEOFMESH"})
    with pytest.raises(ScriptError, match=r"EOFMESH.*mesh-network: disabled"):
        site_annotations.read(wanted, config())


def test_a_folder_that_is_to_stay_is_told() -> None:
    assert (
        "no-clean-workdir"
        in interlink_rules.warnings(made(**{"slurm-job.vk.io__no-clean-workdir": "true"}), config())[0]
    )


def test_a_job_asks_for_gpus_by_its_flags_only_and_probes_are_ignored() -> None:
    wanted = made(container(nvidia_gpu="1"))
    wanted["spec"]["containers"][0]["livenessProbe"] = {"exec": {"command": ["false"]}}
    job = build(wanted, config(), Objects(), "node")
    assert (job.gpus, job.gpu_resource, job.flavor) == (0, "", "gpu1")
    assert "GPU_RESOURCE=nvidia.com/gpu" in job.script and "PROBE[" not in job.script.partition("NAME=")[2]


WORDS = st.lists(
    st.one_of(st.sampled_from(["--mem", "--mem=3", "-c", "-c3", "--gres=gpu:1", "-G", "3"]), st.text(max_size=6)),
    max_size=6,
)


@given(WORDS)
def test_any_words_are_read(words: list[str]) -> None:
    assert interlink_rules.gpus_in(words) >= 0
    kept = interlink_rules.flags(made(container(cpu="1", memory="1Gi")), config(), words)
    assert not any(word in ("--mem", "-c") or word.startswith("--mem=") for word in kept)
    assert [word for word in words if word in kept] == kept or len(kept) < len(words)


def test_an_unknown_annotation_is_told() -> None:
    wanted = made(**{"slurm-job.vk.io__gid": "1001", "slurm-job.vk.io__flavor": "cpu", "other__x": "y"})
    assert interlink_rules.warnings(wanted, config()) == ["annotation slurm-job.vk.io/gid: unknown, ignored"]


def test_users_of_containers_are_ignored_and_told() -> None:
    wanted = made({**container(), "securityContext": {"runAsUser": 1000, "runAsGroup": 5}})
    job = build(wanted, config(), Objects(), "node")
    assert "RUN_AS=(:)" in job.script.replace("'", "") and job.flags == []
    assert "runAsUser of a container" in interlink_rules.warnings(wanted, config())[0]
    wanted["spec"]["securityContext"] = {"runAsUser": 1000, "runAsGroup": 7}
    job = build(wanted, config(), Objects(), "node")
    assert "RUN_AS=(1000:)" in job.script.replace("'", "") and job.flags == ["--uid=1000"]
    assert interlink_rules.warnings(wanted, config()) == []


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--gres=gpu:1"], 1),
        (["--gres=gpu"], 1),
        (["--gres=shard:2,gpu:a100:3"], 3),
        (["--gres", "gpu:3g.20gb:2(S:0)"], 2),
        (["--gres=gpu:a100:1,gpu:h100:2"], 3),
        (["--gres=shard:2"], 0),
        (["--gres=gpu:4", "--gres=none"], 0),
        (["-G", "2"], 2),
        (["--gpus=a100:2,h100:1"], 3),
        (["--gpus-per-node=2"], 2),
        (["-p", "gpu"], 0),
    ],
)
def test_gpus_of_flags(words: list[str], count: int) -> None:
    assert interlink_rules.gpus_in(words) == count


def test_a_flavor_whose_flags_mention_gpus_is_the_last_choice() -> None:
    flavors = [{"name": "a"}, {"name": "b", "flags": ["-p", "gpu"]}, {"name": "c", "flags": ["--gres=gpu:1"]}]
    wanted = made(container(nvidia_gpu="2"))
    assert interlink_rules.measure(wanted, config(flavors=flavors)).flavor == "c"
    assert interlink_rules.measure(wanted, config(flavors=flavors[:2])).flavor == "b"
    assert "the containers see none" in interlink_rules.warnings(wanted, config(flavors=flavors[:2]))[0]
