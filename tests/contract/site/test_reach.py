"""Connections of pods to Services, over a real nats-server; the hub's part is that of the controllers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from bridge import names
from bridge.errors import SiteRefusedError
from cluster.polling import eventually
from cluster.ports import free_block
from tests import processes
from tests.contract.site import jobs
from tests.contract.site.conftest import Site, new_place
from tests.contract.site.reaching import client, said, serve
from tests.contract.site.reaching import echo as answer
from tests.fakes.socket_server import SocketServer

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def site(nats_url: str) -> Any:
    """One site for all tests."""
    text = '[local]\ncpus = 4\nmemory = "4Gi"\n[limits]\nallow_reach = true\n'
    with new_place() as place, Site(place, nats_url, "local", text) as made:
        yield made


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """The port of a server in the cluster."""
    with SocketServer(answer) as server:
        yield server.port


def streams(site: Any, job: str) -> set[int]:
    return {*processes.in_folder(site.folder / "jobs" / job)} & {*processes.with_word("attach")}


def test_names_and_variables_lead_to_the_service_and_the_end_of_the_pod_leaves_nothing(site: Any, echo: int) -> None:
    port = free_block(1)
    lines = [f"web:{port}", f"web.default.svc:{port}", f"WEB_SERVICE_HOST:{port}"]
    job, pod = client(site, f"web:{port}:80", *lines)
    site.wait(job, "running")
    thread = serve(site, job, pod, echo)
    assert said(site, job, 3) == [f"{line} 300000" for line in lines]
    jobs.cancel(site, job)
    thread.join(20)
    assert not thread.is_alive()
    eventually(lambda: not processes.in_folder(site.folder / "jobs" / job), "nothing is left")


def test_a_killed_submitter_ends_the_stream_and_its_successor_has_another(site: Any, echo: int) -> None:
    port = free_block(1)
    job, pod = client(site, f"web:{port}", *[f"web:{port}"] * 2)
    site.wait(job, "running")
    serve(site, job, pod, echo)
    said(site, job, 2)
    eventually(lambda: len(streams(site, job)) == 1, "one stream")
    site.kill(site.processes[-1])
    eventually(lambda: not streams(site, job), "no stream is left")
    site.start()
    serve(site, job, pod, echo)
    eventually(lambda: len(streams(site, job)) == 1, "one stream")
    jobs.cancel(site, job)
    eventually(lambda: not processes.in_folder(site.folder / "jobs" / job), "nothing is left")


def test_a_local_port_in_use_is_an_error_with_words(site: Any) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        job, _ = client(site, f"web:{port}", f"web:{port}")
        status = site.wait(job, "ended")
    assert (status.outcome, status.reason) == ("Failed", "NotPossibleAtSite")
    assert f"annotation {names.REACH}: port {port} of this machine can't be used" in status.message


def test_refusals(site: Any, nats_url: str) -> None:
    with pytest.raises(SiteRefusedError, match=r"not found|does not know|no job"):
        site.client.reach(jobs.uid())
    job = site.submit("sleep 100")
    site.wait(job, "running")
    with new_place() as place, Site(place, nats_url, "local") as other:
        there = other.submit("sleep 100")
        other.wait(there, "running")
        with pytest.raises(SiteRefusedError, match=r"limits.allow_reach is false"):
            other.client.reach(there)
