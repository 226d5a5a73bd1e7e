"""``SlurmConfig.yaml``, the configuration of the interLink Slurm plugin, and the variables that override it. Pure.

Source: ``types.go`` and ``func.go`` of interlink-hq/interlink-slurm-plugin, and its README. Upstream ignores a
malformed file; here it is an error.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bridge.config.documents import yaml_document
from bridge.errors import ConfigError

DEFAULT_PATH = "/etc/interlink/SlurmConfig.yaml"
DEFAULT_PORT = "4000"
DEFAULT_OPTIONS = ("--nv", "--no-eval", "--containall")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MEMORY = re.compile(r"(\d+)(?:([KMGT])I?)?B?", re.IGNORECASE | re.ASCII)


def _as_text(value: object) -> object:
    """Return a number as text: upstream's decoder accepts ``SidecarPort: 4000``."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_as_text)]
Id = Annotated[int, Field(ge=0, le=2**32 - 2)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class FlavorPart(_Part):
    """One entry of ``Flavors``. An empty ``Name`` means the key of the entry."""

    Name: Text = ""
    Description: Text = ""
    CPUDefault: Annotated[int, Field(ge=0)] = 0
    MemoryDefault: Text = ""
    UID: Id | None = None
    SlurmFlags: list[Text] = []


class TaintPart(_Part):
    """One entry of ``Taints``."""

    Key: Text = ""
    Value: Text = ""
    Effect: Text = ""


class SlurmConfig(_Part):
    """The whole file; a key that is missing, or null, has its default."""

    SidecarPort: Text = ""
    Socket: Text = ""
    SbatchPath: Text = ""
    ScancelPath: Text = ""
    SqueuePath: Text = ""
    SinfoPath: Text = ""
    CommandPrefix: Text = ""
    ImagePrefix: Text = ""
    ExportPodData: bool = False
    DataRootFolder: Text = ""
    Namespace: Text = ""
    Tsocks: bool = False
    TsocksPath: Text = ""
    TsocksLoginNode: Text = ""
    BashPath: Text = ""
    VerboseLogging: bool = False
    ErrorsOnlyLogging: bool = False
    SingularityPath: Text = ""
    SingularityDefaultOptions: list[Text] = []
    SingularityPrefix: Text = ""
    EnrootPath: Text = ""
    EnrootDefaultOptions: list[Text] = []
    EnrootPrefix: Text = ""
    ContainerRuntime: Text = ""
    EnableProbes: bool = False
    Flavors: dict[str, FlavorPart] = {}
    DefaultFlavor: Text = ""
    DefaultUID: Id | None = None
    Taints: list[TaintPart] = []
    ResourceScriptPath: Text = ""
    VKConfigPath: Text = ""


OVERRIDES = {
    "SIDECARPORT": "SidecarPort",
    "SBATCHPATH": "SbatchPath",
    "SCANCELPATH": "ScancelPath",
    "SINFOPATH": "SinfoPath",
    "SINGULARITYPATH": "SingularityPath",
    "TSOCKS": "Tsocks",
    "TSOCKSPATH": "TsocksPath",
}
"""Variables that replace a key of the file."""
_BOOLEANS = {"true": True, "false": False}


def read(text: str, source: str, environ: Mapping[str, str]) -> tuple[SlurmConfig, list[str]]:
    """Read the file and the variables; return it with warnings of unknown keys. Raises :class:`ConfigError`."""
    data = yaml_document(text, source)
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{source}: the file is {kind}; allowed: keys and values, as in SbatchPath: /usr/bin/sbatch")
    data = _without_nulls(data)
    for variable, key in OVERRIDES.items():
        value = environ.get(variable)
        if not value:
            continue
        if key == "Tsocks":
            if value not in _BOOLEANS:
                raise ConfigError(f"environment variable {variable}: {value!r} is not allowed; allowed: true, false")
            data[key] = _BOOLEANS[value]
        else:
            data[key] = value
    try:
        config = SlurmConfig.model_validate(data)
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']} (value: {problem.get('input')!r})"
            for problem in error.errors()
        )
        raise ConfigError(f"{source}: {'; '.join(problems)}") from error
    _check_flavors(config, source)
    return config, [*_unknown(config, "")]


def _check_flavors(config: SlurmConfig, source: str) -> None:
    for name, flavor in config.Flavors.items():
        for flag in flavor.SlurmFlags:
            if not flag.strip().startswith("-"):
                raise ConfigError(
                    f"{source}: Flavors.{name}.SlurmFlags: {flag!r} is not allowed; allowed: -x or --option"
                )
            try:
                shlex.split(flag)
            except ValueError as error:
                raise ConfigError(f"{source}: Flavors.{name}.SlurmFlags: {flag!r}: {error}") from error
        try:
            memory(flavor.MemoryDefault)
        except ValueError as error:
            raise ConfigError(f"{source}: Flavors.{name}.MemoryDefault: {error}") from error


def memory(text: str) -> int:
    """Return a text such as ``16G``, ``32000M``, ``16GB`` or ``1024`` in bytes; empty: 0. A unit is a power of 1024."""
    stripped = text.strip()
    if not stripped:
        return 0
    match = _MEMORY.fullmatch(stripped)
    if match is None or not stripped.isascii():
        raise ValueError(f"{text!r} is not allowed; allowed: a whole number with K, M, G or T, or of bytes")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _unknown(part: BaseModel, prefix: str) -> list[str]:
    problems = []
    known_keys = list(type(part).model_fields)
    for key in part.model_extra or {}:
        similar_keys = difflib.get_close_matches(key, known_keys, n=1, cutoff=0.7)
        problems.append(
            f"{prefix}{key}: unknown key, ignored" + (f" (did you mean {similar_keys[0]}?)" if similar_keys else "")
        )
    for name, value in part:
        if isinstance(value, dict):
            items = [(f"{name}.{key}", item) for key, item in value.items()]
        else:
            items = [(f"{name}[{index}]", item) for index, item in enumerate(value)] if isinstance(value, list) else []
        for path, item in items:
            if isinstance(item, BaseModel):
                problems += _unknown(item, f"{path}.")
    return problems
