"""The metrics of what a server does beside presence: credentials, messages, watches, follow-ups.

Those of a service that is off are absent.
"""

from typing import Final

from presence.admin.metric_kinds import by_reason, counter, counters, gauge

# As `presence.auth.tokens.Reason` has them, which would bring the cryptography along.
TOKEN_REASONS: Final = (
    "missing",
    "malformed",
    "unknown_key",
    "signature",
    "expired",
    "not_yet",
    "audience",
    "claims",
    "other_uid",
)

SECURITY: Final = (
    gauge("tls_connections", "Connections over TLS", "transport.tls_connections"),
    gauge("tls_handshakes_underway", "Handshakes that are under way", "transport.handshakes_underway"),
    counters(
        "tls_handshakes",
        "Handshakes, by result",
        "result",
        {
            "done": "transport.handshakes",
            "failed": "transport.handshakes_failed",
            "refused": "transport.handshakes_refused",
        },
    ),
    gauge(
        "tls_certificate_end_timestamp_seconds",
        "Unix time at which the certificate ends",
        "certificate.ends_at",
    ),
    counters(
        "tls_certificate_reads",
        "Renewals of the certificate, by result",
        "result",
        {"renewed": "certificate.renewed", "failed": "certificate.failed"},
    ),
    counters(
        "proxy_headers",
        "PROXY headers, by result",
        "result",
        {"taken": "transport.proxied", "refused": "transport.proxy_headers_refused"},
    ),
    counters(
        "tokens_granted",
        "Tokens that were good",
        "use",
        {"login": "tokens.granted", "renewal": "tokens.renewed"},
    ),
    by_reason(
        "tokens_refused", "Logins refused over their token, by reason", "tokens.refused", TOKEN_REASONS
    ),
    by_reason(
        "token_renewals_refused",
        "Fresh tokens of connected clients that were refused, by reason",
        "tokens.renewals_refused",
        TOKEN_REASONS,
    ),
    counter("tokens_unchecked", "Tokens that there was no processor time for", "tokens.unchecked"),
    gauge("token_keys", "Keys that tokens are checked with", "tokens.keys"),
    gauge("token_keys_current", "1 if the keys in use are those of the file", "tokens.is_current"),
)

REQUESTS: Final = (
    counters(
        "messages",
        "Messages of clients, by outcome",
        "outcome",
        {
            "handed": "messages.handed",
            "offline": "messages.refused_offline",
            "disconnected": "messages.refused_disconnected",
            "busy": "messages.refused_busy",
            "unknown": "messages.unknown",
        },
    ),
    gauge("messages_waiting", "Messages without an outcome yet", "messages.waiting"),
    counters(
        "message_deliveries",
        "Messages of all nodes for connections here",
        "result",
        {"delivered": "messages.delivered_here", "gone": "messages.gone_meanwhile"},
    ),
    gauge("watchers", "Sessions that watch somebody", "watching.watchers"),
    gauge("watches", "Pairs of a session and whom it watches", "watching.watches"),
    gauge("shared_watches", "Watches beyond each connection's own", "watching.shared"),
    gauge("shared_watches_max", "And how many there may be", "watching.max_shared"),
    gauge("watched_users", "Users who are watched", "watching.users"),
    gauge("watch_requests_waiting", "Requests to watch that wait for states", "watching.waiting"),
    counters(
        "watch_requests",
        "Requests to watch: taken on, and of all those that failed",
        "result",
        {
            "taken": "watching.taken",
            "refused": "watching.refused",
            "full": "watching.full",
            "timed_out": "watching.timed_out",
        },
    ),
    counters(
        "watch_pushes",
        "Pushes to watchers",
        "result",
        {
            "sent": "watching.pushes.sent",
            "put_off": "watching.pushes.put_off",
            "replaced": "watching.pushes.replaced",
        },
    ),
    gauge("watch_pushes_queued", "Changes that wait to be handed to watchers", "watching.pushes.queued"),
    counter("watch_losses", "Losses of a connection for watches", "watching.shards.losses"),
    counters(
        "queries",
        "Queries of clients: taken on, and of these answered and refused",
        "result",
        {
            "taken": "watching.queries.taken",
            "answered": "watching.queries.answered",
            "refused": "watching.queries.refused",
        },
    ),
    counters(
        "followups",
        "Follow-ups, by what this worker did with them",
        "outcome",
        {
            "planned": "followups.planned",
            "cancelled": "followups.cancelled",
            "told": "followups.told",
            "dropped": "followups.dropped",
            "refused": "followups.refused",
        },
    ),
    counter("followup_turns", "Turns of the wheel of follow-ups that were answered", "followups.turns"),
    counter("followup_failures", "Turns that failed", "followups.failures"),
    counter("followup_holes", "How often follow-ups found events missing", "followups.holes"),
)
