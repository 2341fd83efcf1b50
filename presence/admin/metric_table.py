"""All metrics: names, types and labels by Prometheus' rules, and where in a sample their numbers are.

Base units (`_seconds`, `_bytes`), `_total` for what only grows, `_info` for texts. Per worker: a worker that
was replaced begins at 0 again, which `rate()` expects of one series and could not see in a sum. Nothing has a
label that users choose: no uid, no address, no device. `presence/docs/operations.md` says of each metric what
to do about it, and each is there for an alert, a panel of the dashboard, or a use that this page names.

A series that may ever be is there from the start, with 0: Prometheus sees the first event of a kind as a step
from 0 to 1, and an alert on `rate()` does not miss it. Those of a service that is off are absent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from presence.faults import WORK
from presence.ticks import SLOTS_PER_TICK
from protocol import Code

PREFIX: Final = "presence_"

Labels = tuple[str, ...]
Path = tuple[str, ...]
"""Where something is in a sample: the keys of nested maps."""


class Kind(StrEnum):
    """Types of metrics, by the names that Prometheus has for them; an `info` is a gauge of 1 with texts."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as it is asked for: of a counter with `_total`, of an info with `_info`.
        kind: its type.
        help: one sentence, without the full stop.
        labels: by name; the first is `worker` where each worker has its own series.
        places: by the values of the first labels after `worker`: where the number is, or a map from the
            values of the labels that are left to numbers.
        known: values of labels that are there from the start, where a place has a map; what the map has
            beside them counts as `other`. None: whatever is there has a series.
        measure: makes the number of what is found.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels
    places: Mapping[Labels, Path]
    known: tuple[Labels, ...] | None = None
    measure: Callable[[Any], float] = float

    @property
    def is_of_workers(self) -> bool:
        """Whether its numbers are in workers' samples."""
        return self.labels[:1] == ("worker",)


def counter(
    name: str,
    text: str,
    places: str | Mapping[str, str],
    *labels: str,
    known: Iterable[Code | str | Labels] | None = None,
) -> Metric:
    """Return a worker's counter."""
    named = None if known is None else tuple(map(_as_labels, known))
    return Metric(f"{PREFIX}{name}_total", Kind.COUNTER, text, ("worker", *labels), _paths(places), named)


def gauge(
    name: str,
    text: str,
    places: str | Mapping[str, str],
    *labels: str,
    measure: Callable[[Any], float] = float,
) -> Metric:
    """Return a worker's gauge."""
    return Metric(f"{PREFIX}{name}", Kind.GAUGE, text, ("worker", *labels), _paths(places), measure=measure)


def histogram(name: str, text: str, place: str) -> Metric:
    """Return a worker's histogram."""
    return Metric(f"{PREFIX}{name}", Kind.HISTOGRAM, text, ("worker",), _paths(place))


def info(name: str, text: str, place: str, *labels: str) -> Metric:
    """Return texts of a worker."""
    return Metric(f"{PREFIX}{name}_info", Kind.INFO, text, ("worker", *labels), _paths(place))


def local(*metrics: Metric) -> tuple[Metric, ...]:
    """Return metrics of no worker: their numbers are in `presence.admin.metrics.local_sample`."""
    return tuple(replace(each, labels=each.labels[1:]) for each in metrics)


def _paths(places: str | Mapping[str, str]) -> dict[Labels, Path]:
    if isinstance(places, str):
        return {(): tuple(places.split("."))}
    return {(value,): tuple(path.split(".")) for value, path in places.items()}


def at(under: str, **names: str) -> dict[str, str]:
    """Return places by the values of a label; all are in one map of the sample."""
    return {value: f"{under}.{name}" for value, name in names.items()}


def _as_labels(known: Code | str | Labels) -> Labels:
    if isinstance(known, tuple):
        return known
    return (known.reason if isinstance(known, Code) else known,)


# With what a connection is refused, or ended by a packet of its own.
REFUSALS: Final = (
    *(Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN, Code.LOGIN_TIMEOUT, Code.AUTH_FAILED),
    *(Code.RATE_LIMITED, Code.BUSY, Code.SESSION_LIMIT, Code.REPLACED, Code.SERVER_DRAIN, Code.SERVER_ERROR),
)
# With what a session ends.
ENDS: Final = (
    *(Code.LOGOUT, Code.BACKGROUND, Code.CLOSED, Code.IDLE_TIMEOUT, Code.SLOW_CONSUMER, Code.REPLACED),
    *(Code.KICKED, Code.AUTH_EXPIRED, Code.SESSION_LIMIT, Code.PROTOCOL_ERROR, Code.RATE_LIMITED),
    *(Code.TOO_LARGE, Code.SERVER_ERROR),
)
TRANSITIONS: Final = (
    *(("online", code.reason) for code in (Code.LOGIN, Code.RETURNED)),
    *(("offline", code.reason) for code in (*ENDS, Code.NODE_DOWN)),
    *(("away", code.reason) for code in (Code.AWAY, Code.BACK)),
    ("update", Code.UPDATED.reason),
    ("gap", "gap"),
)
"""Types and reasons of events."""

# As `presence.auth.tokens.Reason` has them, which would bring the cryptography along.
TOKEN_REASONS: Final = (
    *("missing", "malformed", "unknown_key", "signature", "expired", "not_yet", "audience", "claims"),
    "other_uid",
)

WHO: Final = (
    *local(info("build", "What runs", "build", "version", "python")),
    info("worker", "Which node a worker is", "who", "node", "address", "version"),
    gauge("worker_up", "1 if the worker answers", "up"),
    gauge("worker_readiness", "1 for the state that the worker is in", "readiness_is", "readiness"),
    gauge("sample_age_seconds", "Age of a worker's figures", "age_s"),
    *local(gauge("lease_seconds", "The setting lease", "settings.lease")),
)

SHARED: Final = local(
    gauge("users_online", "Users online at all nodes, as Redis has them", "users_online"),
    gauge("nodes", "Nodes by the state of their leases", "nodes", "status"),
    gauge("redis_up", "1 if Redis answers the operators' process", "redis_up"),
    gauge(
        "redis_ping_seconds",
        "How long Redis took to answer last",
        "redis.ping_ms",
        measure=lambda ms: float(ms) / 1000,
    ),
    gauge("redis_memory_bytes", "Memory that Redis uses", "redis.used_memory_bytes"),
    gauge("redis_max_memory_bytes", "Bound of Redis' memory, where it has one", "redis.maxmemory_bytes"),
    counter("redis_evicted_keys", "Keys that Redis dropped for want of memory", "redis.evicted_keys"),
)

CLIENTS: Final = (
    gauge("connections", "Connections that are open", "connections"),
    gauge("sessions", "Sessions that live, those in their grace among them", "sessions"),
    gauge("sessions_away", "Sessions that are shown as away", "core.away"),
    counter("connection_failures", "Connections closed over a fault of the server", "transport.failures"),
    counter(
        "faults",
        "Mistakes of the server that cost one request, message or record, by work",
        "faults",
        "work",
        known=WORK,
    ),
    counter("accept_errors", "Accepts that failed, for want of descriptors say", "transport.accept_errors"),
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
    counter(
        "refusals",
        "Connections refused or ended by an error, by reason",
        "core.refused",
        "reason",
        known=REFUSALS,
    ),
    counter("sessions_ended", "Sessions that ended, by reason", "core.ended", "reason", known=ENDS),
    counter(
        "packets",
        "Valid packets: keepalives of sessions, and all others",
        at("core", keepalive="beats", other="frames"),
        "kind",
    ),
    counter("packet_floods", "Connections that sent too many packets", "core.packet_floods"),
    counter("tokens_expired", "Connections sent away to fetch a fresh token", "core.tokens_expired"),
    counter("last_looks_saved", "Sessions saved by a packet that lay unread", "core.saved_by_a_last_look"),
    counter(
        "admission_refusals",
        "Refusals by limit",
        at(
            "admission",
            connections="connections_full",
            accepts="accepts_refused",
            logins="logins_refused",
            address_connections="address_connections_refused",
            address_logins="address_logins_refused",
            user_logins="uid_logins_refused",
        ),
        "limit",
    ),
    gauge(
        "table_entries",
        "Entries of the bounded tables and queues",
        {
            "address_connections": "admission.address_connections_kept",
            "address_logins": "admission.address_logins_kept",
            "user_logins": "admission.uid_logins_kept",
            "flapping": "core.flapping.known",
            "packet_buckets": "core.packet_buckets_kept",
            "expiring": "core.expiring",
            "tls_handshakes": "transport.handshakes_underway",
            "messages": "messages.waiting",
            "watches": "watching.watches",
            "shared_watches": "watching.shared",
            "watched_users": "watching.users",
            "watch_requests": "watching.waiting",
            "watch_pushes": "watching.pushes.queued",
        },
        "table",
    ),
)

SECURITY: Final = (
    counter(
        "tls_handshakes",
        "Handshakes, by result",
        at("transport", done="handshakes", failed="handshakes_failed", refused="handshakes_refused"),
        "result",
    ),
    gauge(
        "tls_certificate_end_timestamp_seconds",
        "Unix time at which the certificate ends",
        "certificate.ends_at",
    ),
    counter(
        "proxy_headers",
        "PROXY headers, by result",
        at("transport", taken="proxied", refused="proxy_headers_refused"),
        "result",
    ),
    counter(
        "tokens_granted", "Tokens that were good", at("tokens", login="granted", renewal="renewed"), "use"
    ),
    counter(
        "tokens_refused",
        "Tokens that were refused, by use and reason",
        at("tokens", login="refused", renewal="renewals_refused"),
        "use",
        "reason",
        known=TOKEN_REASONS,
    ),
    counter("tokens_unchecked", "Tokens that there was no processor time for", "tokens.unchecked"),
    gauge("token_keys_current", "1 if the keys in use are those of the file", "tokens.is_current"),
)

DETECTION: Final = (
    histogram(
        "detection_delay_seconds",
        "From the end of a silent session's idle time-out to the decision, credits for stalls included",
        "histograms.detection_delay",
    ),
    histogram("tick_lag_seconds", "How late ticks ran", "histograms.tick_lag"),
    histogram("loop_lag_seconds", "How late the event loop ran what was due", "histograms.loop_lag"),
    counter("stalled_seconds", "Seconds in which no connection was read", "ticker.stalled_s"),
    counter(
        "stall_credit_seconds", "Seconds that deadlines were put off for stalls", "ticker.stall_credit_s"
    ),
    gauge(
        "tick_seconds",
        "How late the end of a silent session may be",
        "wheel.slot_s",
        measure=lambda slot_s: SLOTS_PER_TICK * float(slot_s),
    ),
    gauge(
        "wheel_next_slot_sessions",
        "Sessions in the slot that is due next",
        "wheel.sizes",
        measure=lambda sizes: sizes[0],
    ),
    gauge("wheel_largest_slot_sessions", "Sessions in the fullest slot", "wheel.sizes", measure=max),
    gauge("wheel_later_sessions", "Sessions due after the slots of one idle time-out", "wheel.later"),
)

REDIS: Final = (
    counter(
        "transitions",
        "Events that Redis has acknowledged, by type and reason",
        "transitions",
        "type",
        "reason",
        known=TRANSITIONS,
    ),
    gauge("redis_connected", "1 while every shard answers this worker", "relay.connected"),
    histogram("redis_call_seconds", "Calls of Redis, as waited for", "histograms.redis_call"),
    counter("redis_retries", "Rounds that failed and were made again", "relay.retries"),
    counter("redis_resyncs", "Resyncs of a shard", "relay.resyncs"),
    counter(
        "redis_errors",
        "Answers that waiting may not cure, and failures of the task of leases",
        {"relay": "relay.errors", "cluster": "cluster.errors"},
        "task",
    ),
    counter("record_differences", "Sessions that were not on record as they were here", "relay.differences"),
    gauge("outbox_changes", "Changes that wait for Redis or are under way", "outbox.held"),
    gauge("outbox_bytes", "Memory that they take", "outbox.held_bytes"),
    gauge("outbox_max_changes", "Bound of the outbox", "outbox.max_items"),
    gauge("outbox_max_bytes", "Bound of its memory", "outbox.max_bytes"),
    gauge("outbox_oldest_seconds", "Age of the oldest change that waits", "outbox_oldest_s"),
    histogram("outbox_age_seconds", "From a decision to its acknowledgement", "histograms.outbox_age"),
    counter("outbox_dropped", "Changes that were skipped: a gap", "outbox.dropped_total"),
)

CLUSTER: Final = (
    gauge("lease_left_seconds", "Until the lease of this worker's node ends", "cluster.lease_left_s"),
    counter(
        "node_failures",
        "Silent nodes that this one has fenced, declared dead, and swept",
        at("cluster", fenced="fenced", declared_dead="certificates", swept="swept"),
        "step",
    ),
)

REQUESTS: Final = (
    counter(
        "messages",
        "Messages of clients, by outcome",
        at(
            "messages",
            handed="handed",
            offline="refused_offline",
            disconnected="refused_disconnected",
            busy="refused_busy",
            unknown="unknown",
        ),
        "outcome",
    ),
    counter(
        "watch_requests",
        "Requests to watch: taken on, and of all those that failed",
        at("watching", taken="taken", refused="refused", full="full", timed_out="timed_out"),
        "result",
    ),
    counter(
        "watch_pushes",
        "Pushes to watchers",
        at("watching.pushes", sent="sent", put_off="put_off", replaced="replaced"),
        "result",
    ),
    counter(
        "queries",
        "Queries of clients: taken on, and of these answered and refused",
        at("watching.queries", taken="taken", answered="answered", refused="refused"),
        "result",
    ),
    counter(
        "followups",
        "Follow-ups, by what this worker did with them",
        at(
            "followups",
            planned="planned",
            cancelled="cancelled",
            told="told",
            dropped="dropped",
            refused="refused",
        ),
        "outcome",
    ),
    counter("followup_holes", "How often follow-ups found events missing", "followups.holes"),
)

_CPU: Final = at("process", user="cpu_user_s", system="cpu_system_s")

PROCESS: Final = (
    gauge(
        "process_start_time_seconds",
        "Unix time of the worker's start",
        "started_ms",
        measure=lambda ms: ms / 1000,
    ),
    gauge("process_resident_memory_bytes", "Memory of the worker", "process.rss_bytes"),
    counter("process_cpu_seconds", "Processor time of the worker", _CPU, "mode"),
    gauge("process_open_fds", "Descriptors in use", "process.open_fds"),
    gauge("process_max_fds", "Descriptors that the worker may use", "process.max_fds"),
)

HTTP: Final = local(
    counter("http_requests", "Requests, by route and class of status", "http.requests", "route", "status"),
    histogram(
        "http_request_duration_seconds",
        "How long requests took; of streams: until the head",
        "http.durations",
    ),
    counter(
        "http_refusals", "Requests and connections that were refused, by reason", "http.refusals", "reason"
    ),
    counter("http_acts", "What operators did", "http.acts", "verb", "outcome"),
    gauge("http_connections", "Connections of operators", "http.connections"),
    gauge("http_viewers", "Open event streams", "http.viewers", "view"),
    counter("http_events_missed", "Events that viewers who fell behind were not shown", "http.missed"),
    gauge("http_process_resident_memory_bytes", "Memory of the operators' process", "process.rss_bytes"),
    counter("http_process_cpu_seconds", "Processor time of the operators' process", _CPU, "mode"),
)

TABLE: Final = (*WHO, *SHARED, *CLIENTS, *SECURITY, *DETECTION, *REDIS, *CLUSTER, *REQUESTS, *PROCESS, *HTTP)
"""Every metric, in the order in which they are shown."""
