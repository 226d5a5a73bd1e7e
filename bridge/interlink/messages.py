"""The bodies of interLink's REST API, for both hops.

Hop A is from a virtual kubelet to an API server, hop B from an API server to a plugin. The names of the keys are
interLink's, version 0.6 and the main branch of July 2026.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from bridge import names
from bridge.interlink.objects import ConfigMap, Entries, JsonObject, Many, ObjectPart, Pod, Secret
from bridge.protocol.model.identifiers import Namespace, Uid

NO_TIME = "0001-01-01T00:00:00Z"
"""Go's zero time: the value of an unset ``SinceTime``."""


class RetrievedContainer(ObjectPart):
    """Hop B: the objects of one container, one entry for each matching volume mount.

    ``projectedvolumemaps``: ConfigMaps with the name of a projected volume, and its content by path. ``emptyDirs`` is
    not read: the pod's spec has them.
    """

    name: str
    config_maps: Many[ConfigMap] = Field([], alias="configMaps")
    projected_volume_maps: Many[ConfigMap] = Field([], alias="projectedvolumemaps", repr=False)
    secrets: Many[Secret] = Field([])


class RetrievedPodData(ObjectPart):
    """Hop B: the body of ``/create``, with init containers before containers.

    ``jobScript`` is the script of a job script builder. ``jobConfig`` are the options for such a
    builder.
    """

    pod: Pod
    container: Many[RetrievedContainer]
    job_config: JsonObject | None = Field(None, alias="jobConfig")
    job_script: str | None = Field(None, alias="jobScript", repr=False)


class PodCreateRequests(ObjectPart):
    """Hop A: the body of ``/create``. ``projectedvolumesmaps``: as in :class:`RetrievedContainer`."""

    pod: Pod
    config_maps: Many[ConfigMap] = Field([], alias="configmaps")
    secrets: Many[Secret] = Field([])
    projected_volume_maps: Many[ConfigMap] = Field([], alias="projectedvolumesmaps", repr=False)
    job_script_url: str | None = Field("", alias="jobscriptURL")


class CreateStruct(ObjectPart):
    """The answer to ``/create``: the pod's UID and the batch system's name of its job."""

    pod_uid: str = Field(alias="PodUID")
    pod_jid: str = Field(alias="PodJID")


class PodStatus(ObjectPart):
    """The state of one pod. ``containers`` and ``initContainers`` are raw v1.ContainerStatus objects."""

    name: str = ""
    uid: str = Field("", alias="UID")
    namespace: str = ""
    jid: str | None = Field("", alias="JID")
    containers: Entries = Field([])
    init_containers: Entries = Field([], alias="initContainers")


class LogOpts(ObjectPart):
    """The options of ``kubectl logs``. 0, false and :data:`NO_TIME` mean that an option is not set."""

    tail: int | None = Field(0, alias="Tail", ge=0)
    limit_bytes: int | None = Field(0, alias="Bytes", ge=0)
    timestamps: bool | None = Field(False, alias="Timestamps")
    follow: bool | None = Field(False, alias="Follow")
    previous: bool | None = Field(False, alias="Previous")
    since_seconds: int | None = Field(0, alias="SinceSeconds", ge=0)
    since_time: str | None = Field(NO_TIME, alias="SinceTime")


class LogStruct(ObjectPart):
    """The body of ``/getLogs``."""

    namespace: Namespace = Field(alias="Namespace")
    pod_uid: Uid = Field(alias="PodUID")
    pod_name: str = Field("", alias="PodName")
    container_name: str = Field("", alias="ContainerName", pattern=f"^({names.DNS_LABEL})?$")
    opts: LogOpts = Field(LogOpts(), alias="Opts")


class Accelerator(ObjectPart):
    """An extended resource. ``available`` is a whole number as text."""

    resource_type: str = Field(alias="resourceType")
    available: str | int = "0"


class PingResources(ObjectPart):
    """The resources of the virtual node, as Kubernetes quantities. An absent one does not change the node."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    cpu: str | None = None
    memory: str | None = None
    pods: str | None = None
    accelerators: Many[Accelerator] = Field([])


class PingTaint(ObjectPart):
    """A taint of the virtual node. As in Go, ``null`` is the same as an empty text."""

    key: str | None = ""
    value: str | None = ""
    effect: str | None = "NoSchedule"


class PingResponse(ObjectPart):
    """The answer to a ping: ``/status`` with an empty list, or ``/pinglink``.

    ``taints``: if it is present, even empty, it replaces the taints of the virtual node except interLink's own.
    """

    status: str = "ok"
    resources: PingResources | None = None
    taints: list[PingTaint] | None = None


class SystemInfo(ObjectPart):
    """The answer to ``/system-info``, which always has the status 200."""

    status: Literal["ok", "warning"] = "ok"
    timestamp: str
    slurm_connected: bool
    sinfo_output: str = ""
    error: str = ""


def as_json(message: ObjectPart) -> dict[str, Any]:
    """Return a message as JSON data, with the names of interLink and without keys that are ``None``."""
    return message.model_dump(mode="json", by_alias=True, exclude_none=True)


NO_BUILDER: dict[str, Any] = {
    "SingularityHubProxy": {"server": "", "master_token": "", "cache_validity_seconds": 0},
    "ApptainerOptions": {
        "executable": "",
        **dict.fromkeys(("fakeroot", "containall"), False),
        "fuseMode": "",
        **dict.fromkeys(("noInit", "noHome", "noPrivs", "nvidiaSupport", "cleanenv", "unsquash"), False),
    },
    "Volumes": {
        **dict.fromkeys(("scratch_area", "apptainer_cachedir", "image_dir"), ""),
        "additional_directories_in_path": None,
        "fuse_sleep_seconds": 0,
    },
}
"""``jobConfig`` of an API server without a job script builder."""
