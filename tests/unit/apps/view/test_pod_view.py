"""The views of pods, and the numbers and bars that are made of them."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.apps.dashboard import dashboard_app, selection, timeline
from bridge.apps.view import node_view, pod_counts, pod_view
from bridge.apps.view.pod_view import STATES, Times, keep, keep_node
from tests import builders
from tests.builders import container

T0 = "2026-11-23T10:00:00Z"
ZERO = 1795428000.0


def pod(name="p", *, containers=(), **more):
    """Return a pod; what is no field of its status and not its node is of its metadata."""
    own = {key: more.pop(key) for key in ("phase", "node", "conditions") if key in more}
    metadata = {"name": name, "namespace": "hpc", "resourceVersion": "5", "creationTimestamp": T0, **more}
    main = container(requests={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"})
    main["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    found = builders.pod(f"uid-{name}", metadata=metadata, containers=[main], **own)
    found["status"]["containerStatuses"] = list(containers)
    return found


def scheduled(status="True", reason="", message="", at="2026-11-23T10:01:00Z"):
    return {"type": "PodScheduled", "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def terminated(code, at="2026-11-23T11:00:00Z"):
    end = {"exitCode": code, "reason": "Error", "startedAt": "2026-11-23T10:02:00Z", "finishedAt": at}
    return {"name": "main", "state": {"terminated": end}}


class TestRows:
    def test_a_waiting_pod_has_the_reason_of_its_condition(self):
        found = pod_view.of(pod(conditions=[scheduled("False", "SlurmPending", "Slurm job 14 is pending: Priority")]))
        assert (found.state, found.reason) == ("waiting", "SlurmPending")
        assert found.message == "Slurm job 14 is pending: Priority"
        assert found.times == Times(ZERO)

    def test_a_pod_without_a_condition_says_that_no_scheduler_has_seen_it(self):
        assert pod_view.of(pod()).reason == "NotProcessedYet"

    def test_a_bound_pod_that_waits_at_its_site_has_the_reason_of_its_container(self):
        waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating", "message": "queued as job 7"}}}
        found = pod_view.of(pod(node="alpha", conditions=[scheduled()], containers=[waiting]))
        assert (found.state, found.message) == ("starting", "queued as job 7")
        assert found.times == Times(ZERO, ZERO + 60)

    def test_an_ended_pod_has_its_times_and_its_exit_code(self):
        found = pod_view.of(pod(phase="Failed", node="alpha", conditions=[scheduled()], containers=[terminated(7)]))
        assert (found.state, found.reason, found.message) == ("failed", "Error", "container main: exit code 7")
        assert found.times == Times(ZERO, ZERO + 60, ZERO + 120, ZERO + 3600)

    def test_a_restarted_pod_runs_since_its_first_known_start(self):
        running = {"running": {"startedAt": "2026-11-23T11:00:10Z"}}
        restarted = {"name": "main", "state": running, "lastState": terminated(7)["state"], "restartCount": 1}
        found = pod_view.of(pod(phase="Running", node="n", conditions=[scheduled()], containers=[restarted]))
        assert (found.state, found.reason) == ("running", "")
        assert found.times == Times(ZERO, ZERO + 60, ZERO + 120)
        bar = timeline.segments(found.times, found.state, timeline.axis([found], ZERO + 7200), ZERO + 7200)
        assert [(part.state, part.duration) for part in bar] == [("waiting", 60), ("starting", 60), ("running", 7080)]

    def test_a_running_pod_whose_container_waits_has_its_reason(self):
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
        crashed = {"name": "main", "state": waiting, "lastState": terminated(7)["state"], "restartCount": 9}
        raw = pod(phase="Running", node="n", conditions=[scheduled()], containers=[{"name": "other"}, crashed])
        found = pod_view.of(raw)
        assert (found.state, found.reason, found.message) == ("running", "CrashLoopBackOff", "back-off 5m0s")
        assert found.times == Times(ZERO, ZERO + 60, ZERO + 120)
        suspended = {"type": "bridge.vk.io/JobSuspended", "status": "True", "reason": "JobSuspended"}
        raw["status"]["conditions"].append(suspended)
        assert pod_view.of(raw).reason == "JobSuspended"

    def test_the_container_that_cannot_start_is_named_and_not_those_that_wait_for_it(self):
        turn = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
        raw = pod(node="n", conditions=[scheduled()], containers=[turn])
        assert (pod_view.of(raw).reason, pod_view.is_stuck(raw)) == ("PodInitializing", False)
        image = {"name": "init", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        raw["status"]["initContainerStatuses"] = [image]
        found = pod_view.of(raw)
        assert (found.state, found.reason, found.message) == ("starting", "ImagePullBackOff", "no such image")
        assert pod_view.is_stuck(raw)

    def test_the_cache_keeps_no_environment(self):
        kept = keep(pod())
        assert "hunter2" not in repr(kept)
        assert kept["metadata"] == {"name": "p", "namespace": "hpc", "uid": "uid-p", "resourceVersion": "5"}

    def test_the_cache_keeps_of_a_node_no_copy_of_its_manifest(self):
        annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "other": "1"}
        kept = keep_node({"metadata": {"name": "n", "annotations": annotations}, "status": {"images": [1]}})
        assert kept == {"metadata": {"name": "n", "annotations": {"other": "1"}}, "status": {}}


class TestOverview:
    def test_reasons_are_counted_and_the_longest_wait_is_named(self):
        later = {"creationTimestamp": "2026-11-23T12:00:00Z"}
        young = pod_view.of(pod("young", conditions=[scheduled("False", "SlurmPending")], **later))
        old = pod_view.of(pod("old", conditions=[scheduled("False", "SlurmPending", "Priority")]))
        other = pod_view.of(pod("other"))
        found = pod_counts.reasons([young, other, old, pod_view.of(pod("runs", phase="Running", node="n"))])
        assert [(reason.name, reason.count) for reason in found] == [("SlurmPending", 2), ("NotProcessedYet", 1)]
        assert (found[0].oldest.name, found[0].message) == ("old", "Priority")

    def test_pools_and_nodes_have_the_requests_of_pods_that_have_not_ended(self):
        offered = {"cpu": "8", "memory": "4Gi", "nvidia.com/gpu": "2", "pods": "110"}
        ready = {"type": "Ready", "status": "True"}

        def node(name, labels):
            status = {"allocatable": offered, "conditions": [ready]}
            return {"metadata": {"name": name, "labels": labels}, "status": status}

        objects = [node("n1", {}), node("alpha", {"bridge.vk.io/pool": "alpha"})]
        rows = [
            pod_view.of(pod("a", phase="Running", node="alpha")),
            pod_view.of(pod("b", phase="Succeeded", node="alpha")),
        ]
        pools, nodes = node_view.nodes(objects, rows)
        assert [use.name for use in (*pools, *nodes)] == ["alpha", "n1"]
        amounts = {one.name: (one.own, one.total) for one in pools[0].amounts}
        assert amounts == {"cpu": (2, 8), "memory": (2**30, 4 * 2**30), "nvidia.com/gpu": (1, 2), "pods": (1, 110)}
        assert all(one.own == 0 for one in nodes[0].amounts)

    def test_a_node_that_is_not_ready_says_why(self):
        condition = {"type": "Ready", "status": "False", "reason": "SiteSilent", "message": "last heard at 10:00"}
        silent = {"metadata": {"name": "n"}, "status": {"conditions": [condition]}}
        assert node_view.nodes([silent], [])[1][0].problem == "SiteSilent: last heard at 10:00"


class TestSelection:
    def test_filters_select_and_pages_are_bounded(self):
        rows = [pod_view.of(pod(f"p{number:04}")) for number in range(120)]

        def page(**query):
            return selection.PODS.chosen(query).page(rows)

        found = page(page="99")
        assert (found.total, found.number, found.pages, len(found.rows)) == (120, 3, 3, 20)
        assert page(q="p0007").total == 1
        assert page(state="running").total == 0

    @example({"page": "0"})
    @given(st.dictionaries(st.sampled_from(["namespace", "state", "reason", "node", "q", "page"]), st.text()))
    def test_any_query_is_read_and_its_url_leads_to_the_same_filters(self, query):
        filters = selection.PODS.chosen(query)
        assert filters.number >= 1
        assert filters["state"] in ("", *STATES)
        assert filters.url(number=2).startswith("/pods?")


times = st.floats(0, 4e9)


class TestTimeline:
    def test_the_segments_of_a_life(self):
        entry = pod_view.of(pod(phase="Succeeded", node="n", conditions=[scheduled()], containers=[terminated(0)]))
        over = timeline.axis([entry], ZERO + 9999)
        assert (over.begin, over.end) == (ZERO, ZERO + 3600)
        found = timeline.segments(entry.times, entry.state, over, ZERO + 9999)
        durations = [(part.state, part.duration) for part in found]
        assert durations == [("waiting", 60), ("starting", 60), ("succeeded", 3480)]

    @given(times, st.none() | times, st.none() | times, st.none() | times, times, st.sampled_from(STATES))
    def test_segments_are_on_the_axis_whatever_the_clocks_say(self, created, bound, started, ended, now, state):
        over = timeline.Axis(min(created, now), max(created, now) + 1)
        for part in timeline.segments(Times(created, bound, started, ended), state, over, now):
            assert 0 <= part.at <= 100
            assert 0 <= part.width <= 100
            assert part.at + part.width <= 100.0001
            assert part.duration >= 0

    def test_steps_of_both_sides_are_in_order(self):
        raw = pod(phase="Running", node="n", conditions=[scheduled()])
        events = [
            {"reason": "SlurmPending", "note": "job 14", "eventTime": "2026-11-23T10:00:30Z", "metadata": {}},
            {"reason": "Pulled", "note": "image", "eventTime": "2026-11-23T10:01:30Z", "metadata": {}},
        ]
        found = timeline.steps(raw, pod_view.of(raw), events)
        assert [(step.side, step.name) for step in found] == [
            ("Kubernetes", "Created"),
            ("batch system", "SlurmPending"),
            ("Kubernetes", "Bound"),
            ("Kubernetes", "Pulled"),
        ]

    @pytest.mark.parametrize(("minute", "shown"), [("00", True), ("59", False)])
    def test_the_start_of_the_job_is_a_step_unless_the_pod_joined_it_later(self, minute, shown):
        raw = pod(phase="Running", node="n", conditions=[scheduled()])
        start = f"2026-11-23T{'09' if minute == '59' else '10'}:{minute}:30Z"
        raw["metadata"].setdefault("annotations", {})["bridge.vk.io/slurm-job-start"] = start
        found = [(step.side, step.name) for step in timeline.steps(raw, pod_view.of(raw), [])]
        allocated = [("batch system", "Allocated")] if shown else []
        assert found == [("Kubernetes", "Created"), *allocated, ("Kubernetes", "Bound")]


class TestFormats:
    def test_short_texts(self):
        assert [dashboard_app.duration(s) for s in (0, 119, 120, 7200, 200000)] == ["0s", "119s", "2m", "2h", "2d"]
        memory = node_view.Amount("memory", 512 * 2**30, 20 * 2**40)
        assert memory.text == "memory: 512 GiB of 20 TiB for podbridge's pods, 19.5 TiB idle"
        assert node_view.Amount("cpu", 1.5, 2).words(1.5) == "1.5"
        assert dashboard_app.moment(ZERO) == "2026-11-23 10:00:00"

    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_any_time_is_a_text(self, at):
        assert dashboard_app.moment(at)[4] == "-"
        assert json.dumps(dashboard_app.machine(at))


def test_the_reason_that_the_last_event_has_told_stands_once_on_the_timeline():
    message = "Slurm job 5 is pending: Resources"
    raw = pod(conditions=[scheduled("False", "SlurmPending", message)])
    told = {"reason": "SlurmPending", "note": message, "eventTime": "2026-11-23T10:00:30Z", "metadata": {}}
    view = pod_view.of(raw)
    assert [step.name for step in timeline.steps(raw, view, [told])] == ["Created", "SlurmPending"]
    earlier = {**told, "note": "Slurm job 5 is pending: Priority"}
    assert [step.name for step in timeline.steps(raw, view, [earlier])] == ["Created", "SlurmPending", "SlurmPending"]
