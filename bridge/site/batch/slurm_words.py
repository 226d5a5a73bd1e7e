"""The words of Slurm's commands for a job: the options of sbatch, and srun for the pods of a group."""

from __future__ import annotations

import logging
import math
import os
import re
from typing import Literal

from pydantic import Field

from bridge.logs import kv
from bridge.script import flavor_limits
from bridge.script.settings import AbsolutePath, Seconds, SettingsPart, Words
from bridge.site.batch import batch_interface
from bridge.site.batch.batch_interface import BatchJobRequest
from bridge.site.batch.slurm_flags import allowed_flags, check_caps, check_no_amounts, held_options, merged, without_own

log = logging.getLogger(__name__)

MIB = 2**20
Program = Literal["sbatch", "squeue", "scancel", "sinfo", "sacct", "scontrol", "srun"]


class Slurm(SettingsPart):
    """``[slurm]``: used with ``batch.kind = "slurm"``."""

    read_at_start = True
    bin_dir: AbsolutePath | None = Field(
        None, examples=["/opt/slurm/bin"], description="Directory of sbatch, squeue, ...; default: PATH."
    )
    programs: dict[Program, Words] = Field(
        {}, description='Words instead of a command, e.g. { sbatch = ["/opt/bin/my-sbatch"] }.'
    )
    bash: AbsolutePath = Field("/bin/bash", description="bash on the machines that run jobs.")
    timeout: Seconds = Field(30, description="Seconds for each command.")
    account: str | None = Field(None, examples=["project"], description="If the flavor names none.")
    partition: str | None = Field(None, examples=["batch"], description="If the flavor names none.")
    qos: str | None = Field(None, examples=["normal"], description="If the flavor names none.")
    options: Words = Field([], description="More options of sbatch.")
    gres: dict[str, str] = Field(
        {"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu"}, description="Gres for an extended resource, e.g. gpu:a100."
    )
    environment: batch_interface.Environment = Field({})
    accounting: Literal["auto", "never"] = Field("auto", description="Run sacct for jobs that squeue no longer lists.")


def words(slurm: Slurm, request: BatchJobRequest, *, in_group: bool = False) -> list[str]:
    """Return the options of sbatch for a component; raises :class:`BatchError` if the user's flags are not allowed.

    With ``flags_win``, the user's flags replace the options of the flavor, and these replace the pod's requests.
    Otherwise the last of two equal options applies. So the requests of the pod come first, then the user's flags,
    then the options on which the submitter relies, and last the options of the site.
    """
    flavor = request.flavor
    together, in_group = request.together, in_group or request.members > 1
    requested_options = [
        f"--nodes={request.machines}",
        f"--ntasks={request.members}",
        *([f"--ntasks-per-node={together}"] if in_group else []),
        f"--cpus-per-task={request.cpus}",
        f"--mem={math.ceil(request.memory * together / MIB)}M",
    ]
    if request.time_limit is not None:
        # a plain number counts minutes: see sbatch(1)
        requested_options.append(f"--time={max(1, math.ceil(request.time_limit / 60))}")
    if request.traceparent:  # a comment of the user or of the site replaces it
        requested_options.append(f"--comment=traceparent={request.traceparent}")
    if gres := _gres(slurm, request, together):
        requested_options.append(f"--gres={','.join(gres)}")
    keys = ("account", "partition", "qos", "reservation", "nodelist")
    site_values = {name: getattr(flavor, name, "") or getattr(slurm, name, "") for name in keys}
    site_options = [f"--{name}={value}" for name, value in site_values.items() if value]
    site_options += [*slurm.options, *(flavor.flags if flavor else ())]
    if request.flags_win:
        flags, left_out = without_own(request.flags)
        if left_out:
            log.warning("flags that podbridge sets itself", extra=kv(job=request.uid, ignored=",".join(left_out)))
        uid_option = f"--uid={os.geteuid()}"  # sbatch allows --uid to root only
        options = [
            flag for flag in merged(requested_options, without_own(site_options)[0], flags) if flag != uid_option
        ]
        return [*options, *_required_options(request)]
    flags = allowed_flags(request.flags)
    if in_group:
        check_no_amounts(flags)
    capped_flavor = flavor.name if flavor and flavor_limits.of_group(flavor) else ""
    check_caps(flags, held_options(site_options), request.most_seconds, capped_flavor)
    return [*requested_options, *flags, *_required_options(request), *site_options]


def _required_options(request: BatchJobRequest) -> list[str]:
    return [
        "--parsable",
        f"--job-name={request.name}",
        # slurmctld requeues batch jobs after a node failure (JobRequeue=1 is the default); job.sh runs once only
        "--no-requeue",
        "--input=/dev/null",
        "--output=/dev/null",
        "--error=/dev/null",
        "--export=ALL",
        f"--chdir={request.folder.parent if request.array else request.folder}",
    ]


def _gres(slurm: Slurm, request: BatchJobRequest, together: int) -> list[str]:
    """Return the generic resources of the flavor, and the GPUs of the ``together`` pods of a machine.

    The GPUs are of the flavor's kind, if it names one.
    """
    flavor_gres = list(request.flavor.generic_resources) if request.flavor else []
    if not request.gpus:
        return flavor_gres
    kinds = [re.sub(r":[0-9]+$", "", item) for item in flavor_gres if item.split(":")[0] == "gpu"]
    other_gres = [item for item in flavor_gres if item.split(":")[0] != "gpu"]
    kind = kinds[0] if kinds else slurm.gres.get(request.gpu_resource, "gpu")
    return [*other_gres, f"{kind}:{request.gpus * together}"]


def gang_command(slurm: Slurm, request: BatchJobRequest, mpi: str) -> list[str]:
    """Return srun with the options that keep the pods of a group apart: the end of one ends no other.

    One srun for all components: its tasks have the ranks of the group, and form one MPI job.
    """
    command = list(slurm.programs.get("srun") or [f"{slurm.bin_dir}/srun" if slurm.bin_dir else "srun"])
    for number, part in enumerate(request.components):
        if request.others:
            command += [":"] * (number > 0) + [f"--het-group={number}"]
        # srun takes the number of CPUs from sbatch in some versions only
        command += [f"--ntasks={part.members}", f"--cpus-per-task={part.cpus}", "--distribution=block"]
        command += ["--kill-on-bad-exit=0", "--wait=0", f"--mpi={mpi}"]
    return command
