"""What is tried, and what Redis is given to do beside it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from loadtest.proxy import Proxy
from presence.embedded import EmbeddedRedis
from presence.store.client import Redis, open_client
from presence.timers.expiry_timer import RECONCILE_S

NO_SCAN_S: Final = 1e9
FAR_TTL_S: Final = 86_400.0
SLICE: Final = 1000  # keys of others that are set in one go
USER: Final = "listener"


@dataclass(frozen=True)
class Scenario:
    """What is tried.

    Attributes:
        name: for the table.
        others: volatile keys of others.
        others_ttl_s: when they expire; None: together with the events.
        reconcile_s: see `ExpiryTimer`.
        cut: what is cut off for a while: "" nothing, "listener", "process".
    """

    name: str
    others: int = 0
    others_ttl_s: float | None = FAR_TTL_S
    reconcile_s: float = RECONCILE_S
    cut: str = ""


@dataclass(frozen=True)
class Plan:
    """How much, and for how long: the cut begins a quarter into the span.

    Attributes:
        events: to come.
        first_s: until the first one is due: adding them has to take less.
        span_s: from the first to the last one.
        cut_s: for which something is cut off.
        patience_s: after the last one is due.
    """

    events: int
    first_s: float
    span_s: float
    cut_s: float
    patience_s: float

    @property
    def cut_from_s(self) -> float:
        """Seconds after the first event is due."""
        return self.span_s / 4


def scenarios(others: int) -> list[Scenario]:
    """Return all of them."""
    far, near = f"{others:,} other keys, far", f"{others:,} other keys, near"
    return [
        Scenario("idle Redis, no scan", reconcile_s=NO_SCAN_S),
        Scenario("idle Redis"),
        Scenario(f"{far}, no scan", others, reconcile_s=NO_SCAN_S),
        Scenario(far, others),
        Scenario(f"{near}, no scan", others, None, NO_SCAN_S),
        Scenario(near, others, None),
        Scenario("listener cut off", cut="listener"),
        Scenario("process cut off", cut="process"),
    ]


def set_others(client: Redis, count: int, plan: Plan, ttl_s: float | None) -> None:
    """Set volatile keys that are nobody's business here."""
    for first in range(0, count, SLICE):
        with client.pipeline(transaction=False) as pipe:
            for n in range(first, min(first + SLICE, count)):
                near_s = plan.first_s + plan.span_s * n / count
                pipe.set(f"other:{n}", "", px=round(1000 * (near_s if ttl_s is None else ttl_s)))
            pipe.execute()


@contextmanager
def cutting(server: EmbeddedRedis, what: str) -> Iterator[tuple[str, Callable[[bool], object]]]:
    """Lend a URL, and what cuts it off (True) and lets it through again (False)."""
    path = server.url.removeprefix("unix://")
    if what == "process":
        with Proxy(path) as proxy:

            def toggle(is_cut: bool) -> None:
                if is_cut:
                    proxy.refuse()
                    proxy.reset()
                else:
                    proxy.heal()

            yield proxy.url, toggle
        return
    with open_client(server.url) as client:

        def rule(*rules: str) -> None:
            client.execute_command("ACL", "SETUSER", USER, *rules)

        # Without its channels a connection that listens is killed, and the next one refused.
        rule("on", ">pw", "~*", "&*", "+@all")
        yield f"unix://{USER}:pw@{path}", lambda is_cut: rule("resetchannels" if is_cut else "allchannels")
