"""The place of a pod in the one job of its group at a pool, as an annotation of the bound pod. Pure.

The scheduler binds all members of a group to one pool and writes the annotation with each Binding; if the group races,
it writes the annotation with the places of the race. The site submits the job of the group once it has the scripts of
all ``size`` members. A pod that is created for a member that is over gets its rank in the same job. If a later leader
could choose other members, the scheduler writes the annotation to all waiting pods of the group before the first
Binding: the write makes the Bindings fail that a former leader still has on the way.

Of a group that races, the Binding of the pod with rank 0 is the grant of all. So its successor does not get this rank:
the group gets another gang.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names

Pod = Mapping[str, Any]

MOST_MEMBERS = 9999
"""Members of the job of a group at a site."""
_TEXT = re.compile(r"([0-9A-Za-z][0-9A-Za-z-]{0,63})/([0-9]{1,4})/([0-9]{1,4})")
_RUN = re.compile(r"([0-9]{1,4})x([0-9a-f]{16})")
MOST_COMPONENTS = 128
"""Components of a heterogeneous job, of Slurm: ``MAX_HET_JOB_COMPS``."""
_LONGEST_SHAPES = MOST_COMPONENTS * 22
_CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True)
class Place:
    """``rank`` is from 0 to ``size - 1`` and differs between the members of ``gang`` that have not ended.

    ``shapes``: of a heterogeneous job, the shapes of the members (:func:`bridge.workload.links.shape`) by rank: a
    successor has that of its rank. Empty: all members request the same.
    """

    gang: str
    rank: int
    size: int
    shapes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The value of the annotation; empty for :data:`NOWHERE`."""
        return f"{self.gang}/{self.rank}/{self.size}" if self.gang else ""

    def annotations(self, pod: Pod) -> dict[str, str]:
        """Return the annotations for a pod; a Binding removes none, so those of an earlier race become empty."""
        runs = ",".join(f"{len([*run])}x{shape}" for shape, run in itertools.groupby(self.shapes))
        is_set = runs or names.SHAPES_IN_JOB in (pod["metadata"].get("annotations") or {})
        return {names.PLACE_IN_JOB: self.text, **({names.SHAPES_IN_JOB: runs} if is_set else {})}

    def is_recorded(self, pod: Pod) -> bool:
        """Whether a pod has these annotations."""
        return self.annotations(pod).items() <= (pod["metadata"].get("annotations") or {}).items()


NOWHERE = Place("", 0, 0)
"""Of a waiting pod of a group that is left out of the job."""


def place_of(pod: Pod) -> Place | None:
    """Return the place in the annotation; ``None`` without one, or if it is invalid.

    Only podbridge writes the annotation. The site accepts only members of one namespace in a gang.
    """
    text = (pod["metadata"].get("annotations") or {}).get(names.PLACE_IN_JOB)
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    size = int(match[3])
    place = Place(match[1], int(match[2]), size, _shapes(pod, size))
    return place if place.rank < place.size and place.size > 1 else None


def alike(pod: Pod) -> int:
    """Return the number of pods in the job of the pod's group that request the same, with the pod."""
    place = place_of(pod)
    return 1 if place is None else place.shapes.count(place.shapes[place.rank]) if place.shapes else place.size


def has_record(pod: Pod) -> bool:
    """Whether a place was recorded for the pod, if only :data:`NOWHERE`."""
    return names.PLACE_IN_JOB in (pod["metadata"].get("annotations") or {})


def _shapes(pod: Pod, size: int) -> tuple[str, ...]:
    """Return the shapes in the annotation by rank; none without one, or if it is invalid."""
    text = (pod["metadata"].get("annotations") or {}).get(names.SHAPES_IN_JOB)
    runs = text.split(",") if isinstance(text, str) and len(text) < _LONGEST_SHAPES else ()
    shapes = list[str]()
    for run in runs:
        match = _RUN.fullmatch(run)
        if match is None or len(shapes) >= size:
            return ()
        shapes += [match[2]] * int(match[1])
    return tuple(shapes) if len(shapes) == size else ()


def gang_of(pod: Pod) -> str:
    """Return the name of the job in the annotation; empty without one."""
    place = place_of(pod)
    return place.gang if place is not None else ""


def per_node(pod: Pod) -> int:
    """Return the number of members that may share a machine; 1 for an invalid value, which admission refuses."""
    text = (pod["metadata"].get("annotations") or {}).get(names.MEMBERS_PER_NODE, "1")
    return max(1, int(text)) if re.fullmatch("[0-9]{1,4}", text) else 1


def mpi(pod: Pod) -> str:
    """Return how the members form one MPI job, one of :data:`bridge.names.MPI_WAYS`; admission refuses other values."""
    text = (pod["metadata"].get("annotations") or {}).get(names.MPI, "none")
    return text if text in names.MPI_WAYS else "none"


def rendezvous(pod: Pod) -> frozenset[str]:
    """Return what the containers of the pod get, of :data:`bridge.names.RENDEZVOUS_WAYS`; raises ``ValueError``."""
    text = (pod["metadata"].get("annotations") or {}).get(names.RENDEZVOUS)
    if text is None:
        return frozenset()
    ways = [way.strip() for way in text.split(",")]
    if not all(way in names.RENDEZVOUS_WAYS for way in ways):
        allowed = ", ".join(names.RENDEZVOUS_WAYS)
        raise ValueError(f"annotation {names.RENDEZVOUS}: {text[:100]!r} is not allowed; allowed: {allowed}, or both")
    return frozenset(ways)


def group_size(pod: Pod) -> int:
    """Return the size in the annotation that admission writes to the pods of a group; 1 without a valid one."""
    try:
        value = json.loads((pod["metadata"].get("annotations") or {}).get(names.GROUP, "{}"))
    except (TypeError, ValueError, RecursionError):
        return 1
    size = value.get("size") if isinstance(value, dict) else None
    return size if type(size) is int else 1


def host_names(pod: Pod) -> list[str]:
    """Return the names under which Kubernetes makes the pod known, the shortest last: there is no DNS at a site.

    ``hostname`` and ``subdomain`` of the pod give its stable name, as of JobSet, LeaderWorkerSet and indexed Jobs.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    name, namespace = str(metadata["name"]), str(metadata["namespace"])
    host, subdomain = str(spec.get("hostname") or name), spec.get("subdomain")
    result = []
    if subdomain:
        short = f"{host}.{subdomain}"
        result = [
            f"{short}.{namespace}.svc.{_CLUSTER_DOMAIN}",
            f"{short}.{namespace}.svc",
            f"{short}.{namespace}",
            short,
        ]
    # a name of a pod may have dots, and is then no name of a host that Kubernetes gives
    return [*result, *dict.fromkeys(text for text in (host, name) if "." not in text)]
