"""The pages: what they show, and that no name or reason is markup."""

import functools
import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge import names
from bridge.slurm.cluster_sums import Amounts, ClusterSums, NodeSums, PartitionSums
from tests import builders
from tests.examples import examples
from tests.unit.apps.dashboard.conftest import Site
from tests.unit.apps.view.test_pod_view import pod, scheduled, terminated

hostile = st.text(st.sampled_from("<>&\"'/=`{}%;:\\ \n\t\u2028éabc-script"), min_size=1, max_size=40) | st.sampled_from(
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "' onclick='x", "javascript:alert(1)"]
)
KNOWN = {"script", "style", "img", "svg", "rect", "link", "form", "input"}


class Structure(HTMLParser):
    """The elements of a page with the names of their attributes, which hostile text must not change."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(sorted(name for name, _ in attrs))))


def shape(text):
    return Structure(text).found


def node(name, reason="KubeletReady", message="", annotation=""):
    return {
        "metadata": {"name": name, "annotations": {"bridge.vk.io/slurm-reason": annotation}},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": message}]},
    }


def sums_of(text):
    """Return the state of a Slurm whose every text is ``text``."""
    used = Amounts(1, 1, {text: 1})
    sums = NodeSums(text, ("IDLE", text), text, Amounts(4, 8, {text: 2}), used, used, 9, (text,))
    return ClusterSums(1.0, 2e9, (sums,), (PartitionSums(text, 1, 1, {text: 1}, 1, 1),))


def pages_of(text, name="p"):
    """Return every page with ``text`` in each place that a user of the cluster or of a site can write."""
    waiting = pod(
        name,
        conditions=[scheduled("False", text, text)],
        ownerReferences=[{"controller": True, "kind": text, "name": text}],
        annotations={"bridge.vk.io/job": text},
    )
    pool = node(text, text, text)
    pool["metadata"]["labels"] = {names.POOL_LABEL: text}
    site = Site([waiting], [node(text, text, text, text), pool], sums=sums_of(text)).sign_in()
    site.report = dict.fromkeys(("summary", "next"), text) | {
        kind: [text] for kind in ("kubernetes", "conditions", "slurm", "volumes", "nodes")
    }
    place = dict.fromkeys(("place", "job", "state", "expected_start", "reason"), text)
    site.report["places"] = [place | {"eligible": True, "room": None}]
    site.events = [{"reason": text, "note": text, "eventTime": "2026-11-23T10:01:30Z", "metadata": {}}]
    found = [site.get("/"), site.get("/pods", query_string={"q": "p", "owner": ""}), site.get(f"/pods/hpc/{name}")]
    found.append(site.get("/pods", query_string={"q": text, "namespace": text, "reason": text, "node": text}))
    found += [site.get("/nodes"), site.get("/nodes", query_string={"q": text, "kind": text, "state": text})]
    found += [site.get("/workloads"), site.get("/workloads", query_string={"q": text, "namespace": text})]
    found += [site.get("/map"), site.get("/map", query_string={"q": text, "node": text, "partition": text})]
    found += [site.get("/queue"), site.get("/queue", query_string={"namespace": text, "place": text, "reason": text})]
    assert [answer.status_code for answer in found] == [200] * 12
    return [answer.text for answer in found]


@functools.cache
def harmless_shapes():
    return [set(shape(text)) for text in pages_of("harmless")]


class TestEscaping:
    @settings(max_examples=examples(15, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(hostile)
    def test_hostile_texts_do_not_change_the_elements_of_a_page(self, text):
        for ours, harmless in zip(pages_of(text), harmless_shapes(), strict=True):
            changed = shape(ours)
            assert set(changed) <= harmless | {("p", ("class", "title"))}
            assert "<script>" not in ours
            assert set(re.findall(r'href="(.)', ours)) <= {"/", "?", "#"}

    def test_a_text_is_shown_as_it_is(self):
        text = '<b>&"bold"</b>'
        assert html.escape(text, quote=False).replace('"', "&#34;") in pages_of(text)[2]

    def test_no_page_has_inline_script_or_style(self):
        for text in pages_of("x"):
            assert re.search(r"<script(?![^>]*src=)", text) is None
            assert " style=" not in text
            assert re.search(r"\son\w+=", text) is None
            assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text) == []


class TestPages:
    def test_the_overview_counts_pods_and_names_why_they_wait(self, site):
        text = site([pod("a", conditions=[scheduled("False", "SlurmPending", "Priority")]), pod("b")]).get("/").text
        assert re.search(r"<strong>2</strong> waiting", text)
        assert "SlurmPending" in text and "Priority" in text and "NotProcessedYet" in text

    def test_the_list_has_one_page_of_10000_pods(self, site):
        text = site([pod(f"p{number}") for number in range(10_000)]).get("/pods?page=3").text
        assert "10,000 pods, page 3 of 200" in text
        assert text.count("<tr>") == 51
        assert len(text) < 150_000

    def test_a_pod_shows_its_explanation_its_timeline_and_no_environment(self, site):
        ended = pod(phase="Failed", node="n", conditions=[scheduled()], containers=[terminated(7)])
        opened = site([ended])
        opened.report = {**opened.report, "summary": "finished (Failed)", "kubernetes": ["on node n"]}
        text = opened.get("/pods/hpc/p").text
        for wanted in ("finished (Failed)", "on node n", "exit code 7", "Bound", "Log of main"):
            assert wanted in text
        assert "hunter2" not in text and "PASSWORD" not in text

    def test_a_user_who_may_not_list_nodes_sees_none(self, site):
        opened = site([pod(node="secret-node")], [node("secret-node")], may=lambda plural, _: plural == "pods")
        opened.report = {**opened.report, "nodes": ["secret-node: fits"]}
        assert "You may not list nodes" in opened.get("/").text
        listed = opened.get("/nodes").text
        assert "You may not list nodes" in listed and "secret-node" not in listed
        text = opened.get("/pods/hpc/p").text
        assert "secret-node: fits" not in text

    def test_a_user_of_one_namespace_sees_no_pod_of_another(self, site):
        other = {**pod("hidden"), "metadata": {**pod("hidden")["metadata"], "namespace": "other"}}
        opened = site([pod("seen"), other], may=lambda plural, namespace: plural == "pods" and namespace == "hpc")
        for path in (
            "/",
            "/workloads",
            "/workloads?namespace=other",
            "/pods",
            "/pods?namespace=other",
            "/pods?q=hidden",
            "/queue",
            "/queue?namespace=other",
        ):
            text = opened.get(path).text
            assert "hidden</a>" not in text and "other/hidden" not in text
        assert "seen" in opened.get("/pods").text
        assert "other" not in opened.get("/pods?namespace=hpc").text

    def test_a_pod_that_does_not_exist(self, site):
        answer = site().get("/pods/hpc/nobody")
        assert answer.status_code == 404
        assert "NotFound" in answer.text


def ready(name, unschedulable=False, **labels):
    offered = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
    return builders.node(name, labels=labels, allocatable=offered, ready="True", unschedulable=unschedulable)


class TestNodes:
    def many(self, site):
        nodes = [ready(f"n{number:04}") for number in range(1100)]
        nodes[900] = node("n0900", "KubeletNotReady", "the kubelet is down")
        nodes[901] = ready("n0901", unschedulable=True)
        pools = [ready(f"site{number:03}", **{"bridge.vk.io/pool": "x"}) for number in range(80)]
        return site([pod("a", node="n0902")], [*nodes, *pools])

    def test_the_overview_shows_the_nodes_with_a_problem_and_the_busiest(self, site):
        text = self.many(site).get("/").text
        pools, nodes = text.split('<section aria-labelledby="nodes">')
        assert "1,100 nodes, " in nodes and ">1 not ready</a>" in nodes and ">1 cordoned</a>" in nodes
        assert "50 are shown" in nodes and '<a href="/nodes?kind=node">All nodes</a>' in nodes
        assert re.findall(r">(n\d{4})</a>", nodes)[:3] == ["n0900", "n0901", "n0000"]
        assert ">n0902</a>" in nodes and ">n0048</a>" not in nodes
        assert nodes.count("<tr>") == 51
        assert "80 pools" in pools and '<a href="/nodes?kind=pool">All pools</a>' in pools
        assert pools.count("site0") // 2 == 50
        assert len(text) < 200_000

    def test_few_nodes_are_all_shown_without_a_link_to_others(self, site):
        text = site([], [ready("n1"), ready("n2")]).get("/").text
        assert "2 nodes</p>" in text and "There is no pool" in text and "are shown" not in text

    def test_the_list_has_pages_and_filters(self, site):
        opened = self.many(site)
        text = opened.get("/nodes?kind=node&page=22").text
        assert "1,100 nodes, page 22 of 22" in text and ">n1099</a>" in text and text.count("<tr>") == 51
        assert '<a rel="prev" href="/nodes?kind=node&amp;page=21">Previous</a>' in text
        assert "1,180 nodes and pools, page 1 of 24" in opened.get("/nodes").text
        assert "80 pools, page 1 of 2" in opened.get("/nodes?kind=pool").text
        assert "1 node or pool</p>" in opened.get("/nodes?state=cordoned").text
        assert "1 node</p>" in opened.get("/nodes?kind=node&state=not+ready").text
        assert re.findall(r">(n\d{4})</a>", opened.get("/nodes?q=901").text) == ["n0901"]
        assert "No node matches" in opened.get("/nodes?q=nobody").text
        assert "page 24 of 24" in opened.get("/nodes?page=999&kind=other&state=other").text


class TestLogs:
    def test_a_log_is_plain_text_of_the_named_container(self, site):
        opened = site([pod()], logs=[b"one\n", b"<b>two</b>\n"])
        answer = opened.get("/log/hpc/p/main?follow&tail=10")
        assert answer.data == b"one\n<b>two</b>\n"
        assert answer.content_type.startswith("text/plain")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        path = "/api/v1/namespaces/hpc/pods/p/log"
        assert opened.client.asked == [(path, {"container": "main", "tailLines": 10, "follow": True})]

    @pytest.mark.parametrize("tail", ["-1", "0" * 9 + "9" * 9, "0" * 5000])
    def test_a_wrong_tail_names_what_is_allowed(self, site, tail):
        answer = site([pod()]).get(f"/log/hpc/p/main?tail={tail}")
        assert answer.status_code == 400
        assert "0 to 100000" in answer.text

    def test_an_unknown_container_is_named_with_those_that_exist(self, site):
        answer = site([pod()]).get("/pods/hpc/p/logs?container=other")
        assert answer.status_code == 404
        assert "main" in answer.text
