"""Clusters of real daemons for the tests, started once each by the project's own hack/cluster."""

import os
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from bridge.core import isolation
from cluster import Cluster, orphans, places
from cluster.systems.gangs import WORKLOAD_API
from cluster.world import World
from tests import parts
from tests.examples import LONG, SHORT
from tests.parts import SLURMS

# a run in the background of a shell ignores these; what it starts would inherit that, but no handler
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

pytest.register_assert_rewrite("tests.contract", "tests.e2e", "tests.chaos")  # modules of checks say what they saw, too

# how long a machine takes to make up an example, or to try it, says nothing about the code
for profile, number in ((SHORT, 40), (LONG, 300)):
    settings.register_profile(profile, max_examples=number, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(SHORT)
MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Free bytes that the folders of tests may need."""
REPORT = "report"
CPU = "cpu"
"""Property of a report: CPU seconds of this process and of its ended children, during one phase of a test."""
HALVES = ("a to f", "g to z")
"""Two clusters of a version of Slurm share the end-to-end tests, by the names of their files."""
POOLS = ("pools, a to d", "pools, e to z")
"""Two clusters with all kinds of sites, which take minutes to start on a busy machine, by the names of files, too."""
FIRST = (
    *(f"{version}, {half}" for version in SLURMS for half in HALVES),
    *POOLS,
    *SLURMS,
    "helm",
    "kueue",
    "tests/e2e/test_faults.py",
    "tests/chaos/test_pools.py",
    "tests/chaos/test_pool_replicas.py",
    "tests/chaos/test_race.py",
    "release",
)
"""Clusters with few tests that take long. With several processes, a run starts with them, and does not end with one."""


def pytest_addoption(parser):
    """Add the options that ``./hack/test.sh --help`` describes."""
    parser.addoption("--long", metavar="PART", default="", choices=["", *parts.PARTS], help="a part of a long run")
    parser.addoption("--kills", type=int, default=0, help="kills of test_storm.py and test_pools.py")
    parser.addoption("--update-golden", action="store_true", default=False, help="write golden files")
    parser.addoption("--keep", action="store_true", default=False, help="keep clusters running for the next run")


def pytest_configure(config):
    """Choose the number of examples; refuse to keep clusters that several processes would share."""
    if _holds_tests(MEMORY):  # an fsync takes 5 ms on a disk; the tests of submitters wait for thousands
        tempfile.tempdir = str(MEMORY)
    if config.getoption("--long"):
        settings.load_profile(LONG)
    if config.getoption("--keep") and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--keep: not with -n, since each kept cluster serves one process")


def _holds_tests(folder):
    """Whether tests can have their folders there: it is writable, has room, and runs programs."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC


REPORT_ISOLATED = isolation.report


@pytest.fixture(scope="session", autouse=True)
def _unexpected_errors_fail_the_test():
    """Raise what podbridge would report as an isolated error; :func:`isolates` switches this off."""

    def fail(part, subject, error):
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "report", fail)
        yield


@pytest.fixture
def isolates(monkeypatch):
    """Isolate unexpected errors, as in production; return the list of (part, object) of each."""
    reported = []

    def report(part, subject, error):
        reported.append((part, subject))
        return REPORT_ISOLATED(part, subject, error)

    monkeypatch.setattr(isolation, "report", report)
    return reported


@pytest.fixture(scope="session")
def long(request):
    """Whether a test has its longer form: the run is that part of a long run to which such tests belong."""
    part = request.config.getoption("--long")
    return part != "" and not parts.is_version(part)


@pytest.fixture
def kills(request):
    """The number of kills of a storm (``--kills``); 0: the test's own."""
    return request.config.getoption("--kills")


@pytest.fixture
def report(record_property):
    """Return a function that adds a line to the end of the run's output, also with several processes."""
    return lambda line: record_property(REPORT, line)


def pytest_report_header(config):
    """Print what the run leaves out."""
    if name := config.getoption("--long"):
        return f"part {name} of a long run: {parts.PARTS[name].about}"
    return f"short run: Slurm {SLURMS[0]} and Kubernetes {places.DEFAULT_KUBERNETES}, fuzzing and chaos are short"


def pytest_sessionstart(session):
    """Stop the clusters of runs that were killed; the worker processes of this run do not repeat it."""
    if not hasattr(session.config, "workerinput"):
        orphans.stop()


def pytest_collection_modifyitems(config, items):
    """Sort the tests for several processes; leave out those of other parts, and what a version lacks (``not_on``)."""
    if hasattr(config, "workerinput"):
        sizes = Counter(map(_cluster_of, (item.nodeid for item in items)))
        items.sort(key=lambda item: _rank(_cluster_of(item.nodeid), sizes))
    name = config.getoption("--long")
    left_out = [
        item
        for item in items
        if any(parts.version(_parameters(item)) in marker.args for marker in item.iter_markers("not_on"))
        or not _belongs(item, name)
    ]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _belongs(item, name):
    """Whether a test belongs to the part with this name, or without a name to a short run."""
    part = parts.of(item.nodeid, _parameters(item), _has_longer_form(item))
    if name:
        return part == name
    return not _is_long_only(item) and (
        not parts.is_version(part) or item.get_closest_marker("each_version") is not None
    )


def _has_longer_form(item):
    """Whether a test has more examples, or more of what its fixture ``long`` stands for, in a part of a long run."""
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return is_property or "long" in item.fixturenames or _is_long_only(item)


def _is_long_only(item):
    return item.get_closest_marker("long_only") is not None


def _parameters(item):
    return item.callspec.params.values() if hasattr(item, "callspec") else ()


def _cluster_of(nodeid):
    """Return the cluster of a test, by its name.

    Tests with a version of Slurm in their parameters share the cluster of that version; end-to-end tests, two.
    Those of Kueue share one, those of the chart too; those of a release share a wheel, and the others one by file.
    """
    file = nodeid.split("::")[0]
    if file.startswith("tests/unit/"):
        return file
    parameters = nodeid.partition("[")[2]
    for folder in ("kueue", "helm"):
        if file.startswith(f"tests/e2e/{folder}/"):
            return folder
    if file.startswith("tests/e2e/pools/") and file != "tests/e2e/pools/test_race.py":  # it has a cluster of its own
        return POOLS[file > "tests/e2e/pools/test_e"]
    if file.startswith("tests/contract/hack/test_release"):
        return "release"
    if file.startswith("tests/e2e/gangs/"):
        return next((f"gangs {version}" for version in WORKLOAD_API if version in parameters), file)
    version = next((version for version in SLURMS if version in parameters), "")
    if version and file.startswith("tests/e2e/test_"):
        return f"{version}, {HALVES[file > 'tests/e2e/test_g']}"
    return version or file


def _rank(cluster, sizes):
    """Return the key by which clusters start: those of ``FIRST``, then those with the most tests."""
    return FIRST.index(cluster) if cluster in FIRST else len(FIRST), -sizes[cluster], cluster


class ByCluster(LoadScopeScheduling):
    """Assigns all tests of one cluster to one process, so that the cluster starts once."""

    def _split_scope(self, nodeid):
        return _cluster_of(nodeid)

    def _reschedule(self, node):
        # xdist's own limit, two tests, assigns clusters to busy processes while others are idle at the end
        if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler of ``pytest -n``; xdist's groups do not work with pytest 9 and xdist 3.8."""
    config.option.loadscopereorder = False  # pytest_collection_modifyitems sorts
    return ByCluster(config, log)


def pytest_terminal_summary(terminalreporter):
    """Print the lines that tests have given to ``report``, and the clusters that took the longest."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    lines = [f"{item.nodeid}: {line}" for item in reports for name, line in item.user_properties if name == REPORT]
    if lines:
        terminalreporter.section("reports")
        for line in lines:
            terminalreporter.write_line(line)
    kinds = ("", "passed", "failed", "error", "skipped")  # "": set-up and tear-down
    phases = [item for kind in kinds for item in terminalreporter.getreports(kind)]
    phases = [item for item in phases if hasattr(item, "duration")]  # an error of the collection has none
    took = Counter()
    for item in phases:
        took[_cluster_of(item.nodeid)] += item.duration
    slow = [f"{seconds:.0f} s {name}" for name, seconds in took.most_common(12) if seconds > 60]
    if slow:
        terminalreporter.section("slowest clusters")
        terminalreporter.write_line("\n".join(slow))
    if folder := os.environ.get("PODBRIDGE_TEST_TIMES"):
        _write_times(Path(folder), phases)


def _write_times(folder, phases):
    """Write a table: seconds, CPU seconds without those of daemons, tests and name of each file."""
    seconds, cpu, tests = Counter(), Counter(), Counter()
    for item in phases:
        file = item.nodeid.split("::")[0]
        seconds[file] += item.duration
        cpu[file] += sum(value for name, value in item.user_properties if name == CPU)
        tests[file] += item.when == "call"
    if seconds:
        suite = os.path.commonpath(seconds) if len(seconds) > 1 else next(iter(seconds))
        folder.mkdir(parents=True, exist_ok=True)
        rows = [f"{took:.1f}\t{cpu[file]:.1f}\t{tests[file]}\t{file}\n" for file, took in seconds.most_common()]
        (folder / f"{suite.replace('/', '-')}.tsv").write_text("seconds\tcpu\ttests\tfile\n" + "".join(rows))


@pytest.fixture(scope="session")
def state_folder(request):
    """Return a folder for clusters, on a short path (sockets); it is removed unless clusters are kept."""
    if request.config.getoption("--keep"):
        kept = places.kept_state()
        kept.mkdir(mode=0o755, exist_ok=True)
        if kept.stat().st_uid != os.geteuid():
            pytest.fail(f"{kept} belongs to another user: remove it")
        yield kept
        return
    folder = orphans.make_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(state_folder):
    """Kubernetes with kwok, and Slurm 26.05; no podbridge runs."""
    with Cluster(state_folder / "plain", slurm="26.05", nodes=4, audit=True) as running:
        yield running


@pytest.fixture(scope="session", params=SLURMS)
def slurm_cluster(request, state_folder):
    """Slurm alone, in each version."""
    with Cluster(state_folder / f"slurm-{request.param}", slurm=request.param, nodes=2, kube=False) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """When a test on a cluster fails, show what Slurm, Kubernetes and podbridge have to say."""
    report = yield
    now = sum(os.times()[:4])
    report.user_properties = [*report.user_properties, (CPU, now - getattr(item.config, "_cpu", now))]
    item.config._cpu = now
    if report.when == "call" and report.failed:
        world = next((value for value in getattr(item, "funcargs", {}).values() if isinstance(value, World)), None)
        if world is not None:
            tools = (("squeue", "-l"), ("sinfo", "-N", "-l")) if world.cluster.options.slurm else ()
            for tool in tools:
                report.sections.append((" ".join(tool), world.cluster.run_slurm(*tool, check=False)))
            report.sections.append(("pods", world.cluster.kubectl("get", "pods", "-A", "-o", "wide", check=False)))
            report.sections.append(("podbridge", world.cluster.processes.tail("podbridge", 40)))
    return report
