"""What the engine counts.

Tests: `tests/core/invariants.py`, `tests/admin/test_prometheus.py`.
"""

from dataclasses import dataclass, field

from presence.core.flap_damping import FlapDampingCounters


@dataclass(slots=True)
class EngineCounters:
    """Counters since the start, and current sessions."""

    sessions: int = 0  # live ones; `away` of them are shown as away
    logins: int = 0  # granted
    # sessions superseded by another login, here or on another node, while they were connected
    taken_over: int = 0
    returned_in_grace: int = 0  # sessions superseded after they had lost their connection
    keepalives: int = 0  # of sessions, including those that request an answer
    other_packets: int = 0  # valid ones
    refused: dict[str, int] = field(default_factory=dict)  # connections, by reason
    ended: dict[str, int] = field(default_factory=dict)  # sessions, by reason
    saved_by_poll: int = 0  # sessions kept because an unread packet was found at expiry
    away: int = 0
    updates: int = 0  # of profiles
    flapping: FlapDampingCounters = field(default_factory=FlapDampingCounters)
    expiring: int = 0  # sessions with a token that expires
    quiet: int = 0  # sessions that get changes of other users with their next packet
    passes: int = 0  # connections that have given a pass
    passes_full: int = 0  # passes refused for lack of room
    rooms_refused: int = 0  # updates refused for their rooms, and logins with some of theirs left out
    tokens_expired: int = 0  # connections closed because their token had expired
    packet_floods: int = 0  # connections closed because they sent too many packets
    packet_buckets_kept: int = 0  # users in the table of packet rates
    bans: int = 0  # known
