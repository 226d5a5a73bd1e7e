"""The use of CPU and memory that a script measures when the submitter asks for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bridge.site.container_usage import parse
from tests.contract.script.conftest import Job

pytestmark = pytest.mark.real

MIB = 2**20
BURN = (
    'exec python3 -c "import time; held = bytearray(64 * 2**20)\n'
    "while time.process_time() < 1.1: pass\n"
    "print('held', flush=True); time.sleep(600)\""
)
# what a child has used counts once it has ended and was waited for
PARENT = 'python3 -c "import time\nwhile time.process_time() < 1.1: pass"; echo waited; sleep 600'


def asked(job: Job) -> Any:
    """Ask as the submitter does, and return the measurement that follows."""
    ask, usage = job.home / "usage", job.folder / "run" / "usage"
    before = usage.stat().st_mtime_ns if usage.exists() else 0
    ask.touch()
    job.eventually(lambda: usage.exists() and usage.stat().st_mtime_ns > before)
    found = parse("uid", usage.read_bytes())
    assert found is not None, usage.read_text()
    return found


def test_cpu_time_and_memory_of_each_container(ordinary: Any) -> None:
    main = ordinary.shell(BURN)
    others = [ordinary.shell(PARENT, name="parent"), ordinary.shell("sleep 600", name="idle")]
    job = ordinary.job({"containers": [main, *others]}).start()
    job.eventually(lambda: "held" in job.log_if_any() and "waited" in job.log_if_any("parent"))
    assert not (job.folder / "run" / "usage").exists(), "nobody has asked"
    first = asked(job)
    use = {each.name: each for each in first.containers}
    assert set(use) == {"main", "parent", "idle"}
    assert 64 * MIB < use["main"].memory < 90 * MIB
    assert 0 < use["idle"].memory < 20 * MIB
    assert 1 <= use["main"].cpu < 3 and 1 <= use["parent"].cpu < 3
    assert 0 < use["idle"].cpu < 1
    assert abs(first.at - time.time()) < 3
    job.ask_to_stop(0)
    assert job.wait() == 1
