"""Each key, variable, option and annotation of the interLink Slurm plugin, with what it does here.

``docs/sites/interlink-slurm.md`` contains :func:`text`; a test compares the names with the code.
"""

from __future__ import annotations

KEYS = {
    "SidecarPort": "the port of the server, on 127.0.0.1; default 4000. It requires a token, or `--allow-local-users`",
    "Socket": "`unix:///PATH`: the server listens there, and `SidecarPort` is ignored",
    "SbatchPath": "sbatch, a program with its words; default: on PATH",
    "ScancelPath": "scancel, likewise",
    "SqueuePath": "squeue, likewise. sacct is used too if it is beside sbatch",
    "SinfoPath": "sinfo, likewise; default: beside sbatch",
    "CommandPrefix": "lines that run before each job; if they end with `&&` and fail, the job fails. A command that "
    "gets the job's script as its argument is not possible; a line in the log says so",
    "ImagePrefix": "prefix of images without a scheme that are no absolute path. Empty: `docker://`, as a relative "
    "path is no image here",
    "ExportPodData": "no meaning, with a warning for `false`: ConfigMaps, Secrets and projected volumes are "
    "always mounted",
    "DataRootFolder": "directory of jobs; a relative path counts from the directory in which the server starts. "
    "podbridge uses `podbridge/` in it, private (0700), and adopts the plugin's jobs from it",
    "Namespace": "no meaning, with a warning: the plugin ignores it too",
    "Tsocks": "`true`: an ssh proxy to `TsocksLoginNode`, and tsocks for programs of the machine, such as image pulls",
    "TsocksPath": "libtsocks.so, or the directory that contains it; variables are those of the job",
    "TsocksLoginNode": "a host, or user@host",
    "BashPath": "bash of the batch script; default `/bin/bash`",
    "VerboseLogging": "`true`: level debug",
    "ErrorsOnlyLogging": "`true`: level error, unless `VerboseLogging` is true",
    "SingularityPath": "the program; kind `apptainer` if its name contains this word; default `singularity`",
    "SingularityDefaultOptions": "options before the image; default `--nv --no-eval --containall`. An option that "
    "`[apptainer]` has a switch for sets this switch, all others are off",
    "SingularityPrefix": "no meaning, with a warning: the plugin ignores it too",
    "EnrootPath": "the program; default `enroot`",
    "EnrootDefaultOptions": "options before the image",
    "EnrootPrefix": "no meaning, with a warning: the plugin ignores it too",
    "ContainerRuntime": "`singularity` (default) or `enroot`; anything else is an error",
    "EnableProbes": "`true`: probes run, also those by TCP and gRPC, and a failed liveness probe ends its container; "
    "`false` (default): they are ignored",
    "Flavors": "kinds of jobs; see below",
    "DefaultFlavor": "the flavor of pods that get no other; an unknown one is ignored with a warning",
    "DefaultUID": "the user of jobs if neither the pod nor its flavor has one; see [Users](#users)",
    "Taints": "taints of the virtual node, in the ping; an unknown effect is NoSchedule, with a warning",
    "ResourceScriptPath": "program that prints the resources in the ping, as JSON; without it they are those of sinfo",
    "VKConfigPath": "no meaning, with a warning: the plugin ignores it too",
}
FLAVOR_KEYS = {
    "Name": "no meaning: the annotation names the key of the entry, as in the plugin",
    "Description": "for people",
    "CPUDefault": "CPUs of pods without a CPU limit; 0: what `--cpus-per-task` in `SlurmFlags` says, else 1",
    "MemoryDefault": "memory of pods without a memory limit (`16G`, `32000M`, bytes); empty: what `--mem` in "
    "`SlurmFlags` says, else 1 MB",
    "UID": "the user of jobs whose pod has no `runAsUser`; see [Users](#users)",
    "SlurmFlags": "options of sbatch, which the annotation `flags` may replace",
}
TAINT_KEYS = {
    "Key": "the taint's key",
    "Value": "its value",
    "Effect": "`NoSchedule`, `PreferNoSchedule` or `NoExecute`",
}
VARIABLES = {
    "SLURMCONFIGPATH": "the configuration; default `/etc/interlink/SlurmConfig.yaml`",
    "SIDECARPORT": "replaces `SidecarPort`",
    "SBATCHPATH": "replaces `SbatchPath`",
    "SCANCELPATH": "replaces `ScancelPath`",
    "SINFOPATH": "replaces `SinfoPath`",
    "SINGULARITYPATH": "replaces `SingularityPath`",
    "TSOCKS": "`true` or `false`; replaces `Tsocks`",
    "TSOCKSPATH": "replaces `TsocksPath`",
    "SHARED_FS": "no meaning, with a warning: volumes reach a job with and without a shared file system",
    "CUSTOMKUBECONF": "no meaning, with a warning: the server does not talk to Kubernetes",
    "ENABLE_TRACING": "no meaning, with a warning: podbridge sends [its own traces](../admins/tracing.md)",
    "TELEMETRY_*": "no meaning, with a warning, for each name that begins so",
}
OPTIONS = {
    "-SlurmConfigpath": "the configuration, before `SLURMCONFIGPATH`",
    "-verbose": "level debug",
    "-errorsonly": "level error",
}
ANNOTATIONS = {
    "slurm-job.vk.io/flavor": "an entry of `Flavors`; an unknown one is ignored with a warning",
    "slurm-job.vk.io/flags": "options of sbatch; see [Sizes and flags](#sizes-and-flags)",
    "slurm-job.knoc.io/flags": "the historical name: used if there is no `slurm-job.vk.io/flags`",
    "slurm-job.vk.io/mpi-flags": "`mpiexec -np $SLURM_NTASKS <flags>` starts the main containers; `true`: no flags. "
    "The plugin documents this, but its code has no effect",
    "slurm-job.vk.io/pre-exec": "commands that run before the containers, outside of them; the job runs even "
    "if they fail",
    "slurm-job.vk.io/singularity-commands": "commands that run before those of `pre-exec`. The plugin documents this "
    "annotation, but ignores it",
    "slurm-job.vk.io/singularity-mounts": "words before the image",
    "slurm-job.vk.io/singularity-options": "words before the image",
    "slurm-job.vk.io/enroot-mounts": "words before the image",
    "slurm-job.vk.io/enroot-options": "words before the image",
    "slurm-job.vk.io/image-root": "replaces `ImagePrefix`",
    "slurm-job.vk.io/job-workdir": "directory for emptyDir volumes (a branch of the plugin has this annotation)",
    "slurm-job.vk.io/no-clean-workdir": "no meaning, with a warning: the folder of a job is removed with its pod",
    "interlink.eu/pod-ip": "the variable `POD_IP` of the commands that run before the containers",
    "interlink.eu/wstunnel-client-commands": "commands that run before those of `pre-exec`",
}


def text() -> str:
    """Return the tables of the page."""
    parts = []
    for title, first, rows in (
        ("Keys", "key", KEYS),
        ("Keys of a flavor", "key", FLAVOR_KEYS),
        ("Keys of a taint", "key", TAINT_KEYS),
        ("Environment variables", "variable", VARIABLES),
        ("Options of slurm-sd", "option", OPTIONS),
        ("Annotations", "annotation", ANNOTATIONS),
    ):
        lines = [f"### {title}", f"| {first} | here |", "| --- | --- |"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in rows.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
