"""Which nodes the claims of a pod allow, what a pod waits for, and what is written to bind its claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.object_size import is_larger
from bridge.config.hub import Config
from bridge.kube.prune import prune_claim, prune_pod, prune_volume
from scheduler import group_actions, group_decide
from scheduler.group_states import GroupStates
from scheduler.nodes import occupancy
from scheduler.nodes.occupancy import Occupancy, PlannedOccupancy
from scheduler.pod_group import of_one
from scheduler.volumes import pod_volumes
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_nodes import ClaimVolume, NodeFilter, SelectNode
from tests import builders
from tests.builders import snapshot
from tests.unit.scheduler import decisions

HOST = "kubernetes.io/hostname"
ZONES = {"n1": "a", "n2": "a", "n3": "b"}
DELAYED, AT_ONCE = "WaitForFirstConsumer", "Immediate"


def terms(*hosts, key=HOST):
    return [{"matchExpressions": [{"key": key, "operator": "In", "values": list(hosts)}]}]


def meta(name, version=1, **more):
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), **more}


def claim(name="data", *, storage_class="local", size="5Gi", volume=None, modes=("ReadWriteOnce",), phase=None, **more):
    spec = {"storageClassName": storage_class, "accessModes": list(modes)}
    spec |= {"resources": {"requests": {"storage": size}}}
    annotations = more.pop("annotations", {})
    if volume:
        spec["volumeName"], phase = volume, phase or "Bound"
        annotations = {pod_volumes.BIND_COMPLETED: "yes", **annotations}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": meta(name, namespace="ns", annotations=annotations, **more.pop("metadata", {})),
        "spec": spec | more,
        "status": {"phase": phase or "Pending"},
    }


def volume(name, *hosts, storage_class="local", size="10Gi", phase="Available", modes=("ReadWriteOnce",), **spec):
    body = {"storageClassName": storage_class, "accessModes": list(modes), "capacity": {"storage": size}}
    labels = spec.pop("labels", {})
    if hosts:
        body["nodeAffinity"] = {"required": {"nodeSelectorTerms": spec.pop("selector", None) or terms(*hosts)}}
    metadata = meta(name, labels=labels)
    return {"kind": "PersistentVolume", "metadata": metadata, "spec": body | spec, "status": {"phase": phase}}


def storage_class(name="local", mode=DELAYED, provisioner=pod_volumes.NO_PROVISIONER, **more):
    return {
        "kind": "StorageClass",
        "metadata": meta(name),
        "volumeBindingMode": mode,
        "provisioner": provisioner,
    } | more


CLASSES = (
    storage_class(),
    storage_class("made", provisioner="example.com/x"),
    storage_class("soon", AT_ONCE, "example.com/x"),
)


def pod(*claims, uid="u1", ephemeral=(), job=None, node=None):
    mounted = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    mounted += [{"name": name, "ephemeral": {}} for name in ephemeral]
    return builders.pod(uid, job=job, node=node, volumes=mounted, containers=[])


def kube_node(name):
    return builders.node_view(name, labels={HOST: name, "zone": ZONES.get(name, "c")})


NODES = [kube_node(name) for name in ZONES]


def placements(*objects):
    return decisions.placements(NODES, storage=Storage([*CLASSES, *objects]))


def eligible(the_pod, *objects):
    return placements(*objects).of(the_pod, "").eligible


def refused(the_pod, *objects):
    return dict(placements(*objects).of(the_pod, "").refused)


def problem(*objects, the_pod=None):
    return pod_volumes.needs(the_pod or pod("data"), Storage([*CLASSES, *objects])).problem


class TestNodes:
    def test_a_pod_without_claims_is_not_restricted(self):
        place = placements(claim(), volume("v", "n1"))
        assert place.of(pod(), "").eligible == ("n1", "n2", "n3")
        assert place.of(pod(), "") is place.of(pod(uid="u2"), "")

    def test_a_bound_volume_without_node_affinity_is_everywhere(self):
        assert eligible(pod("data"), claim(volume="v"), volume("v")) == ("n1", "n2", "n3")

    def test_a_bound_volume_decides_the_node(self):
        found = (claim(volume="v"), volume("v", "n2", phase="Bound"))
        assert eligible(pod("data"), *found) == ("n2",)
        why = "node affinity of a PersistentVolume does not match"
        assert refused(pod("data"), *found) == {"n1": why, "n3": why}
        assert placements(*found).refusal(pod("data"), "n1") == why
        assert placements(*found).refusal(pod("data"), "n2") == ""

    def test_any_label_may_decide(self):
        found = (claim(volume="v"), volume("v", "a", selector=terms("a", key="zone")))
        assert eligible(pod("data"), *found) == ("n1", "n2")

    def test_all_volumes_of_a_pod_must_match(self):
        found = (claim(volume="v"), volume("v", "n1", "n2"), claim("more", volume="w"), volume("w", "n2", "n3"))
        assert eligible(pod("data", "more"), *found) == ("n2",)

    def test_a_delayed_claim_allows_the_nodes_with_a_free_volume(self):
        found = (claim(), volume("v", "n1"), volume("w", "n3"), volume("x", "n2", phase="Bound"))
        assert eligible(pod("data"), *found) == ("n1", "n3")
        assert refused(pod("data"), *found)["n2"] == "no free PersistentVolume of StorageClass local fits"

    @pytest.mark.parametrize(
        "unfit",
        [
            {"size": "4Gi"},
            {"phase": "Released"},
            {"storage_class": "other"},
            {"modes": ["ReadOnlyMany"]},
            {"volumeMode": "Block"},
            {"claimRef": {"namespace": "ns", "name": "other", "uid": "x"}},
            {"volumeAttributesClassName": "fast"},
        ],
    )
    def test_a_volume_that_does_not_fit_is_not_used(self, unfit):
        assert eligible(pod("data"), claim(), volume("v", "n1", **unfit)) == ()
        assert eligible(pod("data"), claim(), volume("v", "n1")) == ("n1",)

    def test_a_claim_may_select_volumes_by_label(self):
        selector = {"matchLabels": {"disk": "nvme"}, "matchExpressions": [{"key": "rack", "operator": "Exists"}]}
        found = (
            volume("v", "n1", labels={"disk": "nvme", "rack": "1"}),
            volume("w", "n2", labels={"disk": "nvme"}),
            volume("x", "n3", labels={"rack": "1"}),
        )
        assert eligible(pod("data"), claim(selector=selector), *found) == ("n1",)

    def test_two_claims_need_two_volumes_of_one_node(self):
        found = (claim(), claim("more"), volume("v", "n1"), volume("w", "n1"), volume("x", "n2"))
        assert eligible(pod("data", "more"), *found) == ("n1",)

    def test_a_provisioner_serves_the_nodes_of_its_topologies(self):
        topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]
        made = storage_class("zoned", provisioner="example.com/x", allowedTopologies=topologies)
        found = (made, claim(storage_class="zoned"), volume("v", "n1", storage_class="zoned"))
        assert eligible(pod("data"), *found) == ("n1", "n3")
        assert refused(pod("data"), *found) == {"n2": "allowedTopologies of StorageClass zoned do not match"}
        assert eligible(pod("data"), claim(storage_class="made")) == ("n1", "n2", "n3")

    def test_a_selected_node_is_the_only_one(self):
        chosen = claim(storage_class="made", annotations={pod_volumes.SELECTED_NODE: "n2"})
        assert eligible(pod("data"), chosen) == ("n2",)

    def test_a_volume_with_the_claim_decides_before_the_claim_is_bound(self):
        ref = {"namespace": "ns", "name": "data", "uid": "uid-data"}
        assert eligible(pod("data"), claim(), volume("v", "n3", claimRef=ref), volume("w", "n1")) == ("n3",)
        ref["uid"] = "of-an-earlier-claim"
        assert eligible(pod("data"), claim(), volume("v", "n3", claimRef=ref), volume("w", "n1")) == ("n1",)

    def test_claims_of_equal_shape_share_one_placement(self):
        place = placements(claim("a"), claim("b"), volume("v", "n1"))
        assert place.of(pod("a"), "") is place.of(pod("b", uid="u2"), "")

    def test_a_change_of_a_volume_changes_the_placement(self):
        found = Storage([*CLASSES, claim()])
        place = decisions.placements(NODES, storage=found)
        the_pod = pod("data")
        assert place.of(the_pod, "").eligible == ()
        found.changed("add", None, volume("v", "n2"))
        assert place.of(the_pod, "").eligible == ("n2",)
        found.changed("delete", volume("v", "n2"), None)
        assert place.of(the_pod, "").eligible == ()

    @given(
        st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 9)), max_size=8),
        st.lists(st.integers(1, 9), min_size=1, max_size=3),
    )
    def test_every_allowed_node_has_a_volume_for_each_claim(self, free, sizes):
        wanted = [claim(f"c{n}", size=f"{size}Gi") for n, size in enumerate(sizes)]
        there = {f"v{n}": (host, size) for n, (host, size) in enumerate(free)}
        found = Storage([*CLASSES, *wanted, *(volume(v, h, size=f"{s}Gi") for v, (h, s) in there.items())])
        needs = pod_volumes.needs(pod(*(c["metadata"]["name"] for c in wanted)), found)
        check = NodeFilter(needs, found)
        for node in NODES:
            capacities = sorted(size for host, size in there.values() if host == node.name)
            # the k-th largest claim needs the k-th largest volume
            fits = len(capacities) >= len(sizes) and all(
                have >= want for have, want in zip(sorted(capacities)[-len(sizes) :], sorted(sizes), strict=True)
            )
            assert (check.refusal(node) == "") == fits
            if fits:
                writes = check.writes(node)
                used = [write.volume["metadata"]["name"] for write in writes]
                assert len(set(used)) == len(sizes)
                for write in writes:
                    assert there[write.volume["metadata"]["name"]][0] == node.name
                    wants = int(write.claim["spec"]["resources"]["requests"]["storage"][:-2])
                    assert there[write.volume["metadata"]["name"]][1] >= wants


class TestProblems:
    @pytest.mark.parametrize(
        ("objects", "words"),
        [
            ([], "data does not exist"),
            ([claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})], "data is being deleted"),
            ([claim(volume="v", phase="Lost")], "data has lost its PersistentVolume"),
            ([claim(volume="v")], "PersistentVolume v of PersistentVolumeClaim data does not exist"),
            ([claim(storage_class="soon")], "data is not bound to a PersistentVolume yet"),
            ([claim(storage_class="")], "data is not bound to a PersistentVolume yet"),
            ([claim(storage_class="gone")], "StorageClass gone of PersistentVolumeClaim data does not exist"),
            ([claim(volumeName="v")], "data is not bound to a PersistentVolume yet"),
        ],
    )
    def test_what_a_pod_waits_for(self, objects, words):
        assert words in problem(*objects)

    def test_a_claim_that_is_bound_or_can_be_is_no_problem(self):
        assert problem(claim()) == ""
        assert problem(claim(volume="v"), volume("v")) == ""

    def test_an_ephemeral_volume_needs_the_claim_of_its_pod(self):
        the_pod = pod(ephemeral=["tmp"])
        assert "pod-u1-tmp does not exist" in problem(the_pod=the_pod)
        assert "was not created for this pod" in problem(claim("pod-u1-tmp"), the_pod=the_pod)
        owner = {"ownerReferences": [{"controller": True, "uid": "u1"}]}
        assert problem(claim("pod-u1-tmp", metadata=owner), the_pod=the_pod) == ""


def view(pods, place, *jobs, there=None, **more):
    return decisions.view(pods, snapshot(*jobs), place, occupancy=there or Occupancy("ours"), **more)


def job(job_id, node="", uid="u1"):
    return builders.observed(job_id, "RUNNING" if node else "PENDING", uid, nodes=[node] if node else ())


def look(*args, states=None, **kwargs):
    states = states if states is not None else GroupStates()
    decision = group_decide.decide(view(*args, states=states, **kwargs))
    states.merge(decision.states)
    return decision.actions


class TestDecisions:
    def test_no_job_is_submitted_before_the_claim_is_there(self):
        (told,) = look([pod("data")], placements())
        assert (told.reason, told.message) == ("VolumeNotReady", "PersistentVolumeClaim data does not exist")
        (submit,) = look([pod("data")], placements(claim(), volume("v", "n1")))
        assert isinstance(submit, group_actions.Submit)

    def test_a_job_on_a_node_without_the_volume_is_given_back(self):
        (back,) = look([pod("data", job=5)], placements(claim(volume="v"), volume("v", "n1")), job(5, "n2"))
        assert isinstance(back, group_actions.CancelAndResubmit)
        assert "node affinity of a PersistentVolume does not match" in back.why
        assert back.soon, "another node has the volume"

    def test_a_pending_job_excludes_the_other_nodes(self):
        (exclude,) = look([pod("data", job=5)], placements(claim(volume="v"), volume("v", "n1")), job(5))
        assert exclude == group_actions.Exclude(of_one(pod("data", job=5)), 5, ("n2", "n3"))

    def test_the_pod_is_held_before_its_claim_is_bound(self):
        (hold,) = look([pod("data")], placements(claim(), volume("v", "n1")), job(5, "n1"))
        assert isinstance(hold, group_actions.Hold)

    def test_a_free_volume_gets_the_claim_then_the_pod_waits_then_it_is_bound(self):
        found = Storage([*CLASSES, claim(), volume("v", "n1"), volume("w", "n1", size="6Gi")])
        place = decisions.placements(NODES, storage=found)
        args, states = ([pod("data", job=5)], place, job(5, "n1")), GroupStates()
        (act,) = look(*args, states=states)
        (write,) = act.writes
        assert isinstance(write, ClaimVolume)
        assert write.patch["metadata"]["resourceVersion"] == "1"
        assert write.volume["metadata"]["name"] == "w", "the smallest that fits"
        ref = write.patch["spec"]["claimRef"]
        assert (ref["namespace"], ref["name"], ref["uid"]) == ("ns", "data", "uid-data")
        after = {**write.volume, "metadata": meta("w", 2), "spec": {**write.volume["spec"], "claimRef": ref}}
        found.changed("update", None, after)
        (told,) = look(*args, states=states)
        assert told.reason == "VolumeBinding"
        assert "data is bound to a volume on node n1" in told.message
        found.changed("update", None, claim(volume="w"))
        (bind,) = look(*args, states=states)
        assert isinstance(bind, group_actions.Bind)

    def test_a_provisioner_gets_the_node_once(self):
        found = Storage([*CLASSES, claim(storage_class="made")])
        place = decisions.placements(NODES, storage=found)
        (act,) = look([pod("data", job=5)], place, job(5, "n2"))
        (write,) = act.writes
        assert isinstance(write, SelectNode)
        assert write.patch["metadata"]["annotations"] == {pod_volumes.SELECTED_NODE: "n2"}
        found.changed("update", None, claim(storage_class="made", annotations={pod_volumes.SELECTED_NODE: "n2"}))
        (told,) = look([pod("data", job=5)], place, job(5, "n2"))
        assert told.reason == "VolumeBinding"

    def test_the_wait_for_a_volume_is_limited(self):
        chosen = claim(storage_class="made", annotations={pod_volumes.SELECTED_NODE: "n2"})
        args, states = ([pod("data", job=5)], placements(chosen), job(5, "n2")), GroupStates()
        look(*args, states=states)
        (back,) = look(*args, states=states, now=1000 + Config().busy_node_timeout)
        assert isinstance(back, group_actions.CancelAndResubmit)
        assert "after 120 s" in back.why

    def test_a_claim_for_one_pod_is_given_to_one_pod(self):
        single = claim(volume="v", modes=[pod_volumes.ONE_POD])
        place = placements(single, volume("v", "n1", modes=[pod_volumes.ONE_POD]))
        both = [pod("data", job=5), pod("data", uid="u2", job=6)]
        first, second = look(both, place, job(5, "n1"), job(6, "n1", "u2"))
        assert isinstance(first, group_actions.Bind)
        assert second.reason == "VolumeInUse"
        assert "ns/pod-u1 uses it" in second.message

    @pytest.mark.parametrize("prune", [prune_pod, occupancy.prune])
    def test_a_pod_that_runs_keeps_its_claim_until_it_ends(self, prune):
        there = Occupancy("ours")
        raw = pod("data", uid="u9", node="n1")
        raw["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = True
        there.changed("add", None, prune(raw))
        place = placements(claim(volume="v", modes=[pod_volumes.ONE_POD]), volume("v"))
        (told,) = look([pod("data")], place, there=there)
        assert told.reason == "VolumeInUse"
        there.changed("update", None, prune(raw | {"status": {"phase": "Succeeded"}}))
        (submit,) = look([pod("data")], place, there=there)
        assert isinstance(submit, group_actions.Submit)


class TestStorage:
    def test_an_event_older_than_the_answer_to_a_write_changes_nothing(self):
        seen = []
        found = Storage([claim()], on_change=lambda: seen.append(1))
        newer = claim(annotations={pod_volumes.SELECTED_NODE: "n1"})
        newer["metadata"]["resourceVersion"] = "9"
        found.changed("update", None, newer)
        found.changed("update", None, claim())
        assert found.claim("ns", "data") is newer
        assert seen == [1]

    def test_the_end_of_an_older_object_of_the_name_changes_nothing(self):
        found = Storage([claim()])
        old = claim()
        old["metadata"]["uid"] = "old"
        found.changed("delete", old, None)
        assert found.claim("ns", "data") is not None

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", None]), st.booleans()), max_size=20))
    def test_the_indexes_agree_with_the_volumes(self, changes):
        found, there = Storage(), {}
        for number, (name, claimed, deleted) in enumerate(changes):
            ref = {"claimRef": {"namespace": "ns", "name": claimed, "uid": claimed}} if claimed else {}
            body = volume(name, storage_class=f"class-{number % 2}", **ref)
            body["metadata"]["resourceVersion"] = str(number)
            found.changed("delete" if deleted else "update", body, None if deleted else body)
            there.pop(name, None)
            if not deleted:
                there[name] = body
        for index in (0, 1):
            of_class = [v for v in there.values() if v["spec"]["storageClassName"] == f"class-{index}"]
            assert sorted(map(str, found.volumes_of_class(f"class-{index}"))) == sorted(map(str, of_class))
        for key in ("x", "y"):
            of_claim = [v for v in there.values() if (v["spec"].get("claimRef") or {}).get("name") == key]
            assert sorted(map(str, found.volumes_of_claim("ns", key))) == sorted(map(str, of_claim))


def test_an_older_state_counts_only_after_a_restore_of_etcd():
    def at(version):
        found = claim()
        found["metadata"]["resourceVersion"] = version
        return found

    def version(storage):
        metadata = at("1")["metadata"]
        return storage.claim(metadata["namespace"], metadata["name"])["metadata"]["resourceVersion"]

    storage = Storage([at("5")])
    storage.changed("update", None, at("9"))  # a write of this process
    storage.changed("update", at("5"), at("7"))
    assert version(storage) == "9"
    storage.changed("update", at("9"), at("4"))
    assert version(storage) == "4"


def test_the_caches_keep_what_decides():
    raw = claim(annotations={pod_volumes.SELECTED_NODE: "n1", "other": "x"}, dataSource={"name": "snapshot"})
    kept = prune_claim(raw)
    assert kept["metadata"]["annotations"] == {pod_volumes.SELECTED_NODE: "n1"}
    assert "dataSource" not in kept["spec"]
    local = volume("v", "n1", local={"path": "/mnt"}, labels={"disk": "nvme"})
    assert prune_volume(local)["metadata"]["labels"] == {"disk": "nvme"}
    assert "local" not in prune_volume(local)["spec"]
    for found in ([claim(), local], [prune_claim(claim()), prune_volume(local)]):
        assert eligible(pod("data"), *found) == ("n1",)


def test_little_is_kept_of_a_claim_that_a_user_made_large():
    many, owner = 20_000, {"kind": "Pod", "uid": "u", "controller": True}
    raw = claim(
        ownerReferences=[*({"uid": str(number)} for number in range(many)), owner],
        accessModes=["ReadWriteOnce"] * many,
        resources={"requests": {"storage": "1Gi", **{f"x/{number}": "1" for number in range(many)}}, "limits": {}},
        selector={"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"] * many}]},
    )
    raw["metadata"]["ownerReferences"] = raw["spec"].pop("ownerReferences")
    kept = prune_claim(raw)
    assert kept["metadata"]["ownerReferences"] == [owner]
    assert kept["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert kept["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    assert not is_larger(kept, 50)
    local = volume("v", "n1", labels={"disk": "nvme"})
    small = claim(selector={"matchLabels": {"disk": "nvme"}})
    assert prune_claim(small)["spec"]["selector"] == small["spec"]["selector"]
    assert eligible(pod("data"), prune_claim(small), local) == ("n1",)
    assert eligible(pod("data"), prune_claim(claim(selector=raw["spec"]["selector"])), local) == ()


def test_planned_pods_use_their_claims_until_they_are_withdrawn():
    planned = PlannedOccupancy(Occupancy("ours"))
    planned.plan(planned.occupant(pod("data"), "n1"))
    assert [one.uid for one in planned.users("ns/data")] == ["u1"]
    planned.withdraw(1)
    assert planned.users("ns/data") == []
