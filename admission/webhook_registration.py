"""The webhook configurations: which reviews the API server sends here. Built pure, written only when they differ.

Two kinds of webhook for pods in each configuration, so that no other pod ever waits for podbridge:

- *managed*: pods in managed namespaces, found by ``namespaceSelector``.
- *named*: pods elsewhere that name our scheduler, found by the complement of that selector and a match condition.

Beside them stands *namespaces*, in the validating configuration alone: namespaces that are not managed and are given
the annotation for pools, or lose the labels that made them managed while they have it.

A selector is an AND of requirements; its complement is an OR, which a selector can't say. So there is one *named*
webhook for each requirement: the first ones hold, this one does not. They never overlap, and with the usual list of
namespaces there is just one.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from bridge import names
from bridge.clock import Clock, SystemClock
from bridge.config import Config
from bridge.config_base import LabelSelector
from bridge.errors import BridgeError, ConfigError, KubeConflictError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.client import KubeClient
from bridge.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource
from bridge.logs import kv
from bridge.serving.certificates import authorities, bundle

log = logging.getLogger(__name__)

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
MUTATE, VALIDATE = "/mutate", "/validate"
NAMED = "/named"
"""Added to a path for pods outside the managed namespaces."""
NAMESPACES = "/namespaces"
"""Added to the path of validation for namespaces that are not managed."""
TRIES = 5
_OPPOSITE = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}
_ANNOTATION = json.dumps(names.POOLS)
_GIVEN_POOLS = (
    f"has(object.metadata.annotations) && {_ANNOTATION} in object.metadata.annotations && (oldObject == null || "
    f"object.metadata.annotations[?{_ANNOTATION}] != oldObject.metadata.?annotations[?{_ANNOTATION}] || "
    "object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}))"
)
_GIVEN_TOLERATIONS = (
    "oldObject == null || (!has(object.spec.nodeName) && "
    "object.spec.?tolerations.orValue([]) != oldObject.spec.?tolerations.orValue([]))"
)
_SYSTEM_CLOCK = SystemClock()

Json = dict[str, Any]
Requirement = dict[str, Any]


def managed_requirements(config: Config) -> list[Requirement]:
    """Give the requirements on a namespace's labels that make it a managed one.

    By label selector, never kube-system or podbridge's own namespace: there, a webhook that is down would keep the
    cluster, or podbridge itself, from coming up again.
    """
    selector = config.managed_namespace_selector
    if selector is None:
        if config.admission.url is None and config.admission.service_namespace in config.managed_namespaces:
            raise ConfigError(
                f"managedNamespaces: {config.admission.service_namespace!r} is not allowed: podbridge runs there, and "
                f"its own pods would wait for it; allowed: any other namespace"
            )
        return [{"key": NAMESPACE_LABEL, "operator": "In", "values": sorted(config.managed_namespaces)}]
    return [*_requirements(selector), {"key": NAMESPACE_LABEL, "operator": "NotIn", "values": _spared(config)}]


def is_managed(config: Config, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a namespace is managed, as the API server decides by :func:`managed_requirements`."""
    if config.managed_namespace_selector is None:
        return name in config.managed_namespaces
    return name not in _spared(config) and config.managed_namespace_selector.matches(labels)


def _spared(config: Config) -> list[str]:
    return sorted({"kube-system", "kube-node-lease", config.admission.service_namespace})


def complements(requirements: list[Requirement]) -> list[list[Requirement]]:
    """Give lists of requirements that select exactly what ``requirements`` do not, none of it twice."""
    return [
        [*requirements[:index], {**requirement, "operator": _OPPOSITE[requirement["operator"]]}]
        for index, requirement in enumerate(requirements)
    ]


def webhooks(config: Config, path: str, ca: bytes, trusted: Iterable[str]) -> list[Json]:
    """Build the ``webhooks`` of the configuration for ``path``, every default written out as the API server would."""
    requirements = managed_requirements(config)
    selectors: list[tuple[str, str, list[Requirement]]]
    if not config.managed_namespaces and config.managed_namespace_selector is None:
        selectors = [("named", path + NAMED, [])]  # the API refuses "in nothing"; its opposite is everything
    else:
        selectors = [("managed", path, requirements)]
        for index, selector in enumerate(complements(requirements)):
            selectors.append((_numbered("named", index), path + NAMED, selector))
    if path == VALIDATE:
        others = [selector for _, where, selector in selectors if where == path + NAMED]
        selectors += [(_numbered("namespaces", i), path + NAMESPACES, other) for i, other in enumerate(others)]
    return [_webhook(config, title, where, selector, ca, sorted(trusted)) for title, where, selector in selectors]


def _numbered(title: str, index: int) -> str:
    return title if index == 0 else f"{title}-{index + 1}"


def _webhook(config: Config, title: str, path: str, selector: list[Requirement], ca: bytes, trusted: list[str]) -> Json:
    mutating = path.startswith(MUTATE)
    settings = config.admission
    client: Json = (
        {"url": settings.url.rstrip("/") + path}
        if settings.url
        else {
            "service": {
                "name": settings.service_name,
                "namespace": settings.service_namespace,
                "path": path,
                "port": 443,
            }
        }
    )
    if ca:
        client["caBundle"] = base64.b64encode(ca).decode()
    conditions = []
    rules = [_rule(["CREATE", "UPDATE"], "pods")]
    if mutating:  # of an update, nothing is changed but the tolerations of a pod that waits
        conditions.append({"name": "is-new-or-is-given-tolerations", "expression": _GIVEN_TOLERATIONS})
    if path.endswith(NAMESPACES):
        rules = [_rule(["CREATE", "UPDATE"], "namespaces", "Cluster")]
        conditions.append({"name": "is-given-pools", "expression": _GIVEN_POOLS})
    elif not mutating:
        rules.append(_rule(["UPDATE"], "pods/resize"))
        if trusted:
            # podbridge's own writes must reach pods while the webhook is down: else nothing could be released
            users = ", ".join(json.dumps(user) for user in trusted)
            conditions.append(
                {
                    "name": "not-podbridge-itself",
                    "expression": "request.operation != 'UPDATE' || (has(request.subResource) && "
                    "request.subResource == 'resize') || "
                    f"!(request.userInfo.username in [{users}])",
                }
            )
    if path.endswith(NAMED):
        ours = json.dumps(config.scheduler_name)
        conditions.append(
            {
                "name": "names-our-scheduler",
                "expression": f"(has(object.spec.schedulerName) && object.spec.schedulerName == {ours}) || (oldObject "
                f"!= null && has(oldObject.spec.schedulerName) && oldObject.spec.schedulerName == {ours})",
            }
        )
    webhook: Json = {
        "name": f"{title}.{'mutate' if mutating else 'validate'}.{names.PERMISSION_GROUP}",
        "clientConfig": client,
        "rules": rules,
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": selector} if selector else {},
        "objectSelector": {},
        "sideEffects": "None",
        "timeoutSeconds": settings.timeout_seconds,
        "admissionReviewVersions": ["v1"],
    }
    if conditions:
        webhook["matchConditions"] = conditions
    if mutating:
        webhook["reinvocationPolicy"] = "IfNeeded"
    return webhook


class WebhookRegistration:
    """Keeps the two webhook configurations as they should be."""

    def __init__(
        self, client: KubeClient, config: Config, trusted: Iterable[str] = (), clock: Clock = _SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._config = config
        self._trusted = sorted(trusted)
        self._clock = clock
        prefix = config.admission.webhook_name
        self.names = {MUTATE: f"{prefix}-mutate", VALIDATE: f"{prefix}-validate"}

    def ensure(self, ca: bytes, *, create: bool) -> list[str]:
        """Bring both configurations up to date; gives the names of those that are missing.

        Authorities that the API server trusts already stay until they expire: another replica may still serve a
        certificate of theirs. Without ``create`` a missing configuration is not made: somebody removed it.
        """
        missing = []
        for path, name in self.names.items():
            if not self._ensure_one(path, name, ca, create):
                missing.append(name)
        return missing

    def remove(self) -> list[str]:
        """Delete both configurations; gives the names of those that were there."""
        removed = []
        for path, name in self.names.items():
            try:
                self._client.delete(_resource(path).path(name=name))
            except KubeNotFoundError:
                continue
            removed.append(name)
        return removed

    def _ensure_one(self, path: str, name: str, ca: bytes, create: bool) -> bool:
        resource = _resource(path)
        for _ in range(TRIES):
            try:
                live = self._client.get(resource.path(name=name))
            except KubeNotFoundError:
                if not create:
                    return False
                try:
                    self._client.create(resource.path(), self._configuration(path, name, ca))
                except KubeConflictError:
                    continue  # another replica was faster
                except KubeForbiddenError as error:
                    raise BridgeError(
                        f"webhook configuration {name} does not exist, and may not be created by podbridge",
                        hint="kubectl apply -f helm/rbac.yaml creates it",
                    ) from error
                log.info("webhooks registered", extra=kv(configuration=name))
                return True
            wanted = self._configuration(path, name, self._trust(live, ca))
            if live.get("webhooks") == wanted["webhooks"]:
                return True
            wanted["metadata"] = {
                **live["metadata"],
                "labels": {**(live["metadata"].get("labels") or {}), **wanted["metadata"]["labels"]},
            }
            try:
                self._client.replace(resource.path(name=name), wanted)
            except (KubeConflictError, KubeNotFoundError):
                continue
            log.info("webhooks updated", extra=kv(configuration=name))
            return True
        raise BridgeError(f"webhook configuration {name}: changed by somebody else {TRIES} times in a row")

    def _configuration(self, path: str, name: str, ca: bytes) -> Json:
        return {
            "apiVersion": _resource(path).api_version,
            "kind": "MutatingWebhookConfiguration" if path == MUTATE else "ValidatingWebhookConfiguration",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/name": names.COMPONENT}},
            "webhooks": webhooks(self._config, path, ca, self._trusted),
        }

    def _trust(self, live: Json, ca: bytes) -> bytes:
        """Add ``ca`` to what is trusted already; the same bytes where nothing is new and nothing has expired."""
        trusted = b""
        for webhook in live.get("webhooks") or ():
            try:
                trusted += base64.b64decode((webhook.get("clientConfig") or {}).get("caBundle") or "", validate=True)
            except ValueError:
                continue
        kept = bundle(self._clock.time(), trusted)
        if set(authorities(ca)) <= set(authorities(kept)):
            return kept
        return bundle(self._clock.time(), ca, trusted)


def _resource(path: str) -> Resource:
    return MUTATING_WEBHOOKS if path == MUTATE else VALIDATING_WEBHOOKS


def _rule(operations: list[str], resource: str, scope: str = "Namespaced") -> Json:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": [resource],
        "scope": scope,
    }


def _requirements(selector: LabelSelector) -> list[Requirement]:
    found: list[Requirement] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.match_labels.items())
    ]
    for expression in selector.match_expressions:
        requirement: Requirement = {"key": expression.key, "operator": expression.operator}
        if expression.values:
            requirement["values"] = list(expression.values)
        found.append(requirement)
    return found
