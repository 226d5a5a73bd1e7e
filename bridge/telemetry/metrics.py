"""All Prometheus metrics of podbridge. The values of labels are bounded: no names of pods or jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from bridge.errors import BridgeError

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series of counters


class CounterFunction(Collector):
    """A counter without labels whose value another object keeps; 0 until :meth:`set_function` is called."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name, self._documentation = name, documentation
        self._read: Callable[[], float] = lambda: 0
        REGISTRY.register(self)

    def set_function(self, read: Callable[[], float]) -> None:
        """Read the value with ``read`` at each scrape. The value must not decrease."""
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the counter, for a scrape."""
        return [CounterMetricFamily(self._name, self._documentation, value=self._read())]


KUBE_REQUESTS = Counter(
    "podbridge_kube_requests_total", "Requests to the Kubernetes API, by HTTP status or error.", ["method", "code"]
)
SLURM_REQUESTS = Counter(
    "podbridge_slurm_requests_total", "Requests to slurmrestd, by HTTP status or error.", ["endpoint", "code"]
)
SLURM_REQUEST_SECONDS = Histogram(
    "podbridge_slurm_request_duration_seconds",
    "Duration of requests to slurmrestd.",
    ["endpoint"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15),
)
SLURM_RESPONSE_BYTES = Counter("podbridge_slurm_response_bytes_total", "Bytes read from slurmrestd.")
WATCH_RESTARTS = Counter("podbridge_watch_restarts_total", "Restarts of watches.", ["kind", "reason"])
CACHE_OBJECTS = Gauge("podbridge_cache_objects", "Objects in a cache.", ["kind"])
ISOLATED_ERRORS = Counter(
    "podbridge_isolated_errors_total", "Unexpected errors about one object, by part of podbridge.", ["part"]
)
QUEUE_DEPTH = Gauge("podbridge_workqueue_depth", "Keys in a work queue.", ["name"])
QUEUE_RETRIES = Counter("podbridge_workqueue_retries_total", "Keys queued again after a failure.", ["name"])
LEADER = Gauge("podbridge_leader", "1 while this process is the leader.", ["name"])
EVENTS_DROPPED = Counter(
    "podbridge_events_dropped_total", "Events dropped: too many queued, or refused by the API server."
)
SLURM_TOKEN_EXPIRY = Gauge(
    "podbridge_slurm_token_expiry_timestamp_seconds",
    "Expiry time of the token for slurmrestd; 0 without a token, or if it has none.",
)
SNAPSHOT_AGE = Gauge("podbridge_slurm_snapshot_age_seconds", "Age of the newest complete snapshot of Slurm.")
SNAPSHOT_JOBS = Gauge(
    "podbridge_slurm_jobs",
    "Placeholder jobs: pending, allocated, ended, between (for example suspended), missing.",
    ["state"],
)
SLURM_NODES = Gauge(
    "podbridge_slurm_nodes",
    "Nodes of Slurm: idle, allocated, drained (also draining), down, powered_down, other.",
    ["state"],
)
SLURM_ID_RESETS = Counter("podbridge_slurm_id_resets_total", "Detected reuses of job ids by slurmctld.")
SLURM_HINTS = Counter(
    "podbridge_slurm_hints_total",
    "Hints from Slurm: accepted, standby (no lease), refused (no valid token), invalid (no job id).",
    ["result"],
)
SLURM_HINTED_POLLS = Counter("podbridge_slurm_hinted_polls_total", "Polls of Slurm that served hints.")
SLURM_HINTED_READS = Counter("podbridge_slurm_hinted_reads_total", "Jobs that were read alone because of hints.")
SLURM_CANCELS_REFUSED = Counter(
    "podbridge_slurm_cancels_refused_total", "Cancellations and updates not sent: the job is not the pod's."
)
ADMISSION_REVIEWS = Counter("podbridge_admission_reviews_total", "Admission reviews.", ["path", "result"])
ADMISSION_SECONDS = Histogram(
    "podbridge_admission_review_duration_seconds",
    "Duration of an admission review.",
    ["path"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
CONNECTIONS_CLOSED = Counter(
    "podbridge_http_connections_closed_total",
    "Closed connections of clients: too slow (deadline), too many (number), too much memory (memory).",
    ["reason"],
)
RUNNING_COMMANDS = Gauge(
    "podbridge_running_commands", "Commands of kubectl exec, and clients of attach, in pods on pools."
)
COMMANDS = Counter(
    "podbridge_commands_total", "Requests of kubectl exec for pods on pools, by result: started, refused.", ["result"]
)
COMMAND_BYTES = Counter(
    "podbridge_command_bytes_total", "Bytes of the input (in) and output (out) of kubectl exec.", ["direction"]
)
FORWARDED_CONNECTIONS = Gauge(
    "podbridge_forwarded_connections", "Open connections of kubectl port-forward to pods on pools."
)
PORT_CONNECTIONS = Counter(
    "podbridge_port_connections_total",
    "Connections of kubectl port-forward to pods on pools, by result: opened, refused.",
    ["result"],
)
PORT_BYTES = Counter(
    "podbridge_port_bytes_total", "Bytes to (in) and from (out) ports by kubectl port-forward.", ["direction"]
)
EXPOSED_PORTS = Gauge("podbridge_exposed_ports", "Ports of pods on pools that Services reach.")
EXPOSED_OPEN = Gauge("podbridge_exposed_open_connections", "Open connections to exposed ports of pods on pools.")
EXPOSED_CONNECTIONS = Counter(
    "podbridge_exposed_connections_total",
    "Connections to exposed ports of pods on pools, by result: opened, refused.",
    ["result"],
)
EXPOSED_BYTES = Counter(
    "podbridge_exposed_bytes_total", "Bytes to (in) and from (out) exposed ports of pods on pools.", ["direction"]
)
REACHING_PODS = Gauge("podbridge_reaching_pods", "Pods on pools whose connections to Services have a stream.")
REACH_OPEN = Gauge("podbridge_reach_open_connections", "Open connections of pods on pools to Services.")
REACH_CONNECTIONS = Counter(
    "podbridge_reach_connections_total",
    "Connections of pods on pools to Services, by result: opened, refused.",
    ["result"],
)
REACH_BYTES = Counter(
    "podbridge_reach_bytes_total",
    "Bytes to (in) and from (out) pods on pools by connections to Services.",
    ["direction"],
)
CERTIFICATE_EXPIRY = Gauge("podbridge_certificate_expiry_timestamp_seconds", "Expiry time of the serving certificate.")
SCHEDULER_PODS = Gauge(
    "podbridge_scheduler_pods",
    (
        "Waiting pods of the colocated Slurm, by what they wait for: a scheduling gate (gate), the "
        "submission (submit) or the next one (retry), Slurm (slurm), the start of the node "
        "(node_start), room or a volume there (node), the binding (bind), the release (release)."
    ),
    ["waiting_for"],
)
SCHEDULER_ACTIONS = Counter(
    "podbridge_scheduler_actions_total",
    "Actions of the scheduler, by result: ok, error, refused (a submission).",
    ["action", "result"],
)
START_TO_BIND_SECONDS = Histogram(
    "podbridge_start_to_bind_seconds",
    "Time from Slurm's start of a job to the binding of its pod.",
    buckets=(0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 30),
)
CONTROLLER_ACTIONS = Counter(
    "podbridge_controller_actions_total", "Actions of the controllers.", ["controller", "action", "result"]
)
STRANDED_PODS = Gauge("podbridge_stranded_pods", "Pods with a job of this installation that name another scheduler.")
GUARDED_NODES = Gauge(
    "podbridge_guarded_nodes", "Nodes in the list of the admission policy; 0 while it cannot be written."
)
NODES_TAKEN = Gauge("podbridge_nodes_taken_by_others", "Nodes that another scheduler has taken.")
EXTERNAL_NODES = Gauge(
    "podbridge_external_nodes", "External nodes: registered, leaving, absent (not yet registered), refused.", ["state"]
)
BRAKE_ENGAGED = Gauge(
    "podbridge_brake_engaged", "1 while the mass-termination guard of slurm or pool.<name> is engaged.", ["brake"]
)
BRAKE_HELD = Gauge("podbridge_brake_held_pods", "Pods with a missing job that the guard holds.", ["brake"])
POOL_UP = Gauge("podbridge_pool_up", "1 while the site of a pool sends messages and accepts jobs.", ["pool"])
POOL_JOBS = Gauge("podbridge_pool_jobs", "Jobs of a pool, as reported by its site.", ["pool", "phase"])
QUEUE_FLAVORS = Gauge("podbridge_queue_flavors", "Flavors of MasterQueues, by state.", ["state"])
QUEUE_WRITES = Counter(
    "podbridge_queue_writes_total", "Writes of objects of Kueue and MasterQueues.", ["kind", "result"]
)
POOL_ACTIONS = Counter("podbridge_pool_actions_total", "Actions for pods on pools.", ["action", "result"])
POOL_EVENT_SECONDS = Histogram(
    "podbridge_pool_event_to_pod_seconds",
    "Time from a site's event to the update of the pod's status.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10),
)
POOL_FOLLOWED = Gauge("podbridge_pool_followed_pods", "Polled pods of a pool that cannot list its jobs.", ["pool"])
POOL_REQUESTS = Counter(
    "podbridge_pool_requests_total", "Requests to pools that cannot list their jobs.", ["pool", "request", "result"]
)
POOL_POLL_SECONDS = Histogram(
    "podbridge_pool_poll_duration_seconds",
    "Duration of a poll of all followed jobs of a pool.",
    ["pool"],
    buckets=(0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
)
RACE_PLACES = Counter(
    "podbridge_race_places_total",
    "Places of pods that race, by pool: offered, refused, granted, lost, withdrawn.",
    ["pool", "result"],
)
RACE_GRANT_SECONDS = Histogram(
    "podbridge_race_grant_seconds",
    "Time from the first question of a place to the Binding.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60),
)
POOL_REMEMBERED = Gauge(
    "podbridge_pool_remembered_jobs", "Jobs in the store that the site has not listed since the start.", ["pool"]
)
POOL_MESSAGES_UNUSABLE = Counter(
    "podbridge_pool_messages_unusable_total", "Messages of sites that could not be parsed, by kind.", ["kind"]
)
POOL_MESSAGES_DROPPED = Counter(
    "podbridge_pool_messages_dropped_total",
    "Messages of a pool dropped above the rate limit; a snapshot replaces them.",
    ["pool"],
)
POOL_FLOODS = Counter(
    "podbridge_pool_floods_total", "Times that a pool was muted: it exceeded the rate limit.", ["pool"]
)
NATS_MESSAGES_DROPPED = CounterFunction(
    "podbridge_nats_messages_dropped_total", "Messages from NATS dropped: too many queued."
)
STORE_UP = Gauge("podbridge_store_up", "1 while the store of pools answers.", ["kind"])
STORE_WAITING = Gauge("podbridge_store_waiting", "Records to be written to the store of pools.", ["kind"])
PLUGIN_REQUESTS = Counter(
    "podbridge_plugin_requests_total", "Requests to interLink's REST API, by route and HTTP status.", ["route", "code"]
)
PLUGIN_SECONDS = Histogram(
    "podbridge_plugin_request_duration_seconds",
    "Duration of requests to interLink's REST API (logs: first piece).",
    ["route"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 15, 60),
)
BUILD_INFO = Gauge("podbridge_build_info", "Always 1; the label has the version.", ["version"])


def label_of(action: type) -> str:
    """Return the value of a label for a class of actions: its name in snake case, such as ``bind_volumes``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", action.__name__).lower()


@dataclass
class Outcome:
    """How an action has ended."""

    result: str = "ok"


@contextmanager
def counted(actions: Counter, *labels: str) -> Iterator[Outcome]:
    """Count an action when it ends: as ``error`` after a :class:`BridgeError`, else with the result of the outcome."""
    outcome = Outcome()
    try:
        yield outcome
    except BridgeError:
        actions.labels(*labels, "error").inc()
        raise
    actions.labels(*labels, outcome.result).inc()
