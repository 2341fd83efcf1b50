"""What is open to strangers by the settings of a server, for its operator to know when it starts."""

from collections.abc import Iterator

from presence import networks
from presence.settings import Settings, admin_host


def exposures(s: Settings) -> Iterator[str]:
    """Give what strangers could do, in words; nothing of a server that only this machine reaches."""
    is_local = networks.is_loopback(s.host)
    if s.token_keys is None and not is_local:
        yield "whoever reaches this server may be any user: set token_keys"
    elif s.token_keys is None and s.proxy_from is not None:
        yield "whoever a proxy lets in may be any user: set token_keys"
    if s.token_keys is not None and not is_local and not s.tls_only and s.proxy_from is None:
        missing = (
            "set tls_cert, tls_only" if s.tls_cert is None else "set tls_only, or close the port to others"
        )
        yield f"tokens and messages that come over plain TCP can be read on their way: {missing}"
    if not (s.no_admin or networks.is_loopback(admin_host(s.admin))):
        yield "tokens of operators can be read on their way, over plain HTTP: put a proxy with TLS there"
