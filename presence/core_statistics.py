"""What a core counts, for logs and operators."""

from dataclasses import dataclass, field

from presence.flapping import FlappingStatistics


@dataclass(slots=True)
class CoreStatistics:
    """Counters since the start, and sessions now.

    Attributes:
        sessions: that live; `away` of them are shown so.
        logins: granted.
        taken_over: sessions whose place another login, here or on another node, took while they were
            connected.
        returned_in_grace: and those whose place another took while they were lost.
        beats: keepalives of sessions, those that ask for an answer too; `frames` are all other packets that
            were valid.
        refused: connections, by the reason that they were told.
        ended: sessions, by reason.
        saved_by_a_last_look: sessions whose packet lay unread when their time was up.
        updates: of how sessions are shown.
        flapping: see `FlappingStatistics`.
        expiring: sessions whose end their token sets.
        tokens_expired: connections that were sent away to fetch another one.
        packet_floods: connections that sent too many packets.
        packet_buckets_kept: connections that have lately sent more than a trickle.
    """

    sessions: int = 0
    logins: int = 0
    taken_over: int = 0
    returned_in_grace: int = 0
    beats: int = 0
    frames: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    saved_by_a_last_look: int = 0
    away: int = 0
    updates: int = 0
    flapping: FlappingStatistics = field(default_factory=FlappingStatistics)
    expiring: int = 0
    tokens_expired: int = 0
    packet_floods: int = 0
    packet_buckets_kept: int = 0
