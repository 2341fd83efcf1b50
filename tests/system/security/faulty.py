"""``python -m tests.system.security.faulty serve …``: `presence` with a mistake for one wish of clients.

Who asks for an idle time-out of `WISH_S` meets an exception that nobody expects, and that says what no log
may say.
"""

import sys

from presence.cli.main import main
from presence.config.settings import Settings

WISH_S = 66.6
SECRET = "kAnAry-5ecret"
CONTROL = "\x1b[31m"


def plant_mistake() -> None:
    """Plant the mistake in this process only, not in its workers."""
    whole = Settings.clamp_idle_timeout

    def clamped(self: Settings, wish: float | None = None) -> float:
        if wish == WISH_S:
            raise RuntimeError(f"a mistake {CONTROL} with redis://:{SECRET}@host and token={SECRET}")
        return whole(self, wish)

    Settings.clamp_idle_timeout = clamped  # type: ignore[method-assign]  # that is the mistake


if __name__ == "__main__":
    plant_mistake()
    sys.exit(main())
