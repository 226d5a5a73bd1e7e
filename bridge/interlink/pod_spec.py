"""The fields of a v1.Pod that podbridge reads to run it, with their types.

The API server checks a pod that comes from it. A plugin may get its bodies from elsewhere, and a pool reads a pod
without checking types, so ``/create`` checks them first. What a value may be is checked by the pool itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, WrapValidator

from bridge.interlink.objects import Label, Many, Map, ObjectPart, PodMetadata, Toleration, keep_raw

Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Quantity = str | Whole | float


class _Reference(ObjectPart):
    name: str | None = None
    key: str | None = None
    optional: bool | None = None


class _FieldReference(ObjectPart):
    field_path: str | None = Field(None, alias="fieldPath")


class _ResourceReference(ObjectPart):
    container_name: str | None = Field(None, alias="containerName")
    resource: str | None = None
    divisor: Quantity | None = None


class _Source(ObjectPart):
    field_ref: _FieldReference | None = Field(None, alias="fieldRef")
    resource_field_ref: _ResourceReference | None = Field(None, alias="resourceFieldRef")
    config_map_key_ref: _Reference | None = Field(None, alias="configMapKeyRef")
    secret_key_ref: _Reference | None = Field(None, alias="secretKeyRef")


class _Variable(ObjectPart):
    name: str
    value: str | None = None
    value_from: _Source | None = Field(None, alias="valueFrom")


class _Variables(ObjectPart):
    prefix: str | None = None
    config_map_ref: _Reference | None = Field(None, alias="configMapRef")
    secret_ref: _Reference | None = Field(None, alias="secretRef")


class _Resources(ObjectPart):
    limits: Map[Quantity] = Field({})
    requests: Map[Quantity] = Field({})


class _Mount(ObjectPart):
    name: str
    mount_path: str = Field(alias="mountPath")
    sub_path: str | None = Field(None, alias="subPath")
    sub_path_expr: str | None = Field(None, alias="subPathExpr")
    read_only: bool | None = Field(None, alias="readOnly")
    mount_propagation: str | None = Field(None, alias="mountPropagation")
    recursive_read_only: str | None = Field(None, alias="recursiveReadOnly")


class _Device(ObjectPart):
    name: str


class _Port(ObjectPart):
    name: str | None = None
    container_port: Whole = Field(alias="containerPort")


class _Exec(ObjectPart):
    command: Many[str] = Field([])


class _Header(ObjectPart):
    name: str | None = None
    value: str | None = None


class _Http(ObjectPart):
    host: str | None = None
    port: Whole | str | None = None
    path: str | None = None
    scheme: str | None = None
    headers: Many[_Header] = Field([], alias="httpHeaders")


class _Tcp(ObjectPart):
    host: str | None = None
    port: Whole | str | None = None


class _Grpc(ObjectPart):
    port: Whole | None = None
    service: str | None = None


class _Sleep(ObjectPart):
    seconds: Whole | None = None


class _Handler(ObjectPart):
    exec: _Exec | None = None
    http_get: _Http | None = Field(None, alias="httpGet")
    tcp_socket: _Tcp | None = Field(None, alias="tcpSocket")
    grpc: _Grpc | None = None
    sleep: _Sleep | None = None


class _Probe(_Handler):
    initial: Whole | None = Field(None, alias="initialDelaySeconds")
    period: Whole | None = Field(None, alias="periodSeconds")
    timeout: Whole | None = Field(None, alias="timeoutSeconds")
    success: Whole | None = Field(None, alias="successThreshold")
    failure: Whole | None = Field(None, alias="failureThreshold")
    grace: Whole | None = Field(None, alias="terminationGracePeriodSeconds")


class _Lifecycle(ObjectPart):
    post_start: _Handler | None = Field(None, alias="postStart")
    pre_stop: _Handler | None = Field(None, alias="preStop")
    stop_signal: str | None = Field(None, alias="stopSignal")


class _Capabilities(ObjectPart):
    add: Many[str] = Field([])


class _Identity(ObjectPart):
    run_as_user: Whole | None = Field(None, alias="runAsUser")
    run_as_group: Whole | None = Field(None, alias="runAsGroup")
    run_as_non_root: bool | None = Field(None, alias="runAsNonRoot")


class _ContainerContext(_Identity):
    privileged: bool | None = None
    capabilities: _Capabilities | None = None
    proc_mount: str | None = Field(None, alias="procMount")
    read_only_root: bool | None = Field(None, alias="readOnlyRootFilesystem")


class Container(ObjectPart):
    """A v1.Container."""

    name: Label
    image: str | None = None
    command: Many[str] = Field([])
    args: Many[str] = Field([])
    working_dir: str | None = Field(None, alias="workingDir")
    env: Many[_Variable] = Field([])
    env_from: Many[_Variables] = Field([], alias="envFrom")
    resources: _Resources | None = None
    volume_mounts: Many[_Mount] = Field([], alias="volumeMounts")
    volume_devices: Many[_Device] = Field([], alias="volumeDevices")
    ports: Many[_Port] = Field([])
    startup_probe: _Probe | None = Field(None, alias="startupProbe")
    liveness_probe: _Probe | None = Field(None, alias="livenessProbe")
    readiness_probe: _Probe | None = Field(None, alias="readinessProbe")
    lifecycle: _Lifecycle | None = None
    security_context: _ContainerContext | None = Field(None, alias="securityContext")
    restart_policy: str | None = Field(None, alias="restartPolicy")
    image_pull_policy: str | None = Field(None, alias="imagePullPolicy")
    termination_message_path: str | None = Field(None, alias="terminationMessagePath")
    termination_message_policy: str | None = Field(None, alias="terminationMessagePolicy")
    stdin: bool | None = None
    tty: bool | None = None


class _Item(ObjectPart):
    key: str
    path: str
    mode: Whole | None = None


class _DownwardItem(ObjectPart):
    path: str
    mode: Whole | None = None
    field_ref: _FieldReference | None = Field(None, alias="fieldRef")
    resource_field_ref: _ResourceReference | None = Field(None, alias="resourceFieldRef")


class _Files(ObjectPart):
    name: str | None = None
    secret_name: str | None = Field(None, alias="secretName")
    items: Many[_Item] = Field([])
    default_mode: Whole | None = Field(None, alias="defaultMode")
    optional: bool | None = None


class _Downward(ObjectPart):
    items: Many[_DownwardItem] = Field([])
    default_mode: Whole | None = Field(None, alias="defaultMode")


class _Token(ObjectPart):
    path: str | None = None
    audience: str | None = None
    expiration: Whole | None = Field(None, alias="expirationSeconds")


class _ProjectedSource(ObjectPart):
    config_map: _Files | None = Field(None, alias="configMap")
    secret: _Files | None = None
    downward_api: _Downward | None = Field(None, alias="downwardAPI")
    token: _Token | None = Field(None, alias="serviceAccountToken")


class _Projected(ObjectPart):
    sources: Many[_ProjectedSource] = Field([])
    default_mode: Whole | None = Field(None, alias="defaultMode")


class _EmptyDir(ObjectPart):
    medium: str | None = None
    size_limit: Quantity | None = Field(None, alias="sizeLimit")


class _HostPath(ObjectPart):
    path: str
    type: str | None = None


class Volume(ObjectPart):
    """A v1.Volume. The kinds that podbridge does not support are refused by name later."""

    name: Label
    config_map: _Files | None = Field(None, alias="configMap")
    secret: _Files | None = None
    projected: _Projected | None = None
    downward_api: _Downward | None = Field(None, alias="downwardAPI")
    empty_dir: _EmptyDir | None = Field(None, alias="emptyDir")
    host_path: _HostPath | None = Field(None, alias="hostPath")


class _Named(ObjectPart):
    name: str | None = None


class _Alias(ObjectPart):
    ip: str | None = None


class PodSpec(ObjectPart):
    """A v1.PodSpec."""

    containers: Annotated[list[Container], Field(min_length=1)]
    init_containers: Many[Container] = Field([], alias="initContainers")
    ephemeral_containers: Many[_Named] = Field([], alias="ephemeralContainers")
    volumes: Many[Volume] = Field([])
    tolerations: Many[Toleration] = Field([])
    image_pull_secrets: Many[_Named] = Field([], alias="imagePullSecrets")
    restart_policy: str | None = Field(None, alias="restartPolicy")
    grace: Whole | None = Field(None, alias="terminationGracePeriodSeconds")
    deadline: Whole | None = Field(None, alias="activeDeadlineSeconds")
    node_name: str | None = Field(None, alias="nodeName")
    service_account: str | None = Field(None, alias="serviceAccountName")
    security_context: _Identity | None = Field(None, alias="securityContext")
    resources: _Resources | None = None
    overhead: Map[Quantity] = Field({})
    host_aliases: Many[_Alias] = Field([], alias="hostAliases")
    dns_policy: str | None = Field(None, alias="dnsPolicy")
    resource_claims: Many[_Named] = Field([], alias="resourceClaims")
    os: _Named | None = None


class _Metadata(PodMetadata):
    labels: Map[str] = Field({})
    annotations: Map[str] = Field({})


class Pod(ObjectPart):
    """A v1.Pod that is to run."""

    metadata: _Metadata
    spec: PodSpec


if TYPE_CHECKING:
    RunnablePod = dict[str, Any]
else:
    RunnablePod = Annotated[Pod, WrapValidator(keep_raw), PlainSerializer(lambda pod: pod)]
