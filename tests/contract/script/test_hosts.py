"""/etc/hosts and the variables of a pod in a group, in containers of every runtime, and without containers."""

from pathlib import Path

import pytest

from bridge import names
from tests.contract.script.conftest import folder_of_programs
from tests.contract.script.containers import fixtures
from tests.pod_specs import EMPTY, mount, spec_of, volumes

pytestmark = pytest.mark.real

home, site = fixtures("podman", "charliecloud", "apptainer", "none")
ALIASES = [{"ip": "192.0.2.7", "hostnames": ["db", "db.example"]}]
LINES = "192.0.2.1\ttrain-0.train.default train-0\n192.0.2.2\ttrain-1.train.default train-1\n"
SHOW = "grep -v '^#' /etc/hosts; env | grep ^PODBRIDGE_GROUP | sort; echo no >>/etc/hosts; :"


def test_aliases_come_before_what_the_machine_knows(site):
    before = Path("/etc/hosts").read_bytes()
    job = site.run({"containers": [site.shell(SHOW)], "hostAliases": ALIASES})
    lines = job.log().splitlines()
    assert lines[0].split() == ["192.0.2.7", "db", "db.example"], job.everything()
    assert any("localhost" in line for line in lines[1:]), job.everything()
    assert "ead-only file system" in job.log() and Path("/etc/hosts").read_bytes() == before


def test_members_of_a_group_find_each_other(site):
    """Also in init containers; a volume of the pod's own at /etc/hosts has precedence."""
    # a folder of the user's own: the member's script reads it, no container does
    file = site.own.folder / "hosts"
    file.write_text(LINES)
    group = {"SIZE": "2", "RANK": "1", "HOSTS": "node-0,node-1", "FILE": str(file)}
    spec = spec_of(
        site.shell(SHOW),
        site.shell("cat /etc/hosts", name="own", volumeMounts=[mount("v", "/etc/hosts", "hosts")]),
        init=[
            site.shell(SHOW, name="init"),
            site.shell("echo mine >/v/hosts", name="make", volumeMounts=[mount("v", "/v")]),
        ],
        **volumes(v=EMPTY),
    )
    job = site.run(
        {**spec, "subdomain": "train", "hostname": "train-1"},
        annotations={names.PLACE_IN_JOB: "g/1/2"},
        environment={f"PODBRIDGE_GROUP_{name}": value for name, value in group.items()},
    )
    for container in ("init", "main"):
        log = job.log(container)
        assert log.startswith(LINES), job.everything()
        assert [line for line in log.splitlines() if line.startswith("PODBRIDGE")] == [
            "PODBRIDGE_GROUP_HOSTS=node-0,node-1",
            "PODBRIDGE_GROUP_RANK=1",
            "PODBRIDGE_GROUP_SIZE=2",
        ], job.everything()
    assert job.log("own") == "mine\n", job.everything()


def test_without_namespaces_the_machine_keeps_its_file(ordinary):
    path = folder_of_programs(ordinary, "unshare", unshare="exit 1")
    job = ordinary.run({"containers": [ordinary.shell("echo ran")], "hostAliases": ALIASES}, environment={"PATH": path})
    assert job.log() == "ran\n", job.everything()
    assert "the containers see its own /etc/hosts" in (job.folder / "script.log").read_text()
