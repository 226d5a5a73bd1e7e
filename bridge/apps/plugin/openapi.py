"""The OpenAPI document of the plugin, made from the routes and the models of the bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from bridge import __version__
from bridge.apps.plugin.bodies import HopA, HopB
from bridge.apps.plugin.plugin_app import ROUTES, SESSION, Route
from bridge.interlink.messages import CreateStruct, LogStruct, PingResponse, PodStatus, SystemInfo
from bridge.interlink.objects import NamedPod, StartedPod
from bridge.interlink.pod_spec import Pod

Schema = dict[str, Any]
Mode = Literal["validation", "serialization"]

_BODIES: tuple[Any, ...] = (
    *(HopB, HopA, Pod, NamedPod, StartedPod, LogStruct),
    *(CreateStruct, PodStatus, PingResponse, SystemInfo),
)
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_ERRORS = {
    "400": "The body is invalid; the text has the path of the field. Or a container waits to start.",
    "401": "The bearer token or the client certificate is missing or wrong.",
    "403": "The job belongs to another owner, or the request is that of a web page (header Origin).",
    "404": "There is no such job or container.",
    "409": "The pod was cancelled before, and its job is not submitted again.",
    "411": "The request has no Content-Length.",
    "413": "The body is larger than 64 MiB, or larger than the site accepts.",
    "415": "The Content-Type of the body is not JSON.",
    "421": "The plugin has a loopback address, and the header Host has another name.",
    "422": "The pool cannot run this pod, or the pod does not name one of the pools.",
    "429": "Too many logs are being sent.",
    "502": "The site's answer cannot be used.",
    "503": "The site does not answer, or cannot process the request now.",
    "504": "The site may have processed the request, and did not answer in time.",
}


@dataclass(frozen=True, slots=True)
class _About:
    """What the document says about one route."""

    summary: str
    answer: Schema
    text: bool = False
    body: Schema | None = None
    required: bool = True
    errors: tuple[str, ...] = ()
    """Besides those that every route has."""


def _ref(model: type) -> Schema:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _one_or_list(item: Schema) -> Schema:
    return {"anyOf": [*item["anyOf"], {"type": "array", "items": item, "minItems": 1}]}


_CREATION = {"anyOf": [_ref(HopB), _ref(HopA), _ref(Pod)]}
_PING = _ref(PingResponse)
_EVERY = ("401", "403", "411", "413", "415", "421")
_SITE_ERRORS = ("422", "502", "503", "504")
_ABOUT = {
    "/create": _About(
        "Submit a pod. An API server sends the objects of each container, a virtual kubelet all objects of the pod.",
        {"anyOf": [_ref(CreateStruct), {"type": "array", "items": _ref(CreateStruct)}]},
        body=_one_or_list(_CREATION),
        errors=("400", "409", *_SITE_ERRORS),
    ),
    "/delete": _About(
        "Cancel the job of a pod, and delete its files once it has ended.",
        {"type": "string"},
        text=True,
        body=_ref(NamedPod),
        errors=("400", "404", *_SITE_ERRORS),
    ),
    "/status": _About(
        "Report the state of pods. An empty list, or no body, is a ping.",
        {"anyOf": [{"type": "array", "items": _ref(PodStatus)}, _PING]},
        body={"anyOf": [{"type": "array", "items": _ref(StartedPod)}, _ref(StartedPod), {"type": "null"}]},
        required=False,
        errors=("400", *_SITE_ERRORS),
    ),
    "/getLogs": _About(
        "Send the log of a container, in chunks.",
        {"type": "string"},
        text=True,
        body=_ref(LogStruct),
        errors=("400", "404", "422", "429", "502", "503", "504"),
    ),
    "/system-info": _About("Report the state of the batch systems.", _ref(SystemInfo)),
    "/resources": _About(
        "Report the free resources as a flat map, as NuNet's plugin does, for example `nunet.cpu.cores`.",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        errors=("503",),
    ),
    "/pinglink": _About("Report resources and taints.", _PING, errors=("503",)),
    "/updateCache": _About(
        "Do nothing: an API server forgets a pod here, and the plugin caches none.", {"type": "string"}, text=True
    ),
}


def document() -> Schema:
    """Return the document, OpenAPI 3.1."""
    kinds: list[tuple[str, Mode, TypeAdapter[Any]]] = [
        (kind.__name__, "validation", TypeAdapter(kind)) for kind in _BODIES
    ]
    _, definitions = TypeAdapter.json_schemas(kinds, ref_template="#/components/schemas/{model}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "podbridge plugin: interLink's REST API",
            "version": __version__,
            "description": "Both hops of interLink: an API server or a virtual kubelet may be the client. Every answer "
            "without an error has the status 200. Unknown keys are ignored.",
        },
        "paths": {route.path: _path(route) for route in ROUTES},
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}},
        },
        "security": [{"token": []}, {"certificate": []}, {}],
    }


def _path(route: Route) -> Schema:
    about = _ABOUT[route.path]
    kind = "text/plain" if about.text else "application/json"
    operation: Schema = {
        "summary": about.summary,
        "parameters": [
            {"name": SESSION, "in": "header", "required": False, "schema": {"type": "string", "pattern": r"^[!-~]*$"}}
        ],
        "responses": {
            "200": {"description": "Success.", "content": {kind: {"schema": about.answer}}},
            **{code: {"description": _ERRORS[code], "content": _TEXT} for code in (*_EVERY, *about.errors)},
        },
    }
    if about.body is not None:
        operation["requestBody"] = {"required": about.required, "content": {"application/json": {"schema": about.body}}}
    return {
        method.lower(): {**operation, "operationId": f"{route.handler}-{method.lower()}"} for method in route.methods
    }
