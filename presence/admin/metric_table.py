"""All metrics. `presence/docs/operations.md` says of each what to do about it.

Names are by Prometheus' rules: base units (`_seconds`, `_bytes`), `_total` for what only grows, `_info` for
texts. Per worker: a worker that was replaced begins at 0 again, which `rate()` expects of one series and
could not see in a sum. Nothing has a label that users choose: no uid, no address, no device.
"""

from typing import Final

from presence.admin.metric_kinds import (
    Kind,
    Metric,
    by_reason,
    counter,
    counters,
    gauge,
    gauges,
    histogram,
    own,
)
from presence.admin.service_metrics import REQUESTS, SECURITY
from presence.faults import WORK
from presence.ticks import SLOTS_PER_TICK
from protocol import Code

# With what a connection is refused, or ended by a packet of its own.
REFUSALS: Final = (
    Code.PROTOCOL_ERROR,
    Code.TOO_LARGE,
    Code.NOT_LOGGED_IN,
    Code.LOGIN_TIMEOUT,
    Code.AUTH_FAILED,
    Code.RATE_LIMITED,
    Code.BUSY,
    Code.SESSION_LIMIT,
    Code.REPLACED,
    Code.SERVER_DRAIN,
    Code.SERVER_ERROR,
)
# With what a session ends.
ENDS: Final = (
    Code.LOGOUT,
    Code.BACKGROUND,
    Code.CLOSED,
    Code.IDLE_TIMEOUT,
    Code.SLOW_CONSUMER,
    Code.REPLACED,
    Code.KICKED,
    Code.AUTH_EXPIRED,
    Code.SESSION_LIMIT,
    Code.PROTOCOL_ERROR,
    Code.RATE_LIMITED,
    Code.TOO_LARGE,
    Code.SERVER_ERROR,
)
TRANSITIONS: Final = (
    *(("online", code.reason) for code in (Code.LOGIN, Code.RETURNED)),
    *(("offline", code.reason) for code in (*ENDS, Code.NODE_DOWN)),
    *(("away", code.reason) for code in (Code.AWAY, Code.BACK)),
    ("update", Code.UPDATED.reason),
    ("gap", "gap"),
)
"""Types and reasons of events."""

CLIENTS: Final = (
    gauge("connections", "Connections that are open", "connections"),
    gauge("sessions", "Sessions that live, those in their grace among them", "sessions"),
    gauge("sessions_away", "Sessions that are shown as away", "core.away"),
    counter("connections_accepted", "Connections that were accepted", "transport.accepted"),
    counter("connections_closed", "Connections that were closed", "transport.closed"),
    counter("connection_failures", "Connections closed over a fault of the server", "transport.failures"),
    Metric(
        "presence_faults_total",
        Kind.COUNTER,
        "Mistakes of the server that cost one request, message or record, by work",
        ("worker", "work"),
        counts=("faults",),
        known=tuple((work,) for work in WORK),
    ),
    counter("accept_errors", "Accepts that failed, for want of descriptors say", "transport.accept_errors"),
    gauge(
        "connections_unsent", "Connections with bytes that wait to be sent", "transport.unsent_connections"
    ),
    counter("slow_readers", "Connections cut off since they did not read", "transport.slow_readers"),
    counter("logins", "Logins that were granted", "core.logins"),
    counter(
        "takeovers",
        "Sessions whose place another login took while connected, here or on another node",
        "core.taken_over",
    ),
    counter(
        "returns_in_grace",
        "Sessions whose place another login took within the grace",
        "core.returned_in_grace",
    ),
    by_reason("refusals", "Connections refused or ended by an error, by reason", "core.refused", REFUSALS),
    by_reason("sessions_ended", "Sessions that ended, by reason", "core.ended", ENDS),
    counters(
        "packets",
        "Valid packets: keepalives of sessions, and all others",
        "kind",
        {"keepalive": "core.beats", "other": "core.frames"},
    ),
    counter("packet_floods", "Connections that sent too many packets", "core.packet_floods"),
    counter("tokens_expired", "Connections sent away to fetch a fresh token", "core.tokens_expired"),
    counter("profile_updates", "Changes of how sessions are shown", "core.updates"),
    counter("last_looks_saved", "Sessions saved by a packet that lay unread", "core.saved_by_a_last_look"),
    counter("graces_lengthened", "Graces made longer for who flaps", "core.flapping.lengthened"),
    counters(
        "admission_refusals",
        "Refusals by limit",
        "limit",
        {
            "connections": "admission.connections_full",
            "accepts": "admission.accepts_refused",
            "logins": "admission.logins_refused",
            "address_connections": "admission.address_connections_refused",
            "address_logins": "admission.address_logins_refused",
            "user_logins": "admission.uid_logins_refused",
        },
    ),
    gauges(
        "table_entries",
        "Entries of the bounded tables",
        "table",
        {
            "address_connections": "admission.address_connections_kept",
            "address_logins": "admission.address_logins_kept",
            "user_logins": "admission.uid_logins_kept",
            "flapping": "core.flapping.known",
            "packet_buckets": "core.packet_buckets_kept",
            "expiring": "core.expiring",
        },
    ),
)

DETECTION: Final = (
    histogram(
        "detection_delay_seconds",
        "From the end of a silent session's idle time-out to the decision, credits for stalls included",
        "histograms.detection_delay",
    ),
    histogram("tick_lag_seconds", "How late ticks ran", "histograms.tick_lag"),
    histogram("loop_lag_seconds", "How late the event loop ran what was due", "histograms.loop_lag"),
    counter("ticks", "Ticks of the wheel", "ticker.ticks"),
    counter("stalled_seconds", "Seconds in which no connection was read", "ticker.stalled_s"),
    counter(
        "stall_credit_seconds", "Seconds that deadlines were put off for stalls", "ticker.stall_credit_s"
    ),
    gauge("wheel_slot_seconds", "Width of a slot of the wheel", "wheel.slot_s"),
    gauge(
        "tick_seconds",
        "How late the end of a silent session may be",
        "wheel.slot_s",
        lambda slot_s: SLOTS_PER_TICK * float(slot_s),
    ),
    gauge(
        "wheel_next_slot_sessions",
        "Sessions in the slot that is due next",
        "wheel.sizes",
        lambda sizes: sizes[0],
    ),
    gauge("wheel_largest_slot_sessions", "Sessions in the fullest slot", "wheel.sizes", max),
    gauge("wheel_later_sessions", "Sessions due after the slots of one idle time-out", "wheel.later"),
)

REDIS: Final = (
    Metric(
        "presence_transitions_total",
        Kind.COUNTER,
        "Events that Redis has acknowledged, by type and reason",
        ("worker", "type", "reason"),
        counts=("transitions",),
        known=TRANSITIONS,
    ),
    gauge("redis_connected", "1 while every shard answers this worker", "relay.connected"),
    gauge("redis_away_seconds", "Since when a shard does not answer this worker", "relay.away_s"),
    histogram("redis_call_seconds", "Calls of Redis, as waited for", "histograms.redis_call"),
    counter("redis_batches", "Batches that Redis has acknowledged", "relay.batches"),
    counter("redis_items", "Changes in them, registrations of resyncs among them", "relay.items"),
    counter("redis_retries", "Rounds that failed and were made again", "relay.retries"),
    counter("redis_resyncs", "Resyncs of a shard", "relay.resyncs"),
    counters(
        "redis_errors",
        "Answers that waiting may not cure, and failures of the task of leases",
        "task",
        {"relay": "relay.errors", "cluster": "cluster.errors"},
    ),
    counter("record_differences", "Sessions that were not on record as they were here", "relay.differences"),
    gauge("outbox_changes", "Changes that wait for Redis or are under way", "outbox.held"),
    gauge("outbox_bytes", "Memory that they take", "outbox.held_bytes"),
    gauge("outbox_max_changes", "Bound of the outbox", "outbox.max_items"),
    gauge("outbox_max_bytes", "Bound of its memory", "outbox.max_bytes"),
    gauge("outbox_oldest_seconds", "Age of the oldest change that waits", "outbox_oldest_s"),
    histogram("outbox_age_seconds", "From a decision to its acknowledgement", "histograms.outbox_age"),
    counter("outbox_appended", "Changes that were accepted", "outbox.appended_total"),
    counter("outbox_dropped", "Changes that were skipped: a gap", "outbox.dropped_total"),
    gauge("outbox_skipping_shards", "Shards whose changes are skipped now", "outbox.skipping_shards"),
)

CLUSTER: Final = (
    gauge("lease_left_seconds", "Until the lease of this worker's node ends", "cluster.lease_left_s"),
    counter("lease_renewals", "Renewals of the lease", "cluster.renewals"),
    gauge("nodes_seen", "Other nodes that this one has seen", "cluster.nodes"),
    counter("nodes_fenced", "Silent nodes that this one has fenced", "cluster.fenced"),
    counter("death_certificates", "Nodes that this one has declared dead", "cluster.certificates"),
    counter("nodes_swept", "Dead nodes that this one has swept", "cluster.swept"),
    counter("sessions_swept", "Sessions ended so", "cluster.swept_sessions"),
)

PROCESS: Final = (
    gauge(
        "process_start_time_seconds", "Unix time of the worker's start", "started_ms", lambda ms: ms / 1000
    ),
    gauge("process_resident_memory_bytes", "Memory of the worker", "process.rss_bytes"),
    counters(
        "process_cpu_seconds",
        "Processor time of the worker",
        "mode",
        {"user": "process.cpu_user_s", "system": "process.cpu_system_s"},
    ),
    gauge("process_open_fds", "Descriptors in use", "process.open_fds"),
    gauge("process_max_fds", "Descriptors that the worker may use", "process.max_fds"),
    counter("inquiries", "Questions that the worker was asked for operators", "inquiries.asked"),
    counter("inquiries_dropped", "Answers that nobody took", "inquiries.dropped"),
)

WORKERS: Final = (
    own("build", Kind.INFO, "What runs", "version", "python"),
    own("worker", Kind.INFO, "Which node a worker is", "worker", "node", "address", "version"),
    own("worker_up", Kind.GAUGE, "1 if the worker answers", "worker"),
    own("worker_readiness", Kind.GAUGE, "1 for the state that the worker is in", "worker", "readiness"),
    own("sample_age_seconds", Kind.GAUGE, "Age of a worker's figures", "worker"),
    own("idle_timeout_seconds", Kind.GAUGE, "The setting idle_timeout"),
    own("disconnect_grace_seconds", Kind.GAUGE, "The setting disconnect_grace"),
    own("lease_seconds", Kind.GAUGE, "The setting lease"),
)

SHARED: Final = (
    own("users_online", Kind.GAUGE, "Users online at all nodes, as Redis has them"),
    own("nodes", Kind.GAUGE, "Nodes by the state of their leases", "status"),
    own("redis_up", Kind.GAUGE, "1 if Redis answers the operators' process"),
    own("redis_ping_seconds", Kind.GAUGE, "How long Redis took to answer last"),
    own("redis_memory_bytes", Kind.GAUGE, "Memory that Redis uses"),
    own("redis_max_memory_bytes", Kind.GAUGE, "Bound of Redis' memory, where it has one"),
    own("redis_clients", Kind.GAUGE, "Connections to Redis"),
    own("redis_evicted_keys", Kind.COUNTER, "Keys that Redis dropped for want of memory"),
)

HTTP: Final = (
    own("http_requests", Kind.COUNTER, "Requests, by route and class of status", "route", "status"),
    own(
        "http_request_duration_seconds", Kind.HISTOGRAM, "How long requests took; of streams: until the head"
    ),
    own("http_refusals", Kind.COUNTER, "Requests and connections that were refused, by reason", "reason"),
    own("http_acts", Kind.COUNTER, "What operators did", "verb", "outcome"),
    own("http_connections", Kind.GAUGE, "Connections of operators"),
    own("http_connections_accepted", Kind.COUNTER, "Connections of operators so far"),
    own("http_viewers", Kind.GAUGE, "Open event streams", "view"),
    own("http_events_missed", Kind.COUNTER, "Events that viewers who fell behind were not shown"),
    own("http_process_resident_memory_bytes", Kind.GAUGE, "Memory of the operators' process"),
    own("http_process_cpu_seconds", Kind.COUNTER, "Processor time of the operators' process", "mode"),
    own("http_process_open_fds", Kind.GAUGE, "Descriptors in use in the operators' process"),
)

TABLE: Final = (
    *WORKERS,
    *SHARED,
    *CLIENTS,
    *SECURITY,
    *DETECTION,
    *REDIS,
    *CLUSTER,
    *REQUESTS,
    *PROCESS,
    *HTTP,
)
"""Every metric, in the order in which they are shown."""
