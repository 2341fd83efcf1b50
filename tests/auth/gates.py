"""Keys for tests, made once; a real gate with its time by hand; and a gate whose tokens are plain words."""

from functools import cache
from pathlib import Path
from typing import Any

from presence.auth import key_file
from presence.auth.effort import Caller, Effort
from presence.auth.gate import TokenGate
from presence.auth.guesses import Guesses
from presence.auth.keys import Keyring
from presence.auth.making import Signer, key_set, make_key
from presence.auth.tokens import Terms
from presence.auth.verdicts import Denied, Granted, Verdict
from presence.clock import Clock
from protocol import Code

ALGORITHMS = ("HS256", "RS256", "EdDSA")
AUDIENCE = "presence"
WALL = 1_700_000_000.0  # Unix time at which a gate is made
BEGUN = 50.0  # monotonic time then
ADDRESS = "192.0.2.1"


def entry(alg: str, kid: str = "") -> dict[str, Any]:
    """Return a key with its private part, the same each time."""
    return _entry(alg, kid or f"key-{alg}")


@cache
def _entry(alg: str, kid: str) -> dict[str, Any]:
    return make_key(kid, alg)


@cache
def signer(alg: str) -> Signer:
    return Signer(entry(alg))


def keyring(*entries: dict[str, Any]) -> Keyring:
    return key_file.parse(key_set([*entries]).encode(), Path("keys.json"))


@cache
def every_key() -> Keyring:
    return keyring(*(entry(alg) for alg in ALGORITHMS))


def token(uid: str = "ann", alg: str = "HS256", ttl_s: float = 60.0, **claims: Any) -> str:
    """Return a token that was made at `WALL`."""
    return signer(alg).token(uid, audience=AUDIENCE, now=WALL, ttl_s=ttl_s, **claims)


class Boundless(Effort):
    """A budget that is never spent."""

    def take(self, cost_s: float, caller: Caller, now: float) -> bool:
        return True


class Gated:
    """A gate, and the time by which it decides.

    Args:
        rate, burst, delay_s, holding_max: see `Guesses`.
        share: see `Effort`; None: there is always time.
        ring: keys of its own; None: one of each algorithm, which tests share and leave as they are.
        leeway_s: see `Terms`.

    Attributes:
        now: monotonic seconds.
        step_s: by how much somebody has set the machine's clock.
    """

    def __init__(
        self,
        *,
        rate: float = 1.0,
        burst: int = 20,
        delay_s: float = 3.0,
        holding_max: int = 100,
        share: float | None = None,
        leeway_s: float = 0.0,
        ring: Keyring | None = None,
    ) -> None:
        self.now = BEGUN
        self.step_s = 0.0
        self.gate = TokenGate(
            ring or every_key(),
            Terms(AUDIENCE, leeway_s),
            Boundless(1.0, self.now) if share is None else Effort(share, self.now),
            Guesses(rate, burst, delay_s, holding_max=holding_max),
            Clock(lambda: self.now),
            wall=lambda: WALL + self.now - BEGUN + self.step_s,
        )

    def login(self, text: object, uid: str | None = None, address: str = ADDRESS) -> Verdict:
        return self.gate.login(text, uid, address, self.now)

    def renewal(self, text: object, uid: str = "ann") -> Verdict:
        return self.gate.renewal(text, uid, ADDRESS, self.now)

    def refused(self, text: object, uid: str | None = None, address: str = ADDRESS) -> Denied:
        verdict = self.login(text, uid, address)
        assert isinstance(verdict, Denied), verdict
        return verdict


class WordGate:
    """Takes ``UID:SECONDS`` for a good token of that user, and nothing else.

    Attributes:
        addresses: from where logins came.
        hold_s: for how long refusals are held.
        busy: whether nothing is checked.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.hold_s = 0.0
        self.busy = False

    def login(self, token: object, uid: str | None, address: str, now: float) -> Verdict:
        self.addresses.append(address)
        return self._verdict(token, uid, now, self.hold_s)

    def renewal(self, token: object, uid: str, address: str, now: float) -> Verdict:
        return self._verdict(token, uid, now, 0.0)

    def _verdict(self, token: object, uid: str | None, now: float, hold_s: float) -> Verdict:
        if self.busy:
            return Denied(Code.BUSY, "busy", 2.5)
        name, _, seconds = str(token).partition(":")
        if not seconds.isdigit() or uid not in (None, name):
            return Denied(Code.AUTH_FAILED, "no", hold_s=hold_s)
        return Granted(name, now + int(seconds))
