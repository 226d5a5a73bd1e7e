"""/etc/hosts and the variables of a pod in a group, in containers of every runtime, and without containers."""

from pathlib import Path
from zlib import crc32

import pytest

from bridge import names
from tests.contract.script.conftest import UID, folder_of_programs
from tests.contract.script.containers import fixtures
from tests.pod_specs import EMPTY, mount, spec_of, volumes

pytestmark = pytest.mark.real

home, site = fixtures("podman", "charliecloud", "apptainer", "none")
ALIASES = [{"ip": "192.0.2.7", "hostnames": ["db", "db.example"]}]
LINES = "192.0.2.1\ttrain-0.train.default train-0\n192.0.2.2\ttrain-1.train.default train-1\n"
NAMED = "env | LC_ALL=C sort | grep -E '^(PODBRIDGE_GROUP|MASTER|PET|WORLD_SIZE|RANK)'"
SHOW = f'grep -v "^#" /etc/hosts; {NAMED}; (echo no >>/etc/hosts) 2>&1; cat "$PODBRIDGE_GROUP_HOSTFILE"'


def test_a_pod_finds_itself_and_its_aliases_before_what_the_machine_knows(site):
    before = Path("/etc/hosts").read_bytes()
    job = site.run({"containers": [site.shell(SHOW)], "hostAliases": ALIASES, "hostname": "h", "subdomain": "s"})
    lines = job.log().splitlines()
    own = "h.s.default.svc.cluster.local h.s.default.svc h.s.default h.s h pod"
    assert lines[0].split() == [job.pod()["ip"], *own.split()], job.everything()
    assert lines[1].split() == ["192.0.2.7", "db", "db.example"], job.everything()
    assert any("localhost" in line for line in lines[2:]), job.everything()
    assert "ead-only file system" in job.log() and Path("/etc/hosts").read_bytes() == before


def test_members_of_a_group_find_each_other(site):
    """Also in init containers; a volume of the pod's own at /etc/hosts, and a variable of its own, have precedence."""
    # a folder of the user's own: the member's script reads it, no container does
    file = site.own.folder / "hosts"
    file.write_text(LINES)
    group = {"SIZE": "2", "RANK": "1", "HOSTS": "node-0,node-1", "FILE": str(file)}
    spec = spec_of(
        site.shell(SHOW),
        site.shell("cat /etc/hosts", name="own", volumeMounts=[mount("v", "/etc/hosts", "hosts")]),
        init=[
            site.shell(SHOW, name="init", env=[{"name": "MASTER_PORT", "value": "7"}]),
            site.shell("echo mine >/v/hosts", name="make", volumeMounts=[mount("v", "/v")]),
        ],
        **volumes(v=EMPTY),
    )
    job = site.run(
        {**spec, "subdomain": "train", "hostname": "train-1"},
        annotations={names.PLACE_IN_JOB: "g/1/2", names.RENDEZVOUS: "torch,hostfile"},
        environment={f"PODBRIDGE_GROUP_{name}": value for name, value in group.items()},
    )
    for container, port in (("init", 7), ("main", 20_000 + crc32(b"g") % 10_000)):
        log = job.log(container)
        assert log.startswith(LINES), job.everything()
        lines = [line for line in log.splitlines() if "ead-only file system" not in line]
        assert lines[lines.index("MASTER_ADDR=train-0.train.default") :] == [
            "MASTER_ADDR=train-0.train.default",
            f"MASTER_PORT={port}",
            "PET_RDZV_CONF=is_host=0",
            "PODBRIDGE_GROUP_HOSTFILE=/etc/podbridge/hostfile",
            "PODBRIDGE_GROUP_HOSTS=node-0,node-1",
            "PODBRIDGE_GROUP_RANK=1",
            "PODBRIDGE_GROUP_SIZE=2",
            "RANK=1",
            "WORLD_SIZE=2",
            "train-0.train.default",
            "train-1.train.default",
        ], job.everything()
    assert job.log("own") == "mine\n", job.everything()


def test_without_namespaces_the_machine_keeps_its_file(ordinary):
    path = folder_of_programs(ordinary, "unshare", unshare="exit 1")
    pod = ordinary.shell(f"{NAMED}; cat $PODBRIDGE_GROUP_HOSTFILE")
    job = ordinary.run(
        {"containers": [pod], "hostAliases": ALIASES},
        annotations={names.RENDEZVOUS: "torch,hostfile"},
        environment={"PATH": path},
    )
    master, port, store, file, rank, size, address = job.log().splitlines()
    assert (master, rank, size) == (f"MASTER_ADDR={address}", "RANK=0", "WORLD_SIZE=1"), job.everything()
    assert store == "PET_RDZV_CONF=is_host=1"
    assert file == f"PODBRIDGE_GROUP_HOSTFILE={job.folder}/run/hostfile"
    assert port == f"MASTER_PORT={20_000 + crc32(UID.encode()) % 10_000}"
    assert "the containers see its own /etc/hosts" in (job.folder / "script.log").read_text()
