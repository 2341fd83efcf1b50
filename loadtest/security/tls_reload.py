"""A certificate that is renewed under connected clients: nobody is dropped, who comes sees the new one."""

import signal
import time

from loadtest.nodes.outcome import Outcome
from loadtest.nodes.serving import wait_for
from loadtest.security.credentials import write_certificate
from loadtest.security.guarded import Secured
from loadtest.security.tls_clients import beat, certificate, clients, unanswered

SHOWN_S = 3.0
BEATS_S = 4.0  # in which who is to be dropped would be, after each reload
RELOADS = 3


def tls_reload(on: Secured, count: int, *, seconds: float = BEATS_S) -> Outcome:
    """Renew the certificate under so many, half of them over TLS; then give it a broken one.

    Args:
        on: where they are.
        count: of connections.
        seconds: for which they beat after each.
    """
    half = count // 2
    all_ = clients(on.address, "secured", half, tls=True)
    all_ += clients(on.stage.serving.address, "plain", half, tls=False)
    seen, waits = {certificate(on.address)}, []
    for number in range(RELOADS):
        write_certificate(on.folder, f"renewed {number}")
        waits.append(_shown_after(on, seen))
        beat(all_, 1.0, seconds)
    shown = certificate(on.address)
    (on.folder / "server.pem").write_text("no certificate\n")
    on.stage.serving.process.send_signal(signal.SIGHUP)
    beat(all_, 1.0, seconds)
    shows = certificate(on.address) == shown
    broken = on.stage.others_hurt()
    if not shows:
        broken.append("with a broken file another certificate is shown")
    dropped = unanswered(all_)
    for each in all_:
        each.close()
    if dropped:
        broken.append(f"{dropped} of {count} connected clients were dropped")
    if not max(waits) <= SHOWN_S:
        broken.append(f"a new certificate was shown after {max(waits):.1f} s, {SHOWN_S:g} allowed")
    measured = (
        f"dropped {dropped} of {count:,} connected, half of them over TLS; a new certificate was shown after "
        f"{max(waits):.2f} s at the latest; behind a broken file the last one is shown: {shows}"
    )
    renewed = len(seen) - 1
    return Outcome(
        "tls-reload", f"{renewed} new certificates, a broken one" if renewed else "", measured, broken
    )


def _shown_after(on: Secured, seen: set[bytes]) -> float:
    """Tell the server that there is a new certificate; return the seconds until it shows one."""
    begun = time.monotonic()
    on.stage.serving.process.send_signal(signal.SIGHUP)
    is_shown = wait_for(lambda: certificate(on.address) not in seen, 2 * SHOWN_S)
    seconds = time.monotonic() - begun
    seen.add(certificate(on.address))
    return seconds if is_shown else float("inf")
