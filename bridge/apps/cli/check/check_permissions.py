"""The checks of ``podbridge check`` for permissions: what the shipped roles grant, for each service account.

The role for pools is bound in single namespaces; it is reviewed in those whose annotation sends their pods to pools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any

from admission.webhook_registration import is_managed
from bridge import names
from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.config import installations
from bridge.errors import KubeForbiddenError, KubeNotFoundError
from bridge.kube import access_review
from bridge.kube.resources import CONFIGMAPS, SELF_SUBJECT_ACCESS_REVIEWS, SERVICE_ACCOUNTS

WHAT = "permissions"
PARTS = ("admission", "scheduler", "controllers")
THREADS = 4
"""Reviews at a time; all parts need 200, of 3 ms each."""
SHOWN = 5
"""Number of missing permissions that a finding names."""
FIX = "apply the shipped roles again: helm upgrade, or kubectl apply -k config"

Rule = Mapping[str, Any]


def roles() -> dict[str, list[dict[str, Any]]]:
    """Return the rules of each part, as hack/generate.sh has written them from the shipped roles."""
    text = resources.files("bridge.apps.cli").joinpath("roles.json").read_text()
    rules: dict[str, list[dict[str, Any]]] = json.loads(text)
    return rules


def permissions(session: CommandSession) -> Iterator[Finding]:
    """Review the permissions of podbridge's service accounts that exist; without one, those of this user."""
    try:
        accounts = _accounts(session)
    except KubeForbiddenError:
        accounts = {}
    if not accounts:
        yield from _of_this_user(session)
        return
    for account, parts in accounts.items():
        yield from _of_account(session, account, parts)
        if "controllers" in parts and session.config.pools.enabled:
            yield from _in_namespaces_of_pools(session, account)


def _in_namespaces_of_pools(session: CommandSession, account: str) -> Iterator[Finding]:
    """Review the role for pools in each managed namespace with the annotation for pools."""
    for metadata in session.namespaces:
        name, opened = metadata["name"], names.POOLS in (metadata.get("annotations") or {})
        if opened and is_managed(session.config, name, metadata.get("labels") or {}):
            yield from _in_namespace_of_pools(session, account, name)


def _in_namespace_of_pools(session: CommandSession, account: str, namespace: str) -> Iterator[Finding]:
    rules = [{**rule, "namespace": namespace} for rule in roles()["pools"]]
    user, own_namespace = _user(session, account), session.config.leader_election.namespace
    missing = [
        _name(rule, verb)
        for rule in rules
        for verb in rule["verbs"]
        if not access_review.allowed(session.kube, user, verb=verb, **_attributes(session, rule))
    ]
    if missing:
        text = f"{own_namespace}/{account} lacks: {_text(missing)}; pods on pools wait for what they refer to"
        command = installations.pools_binding_command(session.config, namespace, account)
        yield Finding("warn", WHAT, text, f"rbac.poolNamespaces of the chart, or {command}")
    else:
        yield Finding("ok", WHAT, f"{own_namespace}/{account} may read what pods on pools refer to in {namespace}")


def _accounts(session: CommandSession) -> dict[str, list[str]]:
    """Return the service accounts that exist, and the parts for which each one is."""
    namespace, accounts = session.config.leader_election.namespace, {}
    for part in ("run", *PARTS):
        account = names.part_account(part, session.config.installation)
        try:
            session.kube.get(SERVICE_ACCOUNTS.path(namespace, account))
        except KubeNotFoundError:
            continue
        accounts[account] = list(PARTS) if part == "run" else [part]
    return accounts


def _user(session: CommandSession, account: str) -> dict[str, Any]:
    """Return the user that a service account is for the API server."""
    namespace = session.config.leader_election.namespace
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    return {"username": f"system:serviceaccount:{namespace}:{account}", "groups": groups}


def _of_account(session: CommandSession, account: str, parts: list[str]) -> Iterator[Finding]:
    namespace, user = session.config.leader_election.namespace, _user(session, account)

    def allowed(rule: Rule, verb: str) -> bool:
        return access_review.allowed(session.kube, user, verb=verb, **_attributes(session, rule))

    if missing := _missing(session, parts, allowed):
        yield Finding("FAIL", WHAT, f"{namespace}/{account} lacks: {_text(missing)}", FIX)
    else:
        yield Finding("ok", WHAT, f"{namespace}/{account} has those of {', '.join(parts)}")


def _of_this_user(session: CommandSession) -> Iterator[Finding]:
    def allowed(rule: Rule, verb: str) -> bool:
        attributes = {key: value for key, value in _attributes(session, rule).items() if value} | {"verb": verb}
        body = {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = session.kube.create(SELF_SUBJECT_ACCESS_REVIEWS.path(), body)
        return bool((answer.get("status") or {}).get("allowed"))

    namespace = session.config.leader_election.namespace
    if missing := _missing(session, PARTS, allowed):
        text = f"no service account of podbridge is visible in namespace {namespace}, and this user lacks: "
        yield Finding("warn", WHAT, text + _text(missing), f"run it as an administrator; {FIX}")
    else:
        yield Finding("ok", WHAT, "this user has those of all parts")


def _missing(session: CommandSession, parts: Any, allowed: Any) -> list[str]:
    """Return the permissions that are not granted, as ``verb resource``, in the order of the rules."""
    shipped = roles()
    if "controllers" in parts:
        options = {
            "queues": session.config.queues.enabled,
            "race": session.config.pools.race.enabled,
            "policies": _has_policies(session),
        }
        parts = [*parts, *(part for part, enabled in options.items() if enabled)]
    questions = {
        (json.dumps(rule), verb): rule for part in parts for rule in shipped.get(part, ()) for verb in rule["verbs"]
    }
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(lambda item: allowed(item[1], item[0][1]), questions.items())
        return [
            _name(rule, verb) for ((_, verb), rule), good in zip(questions.items(), answers, strict=True) if not good
        ]


def _has_policies(session: CommandSession) -> bool:
    """Whether the ConfigMap of the policy for guarded nodes exists, which the controllers keep."""
    namespace = session.config.leader_election.namespace
    try:
        session.kube.get(CONFIGMAPS.path(namespace, names.guarded_nodes(session.config.installation)))
    except (KubeNotFoundError, KubeForbiddenError):
        return False  # check_webhook reports missing policies
    return True


def _attributes(session: CommandSession, rule: Rule) -> dict[str, str]:
    """Return the attributes of a review: the names of the objects are those of this installation."""
    namespace, name = rule.get("namespace", ""), rule.get("name", "")
    if namespace == names.SYSTEM_NAMESPACE:
        namespace = session.config.leader_election.namespace
    if name.startswith(f"{names.COMPONENT}-"):
        name = session.config.installation + name.removeprefix(names.COMPONENT)
    return {
        "group": rule.get("group", ""),
        "resource": rule["resource"],
        "subresource": rule.get("subresource", ""),
        "namespace": namespace,
        "name": name,
    }


def _name(rule: Rule, verb: str) -> str:
    sub = f"/{rule['subresource']}" if "subresource" in rule else ""
    scope = f" in {rule['namespace']}" if "namespace" in rule else ""
    return f"{verb} {rule['resource']}{sub}{scope}"


def _text(missing: list[str]) -> str:
    distinct = list(dict.fromkeys(missing))
    more = f" and {len(distinct) - SHOWN} more" if len(distinct) > SHOWN else ""
    return ", ".join(distinct[:SHOWN]) + more
