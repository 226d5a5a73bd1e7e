"""The Services of the cluster that a pod reaches from a site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.script.plan_types import Reach
from bridge.script.runtimes import runtime_table as runtimes
from bridge.script.settings import BuildSettings
from bridge.workload import remote_gangs, services


def make(pod: Mapping[str, Any], config: BuildSettings) -> Reach | None:
    """Return what the script needs; ``None``: the pod reaches none. Raises ``ScriptError`` if it may not."""
    if not services.is_reaching(pod):
        return None
    if not config.limits.allow_reach:
        raise ScriptError(f"annotation {names.REACH} is not allowed at this site (limits.allow_reach is false)")
    if not runtimes.of(config).has_network(config):
        raise ScriptError(f"annotation {names.REACH} is not allowed at this site, whose containers have no network")
    try:
        targets = services.reached(pod)
    except ValueError as error:
        raise ScriptError(str(error)) from error
    places = [
        text for target in targets for text in (services.reached_address(pod, target), str(target.local), target.text)
    ]
    return Reach(places, alone=remote_gangs.place_of(pod) is None)
