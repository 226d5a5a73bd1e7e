"""Pods and nodes of an API server in memory, the caches of them, and the count of the hub's writes.

See :mod:`tests.fakes.memory_hub`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from bridge import clock as clocks
from bridge import names
from bridge.core import isolation
from bridge.errors import KubeConflictError, KubeNotFoundError, KubeUnavailableError
from bridge.kube.object_store import Change, Object, ObjectStore, number
from bridge.kube.responses import error_of_status
from bridge.workload import pods
from tests.fakes.clock import FakeClock

T = TypeVar("T")


class Killed(BaseException):
    """The process was killed with SIGKILL between two writes; no handler of the product catches it."""


@dataclass
class Writes:
    """Counts the writes of the hub, and kills it after the next ``kill_after`` ones.

    ``faults`` are what happens to the next writes: ``refused`` is not carried out, ``unanswered`` is.
    """

    count: int = 0
    kill_after: int | None = None
    faults: list[str] = field(default_factory=list)

    def answered(self, write: Callable[[], T], error: Callable[[str], Exception]) -> T:
        """Carry out a write; raise the error if its answer is lost."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refused":
            raise error("503")
        answer = write()
        if fault:
            raise error("no answer")
        return answer

    def done(self) -> None:
        self.count += 1
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.kill_after = None
                raise Killed


class MemoryCache(ObjectStore):
    """A cache that gets its changes from :meth:`MemoryKube.deliver`."""

    synced = True
    listing = False

    def __init__(self, objects: list[Object], pick: Callable[[Object], bool] = lambda _: False) -> None:
        super().__init__(pick)
        self._subscribers: list[Callable[..., None]] = []
        self.replace(objects)

    def age(self) -> float:
        return 0.0

    def request_version(self) -> int:
        return max((number(obj["metadata"]["resourceVersion"]) for obj in self.items()), default=1)

    def subscribe(self, fn: Callable[..., None]) -> None:
        for obj in self.items():
            fn("add", None, obj)
        self._subscribers.append(fn)

    def deliver(self, obj: Object, *, gone: bool) -> None:
        changes: list[Change] = self.remove(obj) if gone else self.put(obj)
        for change in changes:
            for fn in self._subscribers:
                try:
                    fn(*change)
                except Exception as error:
                    isolation.report("subscriber", obj["metadata"]["name"], error)


class MemoryKube:
    """Pods and nodes by path, with resource versions, finalizers and preconditions; deletions as the API server's."""

    def __init__(self, writes: Writes, clock: FakeClock | None = None) -> None:
        self.objects: dict[str, Object] = {}
        self.changes: list[tuple[Object, bool]] = []
        self.copies_labels = True
        """Whether a Binding's labels go to the pod: API servers from 1.33 on."""
        self.on_bind: Callable[[Object, str], None] = lambda pod, node: None
        self.on_delete: Callable[[Object], None] = lambda pod: None
        """Called with the pod right before the hub binds or deletes it."""
        self.writes, self._version, self._clock = writes, 0, clock or FakeClock()

    def fenced(self, check: Callable[[], None]) -> FencedKube:
        return FencedKube(self, check)

    def stamp(self, later: float = 0) -> str:
        """Return the time of the API server, which has a clock of its own."""
        return clocks.rfc3339(self._clock.monotonic() + later)

    def put(self, path: str, obj: Object) -> Object:
        """Store an object without counting a write of the hub; remove it if it is deleted and nothing keeps it."""
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        meta = obj["metadata"]
        ended = not pods.is_bound(obj) or pods.is_finished(obj) if obj["kind"] == "Pod" else True
        gone = bool(meta.get("deletionTimestamp")) and not meta.get("finalizers") and ended
        if gone:
            self.objects.pop(path, None)
        else:
            self.objects[path] = obj
        self.changes.append((copy.deepcopy(obj), gone))
        return copy.deepcopy(obj)

    def pods(self) -> list[Object]:
        return [obj for path, obj in self.objects.items() if "/pods/" in path]

    def get(self, path: str, params: Object | None = None, *, metadata_only: bool = False) -> Object:
        """Return an object or a list, of pods with the field selectors and the paging of the API server."""
        if path in self.objects:
            return copy.deepcopy(self.objects[path])
        if path.endswith("/deviceclasses"):
            return {"items": []}
        if path.endswith("/pods"):
            params = params or {}
            found = (
                self.pods()
                if path == "/api/v1/pods"
                else [o for p, o in self.objects.items() if p.startswith(path + "/")]
            )
            found = [o for o in found if _is_selected(o, params.get("fieldSelector", ""))]
            begin = int(params.get("continue", 0))
            end = begin + params.get("limit", len(found))
            items = [{"metadata": o["metadata"]} if metadata_only else o for o in found[begin:end]]
            metadata = {"continue": str(end)} if end < len(found) else {}
            return {"metadata": metadata, "items": copy.deepcopy(items)}
        raise KubeNotFoundError(path)

    def _of(self, path: str) -> tuple[str, Object]:
        path = path.removesuffix("/status").removesuffix("/binding")
        if path not in self.objects:
            raise KubeNotFoundError(path)
        return path, copy.deepcopy(self.objects[path])

    def patch(self, path: str, patch: Object, kind: str = "merge") -> Object:
        del kind
        path, obj = self._of(path)
        wanted = patch.get("metadata", {})
        _check(obj, wanted, patched=True)
        meta = obj["metadata"]
        dropped = wanted.get("$deleteFromPrimitiveList/finalizers", [])
        kept = [name for name in meta.get("finalizers", []) if name not in dropped]
        meta["finalizers"] = kept + [name for name in wanted.get("finalizers", []) if name not in kept]
        for part in ("labels", "annotations"):
            meta[part] = _merged(meta.get(part), wanted.get(part))
        obj["spec"] = {**obj["spec"], **(patch.get("spec") or {})}
        status = dict(patch.get("status") or {})
        conditions = {entry["type"]: entry for entry in obj["status"].get("conditions", [])}
        conditions |= {entry["type"]: entry for entry in status.pop("conditions", [])}
        obj["status"] = {**obj["status"], **status, "conditions": list(conditions.values())}
        answer = self.put(path, obj)
        self.writes.done()
        return answer

    def create(self, path: str, body: Object) -> Object:
        """Create a Binding; the API server refuses it for a pod that is deleted or bound."""
        path, obj = self._of(path)
        _check(obj, body["metadata"])
        if pods.is_deleted(obj) or pods.is_bound(obj):
            raise KubeConflictError(f"{path} is deleted or bound")
        obj["metadata"]["annotations"] = _merged(obj["metadata"].get("annotations"), body["metadata"]["annotations"])
        if self.copies_labels:
            obj["metadata"]["labels"] = _merged(obj["metadata"].get("labels"), body["metadata"].get("labels"))
        self.on_bind(obj, body["target"]["name"])
        obj["spec"]["nodeName"] = body["target"]["name"]
        scheduled = {"type": names.POD_SCHEDULED, "status": "True", "lastTransitionTime": self.stamp()}
        others = [entry for entry in obj["status"].get("conditions", ()) if entry["type"] != names.POD_SCHEDULED]
        obj["status"]["conditions"] = [*others, scheduled]
        answer = self.put(path, obj)
        self.writes.done()
        return answer

    def delete(self, path: str, options: Object | None = None) -> None:
        path, obj = self._of(path)
        _check(obj, (options or {}).get("preconditions", {}))
        self.on_delete(obj)
        self.request_deletion(path, (options or {}).get("gracePeriodSeconds"))
        self.writes.done()

    def request_deletion(self, path: str, grace: int | None = None) -> None:
        """Delete a pod as a user does: not a write of the hub. A later deletion only shortens the grace period."""
        path, obj = self._of(path)
        meta = obj["metadata"]
        if "deletionTimestamp" not in meta:
            given = obj["spec"].get("terminationGracePeriodSeconds", pods.DEFAULT_GRACE) if grace is None else grace
            given = given if pods.is_bound(obj) and not pods.is_finished(obj) else 0
            meta |= {"deletionTimestamp": self.stamp(given), "deletionGracePeriodSeconds": given}
        elif grace is not None and grace < (before := meta.get("deletionGracePeriodSeconds", 0)):
            began = clocks.parse_rfc3339(meta["deletionTimestamp"]) - before
            meta |= {"deletionTimestamp": clocks.rfc3339(began + grace), "deletionGracePeriodSeconds": grace}
        self.put(path, obj)


class FencedKube:
    """The client of a leader: ``check`` runs before every write, and raises if the lease is lost."""

    def __init__(self, kube: MemoryKube, check: Callable[[], None]) -> None:
        self._kube, self._check = kube, check

    def get(self, path: str, params: Object | None = None, *, metadata_only: bool = False) -> Object:
        return self._kube.get(path, params, metadata_only=metadata_only)

    def patch(self, path: str, patch: Object, kind: str = "merge") -> Object:
        self._check()
        return self._kube.writes.answered(lambda: self._kube.patch(path, patch, kind), KubeUnavailableError)

    def create(self, path: str, body: Object) -> Object:
        self._check()
        return self._kube.writes.answered(lambda: self._kube.create(path, body), KubeUnavailableError)

    def delete(self, path: str, options: Object | None = None) -> None:
        self._check()
        self._kube.writes.answered(lambda: self._kube.delete(path, options), KubeUnavailableError)


def _is_selected(obj: Object, selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        field, _, value = term.partition("=")
        part, name = field.removesuffix("!").split(".")
        if (obj[part].get(name, "") == value) == field.endswith("!"):
            return False
    return True


def _check(obj: Object, wanted: Object, *, patched: bool = False) -> None:
    """Refuse a write whose preconditions do not hold; for a patch, another UID is an invalid field."""
    meta = obj["metadata"]
    changed = [name for name in ("resourceVersion", "uid") if name in wanted and wanted[name] != meta[name]]
    if changed == ["uid"] and patched:
        details = {"causes": [{"field": "metadata.uid", "message": "field is immutable"}]}
        raise error_of_status("PATCH", 422, {"kind": "Status", "reason": "Invalid", "details": details})
    if changed:
        raise KubeConflictError(f"{meta['name']} has changed")


def _merged(old: Object | None, new: Object | None) -> Object:
    return {name: value for name, value in {**(old or {}), **(new or {})}.items() if value is not None}
