"""Every Prometheus metric of podbridge, in one place. Labels are bounded: never the name of a pod or a job."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

KUBE_REQUESTS = Counter("podbridge_kube_requests_total", "Requests to the Kubernetes API.", ["method", "code"])
SLURM_REQUESTS = Counter("podbridge_slurm_requests_total", "Requests to slurmrestd.", ["endpoint", "code"])
SLURM_REQUEST_SECONDS = Histogram(
    "podbridge_slurm_request_duration_seconds",
    "Time until slurmrestd answered.",
    ["endpoint"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15),
)
SLURM_RESPONSE_BYTES = Counter("podbridge_slurm_response_bytes_total", "Bytes of answers read from slurmrestd.")
WATCH_RESTARTS = Counter("podbridge_watch_restarts_total", "Watches started again.", ["kind", "reason"])
CACHE_OBJECTS = Gauge("podbridge_cache_objects", "Objects in a cache.", ["kind"])
QUEUE_DEPTH = Gauge("podbridge_workqueue_depth", "Keys waiting in a work queue.", ["name"])
QUEUE_RETRIES = Counter("podbridge_workqueue_retries_total", "Keys put back after a failure.", ["name"])
LEADER = Gauge("podbridge_leader", "1 while this process holds the lease.", ["name"])
EVENTS_DROPPED = Counter("podbridge_events_dropped_total", "Events not written because too many waited.")
SNAPSHOT_AGE = Gauge("podbridge_slurm_snapshot_age_seconds", "Age of the newest authoritative view of Slurm.")
SNAPSHOT_JOBS = Gauge("podbridge_slurm_jobs", "Placeholder jobs known to podbridge.", ["state"])
SLURM_ID_RESETS = Counter(
    "podbridge_slurm_id_resets_total", "Times that slurmctld was found to use job ids again: it has lost its state."
)
SLURM_CANCELS_REFUSED = Counter(
    "podbridge_slurm_cancels_refused_total",
    "Cancels not sent because the job's comment, read right before, does not name the pod.",
)
ADMISSION_REVIEWS = Counter("podbridge_admission_reviews_total", "Admission reviews.", ["path", "result"])
ADMISSION_SECONDS = Histogram(
    "podbridge_admission_review_duration_seconds",
    "Time inside an admission review.",
    ["path"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
)
CONNECTIONS_CLOSED = Counter(
    "podbridge_http_connections_closed_total",
    "Connections of clients closed because a request or an answer took too long (deadline), or to make room: too many "
    "connections (number), too many bytes of them in memory (memory).",
    ["reason"],
)
CERTIFICATE_EXPIRY = Gauge("podbridge_certificate_expiry_timestamp_seconds", "When the serving certificate ends.")
SCHEDULER_PODS = Gauge(
    "podbridge_scheduler_pods", "Pods of the scheduler by what they wait for (node: room there).", ["waiting_for"]
)
SCHEDULER_ACTIONS = Counter("podbridge_scheduler_actions_total", "What the scheduler did.", ["action", "result"])
START_TO_BIND_SECONDS = Histogram(
    "podbridge_start_to_bind_seconds",
    "From Slurm's start of a job to the binding of its pod.",
    buckets=(0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 30),
)
CONTROLLER_ACTIONS = Counter(
    "podbridge_controller_actions_total", "What a controller did.", ["controller", "action", "result"]
)
GUARDED_NODES = Gauge(
    "podbridge_guarded_nodes", "Nodes in the list that the admission policy guards; 0 while it can't be written."
)
BRAKE_ENGAGED = Gauge(
    "podbridge_brake_engaged", "1 while the brake on mass ending is engaged: for slurm, or for pool.<name>.", ["brake"]
)
BRAKE_HELD = Gauge("podbridge_brake_held_pods", "Pods whose job is missing and that the brake holds.", ["brake"])
POOL_UP = Gauge("podbridge_pool_up", "1 while a pool's site is heard and takes jobs.", ["pool"])
POOL_JOBS = Gauge("podbridge_pool_jobs", "Jobs of a pool, as its site says.", ["pool", "phase"])
POOL_ACTIONS = Counter("podbridge_pool_actions_total", "What was done for pods on pools.", ["action", "result"])
POOL_EVENT_SECONDS = Histogram(
    "podbridge_pool_event_to_pod_seconds",
    "From the arrival of a site's event to the pod's new status.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10),
)
POOL_REMEMBERED = Gauge(
    "podbridge_pool_remembered_jobs",
    "Jobs that the store remembers at a site which has not listed its jobs since this process started.",
    ["pool"],
)
POOL_MESSAGES_UNUSABLE = Counter(
    "podbridge_pool_messages_unusable_total", "Messages of sites that could not be read, by kind.", ["kind"]
)
POOL_MESSAGES_DROPPED = Counter(
    "podbridge_pool_messages_dropped_total",
    "Messages of a pool dropped because it sent more than is read; a snapshot of the pool makes up for them.",
    ["pool"],
)
POOL_FLOODS = Counter(
    "podbridge_pool_floods_total", "Times that a pool sent so much that it was not listened to for a while.", ["pool"]
)
NATS_OVERRUN = Gauge("podbridge_nats_overrun_messages", "Messages dropped so far because too many waited here.")
STORE_UP = Gauge("podbridge_store_up", "1 while the store of pools answers.", ["kind"])
STORE_WAITING = Gauge("podbridge_store_waiting", "What waits to be written to the store of pools.", ["kind"])
BUILD_INFO = Gauge("podbridge_build_info", "Always 1; the labels say what runs.", ["version"])
