"""Maxima of a namespace's policy: for each size, however it gets to the job."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from admission import validate
from admission.field_policy import defaults
from admission.mutate import mutate
from admission.validate import Scope
from bridge import names
from bridge.config import hub
from bridge.config.policies import MaxValues, NamespacePolicy
from bridge.errors import ConfigError
from bridge.slurm.models import GroupRef
from bridge.workload import groups
from tests.builders import config
from tests.unit.admission.test_mutate import patched

GPU = "nvidia.com/gpu"
RULES = config(gres={GPU: "gpu:a100"})
MAXIMA: dict[str, Any] = {
    "minNodes": 2,
    "maxNodes": 4,
    "exclusive": False,
    "cpuPerTask": 8,
    "memPerNode": "16Gi",
    "gres": {"gpu": 2},
    "timelimit": 120,
}
FITS = {"cpu": "8", "memory": "16Gi", GPU: "2"}
TOO_MUCH = {
    # the annotation, a value above its maximum, the key of the maximum, what the refusal says
    names.MIN_NODES: ("3", "minNodes", "at most 2"),
    names.MAX_NODES: ("5", "maxNodes", "at most 4"),
    names.EXCLUSIVE: ("1", "exclusive", "false"),
    names.CPU_PER_TASK: ("9", "cpuPerTask", "at most 8"),
    names.MEM_PER_NODE: ("16385Mi", "memPerNode", "at most 16Gi"),
    names.GRES: ("gpu:a100:3", "gres", "at most gpu:2"),
    names.TIME_LIMIT: ("2:00:01", "timelimit", "at most 120 minutes"),
}


def pod(annotations: Mapping[str, str], requests: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": dict(requests), "limits": dict(requests)}}]
    return {"metadata": {"annotations": dict(annotations)}, "spec": {"containers": containers, **spec}}


def group(size: int, minimum: int) -> str:
    return groups.encode(groups.Membership(GroupRef("jobset", "", "train", "o1"), size, minimum, None))


def admitted(
    annotations: Mapping[str, str],
    requests: Mapping[str, str] | None = None,
    maxima: Mapping[str, Any] | None = None,
    *,
    owner: Mapping[str, str] | None = None,
    member: str | None = None,
    rules: hub.Config = RULES,
    **spec: Any,
) -> list[tuple[str, str, str]]:
    """Return the denials of a pod after both webhooks: key, problem, what is allowed."""
    policy = NamespacePolicy.model_validate({"namespaces": ["*"], "max": MAXIMA if maxima is None else maxima})
    made = pod(annotations, FITS if requests is None else requests, **spec)
    changed = patched(
        made,
        mutate(
            made,
            scheduler="ours",
            managed=True,
            inherited=owner or {},
            defaults=defaults(policy, made, owner or {}),
            group=member,
        ),
    )
    verdict = validate.create(changed, "alice", rules, scope=Scope(policy=policy))
    assert verdict.invalid == []
    return [(denial.key, denial.problem, denial.allowed) for denial in verdict.denials]


def test_a_pod_within_the_maxima_is_allowed() -> None:
    assert admitted({}) == []
    most = {names.MIN_NODES: "2", names.MAX_NODES: "4", names.EXCLUSIVE: "false", names.TIME_LIMIT: "120"}
    assert admitted(most) == []
    assert admitted({}, member=group(4, 2)) == []


@pytest.mark.parametrize("member", [None, group(4, 2)], ids=["a pod", "a member of a group"])
@pytest.mark.parametrize("source", ["pod", "owner"])
@pytest.mark.parametrize("name", TOO_MUCH)
def test_an_annotation_above_its_maximum_is_refused_by_name(name: str, source: str, member: str | None) -> None:
    value, field, allowed = TOO_MUCH[name]
    given = {name: value}
    if name == names.MIN_NODES:
        given[names.MAX_NODES] = "4"
    found = admitted(given, member=member) if source == "pod" else admitted({}, owner=given, member=member)
    ((key, problem, told),) = found
    assert names.JOB_ANNOTATION_PREFIX + key == name
    assert f"annotation {name}" in problem
    assert told == f"{allowed} (max.{field} of its policy)"


@pytest.mark.parametrize(
    ("key", "requests", "spec"),
    [
        ("cpu-per-task", {**FITS, "cpu": "8500m"}, {}),
        ("mem-per-node", {**FITS, "memory": "17Gi"}, {}),
        ("mem-per-node", {"cpu": "1"}, {}),  # Slurm would give it all memory of a node
        ("gres", {**FITS, GPU: "3"}, {}),
        ("timelimit", FITS, {"activeDeadlineSeconds": 7201}),
        ("timelimit", FITS, {"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 31536000}),
        ("timelimit", FITS, {"activeDeadlineSeconds": 7201, "terminationGracePeriodSeconds": -7320}),
    ],
)
def test_requests_and_deadlines_of_the_pod_count_as_its_annotations(
    key: str, requests: dict[str, str], spec: dict[str, Any]
) -> None:
    ((found, _, _),) = admitted({}, requests, **spec)
    assert found == key


@pytest.mark.parametrize(
    ("key", "size", "minimum", "together"),
    [("max-nodes", 5, 2, 1), ("min-nodes", 4, 3, 1), ("mem-per-node", 4, 2, 2), ("gres", 4, 2, 2)],
)
def test_the_nodes_of_a_group_and_what_its_members_share_on_a_node_count(
    key: str, size: int, minimum: int, together: int
) -> None:
    more = {names.MEMBERS_PER_NODE: str(together)}
    assert key in {found for found, _, _ in admitted(more, member=group(size, minimum))}


def test_without_a_policy_a_pod_gets_one_node_and_shares_it_and_groups_are_free() -> None:
    for given in ({names.MAX_NODES: "2"}, {names.MIN_NODES: "2"}, {names.EXCLUSIVE: "true"}):
        assert admitted(given, maxima={}) != []
        nowhere = validate.create(pod(given, FITS, schedulerName="ours"), "a", RULES, scope=validate.NO_SCOPE)
        assert nowhere.denials != []
    assert admitted({names.MIN_NODES: "1", names.MAX_NODES: "1", names.EXCLUSIVE: "false"}, maxima={}) == []
    huge = {"cpu": "1000", "memory": "9Ti", GPU: "64"}
    assert admitted({names.TIME_LIMIT: "99999"}, huge, maxima={}, member=group(1000, 1000)) == []
    whole = config(exclusive=True, gres=RULES.gres)
    assert admitted({names.EXCLUSIVE: "true"}, maxima={}, rules=whole) == admitted({}, maxima={}, rules=whole) == []
    assert admitted({}, maxima={"exclusive": False}, rules=whole) != [], "the configuration gives whole nodes"


def test_a_pod_without_a_time_limit_gets_the_largest_and_not_instead_of_its_deadline() -> None:
    policy = NamespacePolicy.model_validate({"namespaces": ["*"], "max": MAXIMA})
    bare = pod({}, FITS)
    assert defaults(policy, bare, {}) == {names.TIME_LIMIT: "120"}
    deadline = {names.JOB_DEADLINE: "60"}
    for made, inherited in ((bare, deadline), (pod(deadline, FITS), {}), (pod({}, FITS, activeDeadlineSeconds=60), {})):
        assert defaults(policy, made, inherited) == {}
    assert admitted({}, activeDeadlineSeconds=7000) == []
    absent = validate.create(pod({}, FITS, schedulerName="ours"), "a", RULES, scope=Scope(policy=policy))
    assert [denial.problem for denial in absent.denials] == [f"annotation {names.TIME_LIMIT}: must not be absent"]


@pytest.mark.parametrize(
    ("gres", "limits", "refused"),
    [
        ("gpu:a100:1,gpu:h100:1", {"gpu": 1}, True),
        ("gpu:a100:1,gpu:h100:1", {"gpu": 2}, False),
        ("gpu:1", {"gpu:a100": 8}, True),
        ("shard:1", {"gpu": 8}, True),
        ("gres/gpu:9", {"gpu": 8}, True),
        ("gpu:a100:1", {"gpu": 8, "gpu:a100": 0}, True),
        ("gpu:1k", {"gpu": 1023}, True),
        ("gpu:1", {}, True),
    ],
)
def test_generic_resources_are_counted_by_name_and_type(gres: str, limits: dict[str, int], refused: bool) -> None:
    found = admitted({names.GRES: gres}, {"cpu": "1"}, {"gres": limits})
    assert [key for key, _, _ in found] == (["gres"] if refused else [])


def test_resources_of_two_types_of_one_gres_are_judged_and_no_error() -> None:
    both = config(gres={GPU: "gpu:a100", "amd.com/gpu": "gpu"})
    found = admitted({}, {GPU: "1", "amd.com/gpu": "1"}, {"gres": {"gpu": 1}}, rules=both)
    assert [key for key, _, _ in found] == ["gres"]


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_change_is_judged_and_an_earlier_excess_blocks_no_other_change(name: str) -> None:
    value, _, _ = TOO_MUCH[name]
    scope = Scope(policy=NamespacePolicy.model_validate({"namespaces": ["*"], "max": MAXIMA}))
    before = pod({names.TIME_LIMIT: "60"}, FITS, schedulerName="ours")
    more = {names.MAX_NODES: "4"} if name == names.MIN_NODES else {}
    after = pod({names.TIME_LIMIT: "60", **more, name: value}, FITS, schedulerName="ours")
    verdict = validate.update(before, after, "alice", RULES, scope)
    assert [names.JOB_ANNOTATION_PREFIX + denial.key for denial in verdict.denials] == [name]
    named = pod({**after["metadata"]["annotations"], names.JOB_NAME: "x"}, FITS, schedulerName="ours")
    assert validate.update(after, named, "alice", RULES, scope) == validate.Verdict()


def test_the_time_limit_cannot_be_taken_away_later() -> None:
    scope = Scope(policy=NamespacePolicy.model_validate({"namespaces": ["*"], "max": MAXIMA}))
    before, after = pod({names.TIME_LIMIT: "60"}, FITS, schedulerName="ours"), pod({}, FITS, schedulerName="ours")
    (denial,) = validate.update(before, after, "alice", RULES, scope).denials
    assert denial.key == "timelimit"


def test_a_resize_in_place_is_judged() -> None:
    scope = Scope(policy=NamespacePolicy.model_validate({"namespaces": ["*"], "max": MAXIMA}))
    limit = {names.TIME_LIMIT: "60"}
    before, after = pod(limit, FITS, schedulerName="ours"), pod(limit, {**FITS, "cpu": "9"}, schedulerName="ours")
    (denial,) = validate.resize(before, after, RULES, scope).denials
    assert denial.key == "cpu-per-task"
    assert validate.resize(after, before, RULES, scope) == validate.Verdict()


def test_maxima_are_checked_when_the_file_is_read() -> None:
    for wrong, told in (
        ({"maxNodes": 0}, "maxNodes"),
        ({"minNodes": 5, "maxNodes": 4}, "at most 4"),
        ({"memPerNode": "lots"}, "memPerNode"),
        ({"memPerNode": "0"}, "memPerNode"),
        ({"gres": {"gpu": -1}}, "gres.gpu"),
        ({"timelimit": 0}, "timelimit"),
        ({"cpus": 4}, "unknown key"),
    ):
        with pytest.raises(ConfigError, match=told):
            hub.parse(f"namespacePolicies: [{{namespaces: [a], max: {wrong!r}}}]".replace("'", '"'))
    with pytest.raises(ValidationError):
        MaxValues(min_nodes=0)
