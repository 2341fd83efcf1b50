"""What both faces, the one for trio and the blocking one, need from a source of items."""

from typing import Protocol, TypeVar

Raw_co = TypeVar("Raw_co", covariant=True)


class Source(Protocol[Raw_co]):
    """Items in order. `fetch` and `flush` block and may run in a thread; all else is called between them."""

    @property
    def has_work(self) -> bool:
        """Whether `fetch` has something to do before `take` can give."""

    def fetch(self) -> None:
        """Acknowledge what is settled; get items ready, or none after a while. Call again if it fails."""

    def flush(self) -> None:
        """Acknowledge what is settled, and no more."""

    def take(self) -> Raw_co | None:
        """Return the next item that is ready; it is then the present one."""

    def settle(self) -> None:
        """The present item was handled."""

    def reenter(self) -> None:
        """The present item was not handled, and is wanted again."""

    def fail(self, error: str) -> None:
        """The present item was not handled, for this reason, and is wanted again later."""

    def leave(self, error: str) -> None:
        """The present item was not handled, for this reason, and is wanted when the loop is entered again."""

    def close(self) -> None:
        """Close the connection; called from any thread."""
