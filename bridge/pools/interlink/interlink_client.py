"""The client of interLink's REST API, for a plugin (hop B) and for an API server (hop A).

Plugins differ. Some accept only POST where interLink sends GET, older ones a list as the body of ``/create``, and some
answer ``/status`` only for the first pod. The client finds out by one more request. It remembers the form that the
plugin has accepted, and tries the other one again when the plugin, for example a new version of it, refuses that form.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import requests
from pydantic import ValidationError

from bridge.clock import Clock
from bridge.config.interlink import InterlinkSection
from bridge.errors import SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.interlink import messages, ping
from bridge.interlink.job_status import job_status
from bridge.interlink.log_options import sent_options
from bridge.interlink.objects import ObjectPart
from bridge.logs import kv
from bridge.pools.interlink.interlink_exchange import Exchange
from bridge.pools.interlink.interlink_transport import Answer, LogPieces, PluginTransport, ServerError, begun, refusal
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import LogOptions
from bridge.telemetry.metrics import POOL_MESSAGES_UNUSABLE

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]
Message = TypeVar("Message", bound=ObjectPart)

LEAST_STATUS, STATUS_OF_POD = 8 << 20, 1 << 16
"""Bytes of an answer with states, at most: some plugins answer for more pods than the requested ones. And bytes more
for each requested pod. As data, an answer takes up to twenty times its size."""
_NOT_METHOD = frozenset({400, 404, 405, 411, 415, 422, 501})
"""HTTP statuses of a server that accepts only POST."""
_MALFORMED = frozenset({400, 415, 422})
_NO_LONGER = _MALFORMED | {405}
"""HTTP statuses of a server that has accepted a method and now may accept only another one."""
_REFUSES = {
    "object": re.compile(
        r"unmarshal object into Go value of type \[\]|(valid|expected|must be|not) an? (json )?(list|array)|list_type",
        re.I,
    ),
    "list": re.compile(
        r"unmarshal array into Go value of type [^\[]|(valid|expected|must be|not) an? (json )?(object|dict)|dict_type",
        re.I,
    ),
}
"""Texts with which a plugin refuses a form of the body of ``/create``. Go plugins do so with status 500."""
ANSWERED = "exit status"
"""Part of the text with which an API server passes on that its plugin has answered with an error."""


@dataclass(frozen=True, slots=True)
class Ping:
    """The answer to a ping. ``response`` is empty if the answer has no resources and taints.

    ``degraded``: the plugin answered with an error, or with invalid values, which are left out. It runs, but its ping
    does not work.
    """

    response: messages.PingResponse
    degraded: str = ""


class PluginClient:
    """Requests to one plugin or API server. Raises :class:`SiteError`."""

    def __init__(self, section: InterlinkSection, transport: PluginTransport, clock: Clock) -> None:
        self._section, self._transport, self._clock = section, transport, clock
        self._lock = threading.Lock()
        self._methods: dict[str, str] = {}
        # an API server has only one form of the body
        self._forms: tuple[str, ...] = ("object",) if section.api == "server" else ("object", "list")

    # --- ping ---------------------------------------------------------------------------------------------------------
    def ping(self) -> Ping:
        """Ping the plugin, through the API server if there is one."""
        if self._section.api == "server":
            return self._ping(self._transport.request("POST", "/pinglink", operation="PingInterLink"))
        return self._ping(self._read("/status", [], "PingInterLink"))

    def _ping(self, answer: Answer) -> Ping:
        if answer.ok:
            return self._pong(answer)
        error = refusal(answer)
        # an API server passes on the status of the plugin, and answers 500 if there is no plugin
        # a plugin made with interLink's SDK fails at the empty list of a ping, with status 500: it runs
        plugin_answered = ANSWERED in answer.text if self._section.api == "server" else answer.status == 500
        if isinstance(error, SiteDownError) or (answer.status == 500 and not plugin_answered):
            raise SiteDownError(f"{error}") from error
        if answer.status < 500 and answer.status not in (400, 422):
            raise error
        return Ping(messages.PingResponse(), f"HTTP {answer.status}")

    def _pong(self, answer: Answer) -> Ping:
        if answer.is_page:
            answer.json()  # raises: a login page
        content: Any = None
        with contextlib.suppress(SiteError):  # interLink accepts any text
            content = answer.json()
        if not isinstance(content, dict):
            return Ping(messages.PingResponse())
        response, invalid = ping.response(content)
        if invalid:
            _unusable("ping")
        return Ping(response, invalid and f"invalid values: {invalid}")

    # --- pods ---------------------------------------------------------------------------------------------------------
    def create(self, body: messages.RetrievedPodData | messages.PodCreateRequests, job: str, timeout: float) -> str:
        """Create a pod; return the batch system's name of its job.

        Raises SiteUnknownOutcomeError unless the plugin has certainly created the pod, or certainly not.
        """
        content = messages.as_json(body)
        if isinstance(body, messages.RetrievedPodData):
            # interLink's API server always sends this key, with zero values if it has no builder
            content.setdefault("jobConfig", messages.NO_BUILDER)
        form, *others = self._forms
        answer = self._create(form, content, timeout)
        for other in others:
            if not self._refuses(form, answer):
                break
            second_answer = self._create(other, content, timeout)
            # if the plugin refuses both forms, the pod is malformed, not the form
            if answer.status == 500 or not self._refuses(other, second_answer):
                answer = second_answer
            if second_answer.ok:
                self._forms = other, form
                log.info("form of the body of /create", extra=kv(pool=self._section.name, form=other))
        if not answer.ok:
            error = refusal(answer, writes=True)
            if isinstance(error, ServerError) and self._section.api == "server":
                error.answered = ANSWERED in answer.text
            raise error
        try:
            answer_content = answer.json()
        except SiteRefusedError:
            raise
        except SiteError as error:
            raise SiteUnknownOutcomeError(str(error)) from error
        for entry in answer_content if isinstance(answer_content, list) else [answer_content]:
            created = _message(messages.CreateStruct, entry)
            if created is not None and created.pod_uid == job:
                return created.pod_jid
        raise SiteUnknownOutcomeError(
            f"{answer.request_name}: the answer does not name pod {job}: {answer.text[:100]!r}"
        )

    def _create(self, form: str, content: Any, timeout: float) -> Answer:
        body = [content] if form == "list" else content
        return self._transport.request("POST", "/create", body, operation="CreatePod", timeout=timeout, writes=True)

    @staticmethod
    def _refuses(form: str, answer: Answer) -> bool:
        """Whether the plugin has refused this form of the body, and so has certainly not created the pod."""
        return answer.status in _MALFORMED or (answer.status == 500 and bool(_REFUSES[form].search(answer.text)))

    def delete(self, pod: Pod) -> None:
        """Delete a pod: its job and its files."""
        method = "DELETE" if self._section.api == "server" else "POST"
        answer = self._transport.request(method, "/delete", pod, operation="DeletePod", writes=True)
        if not answer.ok:
            raise refusal(answer, writes=True)
        if answer.is_page:
            answer.json()  # raises: a login page

    def statuses(self, pods: Sequence[Pod]) -> dict[str, JobStatus | None]:
        """Return the states of jobs by UID; ``None``: the plugin does not know the job.

        A job without a valid answer is absent from the result. Some plugins answer only for the first of several pods,
        so pods that are missing in an answer are requested one by one. If the plugin refuses a request about several
        pods, each half is requested.
        """
        answer = self._read("/status", [_sent(pod) for pod in pods], "GetStatus")
        if not answer.ok:
            if len(pods) == 1 and self._does_not_know(pods[0], answer):
                return {pods[0]["metadata"]["uid"]: None}
            error = refusal(answer)
            if len(pods) == 1 or isinstance(error, SiteDownError) or answer.status < 400 or answer.status in (401, 403):
                raise error
            middle = len(pods) // 2
            return self._request_parts({}, (pods[:middle], pods[middle:]))
        statuses, is_valid = self._states(pods, self._entries(answer))
        missing_pods = [pod for pod in pods if pod["metadata"]["uid"] not in statuses]
        if len(pods) == 1:
            # an answer about another pod says nothing about this one
            return statuses | {pod["metadata"]["uid"]: None for pod in missing_pods if is_valid}
        return self._request_parts(statuses, [[pod] for pod in missing_pods])

    def _request_parts(
        self, statuses: dict[str, JobStatus | None], parts: Iterable[Sequence[Pod]]
    ) -> dict[str, JobStatus | None]:
        """Return ``statuses`` and the states of several requests, without the pods of a request that fails.

        Raises the first error if there is no state at all. Failed requests may take as long as two time-outs together;
        then the rest waits for the next poll.
        """
        statuses, first_error, seconds_lost = dict(statuses), None, 0.0
        for part in parts:
            began = self._clock.monotonic()
            try:
                statuses.update(self.statuses(part))
            except SiteError as error:
                log.debug("no state", extra=kv(pods=[pod["metadata"]["name"] for pod in part], error=error))
                first_error, seconds_lost = first_error or error, seconds_lost + self._clock.monotonic() - began
                if seconds_lost >= 2 * self._section.timeout:
                    break
        if first_error is not None and not statuses:
            raise first_error
        return statuses

    def _does_not_know(self, pod: Pod, answer: Answer) -> bool:
        """Whether an answer with status 404 says that the plugin does not know the pod.

        A proxy without a route, or whose plugin starts, may answer with a 404 too. So the plugin itself has to answer a
        ping between two such answers. An API server does not pass on a plugin's 404.
        """
        if self._section.api == "server" or not (answer.status == 404 and answer.is_json):
            return False
        method = answer.request_name.partition(" ")[0]
        try:
            self._ping(self._transport.request(method, "/status", [], operation="PingInterLink"))
            second_answer = self._transport.request(method, "/status", [_sent(pod)], operation="GetStatus")
        except SiteError as error:
            log.debug("a 404 is not confirmed", extra=kv(pool=self._section.name, error=error))
            return False
        return second_answer.status == 404 and second_answer.is_json

    def _entries(self, answer: Answer) -> list[Any]:
        entries = answer.json()
        if entries is None:
            return []
        if not isinstance(entries, list):
            raise SiteError(
                f"{answer.request_name}: the answer is {type(entries).__name__}, not a list: {answer.text[:100]!r}"
            )
        return entries

    def _states(self, pods: Sequence[Pod], entries: list[Any]) -> tuple[dict[str, JobStatus | None], bool]:
        """Return the states by UID, and whether every entry of the answer is valid and about one of the pods."""
        pods_by_uid = {str(pod["metadata"]["uid"]): pod for pod in pods}
        statuses: dict[str, JobStatus | None] = {}
        is_valid = True
        for entry in entries:
            uid = entry.get("UID") if isinstance(entry, dict) else None
            pod = pods_by_uid.get(uid) if isinstance(uid, str) else None
            status = _message(messages.PodStatus, entry) if pod is not None else None
            try:
                if pod is None or status is None:
                    raise SiteError("the answer is of another pod, or it is not a PodStatus")
                state = job_status(pod, status, "")
            except (SiteError, ValidationError) as error:
                _unusable("status")
                is_valid = False
                log.debug("invalid state", extra=kv(pool=self._section.name, pod=str(uid)[:100], error=error))
                continue
            if statuses.get(status.uid) is None:  # a state wins over an absence
                statuses[status.uid] = state
        return statuses, is_valid

    # --- logs ---------------------------------------------------------------------------------------------------------
    def logs(self, pod: Pod, options: LogOptions) -> LogPieces:
        """Return a log. Raises :class:`SiteError` if the plugin refuses it.

        A log that is followed is requested with its first piece: some plugins answer only when the container writes,
        and the caller must be able to close the log until then.
        """
        body = messages.as_json(sent_options(pod, options, self._clock.time()))
        exchange = Exchange(self._clock, None if options.follow else self._section.timeout)
        pieces = LogPieces(lambda: self._open_log(body, exchange), exchange, options.limit_bytes)
        if not options.follow:
            pieces.open()
        return pieces

    def _open_log(self, body: Any, exchange: Exchange) -> requests.Response:
        refusals: list[Answer] = []
        methods, retried_statuses = self._methods_to_try("/getLogs")
        for method in methods:
            response = self._transport.open(method, "/getLogs", body, exchange, operation="GetLogs")
            if response.status_code == 200:
                with self._lock:
                    self._methods["/getLogs"] = method
                exchange.limit_each_read()
                return response
            refusals.append(begun(f"{method} /getLogs", response))
            if response.status_code not in retried_statuses:
                break
        raise refusal(refusals[0])

    # --- internal -----------------------------------------------------------------------------------------------------
    def _methods_to_try(self, path: str) -> tuple[tuple[str, ...], frozenset[int]]:
        """Return the methods to try, and the HTTP statuses after which the next one is tried."""
        method = self._methods.get(path)
        if method is None:
            return ("GET", "POST"), _NOT_METHOD
        return (method, "POST" if method == "GET" else "GET"), _NO_LONGER

    def _read(self, path: str, body: Sequence[Pod], operation: str) -> Answer:
        """Send a request that reads; remember the method that the plugin accepts."""
        answers: list[Answer] = []
        methods, retried_statuses = self._methods_to_try(path)
        for method in methods:
            largest = LEAST_STATUS + len(body) * STATUS_OF_POD
            answer = self._transport.request(method, path, body, operation=operation, largest=largest)
            answers.append(answer)
            if answer.ok:
                with self._lock:
                    self._methods[path] = method
            if answer.status not in retried_statuses:
                return answer
        return answers[0]


def _sent(pod: Pod) -> Pod:
    """Return the pod as it is sent: an API server reads a cached state unless the pod is Pending or Running."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    status = pod.get("status") or {}
    phase = status.get("phase")
    return {
        **pod,
        "metadata": metadata,
        "spec": pod.get("spec") or {"containers": []},
        "status": {**status, "phase": phase if phase in ("Pending", "Running") else "Running"},
    }


def _message(model: type[Message], entry: Any) -> Message | None:
    try:
        return model.model_validate(entry)
    except ValidationError:
        return None


def _unusable(kind: str) -> None:
    POOL_MESSAGES_UNUSABLE.labels(f"interlink-{kind}").inc()
