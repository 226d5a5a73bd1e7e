"""Two schedulers, the leader stopped for longer than its lease and continued: no write by the old one takes effect.

Single pods and gangs are created before the leader is stopped, and while it is stopped.
"""

import signal
import time
from datetime import datetime

import pytest

from cluster.polling import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MEMBERS = 3
WRITES = ("create", "update", "patch", "delete", "deletecollection")


def bound(world, gang):
    """Return the nodes of the members of a gang if each has one, else nothing; the members may have ended."""
    nodes = [pod["spec"].get("nodeName") for pod in world.members(gang)]
    return sorted(nodes) if len(nodes) == MEMBERS and all(nodes) else []


def nodes_of(world, job):
    return sorted(world.slurm("scontrol", "show", "hostnames", world.job(job)["NodeList"]).split())


def test_a_stopped_leader_writes_nothing_when_it_goes_on(bare_world):
    world, cluster = bare_world, bare_world.cluster
    cluster.start_podbridge(("controllers",), name="controllers")
    names = ("first", "second")
    for name in names:
        cluster.start_podbridge(("scheduler",), name=name)
    lease = "/apis/coordination.k8s.io/v1/namespaces/podbridge/leases/podbridge-scheduler"

    def holder():
        return world.api("GET", lease)["spec"]["holderIdentity"]

    try:
        old = eventually(holder, "a leader")
        leader = next(name for name in names if f"_{cluster.pid(name)}_" in old)
        pods = [world.create() for _ in range(4)]
        for pod in pods:
            world.running(pod)
        pods += [world.create() for _ in range(17)]
        gangs = [world.create_gang("caught", MEMBERS)]
        cluster.kill(leader, signal.SIGSTOP)
        for number in range(20):
            if number % 10 == 0:
                gangs.append(world.create_gang(f"late-{number}", MEMBERS))
            else:
                pods.append(world.create())
            time.sleep(1)
        assert eventually(lambda: holder() != old and holder(), "another leader", 30)
        continued = time.time()
        cluster.kill(leader, signal.SIGCONT)
        eventually(lambda: cluster.pid(leader) is None, "the old leader ends", 20)
        for pod in pods:
            world.running(pod, 60)
        for gang in gangs:
            eventually(lambda g=gang: bound(world, g), f"gang {gang['metadata']['name']} bound", 60)
        jobs = world.jobs_by_uid()
        assert {len(jobs[owner["metadata"]["uid"]]) for owner in (*pods, *gangs)} == {1}
        for gang in gangs:
            assert nodes_of(world, jobs[gang["metadata"]["uid"]][0][0]) == bound(world, gang)
        sent = [
            (event["responseStatus"]["code"], f"{event['verb']} {event['requestURI']}")
            for event in cluster.audit_events()
            if event["verb"] in WRITES
            and old in event.get("userAgent", "")
            and event["objectRef"]["resource"] != "leases"
            and datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp() > continued
        ]
        # a thread that was stopped between the look at the lease and its first byte still sends
        assert [what for code, what in sent if code != 409] == []
        assert len(sent) <= 2
        assert any(old in event.get("userAgent", "") for event in cluster.audit_events()), "the audit log saw nothing"
    finally:
        for name in (*names, "controllers"):
            if cluster.pid(name):
                cluster.kill(name, signal.SIGCONT)
                cluster.stop_podbridge(name)
