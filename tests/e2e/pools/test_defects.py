"""Known failures of other bridges, and the tests that show their absence here.

``nats 9.x`` are the known failures of interLink's NATS plugin, ``interlink 2.x`` and ``3.x`` those of interLink's
virtual kubelet and of its Slurm plugin. :data:`SHOWN` maps each to its tests; the tests of this file show what a user
or an administrator can see.
"""

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from bridge import names
from bridge.clock import parse_rfc3339
from bridge.workload import quantity
from cluster.errors import ClusterError
from cluster.pods import FINISHED
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from tests.e2e.pools.cases import mount, pod, secret, sh, volume

HERE = "e2e/pools/test_defects.py::"
SECURITY = "e2e/pools/test_security.py::"
STORY = "e2e/pools/test_story.py::"
CONFORMANCE = "e2e/pools/test_conformance.py::test_conformance"
LIFE = "unit/site/test_life.py::"
VIRTUAL = "contract/controllers/test_virtual.py::"
STATUS = "unit/protocol/model/test_pod_status.py::"
WIRE = "contract/nats/"

SHOWN = {
    "nats 9.1": (
        HERE + "test_nats_9_1_a_huge_log_bytes_that_are_no_text_and_a_bad_pod_spoil_no_other",
        "unit/protocol/nats/test_server.py::test_nats_9_1_whatever_a_handler_raises_is_answered",
        "unit/pools/test_nats_registry.py::test_nats_9_1_one_job_that_makes_no_sense_does_not_hide_the_others",
        "unit/site/test_folder.py::test_9_1_nonsense_in_a_jobs_folder_spoils_nothing",
        "unit/protocol/nats/test_client.py::test_nats_9_1_one_job_that_makes_no_sense_does_not_spoil_a_snapshot",
    ),
    "nats 9.2": (
        "contract/script/test_ends.py::test_files_are_ones_own_alone",
        LIFE + "test_8101_and_1081_are_two_jobs",
        VIRTUAL + "test_a_pod_created_again_under_its_name_is_another_pod",
    ),
    "nats 9.3": (
        HERE + "test_nats_9_3_no_job_is_declared_dead_while_its_submitter_is_away",
        HERE + "test_interlink_3_6_one_job_gone_from_slurm_spoils_no_other",
        LIFE + "test_9_3_a_refusal_is_told_in_the_batch_systems_words_and_leaves_nothing",
        LIFE + "test_9_3_a_job_that_vanished_is_lost_after_two_looks_and_a_while",
        VIRTUAL + "test_9_3_a_pod_that_the_site_refuses",
    ),
    "nats 9.4": (
        "unit/protocol/nats/test_server.py::test_nats_9_1_whatever_a_handler_raises_is_answered",
        WIRE + "test_protocol.py::test_a_slow_submit_delays_nothing_else",
    ),
    "nats 9.5": (
        HERE + "test_nats_9_5_a_hub_killed_while_it_submits_runs_nothing_twice_and_loses_nothing",
        HERE + "test_nats_9_5_a_pod_removed_while_hub_and_site_are_away_leaves_no_job",
        VIRTUAL + "test_9_5_a_pod_deleted_while_the_site_is_down",
        VIRTUAL + "test_9_5_an_answer_that_was_lost_is_looked_up_and_nothing_runs_twice",
        "chaos/test_pools.py::test_pods_survive_everything",
    ),
    "nats 9.6": (
        WIRE + "test_security.py::test_nats_9_6_a_site_can_not_say_anything_for_anybody_else",
        WIRE + "test_security.py::test_nats_9_6_a_site_can_not_listen_to_anybody_else",
        WIRE + "test_security.py::test_nats_9_6_a_site_can_not_answer_for_another_nor_twice",
        "unit/pools/test_nats_registry.py::test_nats_9_6_what_a_pool_says_about_another_is_dropped",
    ),
    "nats 9.7": (
        HERE + "test_nats_9_7_no_annotation_is_executed",
        "contract/script/test_hostile.py::test_every_text_is_data",
        "contract/script/test_hostile.py::test_every_field_is_data",
        "unit/script/test_quoting.py::test_nothing_but_data_comes_out",
    ),
    "nats 9.8": (
        HERE + "test_nats_9_8_a_secret_is_in_no_log_spool_or_process_list",
        SECURITY + "test_a_job_s_folder_is_closed_to_other_users",
        "unit/site/test_slurm.py::test_9_8_no_secret_is_given_to_slurm",
        "contract/script/test_variables.py::test_no_value_is_in_a_process_list",
    ),
    "nats 9.9": (
        HERE + "test_nats_9_9_an_end_is_on_the_pod_within_seconds",
        "contract/site/test_local.py::test_an_event_comes_soon_after_the_change",
    ),
    "nats 9.10": (
        HERE + "test_nats_9_10_pods_take_no_connections_and_no_subscriptions",
        LIFE + "test_one_query_for_any_number_of_jobs",
        WIRE + "test_pools.py::test_ten_thousand_jobs_in_one_snapshot",
    ),
    "nats 9.11": (
        HERE + "test_nats_9_11_slurm_is_asked_for_what_the_pod_asks_for",
        HERE + "test_nats_9_11_what_a_node_offers_was_measured",
        "unit/site/test_condor.py::test_9_11_memory_is_asked_for_in_mib",
        "unit/script/test_sizing.py::test_init_containers_count_by_their_peak_and_sidecars_always",
    ),
    "nats 9.12": (
        SECURITY + "test_nats_9_12_nonsense_from_one_site_stops_no_other",
        "unit/controllers/test_virtual_announcement_validation.py::test_nothing_raises",
        "unit/controllers/test_virtual_nodes.py::test_nothing_is_written_when_nothing_differs",
        "unit/controllers/test_virtual_nodes.py::test_a_site_that_announces_itself_seldom_is_not_silent",
    ),
    "nats 9.13": (
        "unit/protocol/nats/test_server.py::"
        "test_an_invalid_request_is_answered_with_an_error_that_repeats_nothing_of_its_body",
        "unit/protocol/nats/test_envelope.py::test_unknown_keys_are_ignored",
        WIRE + "test_protocol.py::test_two_submitters_share_the_requests",
    ),
    "nats 9.14": (HERE + "test_nats_9_14_a_pod_without_annotations_and_with_dots_in_its_name",),
    "interlink 2.1": (
        WIRE + "test_transports.py::test_the_protocol_works_and_comes_back_after_a_restart",
        "contract/kubelet/test_certificates.py::test_files_of_its_authority_are_taken_and_change_in_place",
        "unit/site/test_config.py::test_what_is_wrong_is_named",
    ),
    "interlink 2.2": (
        VIRTUAL + "test_a_pool_has_a_node_and_a_lease",
        "unit/controllers/test_virtual_nodes.py::test_2_2_what_a_virtual_node_is",
        STORY + "test_a_silent_site_is_not_ready_and_says_its_last_words",
    ),
    "interlink 2.3": (
        HERE + "test_interlink_2_3_a_pod_that_waits_for_its_config_map_holds_nobody_up",
        VIRTUAL + "test_a_deleted_pod_goes_only_when_the_site_confirms",
        VIRTUAL + "test_a_restart_of_the_hub_changes_nothing",
        CONFORMANCE,
    ),
    "interlink 2.4": (
        HERE + "test_interlink_2_4_what_a_pod_shows_goes_one_way_and_is_complete",
        HERE + "test_interlink_2_4_what_has_ended_never_changes",
        STATUS + "test_2_4_after_an_init_failure_the_main_containers_never_ran",
        STATUS + "test_2_4_reasons_of_ends_are_kept",
    ),
    "interlink 2.5": (
        "contract/kubelet/test_access.py::test_rights_are_those_of_a_kubelet",
        "e2e/pools/test_ports_and_attach.py::test_input_through_a_pipe_and_a_client_that_detaches",
        "contract/kubelet/test_logs.py::"
        "test_interlink_2_5_a_quiet_follow_lives_longer_than_30_seconds_and_ends_with_its_client",
        "unit/controllers/test_kubelet_app.py::test_interlink_2_5_resource_metrics_are_there_and_real",
        "unit/controllers/test_kubelet_app.py::test_interlink_2_5_the_summary_holds_no_invented_number",
    ),
    "interlink 2.6": (VIRTUAL + "test_service_account_tokens_are_bound_to_the_pod_and_refreshed", CONFORMANCE),
    "interlink 2.7": (HERE + "test_interlink_2_7_a_job_that_a_user_wrote_on_the_pod_is_not_believed",),
    "interlink 2.8": ("unit/script/test_references.py::test_annotations_need_the_sites_permission",),
    "interlink 2.9": ("contract/kubelet/test_access.py::test_rights_are_those_of_a_kubelet",),
    "interlink 3.1": (
        "unit/site/test_config.py::test_what_is_wrong_is_named",
        "unit/site/test_config.py::test_section_2_a_change_of_the_file_is_taken_up_and_a_bad_one_is_not",
    ),
    "interlink 3.2": (
        HERE + "test_nats_9_7_no_annotation_is_executed",
        "unit/script/test_references.py::test_annotations_need_the_sites_permission",
        "unit/site/test_slurm.py::test_flags_that_are_not_allowed",
    ),
    "interlink 3.3": (
        "unit/script/test_sizing.py::test_sum_of_containers_and_rounding_up",
        "unit/site/test_slurm.py::test_what_passes_is_one_option_each_and_never_the_script",
    ),
    "interlink 3.4": ("contract/script/test_ends.py::test_files_are_ones_own_alone",),
    "interlink 3.5": ("contract/script/test_data.py::test_configmap_secret_and_projected", CONFORMANCE),
    "interlink 3.6": (
        HERE + "test_interlink_3_6_one_job_gone_from_slurm_spoils_no_other",
        STORY + "test_logs_with_every_option",
        "unit/site/test_slurm.py::test_3_6_states_are_whole_words",
        "unit/site/test_slurm.py::test_3_6_warnings_on_stderr_are_no_error",
    ),
    "interlink 3.7": (LIFE + "test_one_query_for_any_number_of_jobs",),
}
"""Number of a failure -> its tests: a file below ``tests/``, and the name of a function in it."""

NUMBERS = [
    *(f"nats 9.{number}" for number in range(1, 15)),
    *(f"interlink 2.{number}" for number in range(1, 10)),
    *(f"interlink 3.{number}" for number in range(1, 8)),
]
POOL = "local-site"
BOTH = pytest.mark.parametrize("site", [POOL, "slurm-site"])


@pytest.fixture
def world(pools_world):
    """The world without pods, before and after."""
    pools_world.clear()
    yield pools_world
    pools_world.clear()


@pytest.fixture
def canary():
    """Return the path of a file that does not exist; site and hub could create it."""
    folder = Path(tempfile.mkdtemp(prefix="canary-"))
    folder.chmod(0o777)
    yield folder / "c"
    shutil.rmtree(folder)


def ended(found, container="main"):
    """Return the terminated state of a pod's container."""
    entries = [*(found["status"].get("initContainerStatuses") or ()), *found["status"]["containerStatuses"]]
    return next(entry for entry in entries if entry["name"] == container)["state"]["terminated"]


def code(found):
    return ended(found)["exitCode"]


def history(world, pod, timeout=90):
    """Read the pod's status until the pod is over; return each status that differs from the one before."""
    seen = []

    def over():
        status = world.get(pod)["status"]
        if not seen or status != seen[-1]:
            seen.append(status)
        return status.get("phase") in FINISHED

    eventually(over, "the pod over", timeout, 0.05)
    return seen


def restart_submitter(world, site, pause=0.0):
    """Kill a submitter, and start it again after ``pause`` seconds."""
    world.cluster.kill(f"{site}-submitter")
    time.sleep(pause)
    world.cluster.start_submitter(site)


@pytest.mark.real
class TestNats:
    def test_nats_9_1_a_huge_log_bytes_that_are_no_text_and_a_bad_pod_spoil_no_other(self, world):
        bad_spec = pod(sh(":", volumeMounts=[mount("h", "/h")]), volumes=[volume("h", hostPath={"path": "/etc"})])
        huge = world.run("seq 1 450000", POOL)
        binary = world.run(r"printf 'a\377\200\n\000b'; exit 3", POOL)
        bad = world.create_pod(bad_spec, POOL)
        others = [world.run(f"sleep 1; echo other {number}; exit {number}", POOL) for number in range(5)]
        assert [code(world.ended(other)) for other in others] == [0, 1, 2, 3, 4]
        assert world.ended(bad)["status"]["reason"] == "NotPossibleAtSite"
        assert code(world.ended(binary)) == 3
        assert code(world.ended(huge, 120)) == 0
        lines = "".join(f"{number}\n" for number in range(1, 450001))
        assert len(lines) > 3_000_000
        assert world.log_bytes(huge) == lines.encode()
        assert world.log_bytes(binary) == b"a\xff\x80\n\x00b"
        assert [world.logs(other) for other in others] == [f"other {number}\n" for number in range(5)]

    @BOTH
    def test_nats_9_3_no_job_is_declared_dead_while_its_submitter_is_away(self, world, site):
        one = world.run("echo began; sleep 15; echo over", site)
        world.running(one, 60)
        restart_submitter(world, site, pause=3)
        seen = history(world, one)
        assert [status["phase"] for status in seen if status["phase"] != "Running"] == ["Succeeded"], seen
        assert all(entry["restartCount"] == 0 for status in seen for entry in status["containerStatuses"])
        assert world.logs(one) == "began\nover\n"

    @BOTH
    def test_nats_9_5_a_hub_killed_while_it_submits_runs_nothing_twice_and_loses_nothing(self, world, site):
        marks = f"marks-{time.monotonic_ns()}"
        pods = [world.run(f"echo {number} >>$HOME/{marks}; sleep 1", site) for number in range(12)]
        eventually(lambda: world.jobs_at(site), "the first job at the site", 30, 0.005)
        world.cluster.kill("podbridge")
        time.sleep(1)
        world.cluster.start_podbridge()
        phases = [world.ended(one, 120)["status"]["phase"] for one in pods]
        assert phases == ["Succeeded"] * len(pods)
        ran = world.cluster.sites[site].run("sh", "-c", f"cat $HOME/{marks}; rm $HOME/{marks}").split()
        assert sorted(ran, key=int) == [str(number) for number in range(12)]

    def test_nats_9_5_a_pod_removed_while_hub_and_site_are_away_leaves_no_job(self, world):
        one = world.run("sleep 300", POOL, terminationGracePeriodSeconds=1)
        world.running(one)
        world.cluster.kill(f"{POOL}-submitter")
        world.cluster.kill("podbridge")
        world.delete(one, 0)
        assert world.get(one) is None
        assert world.jobs_at(POOL) == [one["metadata"]["uid"]]
        world.cluster.start_podbridge()
        world.cluster.start_submitter(POOL)
        eventually(lambda: not world.jobs_at(POOL), "nothing at the site", 90)

    def test_nats_9_7_no_annotation_is_executed(self, world, canary):
        text = f"--x='\"`touch {canary}`$(touch {canary});touch {canary}&|\\\ntouch {canary}\n#"
        known = [value for name, value in vars(names).items() if name.isupper() and str(value).startswith("slurm-job.")]
        keys = [key for key in known if not key.endswith("/")]
        assert len(keys) > 8
        for key in keys:
            for value in (text, f"$(touch {canary})"):
                world.create_pod(pod(sh(":")), POOL, annotations={key: value})
        pods = [world.ended(one, 90)["status"] for one in world.pods(NAMESPACE)]
        assert len(pods) == 2 * len(keys)
        assert {status.get("reason", "") for status in pods} <= {"NotPossibleAtSite", ""}
        assert not canary.exists()

    @BOTH
    def test_nats_9_8_a_secret_is_in_no_log_spool_or_process_list(self, world, site):
        word = f"hush{time.monotonic_ns()}"
        name = f"hush-{site}"
        world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret(name, key=word))
        ref = {"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "key"}}}
        container = sh('test -n "$A" && test -s /s/key && sleep 120', env=[ref], volumeMounts=[mount("s", "/s")])
        one = world.create_pod(pod(container, volumes=[volume("s", secret={"secretName": name})]), site)
        try:
            world.running(one, 60)
            eventually(lambda: any(b"test -s /s/key" in line for line in command_lines()), "the process")
            assert not [line for line in command_lines() if word.encode() in line]
            state = world.cluster.state
            told = self.holders(word, state / "sites", state / "logs", state / "nats", state / "run")
            folder = f"{world.job_folder(one, site)}/"
            assert [file for file in told if file.startswith(folder)], "it is not looked for in the right way"
            assert not [file for file in told if not file.startswith(folder)]
            if site == "slurm-site":
                job = world.taken(one).partition("/")[2]
                script = world.cluster.site_slurm(site, "scontrol", "write", "batch_script", job, "-")
                assert "job.sh" in script
                assert word not in script + world.cluster.site_slurm(site, "scontrol", "show", "job", job)
        finally:
            world.api("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")

    @staticmethod
    def holders(word, *places):
        """Return the files that contain a word."""
        command = ["grep", "-rlF", "-D", "skip", "-e", word, *map(str, places)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()

    @BOTH
    def test_nats_9_9_an_end_is_on_the_pod_within_seconds(self, world, site):
        pods = {one["metadata"]["name"]: one for one in [world.run("sleep 1; date +%s.%N", site) for _ in range(5)]}
        seen = {}

        def look():
            for found in world.pods(NAMESPACE):
                if found["status"].get("phase") == "Succeeded":
                    seen.setdefault(found["metadata"]["name"], time.time())
            return seen.keys() == pods.keys()

        eventually(look, "all over", 90)
        waits = {name: seen[name] - float(world.logs(one)) for name, one in pods.items()}
        assert sorted(waits.values())[2] < 3, waits
        assert max(waits.values()) < 10, waits

    def test_nats_9_10_pods_take_no_connections_and_no_subscriptions(self, world):
        def counted():
            numbers = world.cluster.nats.monitor("varz")
            return numbers["total_connections"], numbers["subscriptions"]

        before = counted()
        pods = [world.run("sleep 3", POOL) for _ in range(20)]
        for one in pods:
            world.seen(one, "begun", lambda found: found["status"]["phase"] != "Pending", 60)
        assert counted() == before
        for one in pods:
            world.ended(one)
        world.logs(pods[0])
        assert counted()[0] == before[0]

    def test_nats_9_11_slurm_is_asked_for_what_the_pod_asks_for(self, world):
        site = "slurm-site"
        container = sh("sleep 60", resources={"limits": {"cpu": "1500m", "memory": "300Mi", "nvidia.com/gpu": "1"}})
        init = sh(":", "first", resources={"limits": {"cpu": "4", "memory": "10Mi"}})
        spec = pod(container, initContainers=[init], activeDeadlineSeconds=600)
        job = self.asked(world, world.create_pod(spec, site))
        assert (job["cpu"], job["mem"], job["gpus"]) == ("4", "300M", 1)
        # the deadline, the grace period, and a minute for the end of the script
        assert job["time"] == "00:12:00"

    @staticmethod
    def asked(world, one):
        """Return what was requested from Slurm: ``ReqTRES`` by name, the number of GPUs, and the time limit."""
        number = world.taken(one).partition("/")[2]
        text = world.cluster.site_slurm("slurm-site", "scontrol", "show", "job", number)
        words = dict(word.split("=", 1) for word in text.split() if "=" in word)
        requested = words.get("ReqTRES") or words["TRES"]
        gpus = sum(int(number) for number in re.findall(r"^ *Tres\w+=.*gpu:(\d+)", text, re.MULTILINE))
        return {**dict(part.split("=") for part in requested.split(",")), "gpus": gpus, "time": words["TimeLimit"]}

    def test_nats_9_11_what_a_node_offers_was_measured(self, world):
        site = "slurm-site"
        text = world.cluster.site_slurm(site, "scontrol", "show", "node", "-o")
        nodes = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in text.splitlines()]
        offered = world.kube_node(site)["status"]["capacity"]
        assert quantity.parse(offered["cpu"]) == sum(int(node["CPUTot"]) for node in nodes)
        assert quantity.parse(offered["memory"]) == sum(int(node["RealMemory"]) for node in nodes) * 2**20
        assert quantity.parse(offered["nvidia.com/gpu"]) == sum(int(node["Gres"].split(":")[1][0]) for node in nodes)

    def test_nats_9_14_a_pod_without_annotations_and_with_dots_in_its_name(self, world):
        body = {"metadata": {"name": "plain.with.dots"}, "spec": pod(sh("echo plain"))}
        one = world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        assert world.ended(one)["status"]["phase"] == "Succeeded"
        assert world.logs(one) == "plain\n"


def command_lines():
    """Return the command lines of all processes of the machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes())
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.real
class TestInterlink:
    def test_interlink_2_3_a_pod_that_waits_for_its_config_map_holds_nobody_up(self, world):
        wanted = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "nobody-makes-it", "key": "k"}}}
        waiting = [world.create_pod(pod(sh(":", env=[wanted])), POOL) for _ in range(3)]
        for one in waiting:
            world.bound(one)
            eventually(lambda one=one: world.events(one, "BridgeWaiting"), "told")
        began = time.monotonic()
        others = [world.run("echo here", POOL) for _ in range(20)]
        for one in others:
            assert world.ended(one)["status"]["phase"] == "Succeeded"
        assert time.monotonic() - began < 45
        for one in waiting:
            assert world.get(one)["status"]["phase"] == "Pending"
            world.delete(one)
            world.gone(one)

    @BOTH
    def test_interlink_2_4_what_a_pod_shows_goes_one_way_and_is_complete(self, world, site):
        containers = [sh("sleep 1", "short"), sh("sleep 4", "long"), sh("sleep 2; exit 0", "middle")]
        one = world.create_pod(pod(*containers, initContainers=[sh("sleep 1", "i-a"), sh("sleep 1", "i-b")]), site)
        order = {"Pending": 0, "Running": 1, "Succeeded": 2}
        states = {"waiting": 0, "running": 1, "terminated": 2}
        reached = {}
        phase = 0
        for status in history(world, one):
            assert order[status["phase"]] >= phase, status
            phase = order[status["phase"]]
            if status.get("containerStatuses"):
                assert [entry["name"] for entry in status["containerStatuses"]] == ["short", "long", "middle"]
                assert [entry["name"] for entry in status["initContainerStatuses"]] == ["i-a", "i-b"]
            for entry in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
                (state,) = entry["state"]
                assert states[state] >= reached.get(entry["name"], 0), status
                reached[entry["name"]] = states[state]
                assert not (state == "waiting" and entry["ready"])
        assert set(reached.values()) == {2}

    def test_interlink_2_4_what_has_ended_never_changes(self, world):
        one = world.run("echo words; printf why >/dev/termination-log; exit 3", POOL)
        before = world.ended(one)
        world.cluster.kill("podbridge")
        restart_submitter(world, POOL)
        world.cluster.start_podbridge()
        assert code(world.ended(world.run("exit 4", POOL))) == 4
        assert world.get(one)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        assert world.logs(one) == "words\n"

    def test_interlink_2_7_a_job_that_a_user_wrote_on_the_pod_is_not_believed(self, world):
        first = world.run("sleep 120; echo mine", POOL, terminationGracePeriodSeconds=1)
        world.running(first)
        job = world.taken(first)
        forged = {names.REMOTE_JOB: job, "JobID": job.partition("/")[2]}
        second = world.create_pod(pod(sh("echo yours")), POOL, annotations=forged)
        assert second["metadata"]["annotations"].get(names.REMOTE_JOB) != job
        change = {"metadata": {"annotations": {names.REMOTE_JOB: job}}}
        with pytest.raises(ClusterError, match=": 403: "):
            world.api.merge(world.path(second["metadata"]["name"], NAMESPACE), change)
        assert world.remote_job(world.ended(second)) not in ("", job)
        assert world.logs(second) == "yours\n"
        world.delete(second)
        world.gone(second)
        assert world.get(first)["status"]["phase"] == "Running"

    def test_interlink_3_6_one_job_gone_from_slurm_spoils_no_other(self, world):
        """All jobs have ended before the submitter polls again; one was cancelled in Slurm."""
        site = "slurm-site"
        gate = f"/srv/home/gate-{time.monotonic_ns()}"
        wait = f"until [ -e {gate} ]; do sleep 0.1; done"
        good = [world.run(f"{wait}; exit {number}", site) for number in range(4)]
        killed = world.run("sleep 300", site, terminationGracePeriodSeconds=1)
        longer = world.run(f"{wait}; sleep 15", site, terminationGracePeriodSeconds=1)
        for one in (*good, killed, longer):
            world.running(one, 60)
        world.cluster.kill(f"{site}-submitter")
        world.cluster.sites[site].run("touch", gate)
        world.cluster.sites[site].run("scancel", world.taken(killed).partition("/")[2])
        time.sleep(4)
        world.cluster.start_submitter(site)
        assert [code(world.ended(one, 90)) for one in good] == [0, 1, 2, 3]
        assert world.ended(killed, 90)["status"]["phase"] == "Failed"
        found = world.ended(longer, 90)
        assert found["status"]["phase"] == "Succeeded"
        times = ended(found)
        assert parse_rfc3339(times["finishedAt"]) - parse_rfc3339(times["startedAt"]) >= 15
        world.cluster.sites[site].run("rm", gate)
