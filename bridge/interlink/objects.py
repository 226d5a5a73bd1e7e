"""The Kubernetes objects in bodies of interLink, as far as a plugin reads them.

A body contains raw Kubernetes objects. These models check the fields that podbridge reads, so that an error names the
path of a field; unknown keys are ignored. A pod stays the raw object that was received, because the script builder
and the pool read it. Go writes ``null`` for an empty list or map, so each of them may be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Required, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PlainSerializer,
    StringConstraints,
    WrapValidator,
    create_model,
)
from pydantic.functional_validators import BeforeValidator
from typing_extensions import TypedDict

from bridge import names
from bridge.protocol.model.identifiers import Namespace, PodName, Uid

T = TypeVar("T")
V = TypeVar("V")
JsonObject = dict[str, Any]


def _or_empty_list(value: Any) -> Any:
    return [] if value is None else value


def _or_empty_map(value: Any) -> Any:
    return {} if value is None else value


Entries = Annotated[list[JsonObject], FailFast(), BeforeValidator(_or_empty_list)]
"""A list of objects from a site, which may be null. The first invalid one ends the validation: a faulty site may send
millions."""

if TYPE_CHECKING:
    Many = list[T]
    Map = dict[str, V]
else:

    class Many:
        """``Many[T]``: a list that may be null."""

        def __class_getitem__(cls, item: Any) -> Any:
            collection = list[item]
            return Annotated[collection, BeforeValidator(_or_empty_list, json_schema_input_type=collection | None)]

    class Map:
        """``Map[V]``: an object with values of one type that may be null."""

        def __class_getitem__(cls, item: Any) -> Any:
            collection = dict[str, item]
            return Annotated[collection, BeforeValidator(_or_empty_map, json_schema_input_type=collection | None)]


Label = Annotated[str, StringConstraints(pattern=f"^{names.DNS_LABEL}$")]
"""A DNS label, for example the name of a container or of a volume."""
Seconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class ObjectPart(BaseModel):
    """Base of all models of this package. Unknown keys are ignored: other versions of interLink send more."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, serialize_by_alias=True)


class ObjectMetadata(ObjectPart):
    """The name of a ConfigMap or Secret."""

    name: ObjectName


class ConfigMap(ObjectPart):
    """A v1.ConfigMap. ``binaryData`` is base64."""

    metadata: ObjectMetadata
    data: Map[str] = Field({})
    binary_data: Map[str] = Field({}, alias="binaryData")

    def raw(self) -> JsonObject:
        """Return the Kubernetes object."""
        return {"metadata": {"name": self.metadata.name}, "data": self.data, "binaryData": self.binary_data}


class Secret(ObjectPart):
    """A v1.Secret. ``data`` is base64. The name and the values are never part of a log record."""

    metadata: ObjectMetadata
    data: Map[str] = Field({}, repr=False)
    string_data: Map[str] = Field({}, alias="stringData", repr=False)

    def raw(self) -> JsonObject:
        """Return the Kubernetes object."""
        return {"metadata": {"name": self.metadata.name}, "data": self.data, "stringData": self.string_data}


def part(name: str, required: Mapping[str, Any] | None = None, /, **optional: Any) -> Any:
    """Return a model that only checks a part of an object: the types of its fields, of which the others may be null."""
    fields: dict[str, Any] = {field: (kind, ...) for field, kind in (required or {}).items()}
    fields |= {field: (kind | None, None) for field, kind in optional.items()}
    return create_model(name, __base__=ObjectPart, **fields)


def listed(item: Any) -> Any:
    """Return the type of a list; for type checkers, ``list[item]`` would need a type that they know."""
    return GenericAlias(list, (item,))


TOLERATION = part("Toleration", key=str, operator=str, value=str, effect=str)
IDENTITY = {"name": PodName, "namespace": Namespace, "uid": Uid}
"""Fields of the metadata of a pod that it always has."""
_CONTAINER = part("NamedContainer", {"name": Label})
NamedPod = part(
    "NamedPod",
    {"metadata": part("NamedPodMetadata", IDENTITY, deletionGracePeriodSeconds=Seconds)},
    spec=part(
        "NamedPodSpec",
        initContainers=listed(_CONTAINER),
        containers=listed(_CONTAINER),
        tolerations=listed(TOLERATION),
        terminationGracePeriodSeconds=Seconds,
    ),
)
"""A v1.Pod that is named, to be cancelled for example. Its spec may be absent."""


class StartedContainer(TypedDict, total=False):
    """A v1.Container in a request for its state."""

    name: Required[Label]
    image: str | None
    restartPolicy: str | None
    readinessProbe: Any
    startupProbe: Any


class StartedToleration(TypedDict, total=False):
    """A v1.Toleration in a request for the state of a pod."""

    key: str | None
    operator: str | None
    value: str | None
    effect: str | None


class StartedSpec(TypedDict, total=False):
    """A v1.PodSpec in a request for the state of its containers."""

    containers: Required[Annotated[list[StartedContainer], Field(min_length=1)]]
    initContainers: list[StartedContainer] | None
    tolerations: list[StartedToleration] | None
    nodeName: str | None


class StartedMetadata(TypedDict):
    """The identity of a pod."""

    name: PodName
    namespace: Namespace
    uid: Uid


class StartedPod(TypedDict):
    """A v1.Pod in a request for its state, without all other keys.

    These are dictionaries and no models: a request may have 1,000 pods, and reading it directly into dictionaries takes
    half of the time.
    """

    metadata: StartedMetadata
    spec: StartedSpec


def keep_raw(value: Any, handler: Any) -> Any:
    """Check ``value`` and return it unchanged: a ``WrapValidator``."""
    handler(value)
    return value


if TYPE_CHECKING:
    Pod = dict[str, Any]
else:
    Pod = Annotated[NamedPod, WrapValidator(keep_raw), PlainSerializer(lambda pod: pod)]
