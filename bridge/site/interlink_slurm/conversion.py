"""From ``SlurmConfig.yaml`` to ``site.toml``: each key has its documented meaning, or a warning by name. Pure.

``docs/sites/interlink-slurm.md`` has a row for each key and variable, from ``hack/generate/slurm_config.py``.
"""

from __future__ import annotations

import os.path
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.errors import ConfigError
from bridge.script import option_words
from bridge.site.interlink_slurm import slurm_config

FOLDER = "podbridge"
"""podbridge's own directory in ``DataRootFolder``. Upstream ignores directories without a ``JobID.jid``."""
OPENED = ("allow_user_flags", "allow_pre_exec", "allow_runtime_options")
"""Permissions of ``[limits]`` that podbridge denies by default and that upstream has no switch for."""
UNUSED_KEYS = ("Namespace", "VKConfigPath", "SingularityPrefix", "EnrootPrefix")
UNUSED_VARIABLES = ("SHARED_FS", "CUSTOMKUBECONF", "ENABLE_TRACING")
UNUSED_PREFIX = "TELEMETRY_"
PASSED = re.compile(r"(APPTAINER|SINGULARITY|ENROOT)_\w+|(https?|no|all|ftp)_proxy|(HTTPS?|NO|ALL|FTP)_PROXY", re.ASCII)
"""Variables of the process that jobs get, as from upstream: its sbatch passes on the whole environment."""
_BASIC = ("PATH", "HOME", "USER", "LOGNAME", "LANG")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PROGRAMS = {"sbatch": "SbatchPath", "squeue": "SqueuePath", "scancel": "ScancelPath", "sinfo": "SinfoPath"}
_SWITCHES = {
    "--containall": "containall", "-C": "containall", "--cleanenv": "cleanenv", "-e": "cleanenv",
    "--no-home": "no_home", "--no-init": "no_init", "--no-privs": "no_privs", "--fakeroot": "fakeroot",
    "-f": "fakeroot", "--userns": "userns", "-u": "userns", "--uts": "uts", "--unsquash": "unsquash",
    "--writable-tmpfs": "writable_tmpfs",
}  # fmt: skip
"""Options of singularity that are switches of ``[apptainer]``."""
_ALWAYS = ("--no-eval", "--no-umask")
_TSOCKS_PATH = re.compile(r"[A-Za-z0-9_./${}+~:@%-]+")
_TSOCKS_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")
_TSOCKS_FOOTER = 'unset LD_PRELOAD\nkill "$TSOCKS_SSH" 2>/dev/null\n'


@dataclass(frozen=True, slots=True)
class Conversion:
    """The data of a ``site.toml``, and what has no place there.

    ``listen``: address of the server, ``127.0.0.1:PORT`` or ``unix:///PATH``. ``warnings``: what is ignored or changed,
    each with the name of its key.
    """

    values: dict[str, Any]
    listen: str
    warnings: tuple[str, ...]


def convert(text: str, source: str, environ: Mapping[str, str], cwd: str, pool: str = "slurm") -> Conversion:
    """Convert a file; ``cwd``: directory from which a relative ``DataRootFolder`` counts.

    Raises :class:`ConfigError`.
    """
    config, warnings = slurm_config.read(text, source, environ)
    root = _data_root(config, source, cwd)
    header, footer = _surroundings(config, source, warnings)
    values: dict[str, Any] = {
        "pool": pool,
        "folder": posixpath.join(root, FOLDER),
        "adopt_from": root,
        "header": header,
        "footer": footer,
        "limits": {
            "rules": "interlink-slurm",
            # as upstream for a pod without limits: 1 CPU and 1 MB
            "default_cpu": 1,
            "default_memory": "1Mi",
            "probes": config.EnableProbes,
            **dict.fromkeys(OPENED, True),
            "allow_reach": config.Tsocks,
            **({} if config.DefaultUID is None else {"default_uid": config.DefaultUID}),
        },
        "volumes": {"host_paths": ["/"], "image_paths": ["/"]},
        "batch": {"kind": "slurm"},
        "slurm": _slurm(config, environ),
        "logging": {"level": _level(config)},
        "flavors": [_flavor(name, flavor) for name, flavor in config.Flavors.items()],
        "node": {"taints": _taints(config.Taints, warnings)},
        **_runtime(config, source),
    }
    if config.DefaultFlavor in config.Flavors:
        values["default_flavor"] = config.DefaultFlavor
    elif config.DefaultFlavor:
        warnings.append(f"DefaultFlavor: there is no flavor {config.DefaultFlavor!r}; jobs get none by default")
    if config.ResourceScriptPath:
        values["resources"] = {"script": os.path.join(cwd, config.ResourceScriptPath)}
    _warn_of_unused(config, environ, warnings)
    return Conversion(values, _listen(config, source, warnings), tuple(warnings))


def _data_root(config: slurm_config.SlurmConfig, source: str, cwd: str) -> str:
    if not config.DataRootFolder:
        raise ConfigError(f"{source}: DataRootFolder is not set", hint="name the directory of jobs, with / at its end")
    return posixpath.normpath(posixpath.join(cwd, config.DataRootFolder))


def _listen(config: slurm_config.SlurmConfig, source: str, warnings: list[str]) -> str:
    if config.Socket.startswith("unix://"):
        return config.Socket
    if config.Socket:
        warnings.append(f"Socket: {config.Socket!r} does not begin with unix://, so SidecarPort is used")
    port = config.SidecarPort or slurm_config.DEFAULT_PORT
    if not config.SidecarPort:
        warnings.append(
            f"SidecarPort is not set; {slurm_config.DEFAULT_PORT} is used, as in the examples of the plugin"
        )
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"{source}: SidecarPort: {port!r} is not allowed; allowed: 1 to 65535")
    return f"127.0.0.1:{int(port)}"


def _level(config: slurm_config.SlurmConfig) -> str:
    if config.VerboseLogging:
        return "debug"
    return "error" if config.ErrorsOnlyLogging else "info"


def _slurm(config: slurm_config.SlurmConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    programs = {name: words for name, key in _PROGRAMS.items() if (words := _command(getattr(config, key), environ))}
    are_plain = all(len(words) == 1 and posixpath.basename(words[0]) == name for name, words in programs.items())
    folders = {posixpath.dirname(words[0]) for words in programs.values()}
    sbatch_folder = posixpath.dirname(programs.get("sbatch", [""])[0])
    found_by_folder = folders == {sbatch_folder} and sbatch_folder.startswith("/")
    if not are_plain or not (found_by_folder or folders <= {""}):  # without a folder, all are on PATH
        values["programs"] = programs
    if sbatch_folder.startswith("/"):
        values["bin_dir"] = sbatch_folder
    if config.BashPath.startswith("/") and config.BashPath != "/bin/bash":
        values["bash"] = config.BashPath
    named_variables = set(re.findall(r"\$\{?(\w+)", config.CommandPrefix + config.TsocksPath * config.Tsocks, re.ASCII))
    passed_variables = {
        name: value for name, value in environ.items() if PASSED.fullmatch(name) or name in named_variables
    }
    if passed_variables.keys() - set(_BASIC):
        basic_variables = {name: environ[name] for name in _BASIC if name in environ}
        values["environment"] = {"PATH": os.path.defpath, **basic_variables, **passed_variables}
    return values


def _command(text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words of a command; upstream runs it with ``sh -c``, which replaces variables."""
    replaced = re.sub(
        r"\$(?:\{(\w+)\}|(\w+))", lambda match: environ.get(match[1] or match[2], ""), text, flags=re.ASCII
    )
    try:
        return shlex.split(replaced)
    except ValueError:
        return [replaced]


def _runtime(config: slurm_config.SlurmConfig, source: str) -> dict[str, Any]:
    prefix = config.ImagePrefix or "docker://"
    if config.ContainerRuntime == "enroot":
        enroot = {"executable": config.EnrootPath or "enroot", "options": config.EnrootDefaultOptions}
        return {"runtime": {"kind": "enroot", "image_prefix": prefix}, "enroot": enroot}
    if config.ContainerRuntime not in ("", "singularity"):
        raise ConfigError(
            f"{source}: ContainerRuntime: {config.ContainerRuntime!r} is not allowed; allowed: singularity, enroot"
        )
    path = config.SingularityPath or "singularity"
    kind = "apptainer" if "apptainer" in posixpath.basename(path) else "singularity"
    return {"runtime": {"kind": kind, "image_prefix": prefix}, "apptainer": {"executable": path, **_options(config)}}


def _options(config: slurm_config.SlurmConfig) -> dict[str, Any]:
    """Return switches of ``[apptainer]`` for the options that the file names; all others are off, as upstream's."""
    words = [
        word for text in config.SingularityDefaultOptions or slurm_config.DEFAULT_OPTIONS for word in shlex.split(text)
    ]
    switches: dict[str, Any] = dict.fromkeys(("containall", "cleanenv", "no_home", "no_privs", "writable_tmpfs"), False)
    switches |= {_SWITCHES[word]: True for word in words if word in _SWITCHES}
    switches["nvidia_support"] = "always" if "--nv" in words else "never"
    switches["options"] = [word for word in words if word not in _SWITCHES and word not in ("--nv", *_ALWAYS)]
    return switches


def _flavor(name: str, flavor: slurm_config.FlavorPart) -> dict[str, Any]:
    """Return a flavor. ``--cpus-per-task`` and ``--mem`` in its flags are defaults: a pod's limits replace them."""
    words = [word for flag in flavor.SlurmFlags for word in shlex.split(flag)]
    cpus, words = taken(words, "cpus-per-task", "c")
    memory_flag, words = taken(words, "mem")
    default_cpus = flavor.CPUDefault or (int(cpus) if cpus.isdecimal() else 0)
    size = slurm_config.memory(flavor.MemoryDefault) or _mebibytes(memory_flag)
    values = {
        "name": name,
        "description": flavor.Description or None,
        "cpu": default_cpus or None,
        "memory": quantity_of(size) if size else None,
        "uid": flavor.UID,
        "flags": words,
    }
    return {key: value for key, value in values.items() if value is not None}


def taken(words: list[str], *names: str) -> tuple[str, list[str]]:
    """Return the last value of an option, and the words without it."""
    options = option_words.read(words)
    values = [option.value for option in options if option.name in names]
    return "".join(values[-1:]), option_words.without(options, names)


def _mebibytes(text: str) -> int:
    """Return the value of ``--mem`` in bytes; without a unit it counts MiB (sbatch(1))."""
    try:
        return slurm_config.memory(text + "M" if text.isdecimal() else text)
    except ValueError:
        return 0


def quantity_of(size: int) -> str:
    """Return bytes as a quantity with the largest unit that needs no fraction."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        factor = 2 ** (10 * ("Ki", "Mi", "Gi", "Ti").index(unit) + 10)
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _taints(parts: list[slurm_config.TaintPart], warnings: list[str]) -> list[str]:
    taints = []
    for taint in parts:
        effect = taint.Effect if taint.Effect in _EFFECTS else "NoSchedule"
        if taint.Effect not in (*_EFFECTS, ""):
            warnings.append(f"Taints: effect {taint.Effect!r} of {taint.Key!r} is not allowed; NoSchedule is used")
        text = f"{taint.Key}={taint.Value}:{effect}" if taint.Value else f"{taint.Key}:{effect}"
        if re.fullmatch(r"[A-Za-z0-9._/-]+(=[A-Za-z0-9._-]*)?:\w+", text, re.ASCII):
            taints.append(text)
        else:
            warnings.append(f"Taints: {taint.Key!r}={taint.Value!r} is no taint; it is ignored")
    return taints


def _surroundings(config: slurm_config.SlurmConfig, source: str, warnings: list[str]) -> tuple[str, str]:
    """Return ``header`` and ``footer``: the tunnel first, then ``CommandPrefix``, as upstream."""
    header = footer = ""
    if config.Tsocks:
        header = _tsocks_header(config.TsocksPath, config.TsocksLoginNode, source)
        footer = _TSOCKS_FOOTER
        warnings.append(
            f"Tsocks: containers are not redirected; pods reach the Services in their annotation {names.REACH} instead "
            "(limits.allow_reach)"
        )
    prefix = config.CommandPrefix.strip()
    if prefix.endswith("&&"):
        header += f"{prefix} : || exit 1\n"
    elif prefix:
        header += f"{prefix}\n"
        if not config.CommandPrefix.endswith((";", "\n", "&", "\n ")):
            warnings.append(
                "CommandPrefix: runs before the job, as documented; it is no command that gets the job's script"
            )
    return header, footer


def _tsocks_header(path: str, login_node: str, source: str) -> str:
    """Return lines that connect a job to the network through a login node; variables in ``path`` are the job's.

    ssh opens a SOCKS proxy to the login node, and the library of tsocks redirects connections of the machine's
    programs, such as the pull of an image. Containers have their own libraries and are not redirected.
    """
    if not _TSOCKS_PATH.fullmatch(path):
        raise ConfigError(f"{source}: TsocksPath: {path!r} is not allowed; allowed: the path of libtsocks.so")
    if not _TSOCKS_HOST.fullmatch(login_node):
        raise ConfigError(f"{source}: TsocksLoginNode: {login_node!r} is not allowed; allowed: a host, or user@host")
    return f"""\
TSOCKS_LIBRARY="{path}"
[[ -d $TSOCKS_LIBRARY ]] && TSOCKS_LIBRARY=$TSOCKS_LIBRARY/libtsocks.so
for TSOCKS_PORT in $(shuf -i 10000-65000 -n 50); do
    (: </dev/tcp/127.0.0.1/"$TSOCKS_PORT") 2>/dev/null || break
done
ssh -4 -N -o BatchMode=yes -o ExitOnForwardFailure=yes -D "127.0.0.1:$TSOCKS_PORT" {shlex.quote(login_node)} \\
    </dev/null &
TSOCKS_SSH=$!
printf 'local = 10.0.0.0/255.0.0.0\\nserver = 127.0.0.1\\nserver_port = %s\\n' "$TSOCKS_PORT" >"$PWD/tsocks.conf"
for TSOCKS_TRY in {{1..50}}; do
    (: </dev/tcp/127.0.0.1/"$TSOCKS_PORT") 2>/dev/null && break
    kill -0 "$TSOCKS_SSH" 2>/dev/null || break
    sleep 0.2
done
export TSOCKS_CONF_FILE=$PWD/tsocks.conf LD_PRELOAD=$TSOCKS_LIBRARY
"""


def _warn_of_unused(config: slurm_config.SlurmConfig, environ: Mapping[str, str], warnings: list[str]) -> None:
    warnings += [f"{key}: has no meaning, as in the plugin itself" for key in UNUSED_KEYS if getattr(config, key)]
    if not config.ExportPodData:
        warnings.append("ExportPodData: false has no meaning: the volumes of a pod are always mounted")
    if not config.Tsocks:
        warnings += [
            f"{key}: has no meaning while Tsocks is false" for key in ("TsocksPath",) if environ.get("TSOCKSPATH")
        ]
    for name in sorted(environ):
        if (name in UNUSED_VARIABLES or name.startswith(UNUSED_PREFIX)) and environ[name]:
            warnings.append(f"environment variable {name}: has no meaning here")
