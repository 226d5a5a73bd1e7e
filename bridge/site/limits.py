"""Requests that exceed what a flavor allows: checked by the hub, and again here, as a hub may be compromised. Pure."""

from __future__ import annotations

from bridge.errors import SiteRefusedError
from bridge.script.buildconfig import Flavor
from bridge.wire.messages import Submit
from bridge.workload import quantity


def check(body: Submit, flavor: Flavor | None, default_flavor: str) -> None:
    """Raise :class:`SiteRefusedError` if a job asks for more than the flavor's ``max_resources``.

    A flavor without any sets no limit. The default flavor takes what no flavor covers, so that of it only GPUs are
    checked.
    """
    if flavor is None or not flavor.max_resources:
        return
    asked = {"cpu": body.cpus, "memory": body.memory} if flavor.name != default_flavor else {}
    if body.gpus:
        asked[body.gpu_resource] = body.gpus
        if body.gpu_resource not in flavor.max_resources:
            raise _no(flavor, body.gpu_resource, body.gpus, "none")
    for name, value in asked.items():
        most = flavor.max_resources.get(name)
        if most is not None and value > quantity.parse(most):
            raise _no(flavor, name, value, f"at most {most}")


def _no(flavor: Flavor, name: str, value: int, allowed: str) -> SiteRefusedError:
    return SiteRefusedError(
        f"flavor {flavor.name}: {name} {value} is not allowed at this site; allowed: {allowed}", reason="OverLimit"
    )
