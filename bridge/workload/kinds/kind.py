"""The interface of a kind of group, and helpers that the modules of the kinds share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.kube.resources import Resource
from bridge.workload.groups import MAX_SIZE, InvalidGroupError

Pod = Mapping[str, Any]
Owner = Mapping[str, Any]
"""The raw object that a group belongs to."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a pod in its group; the fields of :class:`~bridge.workload.groups.Membership`."""

    index: str
    size: int
    minimum: int
    slot: int | None


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of group.

    Attributes
    ----------
    name
        The kind in :class:`~bridge.workload.groups.GroupRef`.
    title
        The Kubernetes kind of the owner.
    resources
        The owner's resource in each API version that podbridge reads, the preferred one first; empty if the group has
        no owner, only a name.
    owner_name
        Returns the name of the group that the pod claims; ``None`` if it claims none of this kind.
    place
        ``place(pod, owner, whole, replicas)`` returns the place of the pod, ``None`` if the pod needs no other pod to
        start. ``whole``: all pods of the owner are one group. ``replicas``: the number of pods that the controller of
        the pod creates, 0 if unknown. Raises :class:`~bridge.workload.groups.InvalidGroupError`.
    opt_in
        Whether pods are a group only if an annotation says so.
    created_first
        Whether users have to create the owner before its pods; other owners create their pods themselves.
    parent
        Returns the resource and the name of the group that contains an owner, or such a group; ``None`` if there is
        none. Raises :class:`~bridge.workload.groups.InvalidGroupError` for a group whose pods cannot share the rules
        of podbridge.
    template
        Returns the resource in each API version and the name of the object from which an owner was made, ``None`` if
        there is none. Its job annotations apply to the pods too, those of the owner have precedence.
    """

    name: str
    title: str
    resources: tuple[Resource, ...]
    owner_name: Callable[[Pod], str | None]
    place: Callable[[Pod, Owner, bool, int], Place | None]
    opt_in: bool = False
    created_first: bool = False
    parent: Callable[[Owner], tuple[Resource, str] | None] = lambda owner: None
    template: Callable[[Owner], tuple[tuple[Resource, ...], str] | None] = lambda owner: None


def label(pod: Pod, name: str) -> str | None:
    """Return a label of the pod; ``None`` if it is absent or empty."""
    return (pod["metadata"].get("labels") or {}).get(name) or None


def annotation(pod: Pod, name: str) -> str | None:
    """Return an annotation of the pod; ``None`` if it is absent or empty."""
    return (pod["metadata"].get("annotations") or {}).get(name) or None


def controller(pod: Pod) -> Mapping[str, Any]:
    """Return the reference to the controlling owner; empty without one."""
    references = pod["metadata"].get("ownerReferences") or ()
    return next((entry for entry in references if entry.get("controller")), {})


def number(text: object) -> int | None:
    """Read a whole number of at least 0; ``None`` for everything else."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    return text if type(text) is int and text >= 0 else None


def required_label(pod: Pod, name: str, writer: str) -> str:
    """Return a label that the ``writer`` sets on the pods of a group; raises :class:`InvalidGroupError` without it."""
    text = label(pod, name)
    if text is None:
        raise InvalidGroupError(f"metadata.labels[{name}]: is missing; {writer} sets it on the pods that it creates")
    return text


def required_number(pod: Pod, name: str, writer: str) -> int:
    """Return the whole number in a required label; raises :class:`InvalidGroupError`."""
    text = required_label(pod, name, writer)
    value = number(text)
    if value is None:
        raise InvalidGroupError(f"metadata.labels[{name}]: {text!r} is not allowed; allowed: a whole number")
    return value


def limited(size: int, field: str) -> int:
    """Return the size if podbridge supports it; raises :class:`InvalidGroupError`."""
    if size > MAX_SIZE:
        raise InvalidGroupError(f"{field}: {size} is not allowed; allowed: at most {MAX_SIZE} pods in a group")
    return size
