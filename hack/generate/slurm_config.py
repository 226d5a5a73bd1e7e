"""Tables in docs/sites/interlink-slurm.md: each name of the interLink Slurm plugin, and what it does here.

A test compares the keys, variables and annotations with the code.
"""

from __future__ import annotations

from pathlib import Path

from generate.marked import ROOT, between

PAGE = ROOT / "docs/sites/interlink-slurm.md"

KEYS = {
    "SidecarPort": "port on 127.0.0.1, default 4000; requires a token, or `--allow-local-users`",
    "Socket": "`unix:///PATH`, instead of `SidecarPort`",
    "SbatchPath": "sbatch, with its words; default: on PATH",
    "ScancelPath": "scancel, likewise",
    "SqueuePath": "squeue, likewise. sacct is used too if it is beside sbatch",
    "SinfoPath": "sinfo, likewise; default: beside sbatch",
    "CommandPrefix": "lines that run before each job; if they end with `&&` and fail, the job fails. They do not get "
    "the script as an argument",
    "ImagePrefix": "prefix of images without a scheme that are no absolute path. Empty: `docker://`",
    "ExportPodData": "no effect: ConfigMaps, Secrets and projected volumes are always mounted",
    "DataRootFolder": "directory of jobs; podbridge uses `podbridge/` in it, and adopts the plugin's jobs",
    "Namespace": "no effect",
    "Tsocks": "`true`: an ssh proxy to `TsocksLoginNode`, and tsocks for image pulls; sets `limits.allow_reach`",
    "TsocksPath": "libtsocks.so, or its directory",
    "TsocksLoginNode": "a host, or user@host",
    "BashPath": "bash of jobs; default `/bin/bash`",
    "VerboseLogging": "`true`: level debug",
    "ErrorsOnlyLogging": "`true`: level error",
    "SingularityPath": "the program; default `singularity`; with `apptainer` in its name, that runtime",
    "SingularityDefaultOptions": "options before the image; default `--nv --no-eval --containall`. "
    "They set the switches of `[apptainer]`; all others are off",
    "SingularityPrefix": "no effect",
    "EnrootPath": "the program; default `enroot`",
    "EnrootDefaultOptions": "options before the image",
    "EnrootPrefix": "no effect",
    "ContainerRuntime": "`singularity` (default) or `enroot`",
    "EnableProbes": "`true`: probes run, also those by TCP and gRPC; default `false`",
    "Flavors": "kinds of jobs; see below",
    "DefaultFlavor": "the flavor of pods that get no other",
    "DefaultUID": "user of jobs if neither pod nor flavor has one; see [Users](#users)",
    "Taints": "taints of the virtual node; an unknown effect is NoSchedule",
    "ResourceScriptPath": "program that prints the resources in the ping, as JSON; default: those of sinfo",
    "VKConfigPath": "no effect",
}
FLAVOR_KEYS = {
    "Name": "no effect: the annotation names the key of the entry",
    "Description": "for people",
    "CPUDefault": "CPUs of pods without a CPU limit; 0: `--cpus-per-task` of `SlurmFlags`, else 1",
    "MemoryDefault": "memory of pods without a memory limit (`16G`, `32000M`, bytes); empty: `--mem` of `SlurmFlags`, "
    "else 1 MB",
    "UID": "user of jobs whose pod has no `runAsUser`; see [Users](#users)",
    "SlurmFlags": "options of sbatch",
}
TAINT_KEYS = {
    "Key": "the taint's key",
    "Value": "its value",
    "Effect": "`NoSchedule`, `PreferNoSchedule` or `NoExecute`",
}
VARIABLES = {
    "SLURMCONFIGPATH": "the configuration; default `/etc/interlink/SlurmConfig.yaml`",
    "SIDECARPORT": "replaces the key of this name",
    "SBATCHPATH": "replaces the key of this name",
    "SCANCELPATH": "replaces the key of this name",
    "SINFOPATH": "replaces the key of this name",
    "SINGULARITYPATH": "replaces the key of this name",
    "TSOCKS": "replaces the key of this name",
    "TSOCKSPATH": "replaces the key of this name",
    "SHARED_FS": "no effect: no shared file system is needed",
    "CUSTOMKUBECONF": "no effect",
    "ENABLE_TRACING": "no effect: podbridge sends [its own traces](../admins/tracing.md)",
    "TELEMETRY_*": "no effect",
}
OPTIONS = {
    "-SlurmConfigpath": "the configuration, before `SLURMCONFIGPATH`",
    "-verbose": "level debug",
    "-errorsonly": "level error",
}
ANNOTATIONS = {
    "slurm-job.vk.io/flavor": "an entry of `Flavors`",
    "slurm-job.vk.io/flags": "options of sbatch; see [Sizes and flags](#sizes-and-flags)",
    "slurm-job.knoc.io/flags": "old name, used without `slurm-job.vk.io/flags`",
    "slurm-job.vk.io/mpi-flags": "flags of `mpiexec`, which starts the main containers; `true`: none",
    "slurm-job.vk.io/pre-exec": "commands before the containers, outside of them; the job runs even if they fail",
    "slurm-job.vk.io/singularity-commands": "commands before those of `pre-exec`",
    "slurm-job.vk.io/singularity-mounts": "words before the image",
    "slurm-job.vk.io/singularity-options": "words before the image",
    "slurm-job.vk.io/enroot-mounts": "words before the image",
    "slurm-job.vk.io/enroot-options": "words before the image",
    "slurm-job.vk.io/image-root": "replaces `ImagePrefix`",
    "slurm-job.vk.io/job-workdir": "directory for emptyDir volumes",
    "slurm-job.vk.io/no-clean-workdir": "no effect: the folder of a job is removed with its pod",
    "interlink.eu/pod-ip": "the variable `POD_IP` of commands before the containers",
    "interlink.eu/wstunnel-client-commands": "commands before those of `pre-exec`",
}


def files() -> dict[Path, str]:
    """Return the page with the current tables."""
    parts = []
    for title, first, rows in (
        ("Keys", "key", KEYS),
        ("Keys of a flavor", "key", FLAVOR_KEYS),
        ("Keys of a taint", "key", TAINT_KEYS),
        ("Environment variables", "variable", VARIABLES),
        ("Options of slurm-sd", "option", OPTIONS),
        ("Annotations", "annotation", ANNOTATIONS),
    ):
        lines = [f"### {title}", f"| {first} | here |", "|---|---|"]
        by_meaning: dict[str, list[str]] = {}
        for name, meaning in rows.items():
            by_meaning.setdefault(meaning, []).append(f"`{name}`")
        lines += [f"| {', '.join(named)} | {meaning} |" for meaning, named in by_meaning.items()]
        parts.append("\n".join(lines))
    return {PAGE: between(PAGE, "\n\n".join(parts) + "\n")}
