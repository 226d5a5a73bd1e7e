"""What kubectl and Services do with running pods, for every batch system: commands, attach, ports, reach."""

from __future__ import annotations

from typing import Any

from cluster.polling import eventually
from cluster.ports import free_block
from tests.contract.site import jobs
from tests.contract.site.reaching import check_reach
from tests.contract.site.sessions import check_attach, check_commands
from tests.contract.site.test_ports import ECHO, talk


def check_sessions(site: Any) -> None:
    """Use everything at a site that allows it."""
    check_commands(site)
    check_attach(site)
    check_ports(site)
    check_reach(site)


def check_ports(site: Any) -> None:
    """Connect to a port of a pod."""
    port = free_block(2)
    job = jobs.submit_pod(site, f'exec python3 -c "$0" {port} {port + 1}', args=[ECHO])
    eventually(lambda: b"listening" in site.log(job), "the pod listens")
    assert talk(site, job, port, b"through a port") == b"through a port.end"
    jobs.cancel(site, job)
