"""The use of CPU and memory that a script measures when the submitter asks for it.

The other runtimes are in ``tests/e2e/pools/test_top.py``.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from bridge.site.container_usage import parse
from tests.contract.script.conftest import Job
from tests.contract.script.containers import fixtures

pytestmark = pytest.mark.real

home, site = fixtures("podman", "charliecloud")
HELD = 16 * 2**20
# 1.1 s of CPU time
BURN = 'until [ "$(cut -d" " -f14 /proc/$$/stat)" -ge 110 ]; do i=0; while [ $i -lt 5000 ]; do i=$((i + 1)); done; done'
# the shell would become its last command
MAIN = f"held=$(head -c {HELD} /dev/zero | tr '\\0' x); {BURN}; echo held; sleep 600; :"
# what a child has used counts once it has ended and was waited for
PARENT = f"sh -c '{BURN}'; echo waited; sleep 600"


def asked(job: Job) -> Any:
    """Ask as the submitter does, and return the measurement that follows."""
    ask, usage = job.home / "usage", job.folder / "run" / "usage"
    before = usage.stat().st_mtime_ns if usage.exists() else 0
    ask.touch()
    job.eventually(lambda: usage.exists() and usage.stat().st_mtime_ns > before)
    found = parse("uid", usage.read_bytes())
    assert found is not None, usage.read_text()
    return found


def test_cpu_time_and_memory_of_each_container(site: Any) -> None:
    others = [site.shell(PARENT, name="parent"), site.shell("sleep 600", name="idle")]
    job = site.job({"containers": [site.shell(MAIN), *others]}).start()
    job.eventually(lambda: "held" in job.log_if_any() and "waited" in job.log_if_any("parent"))
    assert not (job.folder / "run" / "usage").exists(), "nobody has asked"
    first = asked(job)
    use = {each.name: each for each in first.containers}
    assert set(use) == {"main", "parent", "idle"}, job.everything()
    assert HELD < use["main"].memory < 5 * HELD
    assert 0 < use["idle"].memory < HELD
    assert 1 <= use["main"].cpu < 3 and 1 <= use["parent"].cpu < 3
    assert 0 < use["idle"].cpu < 1
    assert abs(first.at - time.time()) < 3
    job.ask_to_stop(0)
    assert job.wait() == 1
