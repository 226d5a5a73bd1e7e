"""The fields of a v1.Pod that podbridge reads to run it, with their types.

The API server checks a pod that comes from it. A plugin may get its bodies from elsewhere, and a pool reads a pod
without checking types, so ``/create`` checks them first. What a value may be is checked by the pool itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, WrapValidator

from bridge.interlink.objects import IDENTITY, TOLERATION, Label, keep_raw, listed, part

Whole = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Quantity = str | Whole | float
Texts = list[str]
_Port = Whole | str

_NAMED = part("Named", name=str)
_RESOURCES = part("Resources", limits=dict[str, Quantity], requests=dict[str, Quantity])

# --- variables --------------------------------------------------------------------------------------------------------
_REFERENCE = part("Reference", name=str, key=str, optional=bool)
_FIELD_REFERENCE = part("FieldReference", fieldPath=str)
_RESOURCE_REFERENCE = part("ResourceReference", containerName=str, resource=str, divisor=Quantity)
_SOURCE = part(
    "Source",
    fieldRef=_FIELD_REFERENCE,
    resourceFieldRef=_RESOURCE_REFERENCE,
    configMapKeyRef=_REFERENCE,
    secretKeyRef=_REFERENCE,
)
_VARIABLE = part("Variable", {"name": str}, value=str, valueFrom=_SOURCE)
_VARIABLES = part("Variables", prefix=str, configMapRef=_REFERENCE, secretRef=_REFERENCE)

# --- probes and hooks -------------------------------------------------------------------------------------------------
_HEADER = part("Header", name=str, value=str)
_HANDLERS = {
    "exec": part("Exec", command=Texts),
    "httpGet": part("Http", host=str, port=_Port, path=str, scheme=str, httpHeaders=listed(_HEADER)),
    "tcpSocket": part("Tcp", host=str, port=_Port),
    "grpc": part("Grpc", port=Whole, service=str),
    "sleep": part("Sleep", seconds=Whole),
}
_HANDLER = part("Handler", **_HANDLERS)
_PROBE = part(
    "Probe",
    **_HANDLERS,
    initialDelaySeconds=Whole,
    periodSeconds=Whole,
    timeoutSeconds=Whole,
    successThreshold=Whole,
    failureThreshold=Whole,
    terminationGracePeriodSeconds=Whole,
)

# --- containers -------------------------------------------------------------------------------------------------------
_USER = {"runAsUser": Whole, "runAsGroup": Whole, "runAsNonRoot": bool}
_MOUNT = part(
    "Mount",
    {"name": str, "mountPath": str},
    subPath=str,
    subPathExpr=str,
    readOnly=bool,
    mountPropagation=str,
    recursiveReadOnly=str,
)
_CONTAINER = part(
    "Container",
    {"name": Label},
    image=str,
    command=Texts,
    args=Texts,
    workingDir=str,
    env=listed(_VARIABLE),
    envFrom=listed(_VARIABLES),
    resources=_RESOURCES,
    volumeMounts=listed(_MOUNT),
    volumeDevices=listed(part("Device", {"name": str})),
    ports=listed(part("Port", {"containerPort": Whole}, name=str)),
    startupProbe=_PROBE,
    livenessProbe=_PROBE,
    readinessProbe=_PROBE,
    lifecycle=part("Lifecycle", postStart=_HANDLER, preStop=_HANDLER, stopSignal=str),
    securityContext=part(
        "ContainerSecurityContext",
        **_USER,
        privileged=bool,
        capabilities=part("Capabilities", add=Texts),
        procMount=str,
        readOnlyRootFilesystem=bool,
    ),
    restartPolicy=str,
    imagePullPolicy=str,
    terminationMessagePath=str,
    terminationMessagePolicy=str,
    stdin=bool,
    tty=bool,
)

# --- volumes ----------------------------------------------------------------------------------------------------------
_ITEM = part("Item", {"key": str, "path": str}, mode=Whole)
_DOWNWARD_ITEM = part(
    "DownwardItem", {"path": str}, mode=Whole, fieldRef=_FIELD_REFERENCE, resourceFieldRef=_RESOURCE_REFERENCE
)
_FILES = part("Files", name=str, secretName=str, items=listed(_ITEM), defaultMode=Whole, optional=bool)
_DOWNWARD = part("Downward", items=listed(_DOWNWARD_ITEM), defaultMode=Whole)
_TOKEN = part("Token", path=str, audience=str, expirationSeconds=Whole)
_FILE_SOURCES = {"configMap": _FILES, "secret": _FILES, "downwardAPI": _DOWNWARD}
_PROJECTED_SOURCE = part("ProjectedSource", **_FILE_SOURCES, serviceAccountToken=_TOKEN)
_VOLUME = part(
    "Volume",  # the kinds that podbridge does not support are refused by name later
    {"name": Label},
    **_FILE_SOURCES,
    projected=part("Projected", sources=listed(_PROJECTED_SOURCE), defaultMode=Whole),
    emptyDir=part("EmptyDir", medium=str, sizeLimit=Quantity),
    hostPath=part("HostPath", {"path": str}, type=str),
)

_SPEC = part(
    "PodSpec",
    {"containers": Annotated[listed(_CONTAINER), Field(min_length=1)]},
    initContainers=listed(_CONTAINER),
    ephemeralContainers=listed(_NAMED),
    volumes=listed(_VOLUME),
    tolerations=listed(TOLERATION),
    imagePullSecrets=listed(_NAMED),
    restartPolicy=str,
    terminationGracePeriodSeconds=Whole,
    activeDeadlineSeconds=Whole,
    nodeName=str,
    serviceAccountName=str,
    securityContext=part("PodSecurityContext", **_USER),
    resources=_RESOURCES,
    overhead=dict[str, Quantity],
    hostAliases=listed(part("HostAlias", ip=str)),
    dnsPolicy=str,
    resourceClaims=listed(_NAMED),
    os=_NAMED,
)
_METADATA = part("Metadata", IDENTITY, labels=dict[str, str], annotations=dict[str, str])
Pod = part("Pod", {"metadata": _METADATA, "spec": _SPEC})
"""A v1.Pod that is to run."""

if TYPE_CHECKING:
    RunnablePod = dict[str, Any]
else:
    RunnablePod = Annotated[Pod, WrapValidator(keep_raw), PlainSerializer(lambda pod: pod)]
