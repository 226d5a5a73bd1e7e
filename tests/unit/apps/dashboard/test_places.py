"""The map: what it shows of Slurm and of pools, to whom, and with an old state."""

import re

import pytest

from bridge import names
from bridge.apps.dashboard import selection, slurm_reader
from bridge.apps.dashboard.slurm_reader import SlurmReader, SlurmState
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from bridge.slurm import cluster_sums
from bridge.slurm.cluster_sums import Amounts, ClusterSums, NodeSums, PartitionSums
from tests.fakes.clock import FakeClock
from tests.fakes.kube_answers import KubeAnswers
from tests.unit.apps.view.test_pod_view import pod, scheduled

BUSY = NodeSums(
    "n1",
    ("MIXED",),
    total=Amounts(16, 65536, {"gpu:a100": 4}),
    podbridge=Amounts(4, 2048, {"gpu": 1}),
    others=Amounts(8, 6144),
    partitions=("main",),
)
DRAINED = NodeSums("n2", ("DRAIN", "IDLE"), "bad fan", Amounts(16, 65536))
SUMS = ClusterSums(1_767_225_600.0, 1_767_225_735.0, (BUSY, DRAINED))


def pool(name="site-a"):
    return {
        "metadata": {"name": name, "labels": {names.POOL_LABEL: name}},
        "status": {"allocatable": {"cpu": "32", "memory": "64Gi"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


class TestMap:
    def test_a_cell_says_in_words_who_has_what(self, site):
        text = site(sums=SUMS).get("/map").text
        assert "n1; used; CPUs: 4 of 16 for podbridge&#39;s pods, 8 for other jobs, 4 idle; gpu:a100: 1 of 4" in text
        assert ">12/16</span>" in text
        assert re.search(r'class="cell closed"[^>]*title="n2; DRAIN\+IDLE: bad fan; ', text)
        assert ">DRAIN+IDLE</span>" in text

    def test_a_drained_node_offers_nothing_in_the_sums(self, site):
        text = site(sums=SUMS).get("/map").text
        assert "2 nodes, 1 used, 1 closed" in text
        assert "CPUs: 4 of 16 for podbridge&#39;s pods, 8 for other jobs, 4 idle" in text

    def test_the_chosen_node_has_its_amounts_and_keeps_the_filters(self, site):
        text = site(sums=SUMS).get("/map?node=n1&partition=main").text
        assert "memory: 2 GiB of 64 GiB for podbridge&#39;s pods, 6 GiB for other jobs, 56 GiB idle" in text
        assert 'href="/map?partition=main&amp;node=n1"' in text
        assert "n2" not in text

    @pytest.mark.parametrize(
        ("query", "seen"), [("state=closed", {"n2"}), ("q=n1", {"n1"}), ("partition=main", {"n1"}), ("", {"n1", "n2"})]
    )
    def test_filters(self, site, query, seen):
        text = site(sums=SUMS).get(f"/map?{query}").text
        assert set(re.findall(r'<span class="name">(.*?)</span>', text)) == seen

    def test_10000_nodes_are_on_pages(self, site):
        many = tuple(NodeSums(f"n{index:05}", ("IDLE",), total=Amounts(64)) for index in range(10_000))
        text = site(sums=ClusterSums(nodes=many)).get("/map?page=10").text
        assert text.count('class="cell') == selection.MAP_PAGE
        assert "Page 10 of 10" in text
        assert len(text) < 1000 * selection.MAP_PAGE

    def test_a_pool_is_a_cell(self, site):
        text = site(nodes=[pool()], sums=ClusterSums()).get("/map").text
        assert "site-a; idle; CPUs: 0 of 32 for podbridge&#39;s pods, 32 idle" in text

    def test_a_user_sees_slurm_without_nodes_and_nodes_without_slurm(self, site):
        text = site(nodes=[pool()], sums=SUMS, may=lambda plural, _: plural == "pods").get("/map").text
        assert "n1" in text and "site-a" not in text and "You may not list nodes" in text
        text = site(nodes=[pool()], sums=SUMS, may=lambda plural, _: True, may_sums=False).get("/map").text
        assert "site-a" in text and "n1" not in text and "You may not read the state of Slurm." in text

    def test_an_old_state_is_shown_with_its_time(self, site):
        opened = site(sums=SUMS)
        opened.slurm = SlurmState(SUMS, "The controllers have not confirmed the state of Slurm since ...")
        text = opened.get("/map").text
        assert "have not confirmed" in text and "n1" in text


WAITING = "Slurm job {} is pending in partition main: {}, estimated start 2026-01-01T02:00:00Z; it asks for 1 CPU"
QUEUED = ClusterSums(2e9, 3e9, (), (PartitionSums("main", 2, 5, {"Priority": 40, "": 1}, 7, 9, (20, 11)),))


def waiting_pod(name, job, reason="Priority", namespace="hpc"):
    message = WAITING.format(job, reason)
    labels = {"scheduler.slinky.slurm.net/slurm-jobid": str(job)}
    found = pod(name, conditions=[scheduled("False", "SlurmPending", message)], labels=labels)
    return {**found, "metadata": {**found["metadata"], "namespace": namespace}}


class TestQueue:
    def test_places_are_sums_and_a_pod_has_its_position_and_start(self, site):
        text = " ".join(site([waiting_pod("mine", 11)], sums=QUEUED).get("/queue").text.split())
        assert "<strong>40</strong> Priority" in text and "<strong>1</strong> not known yet" in text
        assert "5 running" in text and "9 waiting, 7 running" in text
        assert '>2 of 2<p class="note">beside 9 jobs of others</p></td>' in text
        assert ">2026-01-01 02:00:00</time>" in text

    def test_a_user_of_one_namespace_sees_the_sums_of_all_and_no_pod_of_others(self, site):
        pods = [waiting_pod("mine", 11), waiting_pod("secret", 20, namespace="other")]
        opened = site(pods, sums=QUEUED, may=lambda plural, namespace: plural == "pods" and namespace == "hpc")
        text = opened.get("/queue").text
        assert "mine" in text and "secret" not in text and "other/" not in text
        assert "<strong>40</strong> Priority" in text

    def test_work_without_a_job_and_at_a_pool(self, site):
        rows = [pod("bare"), pod("queued", node="site-a"), pod("runs", phase="Running", node="site-a")]
        text = " ".join(site(rows, [pool()], sums=ClusterSums()).get("/queue").text.split())
        assert "without a job" in text and "<strong>1</strong> NotProcessedYet" in text
        assert "<strong>1</strong> starting" in text and "1 running" in text
        assert "2 waiting pods" in text

    def test_a_held_job_says_what_to_type(self, site):
        text = site([waiting_pod("mine", 12, "JobHeldUser")], sums=QUEUED).get("/queue").text
        assert '<code class="copy">scontrol release 12</code>' in text
        assert '<td data-label="Position"><span class="note">not known</span></td>' in text

    @pytest.mark.parametrize(("query", "seen"), [("place=main", "ab"), ("reason=Resources", "b"), ("place=x", "")])
    def test_filters(self, site, query, seen):
        text = site([waiting_pod("a", 11), waiting_pod("b", 20, "Resources")], sums=QUEUED).get(f"/queue?{query}").text
        assert re.findall(r'<a href="/pods/hpc/(\w+)"', text) == [*seen]


class TestSorting:
    @pytest.mark.parametrize(
        ("path", "ascending"),
        [("/queue?sort=position", ["b", "a"]), ("/queue?sort=name", ["a", "b"]), ("/pods?sort=name", ["a", "b"])],
    )
    def test_both_directions(self, site, path, ascending):
        opened = site([waiting_pod("a", 11), waiting_pod("b", 20)], sums=QUEUED)

        def names(path):
            return re.findall(r'<a href="/pods/hpc/(\w+)"', opened.get(path).text)

        assert names(path) == ascending
        assert names(path.replace("sort=", "sort=-")) == ascending[::-1]

    def test_a_heading_keeps_the_filters_and_turns_the_order(self, site):
        opened = site([pod("a")])
        text = opened.get("/pods?state=waiting&q=a").text
        assert 'aria-sort="none"><a href="/pods?state=waiting&amp;q=a&amp;sort=name">' in text
        text = opened.get("/pods?state=waiting&sort=name&page=2").text
        assert 'aria-sort="ascending"><a href="/pods?state=waiting&amp;sort=-name">' in text
        assert '<input type="hidden" name="sort" value="name">' in text

    def test_nodes_by_use_and_workloads_by_waiting_pods(self, site):
        other = {**pool("site-b"), "metadata": pool("site-b")["metadata"]}
        owners = [{"controller": True, "kind": "Job", "name": name} for name in ("x", "y")]
        rows = [pod(f"x{number}", ownerReferences=owners[:1]) for number in range(2)]
        rows += [pod("y", node="site-b", phase="Running", requests={"cpu": "4"}, ownerReferences=owners[1:])]
        opened = site(rows, [pool(), other])
        assert re.findall(r"node=(site-\w)", opened.get("/nodes?sort=-use").text) == ["site-b", "site-a"]
        for sort, order in (("waiting", ["y", "x"]), ("-waiting", ["x", "y"]), ("-pods", ["x", "y"])):
            text = opened.get(f"/workloads?sort={sort}").text
            assert re.findall(r"owner=Job%2F(\w)", text) == order

    @pytest.mark.parametrize("sort", ["", "-", "--name", "unknown", "__class__"])
    def test_an_unknown_order_is_the_default(self, site, sort):
        assert site([pod("a")]).get(f"/pods?sort={sort}").status_code == 200


class TestReader:
    @pytest.fixture(autouse=True)
    def reader(self):
        self.kube, self.clock, self.changes = KubeAnswers(), FakeClock(SUMS.at), []
        self.reader = SlurmReader(self.kube, "/path", self.clock, lambda: self.changes.append(1))
        self.kube.answers["/path"] = {"metadata": {"resourceVersion": "1"}}

    def read(self, answer=None):
        if isinstance(answer, Exception):
            self.kube.answers["/path"] = answer
        elif answer is not None:
            version = {"metadata": {"resourceVersion": str(1 + len(self.kube.reads))}}
            self.kube.answers["/path"] = version | cluster_sums.to_config_map(answer)
        self.reader.read()
        return self.reader.state

    def test_pages_change_only_with_the_state(self):
        assert self.read() == SlurmState(None, slurm_reader.NOT_WRITTEN)
        assert self.read(SUMS) == SlurmState(SUMS, "")
        assert len(self.changes) == 2  # the second one: the state has appeared
        assert self.read() == SlurmState(SUMS, "")
        assert len(self.changes) == 2

    def test_a_state_that_expires_is_old_and_says_since_when(self):
        self.read(SUMS)
        self.changes.clear()
        self.clock.advance(SUMS.expires - SUMS.at + 1)
        state = self.read()
        assert state.sums == SUMS
        assert state.problem == "The controllers have not confirmed the state of Slurm since 2026-01-01T00:00:00Z."
        assert self.changes == [1]

    def test_after_an_error_the_last_state_stays_and_the_next_read_mends_it(self):
        self.read(SUMS)
        kept = self.kube.answers["/path"]
        state = self.read(KubeUnavailableError("refused"))
        assert state.sums == SUMS and "refused" in state.problem
        self.kube.answers["/path"] = kept
        assert self.read() == SlurmState(SUMS, "")

    def test_a_refusal_and_a_wrong_text_are_told(self):
        assert "may not read" in self.read(KubeForbiddenError("no")).problem
        self.kube.answers["/path"] = {"metadata": {}, "data": {cluster_sums.PLAIN: "{"}}
        assert "cannot be read" in self.read().problem
