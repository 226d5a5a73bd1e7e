"""From ``build.conf``, the BuildConfig of the interLink NATS plugin's providers, to ``site.toml``. Pure.

Source: ``natsprovider/apptainer_cmd_builder/BuildConfig.py`` of landerlini/interlink-condorce-plugin. Each key of the
file gets its documented meaning, or a warning by name. Keys that the file leaves out have podbridge's defaults.
"""

from __future__ import annotations

import posixpath
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from bridge.errors import ConfigError
from bridge.site.interlink_slurm.conversion import quantity_of
from bridge.site.interlink_slurm.slurm_config import memory

_PROGRAMS = {"sbatch_executable": "sbatch", "squeue_executable": "squeue", "sacct_executable": "sacct"}
_SAME = {
    "volumes": ("apptainer_cachedir", "image_dir", "cvmfs_unpacked_path", "additional_directories_in_path",
                "fuse_sleep_seconds"),
    "apptainer": ("executable", "fakeroot", "userns", "uts", "sharens", "containall", "fuse_mode", "no_init", "no_home",
                  "no_privs", "cleanenv", "unsquash"),
    "flavors": ("account", "partition", "qos", "reservation", "nodelist", "generic_resources", "max_time_seconds"),
}  # fmt: skip
_OPTIONS = {"reservation": "reservation", "nodelist": "nodelist", "mail_user": "mail-user", "mail_type": "mail-type"}
_NO_MEANING = {
    "sandbox": "podbridge keeps each job in its folder",
    "output": "podbridge keeps the output of each container",
    "error": "podbridge keeps the output of each container",
    "job_name": "podbridge finds its jobs by their names",
    "cpus_per_task": "the CPUs of a job follow from its pod; the default is slurm.cpu",
    "mem_per_cpu": "the memory of a job follows from its pod; the default is slurm.memory",
}
SECTIONS = ("volumes", "apptainer", "shub_proxy", "slurm", "resources", "node", "network")


class _Converter:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self.values: dict[str, Any] = {}
        self.warnings: list[str] = []

    def section(self, name: str) -> dict[str, Any]:
        section = self._data.get(name) or {}
        if not isinstance(section, dict):
            raise ConfigError(f"{name}: {section!r} is not allowed; allowed: a section [{name}]")
        return {key: value for key, value in section.items() if value is not None}

    def put(self, section: str, key: str, value: Any) -> None:
        self.values.setdefault(section, {})[key] = value

    def drop(self, key: str, why: str) -> None:
        self.warnings.append(f"{key}: not converted: {why}")

    def volumes(self) -> None:
        for key, value in self.section("volumes").items():
            if key == "scratch_area":
                self.put("volumes", "scratch_area", value)
                self.put("volumes", "scratch_in_job_folder", False)
            elif key in _SAME["volumes"]:
                self.put("volumes", key, value)
            else:
                self.drop(f"volumes.{key}", "unknown key")

    def apptainer(self) -> None:
        for key, value in self.section("apptainer").items():
            if key == "nvidia_support":
                self.put("apptainer", key, "always" if value else "never")
            elif key in _SAME["apptainer"]:
                self.put("apptainer", key, value)
            elif key == "tmp_dir_mode":
                self.drop("apptainer.tmp_dir_mode", "each container has its own /tmp in the folder of its job")
            else:
                self.drop(f"apptainer.{key}", "unknown key")

    def shub_proxy(self) -> None:
        for key, value in self.section("shub_proxy").items():
            if value:
                self.drop(
                    f"shub_proxy.{key}", "podbridge pulls images from registries, and keeps them in its own cache"
                )

    def slurm(self) -> None:
        keys = self.section("slurm")
        options: list[str] = []
        programs = {}
        for key, value in keys.items():
            if key in _PROGRAMS:
                programs[_PROGRAMS[key]] = str(value)
            elif key in ("partition", "account", "qos"):
                self.put("slurm", key, value)
            elif key in _OPTIONS:
                options.append(f"--{_OPTIONS[key]}={value}")
            elif key in ("nodes", "ntasks"):
                options += [f"--{key}={value}"] if value != 1 else []
            elif key == "generic_resources":
                options += [f"--gres={','.join(map(str, value))}"] if value else []
            elif key == "flags":
                options += [value] if isinstance(value, str) else map(str, value)
            elif key in ("time", "max_time_seconds"):
                # time counts hours; the plugin passes max_time_seconds to --time as minutes, but its name says the unit
                seconds = int(value) * (3600 if key == "time" else 1)
                present_limit = self.values.get("limits", {}).get("max_time_seconds", seconds)
                self.put("limits", "max_time_seconds", min(seconds, present_limit))
            elif key == "memory":
                self.put("limits", "default_memory", self._memory("slurm.memory", value))
            elif key == "cpu":
                self.put("limits", "default_cpu", value)
            elif key in ("header", "footer"):
                self.values[key] = value
            elif key == "bash_executable":
                self._bash(str(value))
            elif key == "flavors":
                self._flavors(value)
            else:
                self.drop(f"slurm.{key}", _NO_MEANING.get(key, "unknown key"))
        if options:
            self.put("slurm", "options", [word for word in options if word])
        self._put_programs(programs)

    def _bash(self, path: str) -> None:
        if posixpath.basename(path) == "sbatch":
            self.drop("slurm.bash_executable", f"{path} is the plugin's faulty default, and no bash")
        elif path != "/bin/bash":
            self.put("slurm", "bash", path)

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
            return quantity_of(memory(text + "M" if text.isdecimal() else text))
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error

    def _flavors(self, listed: object) -> None:
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise ConfigError("slurm.flavors: not a list of tables; allowed: [[slurm.flavors]]")
        flavors = []
        for number, flavor in enumerate(listed, start=1):
            converted: dict[str, Any] = {"name": str(flavor.get("name") or f"flavor-{number}")}
            flags = []
            for key, value in flavor.items():
                if value is None or key == "name":
                    continue
                if key in _SAME["flavors"]:
                    converted[key] = value
                elif key == "max_resources" and isinstance(value, dict):
                    converted[key] = {name: str(amount) for name, amount in value.items()}
                elif key == "memory":
                    converted[key] = self._memory(f"slurm.flavors[{number - 1}].memory", value)
                elif key == "cpu":
                    converted[key] = value
                elif key == "ntasks":
                    flags += [f"--ntasks={value}"] if value != 1 else []
                else:
                    self.drop(f"slurm.flavors[{number - 1}].{key}", "unknown key")
            flavors.append({**converted, **({"flags": flags} if flags else {})})
        self.values["flavors"] = flavors

    def resources(self) -> None:
        for key, value in self.section("resources").items():
            if key in ("cpu", "memory"):
                self.put("resources", key, str(value))
            elif key == "pods":
                self.put("resources", key, value)
            elif key == "gpus":
                self.put("resources", "extended", {"nvidia.com/gpu": str(value)})
            else:
                self.drop(f"resources.{key}", "unknown key")

    def node(self) -> None:
        for key, value in self.section("node").items():
            if key == "labels":
                pairs = [str(label).partition("=") for label in value]
                self.put("node", key, {name: text for name, _, text in pairs})
            elif key == "taints":
                self.put("node", key, [str(taint) for taint in value])
            else:
                self.drop(f"node.{key}", "unknown key")

    def network(self) -> None:
        for key, value in self.section("network").items():
            if key == "allowed":
                self.put("runtime", "network", "host" if value else "none")
            else:
                self.drop(f"network.{key}", "podbridge makes no tunnels into a cluster")


def convert(text: str, source: str, pool: str) -> tuple[dict[str, Any], list[str]]:
    """Return the data of a ``site.toml`` and the warnings; raises :class:`ConfigError`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from error
    converter = _Converter(data)
    steps: dict[str, Callable[[], None]] = {name: getattr(converter, name) for name in SECTIONS}
    try:
        for step in steps.values():
            step()
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{source}: a value has the wrong type: {error}") from error
    for name in data.keys() - steps.keys():
        converter.drop(name, "unknown section")
    return {"pool": pool, "batch": {"kind": "slurm"}, **converter.values}, converter.warnings
