"""The HTTP client of webhooks: sends signed requests to the receiver, and classifies its answers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import httpx2

from presence.common.scarcity import scarcity
from presence.common.text import json_line
from presence.subscriber.events import Entry, Gap, Item, entry_values, gap_entry
from presence.webhooks.signature import SIGNATURE_HEADER, sign

# Statuses that are no judgement of the events: the receiver asks for a later retry (429, 503), or a proxy in
# front of it has got no answer from it (502, 504; 520 to 527 and 530 of Cloudflare).
AWAY_STATUSES: Final = frozenset({429, 502, 503, 504, *range(520, 528), 530})
MAX_RETRY_AFTER_S: Final = 300.0
_USER_AGENT: Final = "presence-webhooks"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request was not accepted.

    Attributes:
        error: for the log and for the dead letter.
        is_away: this is no fault of the events: the receiver cannot be reached or asks for a later retry, or
            this process lacks something.
        retry_after_s: the least pause that it asks for.
    """

    error: str
    is_away: bool = False
    retry_after_s: float = 0.0


class WebhookClient:
    """Sends requests to one URL. Redirects are not followed.

    Args:
        url: ``https://`` or ``http://``.
        secrets: to sign with; a request carries a signature by each.
        timeout_s: of a request, from the first byte to the status of the answer.
        transport: httpx2's, for tests.
        wall: Unix seconds.
    """

    def __init__(
        self,
        url: str,
        secrets: Sequence[bytes],
        timeout_s: float,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.timeout_s = timeout_s
        self._url = url
        self._secrets = secrets
        self._wall = wall
        self._client = httpx2.AsyncClient(
            transport=transport,
            # A connection that is still not made after half the time is a receiver that cannot be reached.
            timeout=httpx2.Timeout(timeout_s, connect=timeout_s / 2),
            # Each shard has a request at a time. One that waited for a connection of another would time out.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            headers={"User-Agent": _USER_AGENT, "Content-Type": "application/json"},
        )

    async def post(self, items: Sequence[Item]) -> Failure | None:
        """Send one request; return None if the receiver has accepted the events."""
        body = json_line({"events": [entry_values(_entry(item)) for item in items]}).encode()
        headers = {SIGNATURE_HEADER: sign(body, self._secrets, int(self._wall()))}
        try:
            with anyio.fail_after(self.timeout_s):
                async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                    return _failure_of(response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Failure(f"cannot connect: {error or type(error).__name__}", is_away=True)
        except (TimeoutError, httpx2.TimeoutException):
            return Failure(f"no answer within {self.timeout_s:g} s")
        except httpx2.HTTPError as error:
            return Failure(f"the connection failed: {error or type(error).__name__}")
        except Exception as error:  # such as a thread to look up the name of the receiver
            if not (lack := scarcity(error)):
                raise
            return Failure(lack, is_away=True)

    async def close(self) -> None:
        await self._client.aclose()


def _failure_of(response: httpx2.Response) -> Failure | None:
    if response.is_success:
        return None
    status = response.status_code
    wanted = response.headers.get("Retry-After", "")
    retry_after_s = min(float(wanted), MAX_RETRY_AFTER_S) if wanted.isascii() and wanted.isdigit() else 0.0
    return Failure(f"answered {status}", status in AWAY_STATUSES, retry_after_s)


def _entry(item: Item) -> Entry:
    return gap_entry(item) if isinstance(item, Gap) else item
