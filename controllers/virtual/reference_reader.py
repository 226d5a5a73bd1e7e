"""Reads the objects that a pod references: ConfigMaps, Secrets and service account tokens.

Each object is read when it is needed, and cached for a few seconds, so that a thousand pods of a Job need one request.
podbridge neither lists nor watches Secrets. Reads after the submission of a pod, for its volumes, have a limit.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bridge import names
from bridge.clock import Clock, parse_rfc3339
from bridge.config import installations
from bridge.config.hub import Config
from bridge.core.retries import TokenBucket
from bridge.errors import KubeError, KubeForbiddenError, KubeNotFoundError, MissingReferenceError
from bridge.kube.kube_client import KubeClient, Object
from bridge.kube.resources import CONFIGMAPS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Resource
from bridge.logs import kv
from bridge.script import consent, references
from bridge.script.references import Objects, PodReferences, TokenRequest
from controllers.virtual.pod_state import ObjectKey, Pod

FRESH = 10.0
"""Seconds for which an existing object is cached."""
MISSING = 2.0
"""Seconds for which the absence of an object is cached."""
REFRESH_AT = 0.8
"""Share of a token's lifetime after which it is refreshed, as in a kubelet."""
SHORTEST = 600
"""Shortest lifetime of a token that the API server issues, in seconds."""
_RESOURCES = {CONFIGMAPS.plural: CONFIGMAPS, SECRETS.plural: SECRETS}
_KINDS = {CONFIGMAPS.plural: "ConfigMap", SECRETS.plural: "Secret"}
log = logging.getLogger(__name__)
F = TypeVar("F")
TICK = 5.0
"""Maximum seconds between two checks for new objects."""
JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens by volume and path, and the seconds until they are due for a refresh (``None`` without tokens)."""

    texts: dict[tuple[str, str], str]
    refresh_in: float | None


@dataclass(frozen=True, slots=True)
class Reread:
    """Objects that were read again, without those that do not exist or cannot be read.

    ``problems`` says which they are, if the pod requires them.
    """

    objects: Objects
    problems: list[str]


class ReferenceReader:
    """Reads the objects that pods reference. Thread-safe."""

    def __init__(self, kube: KubeClient, config: Config, clock: Clock) -> None:
        self._kube, self._config = kube, config
        self._clock = clock
        self._cache: OrderedDict[ObjectKey, tuple[float, Object | None]] = OrderedDict()
        self._lock = threading.Lock()
        rate = config.pools.volume_reads
        self._limit = TokenBucket(rate, max(1.0, rate), clock)

    def read(self, pod: Pod, pool: str) -> tuple[Objects, float | None]:
        """Return the referenced objects, and the seconds until the pod's tokens are due for a refresh.

        Raises :class:`MissingReferenceError` with the names of all missing objects that are not optional, or if the
        namespace does not allow its Secrets and tokens on the pool.
        """
        namespace, needed = pod["metadata"]["namespace"], references.needed(pod)
        self._check_consent(namespace, pool, needed)
        optional = needed.optional_configmaps
        configmaps, no_configmaps = self._get_objects(CONFIGMAPS, namespace, needed.configmaps, optional)
        secrets, no_secrets = self._get_objects(SECRETS, namespace, needed.secrets, needed.optional_secrets)
        missing = [f"ConfigMap {name}" for name in no_configmaps] + [f"Secret {name}" for name in no_secrets]
        if missing:
            raise MissingReferenceError(f"waiting for {', '.join(missing)} in namespace {namespace}")
        tokens = self._tokens(pod, needed)
        return Objects(configmaps, secrets, tokens.texts), tokens.refresh_in

    def wait_for_reads(self, keys: Iterable[ObjectKey]) -> float:
        """Reserve the reads of objects that are not cached; return the seconds to wait before they are read."""
        now = self._clock.monotonic()
        return max((self._limit.take() for key in keys if self._cached(key, now) is None), default=0.0)

    def reread(self, pod: Pod, pool: str, keys: Iterable[ObjectKey]) -> Reread:
        """Read objects in the pod's volumes. Raises :class:`MissingReferenceError` as :meth:`tokens` does."""
        refs = references.of_volumes(pod)
        self._check_consent(pod["metadata"]["namespace"], pool, refs)
        objects: dict[str, dict[str, Object]] = {CONFIGMAPS.plural: {}, SECRETS.plural: {}}
        problems: list[str] = []
        for plural, namespace, name in sorted(keys):
            optional = refs.optional_configmaps if plural == CONFIGMAPS.plural else refs.optional_secrets
            problem = f"{_KINDS[plural]} {name} does not exist"
            try:
                obj = self._get_object(_RESOURCES[plural], namespace, name)
            except MissingReferenceError as error:
                obj, problem = None, error.with_hint
            if obj is not None:
                objects[plural][name] = obj
            elif name not in optional:
                problems.append(problem)
        return Reread(Objects(objects[CONFIGMAPS.plural], objects[SECRETS.plural]), problems)

    def version(self, key: ObjectKey) -> str:
        """Read the present version of an object, and discard an older one; empty: it does not exist."""
        plural, namespace, name = key
        try:
            # the metadata only: the content, up to 1 MiB, is read when the version differs
            version = _version(self._kube.get(_RESOURCES[plural].path(namespace, name), metadata_only=True))
        except KubeNotFoundError:
            version = ""
        with self._lock:
            if key in self._cache and _version(self._cache[key][1]) != version:
                del self._cache[key]
        return version

    def tokens(self, pod: Pod, pool: str) -> Tokens:
        """Request the pod's service account tokens. They are bound to the pod, and become invalid with its deletion.

        Raises :class:`MissingReferenceError` if the namespace does not allow its tokens on the pool any more.
        """
        needed = references.needed(pod)
        self._check_consent(pod["metadata"]["namespace"], pool, needed)
        return self._tokens(pod, needed)

    def _check_consent(self, namespace: str, pool: str, needed: PodReferences) -> None:
        confidential = consent.confidential(needed)
        if confidential and not consent.lets_secrets_go(self._annotations(namespace), pool):
            raise MissingReferenceError(consent.refusal(namespace, pool, confidential))

    def _tokens(self, pod: Pod, needed: PodReferences) -> Tokens:
        texts: dict[tuple[str, str], str] = {}
        lifetimes: list[float] = []
        for request in needed.tokens:
            texts[request.key], lifetime = self._token(pod, request)
            lifetimes.append(lifetime)
        return Tokens(texts, REFRESH_AT * min(lifetimes) if lifetimes else None)

    def _token(self, pod: Pod, request: TokenRequest) -> tuple[str, float]:
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName") or "default"
        spec: Object = {
            "audiences": [request.audience] if request.audience else [],
            "expirationSeconds": max(SHORTEST, request.expiration_seconds),
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]},
        }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            answer = self._kube.create(SERVICE_ACCOUNTS.path(metadata["namespace"], account, "token"), body)
        except KubeNotFoundError as error:
            raise MissingReferenceError(f"waiting for ServiceAccount {account}, or the pod is gone: {error}") from error
        except KubeForbiddenError as error:
            namespace = metadata["namespace"]
            raise self._missing_binding(f"request a token of ServiceAccount {account}", namespace) from error
        status = answer["status"]
        return status["token"], max(60.0, parse_rfc3339(status["expirationTimestamp"]) - self._clock.time())

    def _get_objects(
        self, kind: Resource, namespace: str, requested: frozenset[str], optional: frozenset[str]
    ) -> tuple[dict[str, Object], list[str]]:
        objects: dict[str, Object] = {}
        missing: list[str] = []
        for name in sorted(requested):
            try:
                obj = self._get_object(kind, namespace, name)
            except MissingReferenceError:
                if name != references.ROOT_CA or name not in optional:
                    raise
                obj = None  # of every pod: a namespace need not let podbridge read its ConfigMaps for that
            if obj is not None:
                objects[name] = obj
            elif name not in optional:
                missing.append(name)
        return objects, missing

    def _annotations(self, namespace: str) -> Mapping[str, str]:
        """Return a namespace's annotations."""
        namespace_object = self._get_object(NAMESPACES, "", namespace)
        annotations: Mapping[str, str] = ((namespace_object or {}).get("metadata") or {}).get("annotations") or {}
        return annotations

    def _get_object(self, kind: Resource, namespace: str, name: str) -> Object | None:
        key = (kind.plural, namespace, name)
        now = self._clock.monotonic()
        if (cached := self._cached(key, now)) is not None:
            return cached[1]
        try:
            obj: Object | None = self._kube.get(kind.path(namespace, name))
        except KubeNotFoundError:
            obj = None
        except KubeForbiddenError as error:
            raise self._missing_binding(f"read {kind.plural}/{name}", namespace) from error
        with self._lock:
            self._cache[key] = (now, obj)
            self._cache.move_to_end(key)
            # the oldest are first, because each read moves its object to the end
            while self._cache and next(iter(self._cache.values()))[0] < now - FRESH:
                self._cache.popitem(last=False)
        return obj

    def _cached(self, key: ObjectKey, now: float) -> tuple[float, Object | None] | None:
        """Return the time of a recent read of an object, and the object."""
        with self._lock:
            cached = self._cache.get(key)
        return cached if cached is not None and now - cached[0] < (MISSING if cached[1] is None else FRESH) else None

    def _missing_binding(self, request: str, namespace: str) -> MissingReferenceError:
        """Return the error for a refusal of the API server: a RoleBinding is missing."""
        installation = self._config.installation
        role, account = names.pools_role(installation), names.part_account("run", installation)
        return MissingReferenceError(
            f"podbridge may not {request} in namespace {namespace}: RoleBinding {role} is missing there",
            hint=f"an administrator allows this with: {installations.pools_binding_command(self._config, namespace)} "
            f"(with podbridge run: add --account {account})",
        )


def keys_of(pod: Pod) -> list[ObjectKey]:
    """Return the ConfigMaps and Secrets in the pod's volumes."""
    refs, namespace = references.of_volumes(pod), pod["metadata"]["namespace"]
    kinds = ((CONFIGMAPS.plural, refs.configmaps), (SECRETS.plural, refs.secrets))
    return [(plural, namespace, name) for plural, object_names in kinds for name in sorted(object_names)]


def versions_of(keys: Iterable[ObjectKey], objects: Objects) -> dict[ObjectKey, str]:
    """Return the versions of objects that may change; empty: the object is missing."""
    objects_by_kind = {CONFIGMAPS.plural: objects.configmaps, SECRETS.plural: objects.secrets}
    objects_by_key = {key: objects_by_kind[key[0]].get(key[2]) for key in keys}
    return {key: _version(obj) for key, obj in objects_by_key.items() if not (obj or {}).get("immutable")}


def _version(obj: Mapping[str, Any] | None) -> str:
    """Return uid and resourceVersion of an object; empty: it does not exist."""
    if obj is None:
        return ""
    metadata = obj.get("metadata") or {}
    return f"{metadata.get('uid', '')}/{metadata.get('resourceVersion', '')}"


class ObjectFollower:
    """Follows the ConfigMaps and Secrets in volumes of pods at sites, which podbridge may neither list nor watch.

    It reads the version of each object, its metadata alone and once for all pods, every ``period`` seconds, or less
    often if the limit of reads requires it.

    ``followed`` returns the objects to follow, with what ``tell`` gets with the version of each.
    """

    def __init__(
        self,
        reader: ReferenceReader,
        followed: Callable[[], Mapping[ObjectKey, Sequence[F]]],
        tell: Callable[[F, ObjectKey, str], None],
        period: float,
        clock: Clock,
    ) -> None:
        self._reader, self._followed, self._tell, self._period, self._clock = reader, followed, tell, period, clock
        self._due: dict[ObjectKey, float] = {}

    def run(self, wait: Callable[[float], bool]) -> None:
        """Follow the objects until ``wait``, which waits for some seconds, returns that the process stops."""
        while not wait(min(TICK, self._period / 4)):
            self.read_due(wait)

    def read_due(self, wait: Callable[[float], bool]) -> None:
        """Read the versions of the objects that are due, the longest overdue first, for at most a period."""
        followed, began = self._followed(), self._clock.monotonic()
        # spread over half a period: after a start, all objects are new at once
        first = {key: began + self._period * random.uniform(0.5, 1) for key in followed.keys() - self._due.keys()}  # noqa: S311
        self._due = {key: self._due[key] for key in followed.keys() & self._due.keys()} | first
        for key in sorted((key for key, due in self._due.items() if due <= began), key=self._due.__getitem__):
            if wait(self._reader.wait_for_reads([key])) or self._clock.monotonic() - began > self._period:
                return
            self._due[key] = self._clock.monotonic() + self._period * random.uniform(1 - JITTER, 1)  # noqa: S311
            try:
                version = self._reader.version(key)
            except KubeError as error:
                log.debug("an object of a volume could not be read", extra=kv(object="/".join(key), error=error))
                continue
            for follower in followed[key]:
                self._tell(follower, key, version)
