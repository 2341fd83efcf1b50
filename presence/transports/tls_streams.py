"""TLS over trio's streams, for systems without epoll: the same bounds as in `handshakes.py`."""

import trio
from trio.abc import Stream

from presence.transports.statistics import TransportStatistics
from presence.transports.tls import TlsListening


class TlsStreams:
    """Handshakes of streams.

    Args:
        tls: the certificate, and how many may be under way at once.
        counted: what the transport counts; refused are those that were too many.
    """

    def __init__(self, tls: TlsListening, counted: TransportStatistics) -> None:
        self._tls = tls
        self._counted = counted

    def listeners(self) -> list[trio.SocketListener]:
        """Return where TLS is served."""
        return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in self._tls.listeners]

    async def shake(self, stream: Stream, deadline: float) -> "trio.SSLStream[Stream] | None":
        """Return the stream with TLS around it; None: it is none, or not in time."""
        if self._counted.handshakes_underway >= self._tls.handshakes:
            self._counted.handshakes_refused += 1
            return None
        self._counted.handshakes_underway += 1
        try:
            secured = trio.SSLStream(stream, self._tls.certificate.context, server_side=True)
            with trio.move_on_at(deadline):
                await secured.do_handshake()
                self._counted.handshakes += 1
                return secured
        except trio.BrokenResourceError:
            pass
        finally:
            self._counted.handshakes_underway -= 1
        self._counted.handshakes_failed += 1
        return None


async def say_goodbye(secured: "trio.SSLStream[Stream]") -> Stream:
    """End the sending side of TLS; return the stream below it, of which nothing more is of interest.

    To a peer that had more to say, only the stream below says goodbye: trio gives up before it sends TLS's.
    """
    below = secured.transport_stream
    while True:
        try:
            await secured.unwrap()  # returns when the peer has said goodbye, too
        except trio.BusyResourceError:
            await trio.lowlevel.checkpoint()  # the reader has yet to notice that it is cancelled
            continue
        except trio.BrokenResourceError:
            pass
        return below
