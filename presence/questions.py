"""What others ask a node over its control channel, and whoever carries the answers; no redis in here."""

from typing import NamedTuple, Protocol


class Question(NamedTuple):
    """Somebody asks what this node knows of a user.

    Attributes:
        uid: the user.
        token: drawn by the asker; it names the key where he looks for answers, and nothing else.
    """

    uid: str
    token: str


class Answers(Protocol):
    """Where answers go: plain calls that may block, made from one thread at a time."""

    def write(self, question: Question, node: str, answer: bytes) -> None:
        """Leave a node's answer for the asker, for a few seconds.

        Raises:
            StoreUnavailable, StoreError: it could not be written; the asker hears nothing.
        """

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""
