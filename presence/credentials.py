"""What strangers have to show to this server, and what it shows to them, while it runs.

Both come from files that are renewed under way: keys are looked at every second, the certificate when
somebody says so. Whatever is wrong with a new file, what was in use stays in use, and the log says so.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
import trio

from presence import credential_files
from presence.aside import Aside, Hanging
from presence.clock import Clock
from presence.faults import Faults
from presence.settings import Settings

if TYPE_CHECKING:
    from presence.transports.tls import Certificate

log = structlog.get_logger("presence.credentials")


class Credentials:
    """Keys and certificate of one server.

    Args:
        settings: checked settings.
        clock: monotonic time.

    Attributes:
        gate: says who a client is; None: whoever it says.
        certificate: None: no TLS is served.

    Raises:
        CredentialsError: a file cannot be used.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.gate = credential_files.gate(settings, clock)
        self.certificate = credential_files.certificate(settings)
        self._rotation = None
        if self.gate is not None and settings.token_keys is not None:
            from presence.auth.rotation import Rotation  # noqa: PLC0415 - as `presence.credential_files`

            self._rotation = Rotation(self.gate, settings.token_keys)
        self._aside = Aside()
        self._renewed = self._failed = 0

    async def run(self, faults: Faults) -> None:
        """Look at the keys for ever; where there are none, do nothing."""
        self._tell_end()
        if self._rotation is not None:
            await self._rotation.run(faults)

    async def reload(self) -> None:
        """Read all files again; never raises for what is wrong with them."""
        async with trio.open_nursery() as nursery:  # a disk that hangs holds up its own file only
            if self._rotation is not None:
                nursery.start_soon(self._rotation.look)
            if self.certificate is not None:
                nursery.start_soon(self._renew, self.certificate)

    def report(self) -> dict[str, Any]:
        """Return all figures, for the log."""
        found: dict[str, Any] = {}
        if self.gate is not None and self._rotation is not None:
            found["tokens"] = {**asdict(self.gate.statistics()), **asdict(self._rotation.statistics())}
        if self.certificate is not None:
            found["certificate"] = {
                "renewed": self._renewed,
                "failed": self._failed,
                "ends_at": self.certificate.ends_at.timestamp(),
            }
        return found

    async def _renew(self, certificate: "Certificate") -> None:
        try:
            certificate.use(await self._aside.call(certificate.read))
        except ValueError as error:
            self._keep(str(error))
            return
        except Hanging as error:
            self._keep(f"reading its files {error}")
            return
        self._renewed += 1
        log.info("certificate renewed", ends_at=certificate.ends_at.isoformat())
        self._tell_end()

    def _keep(self, problem: str) -> None:
        self._failed += 1
        log.error("the certificate stays as it was", error=problem)

    def _tell_end(self) -> None:
        """Say so where clients take the certificate no more."""
        if self.certificate is not None and self.certificate.ends_at <= datetime.now(UTC):
            log.error("the certificate has expired", ends_at=self.certificate.ends_at.isoformat())
