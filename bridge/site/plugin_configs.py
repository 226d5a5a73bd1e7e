"""``podbridge submitter convert``: the configuration of another plugin as a documented ``site.toml``. Pure.

:mod:`bridge.site.interlink_slurm.conversion` reads a ``SlurmConfig.yaml``, this module a ``build.conf``, the
BuildConfig of the interLink NATS plugin's providers. Source: ``natsprovider/apptainer_cmd_builder/BuildConfig.py`` of
landerlini/interlink-condorce-plugin. Each key of the file gets its documented meaning, or a warning by name. Keys that
the file leaves out have podbridge's defaults.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from bridge.config.documents import toml_document
from bridge.errors import ConfigError
from bridge.site.config.sample import documented
from bridge.site.config.site_config import validated
from bridge.site.interlink_slurm import conversion
from bridge.site.interlink_slurm.slurm_config import memory

_PROGRAMS = {"sbatch_executable": "sbatch", "squeue_executable": "squeue", "sacct_executable": "sacct"}
_SAME = {
    "volumes": ("apptainer_cachedir", "image_dir", "cvmfs_unpacked_path", "additional_directories_in_path",
                "fuse_sleep_seconds"),
    "apptainer": ("executable", "fakeroot", "userns", "uts", "sharens", "containall", "fuse_mode", "no_init", "no_home",
                  "no_privs", "cleanenv", "unsquash"),
    "flavors": ("account", "partition", "qos", "reservation", "nodelist", "generic_resources", "max_time_seconds"),
}  # fmt: skip
_OPTIONS = ("reservation", "nodelist", "mail_user", "mail_type")
_NO_MEANING = {
    "sandbox": "podbridge keeps each job in its folder",
    "output": "podbridge keeps the output of each container",
    "error": "podbridge keeps the output of each container",
    "job_name": "podbridge finds its jobs by their names",
    "cpus_per_task": "the CPUs of a job follow from its pod; the default is slurm.cpu",
    "mem_per_cpu": "the memory of a job follows from its pod; the default is slurm.memory",
}
_UNKNOWN = {
    "shub_proxy": "podbridge pulls images from registries, and keeps them in its own cache",
    "network": "podbridge makes no tunnels into a cluster",
}
"""Why podbridge needs no key of a section that it does not know."""


class _Converter:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self.values: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.options: list[str] = []
        self.programs: dict[str, str] = {}

    def section(self, name: str) -> dict[str, Any]:
        section = self._data.get(name) or {}
        if not isinstance(section, dict):
            raise ConfigError(f"{name}: {section!r} is not allowed; allowed: a section [{name}]")
        return {key: value for key, value in section.items() if value is not None}

    def put(self, section: str, key: str, value: Any) -> None:
        self.values.setdefault(section, {})[key] = value

    def drop(self, key: str, why: str) -> None:
        self.warnings.append(f"{key}: not converted: {why}")

    def convert(self, name: str) -> None:
        """Convert one section of the file, key by key."""
        for key, value in self.section(name).items():
            step = STEPS[name].get(key, _UNKNOWN.get(name, "unknown key"))
            if not isinstance(step, str):
                step(self, key, value)
            elif value or name != "shub_proxy":
                self.drop(f"{name}.{key}", step)
        if name == "slurm":
            self.put_options()

    def scratch_area(self, key: str, value: Any) -> None:
        self.put("volumes", key, value)
        self.put("volumes", "scratch_in_job_folder", False)

    def program(self, key: str, value: Any) -> None:
        self.programs[_PROGRAMS[key]] = str(value)

    def time_limit(self, key: str, value: Any) -> None:
        # time counts hours; the plugin passes max_time_seconds to --time as minutes, but its name says the unit
        seconds = int(value) * (3600 if key == "time" else 1)
        present_limit = self.values.get("limits", {}).get("max_time_seconds", seconds)
        self.put("limits", "max_time_seconds", min(seconds, present_limit))

    def memory(self, _: str, value: Any) -> None:
        self.put("limits", "default_memory", self._memory("slurm.memory", value))

    def text(self, key: str, value: Any) -> None:
        self.values[key] = value

    def bash(self, _: str, value: Any) -> None:
        path = str(value)
        if posixpath.basename(path) == "sbatch":
            self.drop("slurm.bash_executable", f"{path} is the plugin's faulty default, and no bash")
        elif path != "/bin/bash":
            self.put("slurm", "bash", path)

    def put_options(self) -> None:
        if self.options:
            self.put("slurm", "options", [word for word in self.options if word])
        self._put_programs(self.programs)

    def _put_programs(self, programs: Mapping[str, str]) -> None:
        folders = {posixpath.dirname(path) for path in programs.values()}
        if len(folders) == 1 and all(posixpath.basename(path) == name for name, path in programs.items()):
            if folder := folders.pop():
                self.put("slurm", "bin_dir", folder)
        elif programs:
            self.put("slurm", "programs", {name: [path] for name, path in programs.items()})

    def _memory(self, key: str, value: object) -> str:
        try:
            text = str(value)
            return conversion.quantity_of(memory(text + "M" if text.isdecimal() else text))
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error

    def flavors(self, _: str, listed: object) -> None:
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise ConfigError("slurm.flavors: not a list of tables; allowed: [[slurm.flavors]]")
        flavors = []
        for number, flavor in enumerate(listed, start=1):
            converted: dict[str, Any] = {"name": str(flavor.get("name") or f"flavor-{number}")}
            flags = []
            for key, value in flavor.items():
                if value is None or key == "name":
                    continue
                if key in ("cpu", *_SAME["flavors"]):
                    converted[key] = value
                elif key == "max_resources" and isinstance(value, dict):
                    converted[key] = {name: str(amount) for name, amount in value.items()}
                elif key == "memory":
                    converted[key] = self._memory(f"slurm.flavors[{number - 1}].memory", value)
                elif key == "ntasks":
                    flags += [f"--ntasks={value}"] if value != 1 else []
                else:
                    self.drop(f"slurm.flavors[{number - 1}].{key}", "unknown key")
            flavors.append({**converted, **({"flags": flags} if flags else {})})
        self.values["flavors"] = flavors


_Step = Callable[[_Converter, str, Any], None]


def _put(section: str, key: str = "", convert: Callable[[Any], object] = lambda value: value) -> _Step:
    return lambda converter, name, value: converter.put(section, key or name, convert(value))


def _options(words: Callable[[str, Any], Iterable[str]]) -> _Step:
    return lambda converter, name, value: converter.options.extend(words(name.replace("_", "-"), value))


def _labels(values: Iterable[object]) -> dict[str, str]:
    return {name: text for name, _, text in (str(label).partition("=") for label in values)}


STEPS: dict[str, dict[str, _Step | str]] = {
    "volumes": {**dict.fromkeys(_SAME["volumes"], _put("volumes")), "scratch_area": _Converter.scratch_area},
    "apptainer": {
        **dict.fromkeys(_SAME["apptainer"], _put("apptainer")),
        "nvidia_support": _put("apptainer", convert=lambda value: "always" if value else "never"),
        "tmp_dir_mode": "each container has its own /tmp in the folder of its job",
    },
    "shub_proxy": {},
    "slurm": {
        **dict.fromkeys(_PROGRAMS, _Converter.program),
        **dict.fromkeys(("partition", "account", "qos"), _put("slurm")),
        **dict.fromkeys(_OPTIONS, _options(lambda name, value: [f"--{name}={value}"])),
        **dict.fromkeys(("nodes", "ntasks"), _options(lambda name, value: [f"--{name}={value}"] if value != 1 else [])),
        **dict.fromkeys(("time", "max_time_seconds"), _Converter.time_limit),
        **dict.fromkeys(("header", "footer"), _Converter.text),
        **_NO_MEANING,
        "generic_resources": _options(lambda _, value: [f"--gres={','.join(map(str, value))}"] if value else []),
        "flags": _options(lambda _, value: [value] if isinstance(value, str) else map(str, value)),
        "memory": _Converter.memory,
        "cpu": _put("limits", "default_cpu"),
        "bash_executable": _Converter.bash,
        "flavors": _Converter.flavors,
    },
    "resources": {
        **dict.fromkeys(("cpu", "memory"), _put("resources", convert=str)),
        "pods": _put("resources"),
        "gpus": _put("resources", "extended", lambda value: {"nvidia.com/gpu": str(value)}),
    },
    "node": {
        "labels": _put("node", convert=_labels),
        "taints": _put("node", convert=lambda values: [str(taint) for taint in values]),
    },
    "network": {"allowed": _put("runtime", "network", lambda value: "host" if value else "none")},
}
"""What becomes of each key of each section: a step of the conversion, or why it is dropped."""


def convert_build_conf(text: str, source: str, pool: str) -> tuple[dict[str, Any], list[str]]:
    """Return the data of a ``site.toml`` and the warnings; raises :class:`ConfigError`."""
    data = toml_document(text, source)
    converter = _Converter(data)
    try:
        for name in STEPS:
            converter.convert(name)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{source}: a value has the wrong type: {error}") from error
    for name in data.keys() - STEPS.keys():
        converter.drop(name, "unknown section")
    return {"pool": pool, "batch": {"kind": "slurm"}, **converter.values}, converter.warnings


@dataclass(frozen=True, slots=True)
class Converted:
    """The text of a ``site.toml``, and what could not be converted."""

    text: str
    warnings: tuple[str, ...]


def convert(text: str, source: str, environ: Mapping[str, str], cwd: str, pool: str) -> Converted:
    """Convert a ``SlurmConfig.yaml`` or a ``build.conf``; raises :class:`bridge.errors.ConfigError`."""
    values: Mapping[str, Any]
    if is_toml(text, source):
        values, warnings = convert_build_conf(text, source, pool)
        origin = f"Converted from {source}, a BuildConfig of the interLink NATS plugin."
        notes = [origin, "Set [nats] servers and its seed_file or user: the plugin reads them from NATS_SERVER."]
    else:
        converted = conversion.convert(text, source, environ, cwd, pool)
        values, warnings = converted.values, list(converted.warnings)
        notes = [
            f"Converted from {source}, a configuration of the interLink Slurm plugin.",
            f"podbridge plugin --slurm-config uses that file as it is, and listens on {converted.listen}.",
            f"{', '.join(conversion.OPENED)}, host_paths and image_paths are open, as the plugin's are.",
        ]
    validated(values, source)
    return Converted(documented(values, [*notes, *warnings]), tuple(warnings))


def is_toml(text: str, source: str) -> bool:
    """Return whether a file is a ``build.conf``: its name says YAML, or its text is TOML."""
    if PurePath(source).suffix in (".yaml", ".yml"):
        return False
    try:
        toml_document(text, source)
    except ConfigError:
        return PurePath(source).suffix in (".toml", ".conf", ".cfg")
    return True
