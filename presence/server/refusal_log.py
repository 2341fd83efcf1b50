"""The log of refused logins, for operators and for programs that block addresses.

At most one line per second and reason, with the number of those left out: a flood neither fills the log nor
hides refusals for another reason. Counters have them all.

Tests: `tests/server/test_refusal_log.py`.
"""

from typing import Final

import structlog

from presence.common.logs import RateLimited
from presence.protocol import Code

MAX_UID_CHARS: Final = 64  # a client may claim any uid, and a line has to stay short

_log = RateLimited(structlog.get_logger("presence.transport"), by="reason")


def log_refusal(code: Code, address: str, uid: str | None) -> None:
    """Log that a client was refused.

    Args:
        code: why.
        address: by which limits count the client; "" if its transport has none.
        uid: the user that it claims to be; None if it has not said or need not.
    """
    _log.info("login refused", reason=code.reason, address=address, uid=uid and uid[:MAX_UID_CHARS])
