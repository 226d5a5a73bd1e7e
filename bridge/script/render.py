"""A plan as bash: the library, then the data of the pod. :mod:`.quoting` quotes every word of the pod."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bridge.relay import multiplexer, pod_processes, programs, reacher
from bridge.script import console, library
from bridge.script.hosts import HOSTFILE, HOSTS_FILE, Hosts
from bridge.script.plan_types import Container, Plan
from bridge.script.probes import Action
from bridge.script.quoting import array, encoded, word, words
from bridge.script.runtimes import runtime_table as runtimes
from bridge.script.volumes import areas, everything, may_use

_END = "PODBRIDGE_END"
_OWN_FILES = {HOSTS_FILE: "run/hosts", HOSTFILE: "run/hostfile"}
_CONSOLE_PROGRAM = programs.text(console)
_REACH_PROGRAM = programs.text(multiplexer, pod_processes, reacher)
_BY_PROGRAM = {"https", "grpc"}
# mkdir reports what it has created itself: "started" in one process only, also on a shared file system. So a
# second batch job of the pod ends here. The folder of a container may have this name, too
_HEAD = """\
#!/bin/bash
umask 077
case ${BASH_SOURCE[0]} in */*) cd -- "${BASH_SOURCE[0]%/*}" || exit 1 ;; esac
JOB=$PWD
if [[ ' inside leftovers session console connector reach ' != *" ${1-} "* ]]; then
    made=$([[ -e started || -L started ]] || exec mkdir -pv started @FOLDERS@)
    MADE=$?
    [[ ${made%%$'\\n'*} == *[!-/a-z0-9]started* ]] || { [[ -d started ]]; exit; }
    made=${SLURM_JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-${JOB_ID-}}}}
    printf '%s\\n' "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$made}" >started/job
fi
LOCALE=${LC_ALL-}
"""
# the output of a session is that of its program
_QUIET = "if [[ ' session console connector reach ' == *\" ${1-} \"* ]]; then exec 3>&1 4>&2 >/dev/null 2>&1; fi\n"
_AS_BEFORE = "if [[ ' session console connector reach ' == *\" ${1-} \"* ]]; then exec >&3 2>&4 3>&- 4>&-; fi\n"
_FOLDERS = ("state/.new", "logs", "run", "termination", "volumes", "scratch", "control")
_TAIL = """\
LC_ALL=C
case ${1-} in
inside)
    shift
    inside "$@"
    ;;
leftovers) leftovers ;;
session | console | connector | reach)
    "$@"
    ;;
*) main ;;
esac
"""


def script(plan: Plan) -> str:
    """Return the script."""
    runtime = runtimes.of(plan.config)
    folders = (*_FOLDERS, *(f"work/{c.name}" for c in plan.containers), *runtime.folders)
    parts = [_HEAD.replace("@FOLDERS@", " ".join(folders))]
    if plan.config.header:
        # only once: the script calls itself in namespaces, where the exports of the header exist already
        header = plan.config.header.rstrip()
        parts.append(f"{_QUIET}if [[ ${{1-}} != inside ]]; then\n:\n{header}\nset +Cefu +o pipefail\nfi\n{_AS_BEFORE}")
    parts.append(library.text(runtime.library))
    parts.extend(f"{line}\n" for line in _data(plan))
    parts.extend(f"{line}\n" for line in runtime.options(plan))
    parts.append(_TAIL)
    return "".join(parts)


def _data(plan: Plan) -> Iterator[str]:
    containers = plan.containers
    yield array("NAME", [c.name for c in containers])
    yield array("KIND", [c.kind for c in containers])
    yield array("MEMORY", ["" if c.memory is None else str(c.memory) for c in containers])
    yield array("FALLBACK", ["1" if c.fallback_to_logs else "" for c in containers])
    yield array("READONLY_ROOT", ["1" if c.read_only_root else "" for c in containers])
    yield array("RUN_AS", [c.run_as for c in containers])
    yield array("NON_ROOT", ["1" if c.non_root else "" for c in containers])
    if plan.config.runtime.run_as_user == "ignore":
        yield "IGNORE_USERS=1"
    yield array("DIRECTORY", [c.directory for c in containers])
    yield array("NEEDS", sorted(_BY_PROGRAM & {how for c in containers for how in c.ways}))
    yield f"RESTART_POLICY={word(plan.restart_policy)}"
    yield f"GRACE={_centiseconds(plan.grace)}"
    yield f"DEADLINE={'' if plan.deadline is None else _centiseconds(plan.deadline)}"
    if plan.grant_wait is not None:
        yield f"GRANT_WAIT={_centiseconds(plan.grant_wait)}"
    if plan.grant_wait is not None or plan.volumes.fuse or plan.annotations.pre_exec:
        # the first container may start much later
        yield "FLUSH_LATER=0"
    if plan.hosts.files:
        yield array("HOST_NAMES", plan.hosts.names)
        yield array("HOST_ALIASES", plan.hosts.aliases)
    if plan.hosts.port is not None:
        yield f"RENDEZVOUS_PORT={plan.hosts.port}"
    if plan.hosts.hostfile:
        yield f"HOSTFILE={HOSTFILE}"
    yield from _programs(plan)
    yield from _volumes(plan)
    for name, body in (
        ("command_of", [array("COMMAND", (*c.command, *c.args)) for c in containers]),
        ("variables_of", [array("VARIABLES", [t for pair in c.environment.items() for t in pair]) for c in containers]),
        ("mounts_of", [_mounts(c, plan.hosts) for c in containers]),
    ):
        yield f"{name}() {{\ncase $1 in"
        for index, text in enumerate(body):
            yield f"{index}) {text} ;;"
        yield "esac\n}"
    for index, container in enumerate(containers):
        yield from _handlers(index, container)
    yield f"tail_of_script() {{\n:\n{plan.config.footer.rstrip()}\n}}"
    yield "before_all() {"
    yield ":"
    if plan.annotations.pre_exec:
        yield from _put("pre-exec", plan.annotations.pre_exec.encode(), 0o600, command="keep")
        yield ". ./run/pre-exec"
    yield "}"


def _programs(plan: Plan) -> Iterator[str]:
    """Yield the programs in Python that run beside the containers, and their parts of the library."""
    containers, parts = plan.containers, []
    if any(c.has_console for c in containers):
        yield array("CONSOLE", ["1" if c.has_console else "" for c in containers])
        yield array("TERMINAL", ["1" if c.tty else "" for c in containers])
        yield array("ONCE", ["1" if c.stdin_once else "" for c in containers])
        yield f"CONSOLE_PROGRAM={word(_CONSOLE_PROGRAM)}"
        parts.append("console")
    if plan.reach is not None:
        yield array("REACHES", plan.reach.places)
        yield f"ALONE={'alone' if plan.reach.alone else ''}"
        yield f"REACH_PROGRAM={word(_REACH_PROGRAM)}"
        parts.append("reach")
    for part in ["python", *parts] if parts else ():
        yield library.part(part).rstrip("\n")


def _volumes(plan: Plan) -> Iterator[str]:
    volumes = plan.volumes
    usual = "" if plan.config.volumes.scratch_in_job_folder else plan.config.volumes.scratch_area
    area = plan.annotations.workdir or usual
    yield f"SCRATCH_AREA={word(area)}"
    if plan.annotations.workdir:
        yield array("WORKDIR_BELOW", areas(plan.config))
    if area and may_use(area, plan.config) and not everything(plan.config):
        yield "SCRATCH_HELD=1"
    for name, scratch in volumes.scratch.items():
        yield f"SCRATCH[{name}]={'memory' if scratch.memory else 'disk'}"
        if scratch.limit is not None:
            yield f"SIZE_LIMIT[{name}]={scratch.limit}"
    yield array("FUSE", volumes.fuse)
    if volumes.fuse:
        yield f"FUSE_MODE={word(runtimes.of(plan.config).fuse_mode(plan.config))}"
        yield f"FUSE_WAIT={_centiseconds(plan.config.volumes.fuse_sleep_seconds)}"
    if volumes.host:
        yield array("HOST_AREAS", areas(plan.config))
    for name, host in volumes.host.items():
        yield f"HOST_PATH[{name}]={word(host.path)} HOST_TYPE[{name}]={word(host.type)}"
        if host.free:
            yield f"HOST_FREE[{name}]=1"
    yield "write_volumes() {"
    folders = [name for name, kind in volumes.kinds.items() if kind == "files"]
    yield f"mkdir -p {words(f'volumes/{name}' for name in folders)}" if folders else ":"
    for file in volumes.files:
        yield from _put(file.path, file.data, file.mode)
    for name, text in volumes.fuse.items():
        yield from _put(f"fuse/{name}", f"{text}\n".encode(), 0o600, command="keep")
    if plan.pull_secret:
        path, login = runtimes.of(plan.config).login(plan.pull_secret)
        yield from _put(path, login, 0o600, command="keep")
    yield "}"


def _put(path: str, data: bytes, mode: int, command: str = "put") -> Iterator[str]:
    # the data is base64, which has no underscore: no line of it ends the heredoc
    yield f"{command} {word(path)} {mode:o} <<'{_END}' || return 1\n{encoded(data)}{_END}"


def _mounts(container: Container, hosts: Hosts) -> str:
    lines = [f"HELD=$PWD/run/{word(container.name)}.held FROM=() TO=() ACCESS=() FUSED=() LINKED=() SHARED=()"]
    lines += [
        f"add_mount {mount.kind} "
        f"{words((mount.volume, mount.sub_path, 'ro' if mount.read_only else 'rw', mount.path))}"
        f"{' shared' if mount.shared else ''} || return 1"
        for mount in container.mounts
    ]
    # a container's own mount has precedence, as with a kubelet
    own = {mount.path for mount in container.mounts}
    lines += [f"add_own_file {_OWN_FILES[path]} {path} || return 1" for path in hosts.files if path not in own]
    return "\n".join(lines)


def _handlers(index: int, container: Container) -> Iterator[str]:
    for probe in container.probes:
        times = " ".join(str(_centiseconds(t)) for t in (probe.initial, probe.period, probe.timeout))
        yield (f"PROBE[{index}.{probe.kind}]='{times} {probe.success} {probe.failure} {_centiseconds(probe.grace)}'")
        yield f"probe_{index}_{probe.kind}() {{\n{_action(index, probe.action)}\n}}"
    if container.post_start:
        yield f"post_start_{index}() {{\n{_action(index, container.post_start)}\n}}"
    if container.pre_stop:
        yield f"pre_stop_{index}() {{\n{_action(index, container.pre_stop)}\n}}"


def _action(index: int, action: Action) -> str:
    if action.how == "exec":
        return f"runtime_exec {index} {words(action.words)}"
    if action.how == "sleep":
        return f"sleep {words(action.words)}"
    return f"probe_{action.how} {words(action.words)}"


def _centiseconds(seconds: float) -> int:
    # bash has no fractions: the library counts in hundredths of a second
    return math.ceil(seconds * 100)
