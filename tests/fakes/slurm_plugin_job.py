"""The directory of a job as the interLink Slurm plugin leaves it, with a script that does what the plugin's does."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

_FUNCTIONS = r"""
runInitCtn() {
  ctn="$1"; shift
  ( "$@" ) &> ${workingPath}/init-${ctn}.out
  exitCode="$?"
  printf "%s\n" "${exitCode}" > ${workingPath}/init-${ctn}.status
  test "${exitCode}" = 0 || exit "${exitCode}"
}
runCtn() {
  ctn="$1"; shift
  ( "$@" ) &> ${workingPath}/run-${ctn}.out &
  pidCtns="${pidCtns} $!:${ctn}"
}
waitCtns() {
  for pidCtn in ${pidCtns} ; do
    wait "${pidCtn%:*}"
    exitCode="$?"
    printf "%s\n" "${exitCode}" > "${workingPath}/run-${pidCtn#*:}.status"
    test "${highestExitCode}" -lt "${exitCode}" && highestExitCode="${exitCode}"
  done
}
highestExitCode=0
"""


def write(
    root: Path,
    uid: str,
    containers: Sequence[tuple[str, str]],
    init: Sequence[tuple[str, str]] = (),
    flags: Sequence[str] = (),
    namespace: str = "default",
) -> Path:
    """Write ``job.slurm`` and ``job.sh``; each container is a name and a command for bash. Return the directory."""
    path = root / f"{namespace}-{uid}"
    path.mkdir(parents=True)
    lines = [_FUNCTIONS, f"export workingPath={path}\nexport SANDBOX={path}\n"]
    lines += [f'runInitCtn {name} bash -c {shlex.quote(command)} "--env-file" {name}_x' for name, command in init]
    lines += [f'runCtn {name} bash -c {shlex.quote(command)} "--env-file" {name}_x' for name, command in containers]
    lines.append('waitCtns\nexit "${highestExitCode}"\n')
    (path / "job.sh").write_text("#!/bin/bash\n" + "\n".join(lines))
    options = "".join(f"\n#SBATCH {flag}" for flag in (f"--job-name={uid}", f"--output={path}/job.out", *flags))
    (path / "job.slurm").write_text(f"#!/bin/bash{options}\n\n {path}/job.sh\n")
    for name in ("job.sh", "job.slurm"):
        (path / name).chmod(0o774)
    return path


def submitted(path: Path, uid: str, job_id: str, namespace: str = "default") -> None:
    """Write what the plugin writes after sbatch: files without a newline at their end."""
    (path / "JobID.jid").write_text(job_id)
    (path / "PodUID.uid").write_text(uid)
    (path / "PodNamespace.ns").write_text(namespace)
