"""The extras of the package: which one has a Python module that is not installed, and how to install it."""

from __future__ import annotations

from bridge.errors import BridgeError

_HUB, _BOTH, _OTEL = ("hub",), ("hub", "plugin"), ("otel",)
MODULES = {
    "cheroot": _BOTH,
    "cryptography": _BOTH,
    "flask": _BOTH,
    "werkzeug": _BOTH,
    "kubernetes": _HUB,
    "opentelemetry": _OTEL,
    "pycurl": _HUB,
    "redis": _HUB,
    "requests": _HUB,
    "urllib3": _HUB,
    "websockets": _HUB,
}
"""The extras of ``pyproject.toml`` that install a module. flask brings werkzeug, kubernetes and requests urllib3."""


class MissingExtraError(BridgeError):
    """A command needs an extra that is not installed."""


def missing_extra(error: ModuleNotFoundError, command: str) -> MissingExtraError | None:
    """Return the error for the user if an extra has the module that an import lacks, else None.

    ``command`` is one of ``podbridge``, for example ``scheduler``. If several extras have the module, that of
    ``plugin`` is ``plugin``, and that of all other commands is ``hub``.
    """
    module = (error.name or "").partition(".")[0]
    extras = MODULES.get(module)
    if extras is None:
        return None
    extra = extras[0] if len(extras) == 1 or command != "plugin" else "plugin"
    return MissingExtraError(f"{module} is not installed; install the extra {extra}: pip install 'podbridge[{extra}]'")
