"""The webhook configurations: which requests the API server sends to podbridge for review.

Each configuration has two kinds of webhook for pods. The API server calls neither for any other pod:

- *managed*: pods in managed namespaces, selected by ``namespaceSelector``.
- *named*: pods in other namespaces that name podbridge's scheduler, selected by the complement of that selector and a
  match condition.

The validating configuration also has the webhook *namespaces*. It reviews namespaces that are not managed and get the
annotation for pools, or that have the annotation and lose the labels that made them managed.

In managed namespaces, the webhook *templates* warns at the creation of a Job, CronJob, JobSet or LeaderWorkerSet of
what will be refused in its pods. It denies nothing, and the API server ignores its failures.

A selector is a conjunction of requirements. Its complement is a disjunction, which a selector cannot express. So there
is one *named* webhook for each requirement: it selects the namespaces that satisfy the previous requirements, but not
this one. The webhooks do not overlap. A list of managed namespaces needs only one.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from admission import review
from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.config import installations
from bridge.config.base import LabelSelector
from bridge.config.hub import Config, protected_namespace, unmanaged_namespaces
from bridge.errors import BridgeError, ConfigError, KubeConflictError, KubeError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource
from bridge.logs import kv
from bridge.serving.certificates import authorities, bundle

log = logging.getLogger(__name__)

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
MUTATE, VALIDATE = "/mutate", "/validate"
NAMED = "/named"
"""Suffix of the path for pods outside the managed namespaces."""
NAMESPACES = "/namespaces"
"""Suffix of the validation path for namespaces that are not managed."""
TEMPLATES = "/templates"
"""Suffix of the validation path for objects with templates of pods."""
TEMPLATES_TIMEOUT = 2
"""Seconds: a warning is not worth the wait that a decision is."""
_NOT_OWNED = "!has(object.metadata.ownerReferences) || object.metadata.ownerReferences.size() == 0"
"""The Jobs of a JobSet repeat its warnings, and only a controller would read them."""
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

Json = dict[str, Any]
Requirement = dict[str, Any]


def managed_requirements(config: Config) -> list[Requirement]:
    """Return the label requirements that select the managed namespaces.

    A label selector never selects :func:`~bridge.config.hub.unmanaged_namespaces`. Raises :class:`ConfigError` if the
    list of managed namespaces contains one of them.
    """
    selector = config.managed_namespace_selector
    if selector is None:
        if problem := protected_namespace(config):
            raise ConfigError(problem)
        return [{"key": NAMESPACE_LABEL, "operator": "In", "values": sorted(config.managed_namespaces)}]
    return [
        *_requirements(selector),
        {"key": NAMESPACE_LABEL, "operator": "NotIn", "values": sorted(unmanaged_namespaces(config))},
    ]


def is_managed(config: Config, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a namespace is managed; the API server evaluates :func:`managed_requirements` to the same result."""
    if config.managed_namespace_selector is None:
        return name in config.managed_namespaces
    return name not in unmanaged_namespaces(config) and config.managed_namespace_selector.matches(labels)


def complements(requirements: list[Requirement]) -> list[list[Requirement]]:
    """Return disjoint lists of requirements that together select what ``requirements`` do not select."""
    return [
        [*requirements[:index], {**requirement, "operator": _OPPOSITE[requirement["operator"]]}]
        for index, requirement in enumerate(requirements)
    ]


def webhooks(config: Config, path: str, ca: bytes, trusted: Iterable[str]) -> list[Json]:
    """Build the ``webhooks`` of the configuration for ``path``, with all defaults that the API server would add."""
    requirements = managed_requirements(config)
    selectors: list[tuple[str, str, list[Requirement]]]
    if not config.managed_namespaces and config.managed_namespace_selector is None:
        # the API refuses an empty list of values; the complement is every namespace
        selectors = [("named", path + NAMED, [])]
    else:
        selectors = [("managed", path, requirements)]
        for index, selector in enumerate(complements(requirements)):
            selectors.append((_numbered("named", index), path + NAMED, selector))
    if path == VALIDATE:
        others = [selector for _, hook_path, selector in selectors if hook_path == path + NAMED]
        selectors += [(_numbered("namespaces", i), path + NAMESPACES, other) for i, other in enumerate(others)]
        managed = [selector for _, hook_path, selector in selectors if hook_path == path]
        selectors += [("templates", path + TEMPLATES, selector) for selector in managed]
    users = sorted(trusted)
    return [_webhook(config, title, hook_path, selector, ca, users) for title, hook_path, selector in selectors]


def _numbered(title: str, index: int) -> str:
    return title if index == 0 else f"{title}-{index + 1}"


def _webhook(config: Config, title: str, path: str, selector: list[Requirement], ca: bytes, trusted: list[str]) -> Json:
    mutating = path.startswith(MUTATE)
    rules = [_rule(["CREATE", "UPDATE"], "pods")]
    if path.endswith(NAMESPACES):
        rules = [_rule(["CREATE", "UPDATE"], "namespaces", scope="Cluster")]
    elif path.endswith(TEMPLATES):
        rules = [_rule(["CREATE"], *resource.split(".", 1)) for resource in sorted(review.TEMPLATES)]
    elif not mutating:
        rules += [_rule(["UPDATE"], "pods/resize"), _rule(["UPDATE"], "pods/ephemeralcontainers")]
    webhook: Json = {
        "name": f"{title}.{'mutate' if mutating else 'validate'}.{names.PERMISSION_GROUP}",
        "clientConfig": _client_config(config, path, ca),
        "rules": rules,
        # a pod that is created without review has no checked annotations, and an admission cannot be revoked
        "failurePolicy": "Ignore" if path.endswith(TEMPLATES) else "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": selector} if selector else {},
        "objectSelector": {},
        "sideEffects": "None",
        "timeoutSeconds": TEMPLATES_TIMEOUT if path.endswith(TEMPLATES) else config.admission.timeout_seconds,
        "admissionReviewVersions": ["v1"],
    }
    if conditions := _match_conditions(config, path, trusted):
        webhook["matchConditions"] = conditions
    if mutating:
        # another webhook may change the pod later, for example its tolerations; the patch is idempotent
        webhook["reinvocationPolicy"] = "IfNeeded"
    return webhook


def _client_config(config: Config, path: str, ca: bytes) -> Json:
    """Return the address of the webhook: ``admission.url``, else the Service."""
    settings = config.admission
    service = {"name": settings.service_name, "namespace": settings.service_namespace, "path": path, "port": 443}
    client: Json = {"url": settings.url.rstrip("/") + path} if settings.url else {"service": service}
    if ca:
        client["caBundle"] = base64.b64encode(ca).decode()
    return client


def _match_conditions(config: Config, path: str, trusted: list[str]) -> list[Json]:
    """Return the CEL conditions of the webhook for ``path``; the API server calls it if all of them are true."""
    conditions = []
    if path.startswith(MUTATE):  # an update changes only the tolerations of a pod without a node
        conditions.append({"name": "is-new-or-is-given-tolerations", "expression": _GIVEN_TOLERATIONS})
    elif path.endswith(NAMESPACES):
        conditions.append({"name": "is-given-pools", "expression": _GIVEN_POOLS})
    elif path.endswith(TEMPLATES):
        conditions.append({"name": "has-no-owner", "expression": _NOT_OWNED})
    elif trusted:
        # podbridge must be able to write to pods while the webhook is down, for example to remove its finalizer
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
        scheduler = json.dumps(config.scheduler_name)
        conditions.append(
            {
                "name": "names-our-scheduler",
                "expression": f"(has(object.spec.schedulerName) && object.spec.schedulerName == {scheduler}) || "
                f"(oldObject != null && has(oldObject.spec.schedulerName) && "
                f"oldObject.spec.schedulerName == {scheduler})",
            }
        )
    return conditions


class WebhookRegistration:
    """Creates, updates and deletes the two webhook configurations."""

    def __init__(
        self, client: KubeClient, config: Config, trusted: Iterable[str] = (), clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._config = config
        self._trusted = sorted(trusted)
        self._clock = clock
        prefix = config.admission.webhook_name
        self.names = {MUTATE: f"{prefix}-mutate", VALIDATE: f"{prefix}-validate"}

    def ensure(self, ca: bytes, *, create: bool) -> list[str]:
        """Update both configurations; return the names of missing ones.

        The CA bundle keeps earlier authorities until they expire, because another replica may still serve a
        certificate that they signed. Without ``create``, a missing configuration is not created: an administrator has
        removed it. Raises ``Kube*`` errors, and :class:`BridgeError` without the permission to create.
        """
        missing = []
        for path, name in self.names.items():
            if not self._ensure_one(path, name, ca, create):
                missing.append(name)
        return missing

    def collisions(self) -> list[str]:
        """Return how this installation collides with others; empty if they cannot be listed."""
        try:
            configurations = self._client.get(MUTATING_WEBHOOKS.path())["items"]
        except KubeError:  # a report alone: admission starts without it
            return []
        installation = installations.of(self._config)
        return [
            f"{name}: {problem}"
            for name, other in installations.others(configurations, self.names[MUTATE])
            if other is not None
            for problem in installations.collisions(installation, other, {})
        ]

    def remove(self) -> list[str]:
        """Delete both configurations; return the names of those that existed."""
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
                    continue  # another replica has created it
                except KubeForbiddenError as error:
                    raise BridgeError(
                        f"webhook configuration {name} does not exist, and podbridge is not allowed to create it",
                        hint="kubectl apply -f config/rbac.yaml creates it",
                    ) from error
                log.info("webhooks registered", extra=kv(configuration=name))
                return True
            desired = self._configuration(path, name, self._trust(live, ca))
            metadata = live["metadata"]
            merged = {
                part: {**(metadata.get(part) or {}), **desired["metadata"][part]} for part in ("labels", "annotations")
            }
            if live.get("webhooks") == desired["webhooks"] and merged["annotations"] == metadata.get("annotations"):
                return True
            desired["metadata"] = {**metadata, **merged}
            try:
                self._client.replace(resource.path(name=name), desired)
            except (KubeConflictError, KubeNotFoundError):
                continue
            log.info("webhooks updated", extra=kv(configuration=name))
            return True
        raise BridgeError(f"webhook configuration {name}: {TRIES} updates in a row conflicted with another writer")

    def _configuration(self, path: str, name: str, ca: bytes) -> Json:
        return {
            "apiVersion": _resource(path).api_version,
            "kind": "MutatingWebhookConfiguration" if path == MUTATE else "ValidatingWebhookConfiguration",
            "metadata": {
                "name": name,
                "labels": {"app.kubernetes.io/name": names.COMPONENT},
                "annotations": {names.INSTALLATION: installations.encode(installations.of(self._config))},
            },
            "webhooks": webhooks(self._config, path, ca, self._trusted),
        }

    def _trust(self, live: Json, ca: bytes) -> bytes:
        """Add ``ca`` to the CA bundle of ``live``; the bytes are the same if nothing is new and nothing has expired."""
        trusted = b""
        for webhook in live.get("webhooks") or ():
            try:
                trusted += base64.b64decode((webhook.get("clientConfig") or {}).get("caBundle") or "", validate=True)
            except ValueError:
                continue
        merged = bundle(self._clock.time(), trusted, needed=ca)
        if set(authorities(ca)) <= set(authorities(merged)):
            return merged
        return bundle(self._clock.time(), ca, trusted, needed=ca)


def _resource(path: str) -> Resource:
    return MUTATING_WEBHOOKS if path == MUTATE else VALIDATING_WEBHOOKS


def _rule(operations: list[str], resource: str, group: str = "", scope: str = "Namespaced") -> Json:
    version = "*" if group else "v1"
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": operations,
        "resources": [resource],
        "scope": scope,
    }


def _requirements(selector: LabelSelector) -> list[Requirement]:
    requirements: list[Requirement] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.match_labels.items())
    ]
    for expression in selector.match_expressions:
        requirement: Requirement = {"key": expression.key, "operator": expression.operator}
        if expression.values:
            requirement["values"] = list(expression.values)
        requirements.append(requirement)
    return requirements
