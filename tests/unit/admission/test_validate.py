from decimal import Decimal
from typing import Any

import pytest

from admission import validate
from admission.raw_pods import MIRROR_ANNOTATION
from admission.validate import Scope
from bridge import names
from bridge.config.hub import Config
from bridge.config.policies import NamespacePolicy
from bridge.config.pools import PoolsSection
from bridge.workload import pool_selection
from tests.builders import config

RULES = config(gres={"nvidia.com/gpu": "gpu"})
TRUSTED = {"podbridge"}
RESERVED = {
    "labels": {names.JOB_ID_LABEL: "7"},
    "annotations": {names.NODE_ANNOTATION: "n"},
    "finalizers": [names.FINALIZER],
}


def pod(metadata: dict[str, Any] | None = None, requests: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": requests or {}, "limits": requests or {}}}]
    return {"metadata": metadata or {}, "spec": {"schedulerName": "ours", "containers": containers, **spec}}


def test_a_plain_pod_is_fine() -> None:
    verdict = validate.create(pod(requests={"cpu": "1", "nvidia.com/gpu": "2"}), "alice", RULES)
    assert verdict == validate.Verdict()


def test_podbridge_may_write_what_is_its_own_and_others_may_not() -> None:
    assert validate.create(pod(RESERVED), "podbridge", RULES, trusted=TRUSTED).forbidden == []
    assert len(validate.create(pod(RESERVED), "alice", RULES).forbidden) == 2, "the mutating webhook sets the finalizer"
    assert len(validate.create(pod({**RESERVED, "finalizers": [names.POOL_FINALIZER]}), "alice", RULES).forbidden) == 3
    other = pod(RESERVED) | {"spec": {"schedulerName": "theirs", "containers": []}}
    assert len(validate.create(other, "alice", RULES).forbidden) == 3
    assert validate.update(pod(), pod(RESERVED), "podbridge", RULES, trusted=TRUSTED).forbidden == []
    assert len(validate.update(pod(), pod(RESERVED), "alice", RULES).forbidden) == 3


def test_what_is_podbridges_own_is_so_for_pods_of_other_schedulers_too() -> None:
    assert len(validate.create(pod(RESERVED, schedulerName="theirs"), "alice", RULES).forbidden) == 3


def test_other_schedulers_may_do_what_slurm_can_not() -> None:
    body = pod(
        {"annotations": {names.TIME_LIMIT: "x", names.USER_ID: "0"}},
        schedulerName="theirs",
        resourceClaims=[{"name": "c"}],
        requests={"example.com/fpga": "1"},
    )
    assert validate.create(body, "alice", RULES) == validate.Verdict()


def test_mirror_pods_are_not_judged() -> None:
    body = pod({"annotations": {MIRROR_ANNOTATION: "x", names.NODE_ANNOTATION: "n"}}, nodeName="n")
    assert validate.create(body, "system:node:n", RULES) == validate.Verdict()
    for user in ("alice", "system:node:other"):
        assert MIRROR_ANNOTATION in validate.create(body, user, RULES).forbidden[0]
    nowhere = pod({"annotations": {MIRROR_ANNOTATION: "x"}})
    assert validate.create(nowhere, "system:node:", RULES).forbidden


def test_keys_that_need_a_permission_are_named() -> None:
    keys = [names.USER_ID, names.GROUP_ID, names.PRIORITY, names.RESERVATION]
    verdict = validate.create(pod({"annotations": dict.fromkeys(keys, "1")}), "alice", RULES)
    assert verdict.permissions == ["priority"]
    assert [denial.key for denial in verdict.denials] == ["group-id", "reservation", "user-id"]


def test_a_policy_allows_users_and_groups_of_slurm_without_a_permission() -> None:
    policy = NamespacePolicy.model_validate(
        {"namespaces": ["*"], "default": {"userId": "alice"}, "allowed": {"userId": ["bob"], "groupId": ["2000"]}}
    )
    scope = Scope(policy=policy)

    def denials(**annotations: str) -> list[str]:
        found = {names.JOB_ANNOTATION_PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
        verdict = validate.create(pod({"annotations": found}), "carol", RULES, scope=scope)
        assert not verdict.permissions
        return [denial.key for denial in verdict.denials]

    assert denials(user_id="bob", group_id="2000") == []
    assert denials(user_id="alice") == []
    assert denials(user_id="root") == denials(user_id="20001") == ["user-id"]
    assert denials() == ["user-id"], "without the default, the job would be SlurmUser's"
    assert denials(user_id="bob", group_id="0") == ["group-id"]


def test_only_changes_are_judged() -> None:
    wrong = {"annotations": {names.TIME_LIMIT: "x", names.USER_ID: "0"}}
    assert validate.update(pod(wrong), pod({**wrong, "labels": {"a": "b"}}), "alice", RULES) == validate.Verdict()
    changed = {"annotations": {names.TIME_LIMIT: "y", names.USER_ID: "0"}}
    verdict = validate.update(pod(wrong), pod(changed), "alice", RULES)
    assert "'y'" in verdict.invalid[0]
    assert verdict.permissions == []


def test_taking_a_key_away_needs_no_permission() -> None:
    verdict = validate.update(pod({"annotations": {names.USER_ID: "0"}}), pod(), "alice", RULES)
    assert verdict == validate.Verdict()


def test_a_jobs_annotations_are_fixed_while_it_exists() -> None:
    held = {"labels": {names.JOB_ID_LABEL: "7"}, "annotations": {names.QOS: "low"}}
    for changed in ({}, {names.QOS: "high"}, {names.QOS: "low", names.ACCOUNT: "a"}):
        verdict = validate.update(pod(held), pod({**held, "annotations": changed}), "alice", RULES)
        assert "job 7" in verdict.invalid[0]
    assert validate.update(pod(held), pod(held), "alice", RULES) == validate.Verdict()


def test_the_finalizer_comes_off_freely_without_a_job_and_by_permission_with_one() -> None:
    free, bare = {"finalizers": [names.FINALIZER]}, {"finalizers": []}
    assert validate.update(pod(free), pod(bare), "alice", RULES) == validate.Verdict()
    labels = {"labels": {names.JOB_ID_LABEL: "7"}}
    for user, permissions in (("alice", ["finalizer"]), ("podbridge", [])):
        verdict = validate.update(pod({**free, **labels}), pod({**bare, **labels}), user, RULES, trusted=TRUSTED)
        assert verdict.permissions == permissions


def test_a_size_is_fixed_while_a_job_holds_it() -> None:
    assert validate.resize(pod(), pod(requests={"cpu": "2"}), RULES) == validate.Verdict()
    held = pod({"labels": {names.JOB_ID_LABEL: "7"}})
    assert "job 7" in validate.resize(held, held, RULES).invalid[0]


def test_a_pod_does_not_outgrow_its_annotations() -> None:
    small = {"annotations": {names.CPU_PER_TASK: "1"}}
    fits, grown = pod(small, requests={"cpu": "1"}), pod(small, requests={"cpu": "2"})
    assert validate.create(fits, "alice", RULES).invalid == []
    for verdict in (
        validate.create(grown, "alice", RULES),
        validate.resize(fits, grown, RULES),
        validate.update(pod(requests={"cpu": "2"}), grown, "alice", RULES),
    ):
        (problem,) = verdict.invalid
        assert f"annotation {names.CPU_PER_TASK}: 1 is below" in problem
        assert "at least 2" in problem


def test_a_resource_that_slurm_does_not_count_needs_whole_nodes() -> None:
    body = pod(requests={"example.com/fpga": "1"})
    assert "example.com/fpga" in validate.create(body, "alice", RULES).invalid[0]
    whole = pod({"annotations": {names.EXCLUSIVE: "true"}}, requests={"example.com/fpga": "1"})
    assert validate.create(whole, "alice", RULES).invalid == []
    assert validate.create(body, "alice", config(exclusive=True)).invalid == []


def test_preferences_are_warned_about() -> None:
    soft = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {soft: [{}]}, "podAffinity": {soft: [{}]}, "podAntiAffinity": {soft: [{}]}}
    body = pod(topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}], affinity=affinity)
    verdict = validate.create(body, "alice", RULES)
    assert (verdict.invalid, len(verdict.warnings)) == ([], 4)


SPREAD = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
TERMS = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"topologySpreadConstraints": [SPREAD]}, ("spec.topologySpreadConstraints[0]", "'zone'", "ScheduleAnyway")),
        ({"topologySpreadConstraints": [{}]}, ("spec.topologySpreadConstraints[0]",)),
        ({"affinity": {"podAffinity": TERMS}}, ("spec.affinity.podAffinity", "'zone'", "allowed")),
        ({"affinity": {"podAntiAffinity": TERMS}}, ("spec.affinity.podAntiAffinity", "'zone'", "allowed")),
    ],
    ids=["spread", "spread, by default", "affinity", "anti-affinity"],
)
def test_requirements_about_other_pods_are_refused(spec: dict[str, Any], words: tuple[str, ...]) -> None:
    (problem,) = validate.create(pod(**spec), "alice", RULES).invalid
    assert all(word in problem for word in words), problem


def test_a_node_affinity_of_many_expressions_is_refused() -> None:
    """A decision compares each of them with each node."""

    def having(count: int) -> dict[str, Any]:
        expressions = [{"key": f"k{index}", "operator": "Exists"} for index in range(count)]
        terms = [{"matchExpressions": expressions[::2]}, {"matchFields": expressions[1::2]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return pod(affinity={"nodeAffinity": required})

    assert validate.create(having(1000), "alice", RULES).invalid == []
    (problem,) = validate.create(having(1001), "alice", RULES).invalid
    assert problem.endswith("1001 expressions are not allowed; allowed: at most 1000")
    assert validate.update(having(1), having(1001), "alice", RULES).invalid == [problem]
    assert validate.update(having(1001), having(1001), "alice", RULES).invalid == []


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ({"cpu": "64", "memory": "1Gi"}, None),
        ({"cpu": "65"}, ["cpu 65", "has 64"]),
        ({"memory": "3Ti"}, ["memory 3072.0Gi", "has 512.0Gi"]),
        ({"nvidia.com/gpu": "9"}, ["nvidia.com/gpu 9", "has 8"]),
        ({"cpu": "64", "nvidia.com/gpu": "1"}, ["none has all of cpu 64, nvidia.com/gpu 1"]),
    ],
)
def test_what_fits_nowhere_is_warned_about(requests: dict[str, str], words: list[str] | None) -> None:
    nodes = [
        {"cpu": Decimal(64), "memory": Decimal(2**39)},
        {"cpu": Decimal(32), "memory": Decimal(2**38), "nvidia.com/gpu": Decimal(8)},
    ]
    warnings = validate.create(pod(requests=requests), "alice", RULES, nodes).warnings
    assert bool(warnings) is (words is not None)
    for word in words or ():
        assert word in warnings[0]
    assert validate.create(pod(requests=requests), "alice", RULES).warnings == []


DEVICES = config(gres={"nvidia.com/gpu": "gpu"}, device_classes={"gpu.example.com": "gpu"})
GPU_CLASS = "deviceclass.resource.kubernetes.io/gpu.example.com"
REMOTE = {"tolerations": [{"key": names.POOL_TAINT, "operator": "Exists"}]}


def test_devices_that_slurm_counts_are_allowed() -> None:
    claims = [{"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimTemplateName": "y"}]
    assert validate.create(pod(requests={GPU_CLASS: "1"}, resourceClaims=claims), "alice", DEVICES).invalid == []


def test_devices_that_nobody_would_allocate_are_refused() -> None:
    (problem,) = validate.create(pod(requests={GPU_CLASS + "x": "1"}), "alice", DEVICES).invalid
    assert "gpu.example.comx" in problem
    assert f"allowed: {GPU_CLASS} " in problem
    shared = pod(resourceClaims=[{"name": "a", "podGroupResourceClaim": "x"}])
    (problem,) = validate.create(shared, "a", DEVICES).invalid
    assert "spec.resourceClaims[0]: 'a'" in problem
    init = [{"name": "i", "resources": {"limits": {GPU_CLASS: "1"}}}]
    (problem,) = validate.create(pod(initContainers=init), "alice", DEVICES).invalid
    assert problem.startswith("spec.initContainers[0].resources")
    assert validate.create(pod(initContainers=[{**init[0], "restartPolicy": "Always"}]), "a", DEVICES).invalid == []


def test_pools_allocate_no_devices() -> None:
    body = pod(requests={GPU_CLASS: "1"}, resourceClaims=[{"name": "a", "resourceClaimName": "x"}], **REMOTE)
    problems = [line for line in validate.create(body, "alice", DEVICES).invalid if "pools allocate" in line]
    assert [line.partition(":")[0] for line in problems] == ["spec.resourceClaims[0]", "spec.containers[0].resources"]


@pytest.mark.parametrize("key", [names.PLACES, names.GRANT, names.PLACE_IN_JOB])
def test_only_podbridge_says_where_a_pod_is_queued_and_who_has_won(key: str) -> None:
    mine = pod({"annotations": {key: "a/t1"}})
    assert key in validate.create(mine, "alice", RULES).forbidden[0]
    assert validate.create(mine, "podbridge", RULES, trusted=TRUSTED).forbidden == []
    other = pod({"annotations": {key: "a/t2"}})
    assert key in validate.update(mine, other, "alice", RULES).forbidden[0]
    assert validate.update(mine, other, "podbridge", RULES, trusted=TRUSTED).forbidden == []


LOCAL_TOLERATION = {"key": names.POOL_TAINT, "operator": "Equal", "value": "local", "effect": "NoSchedule"}
POOL_TOLERATION = {**LOCAL_TOLERATION, "value": "nowhere"}
ROOT = {f"{names.JOB_ANNOTATION_PREFIX}user-id": "root", f"{names.JOB_ANNOTATION_PREFIX}account": "other"}


def test_a_pod_of_pools_does_not_become_local_by_a_toleration() -> None:
    before = pod({"annotations": ROOT}, tolerations=[POOL_TOLERATION])
    after = pod({"annotations": ROOT}, tolerations=[POOL_TOLERATION, LOCAL_TOLERATION])
    assert not pool_selection.of(before).local and not pool_selection.of(after).local
    assert pool_selection.of(pod(tolerations=[LOCAL_TOLERATION])) == pool_selection.LOCAL


def test_a_pod_of_pools_does_not_become_local_by_its_annotation() -> None:
    before = pod({"annotations": {**ROOT, names.POOLS: "nowhere"}}, tolerations=[POOL_TOLERATION])
    for text in ("nowhere,local", "local"):
        after = pod({"annotations": {**ROOT, names.POOLS: text}}, tolerations=[POOL_TOLERATION])
        (problem,) = validate.update(before, after, "alice", RULES).invalid
        assert f"annotation {names.POOLS}: cannot be changed" in problem


@pytest.mark.parametrize("key", [names.REMOTE_JOB, names.JOB_INTENT, names.PLACES])
def test_a_pod_with_a_job_at_a_pool_is_not_resized(key: str) -> None:
    before = pod({"annotations": {key: "site/7"}}, tolerations=[POOL_TOLERATION])
    (problem,) = validate.resize(before, before, RULES).invalid
    assert key in problem and "allowed: a new pod" in problem
    (problem,) = validate.ephemeral_containers(before, RULES).invalid
    assert "spec.ephemeralContainers: cannot be added" in problem


def test_ephemeral_containers_are_refused_for_pods_of_pools_only() -> None:
    for_pool = pod({"annotations": {names.POOLS: "site"}}, tolerations=[POOL_TOLERATION])
    assert len(validate.ephemeral_containers(for_pool, RULES).invalid) == 1
    assert validate.ephemeral_containers(pod(), RULES) == validate.Verdict()
    other = {**for_pool, "spec": {**for_pool["spec"], "schedulerName": "default-scheduler"}}
    assert validate.ephemeral_containers(other, RULES) == validate.Verdict()


@pytest.mark.parametrize(("seconds", "told"), [(31536000, True), (301, True), (300, False), (None, False)])
def test_a_grace_period_that_the_end_of_the_job_shortens_is_told(seconds: int | None, told: bool) -> None:
    found = validate.create(pod(terminationGracePeriodSeconds=seconds), "alice", RULES).warnings
    assert bool(found) == told
    assert all(f"spec.terminationGracePeriodSeconds: {seconds} is shortened to 300 s" in text for text in found)


@pytest.mark.parametrize(
    ("settings", "requests", "annotations", "told"),
    [
        ({}, {"cpu": "1"}, {}, True),
        ({}, {"memory": "1Gi"}, {}, False),
        ({}, {"cpu": "1"}, {names.MEM_PER_NODE: "1Gi"}, False),
        ({"defaults": {"memoryPerCpu": "4Gi"}}, {"cpu": "1"}, {}, False),
        ({"exclusive": True}, {"cpu": "1"}, {}, False),
    ],
)
def test_a_pod_that_requests_no_memory_is_warned(
    settings: dict[str, Any], requests: dict[str, str], annotations: dict[str, str], told: bool
) -> None:
    rules = Config.model_validate({"schedulerName": "ours", **settings})
    warnings = validate.create(pod({"annotations": annotations}, requests), "alice", rules).warnings
    assert any("requests memory" in text for text in warnings) == told


def exposed(text: str | None, **spec: Any) -> dict[str, Any]:
    annotations = {names.POOLS: "site-a", **({} if text is None else {names.EXPOSE: text})}
    return pod({"annotations": annotations}, **spec)


def test_exposed_ports_are_checked_at_creation_and_change() -> None:
    rules = config(pools=PoolsSection(expose={"ports": "20000-20999"}))
    assert validate.create(exposed("8888"), "alice", rules) == validate.Verdict()
    for verdict in (
        validate.create(exposed("http"), "alice", rules),
        validate.update(exposed("80"), exposed("http"), "alice", rules),
    ):
        (problem,) = verdict.invalid
        assert problem.startswith(f"annotation {names.EXPOSE}: 'http' is not allowed; allowed: true")
    assert validate.update(exposed("http"), exposed("http"), "alice", rules) == validate.Verdict()
    assert validate.update(exposed("80"), exposed(None), "alice", rules) == validate.Verdict()


def test_a_policy_refuses_exposed_ports_without_the_permission() -> None:
    rules = config(pools=PoolsSection(expose={"ports": "20000-20999"}))
    scope = Scope(policy=NamespacePolicy.model_validate({"namespaces": ["*"], "expose": False}))
    for verdict in (
        validate.create(exposed("80"), "alice", rules, scope=scope),
        validate.update(exposed(None), exposed("80"), "alice", rules, scope),
    ):
        assert [(denial.key, denial.allowed) for denial in verdict.denials] == [("expose", "no such annotation")]
    assert validate.create(exposed(None), "alice", rules, scope=scope) == validate.Verdict()
    (problem,) = validate.update(exposed(None), exposed("80"), "alice", rules, scope).invalid
    assert problem.endswith("the permission counts when a pod is created; allowed: a new pod")
    old, new = exposed("80"), exposed("81")
    for one in (old, new):
        one["metadata"]["annotations"][names.EXPOSE_PERMITTED] = "true"
    assert not validate.update(old, new, "alice", rules, scope).invalid


def test_without_a_range_of_ports_the_annotation_is_warned_about() -> None:
    body = exposed("80", tolerations=pool_selection.tolerations(["site-a"]))
    assert "pools.expose.ports is not configured" in validate.create(body, "alice", RULES).warnings[0]


def reaching(text: str | None) -> dict[str, Any]:
    annotations = {names.POOLS: "site-a", **({} if text is None else {names.REACH: text})}
    return pod({"annotations": annotations, "namespace": "team"})


def test_services_that_a_pod_reaches_are_checked_at_creation_and_change() -> None:
    rules = config(pools=PoolsSection(reach=["*"]))
    assert validate.create(reaching("web:80"), "alice", rules) == validate.Verdict()
    allowed = Scope(policy=NamespacePolicy.model_validate({"namespaces": ["*"], "reachNamespaces": ["other"]}))
    assert validate.create(reaching("web.other:80"), "alice", rules, scope=allowed) == validate.Verdict()
    never = Scope(policy=NamespacePolicy.model_validate({"namespaces": ["*"], "reach": False}))
    for text, scope, problem in (
        ("web", Scope(), f"annotation {names.REACH}: 'web' is not allowed; allowed: 1 to 16 of NAME:PORT"),
        ("web.other:80", Scope(), "Service web of namespace other is not allowed; allowed: Services of team"),
        ("web.third:80", allowed, "Service web of namespace third is not allowed; allowed: Services of team, other"),
        ("web:80", never, "is not allowed in namespace team; allowed: no such annotation"),
    ):
        for verdict in (
            validate.create(reaching(text), "alice", rules, scope=scope),
            validate.update(reaching("db:80"), reaching(text), "alice", rules, scope),
        ):
            assert problem in str(verdict.invalid + verdict.forbidden)
        assert validate.update(reaching(text), reaching(text), "alice", rules, scope) == validate.Verdict()
    at_pool = {**reaching("web:80"), "spec": {**reaching("")["spec"], "tolerations": [{"operator": "Exists"}]}}
    (warning,) = validate.create(at_pool, "alice", RULES).warnings
    assert warning == f"annotation {names.REACH} has no effect: pools.reach is not configured"
