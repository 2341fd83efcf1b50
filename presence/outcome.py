"""What the bytes of one connection caused: data, between the protocol's side and whoever performs it."""

from presence.changes import Change
from presence.registry import Peer, Session
from presence.requests import Request
from protocol import Code


class Outcome:
    """What some bytes of one connection caused, for the shell to perform.

    Attributes:
        peer: who the connection belongs to from now on.
        frames: complete valid frames, each of them activity.
        keepalives: how many of these were keepalives of a session, whether they ask for an answer or not.
        reply: bytes to send on the connection.
        end_code: set if the connection is to be hung up after the reply, with the reason.
        attentive: whether a packet said more than that the client lives.
        changes: what the packets cause in Redis, in order; None if that is nothing.
        crowded: sessions that a login leaves no room for, to be ended.
        displaced: the session that a login took the place of.
        displaced_code: what that one's client is told.
        requests: what the desk is to answer, in order; None if there is nothing.
        expires_at: when the token of the session ends, monotonic seconds; None: no token was granted.
        unfinished: whether packets are left for another call, which is to come soon and may bring no bytes.
        failure: what a handler raised, a mistake of ours: it ends this connection and no other.
    """

    __slots__ = (
        "attentive",
        "changes",
        "crowded",
        "displaced",
        "displaced_code",
        "end_code",
        "expires_at",
        "failure",
        "frames",
        "keepalives",
        "peer",
        "reply",
        "requests",
        "unfinished",
    )

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.frames = self.keepalives = 0
        self.reply = bytearray()  # bytes would be copied for each of thousands of answers to one read
        self.end_code: Code | None = None
        self.attentive = False
        self.changes: list[Change] | None = None
        self.crowded: list[Session] | None = None
        self.displaced: Session | None = None
        self.displaced_code = Code.REPLACED
        self.requests: list[Request] | None = None
        self.expires_at: float | None = None
        self.unfinished = False
        self.failure: Exception | None = None
