"""How settings have to agree with each other: what a server refuses to start with."""

from collections.abc import Iterator
from typing import TypeAlias

from presence import networks
from presence.settings import Settings, admin_host, admin_port

WINDOW_OF_TICK = 0.25  # the batching window's largest share of a tick, or ends would come too late
TICKS_MAX = 100_000  # of the wheel: a set each, 40 MB

EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - to compare with

Complaint: TypeAlias = tuple[tuple[str, ...], str]
"""The keys that disagree, and what is wrong with the first of them."""


def contradictions(s: Settings) -> Iterator[Complaint]:
    """Give what is wrong with settings each of which is sound."""
    yield from _of_time(s)
    yield from _of_strangers(s)
    yield from _of_ports(s)
    if s.data_dir is not None and s.redis is not None:
        yield ("data_dir", "redis"), "is for serve's own Redis and does not go with a redis URL"


def _of_time(s: Settings) -> Iterator[Complaint]:
    if s.tick > s.idle_timeout / 2:
        yield (
            ("tick", "idle_timeout"),
            f"{s.tick:g} s is more than half of idle_timeout, {s.idle_timeout:g} s",
        )
    longest, of = max(
        (max(s.idle_timeout, s.max_idle_timeout), "max_idle_timeout"), (s.away_after, "away_after")
    )
    if longest / s.tick > TICKS_MAX:
        yield (
            ("tick", of),
            f"{s.tick:g} s is too small for time-outs of {longest:g} s: the wheel holds {TICKS_MAX:,} ticks",
        )
    if s.min_idle_timeout > s.max_idle_timeout:
        yield (
            ("min_idle_timeout", "max_idle_timeout"),
            f"{s.min_idle_timeout:g} s is above max_idle_timeout, {s.max_idle_timeout:g} s",
        )
    if s.disconnect_grace > s.max_idle_timeout:
        yield (
            ("disconnect_grace", "max_idle_timeout"),
            f"{s.disconnect_grace:g} s is above max_idle_timeout, {s.max_idle_timeout:g} s",
        )
    if s.batch_window_ms > s.tick * WINDOW_OF_TICK * 1000:
        yield (
            ("batch_window_ms", "tick"),
            f"{s.batch_window_ms} ms is more than a quarter of tick, {s.tick * 1000:g} ms",
        )


def _of_strangers(s: Settings) -> Iterator[Complaint]:
    if not (s.token_keys or s.insecure or networks.is_loopback(s.host)):
        yield (
            ("host", "token_keys", "insecure"),
            f"{s.host} can be reached from elsewhere, and nobody would have to prove who it is: "
            "set token_keys, or say --insecure",
        )
    if not (s.no_admin or s.admin_tokens or networks.is_loopback(admin_host(s.admin))):
        yield (
            ("admin", "admin_tokens"),
            f"{s.admin} can be reached from elsewhere, and nobody would have to prove who it is: "
            "set admin_tokens",
        )
    if s.tls_cert is None:
        if s.tls_key is not None:
            yield ("tls_key", "tls_cert"), "is the key of a certificate: set tls_cert, too"
        if s.tls_only:
            yield ("tls_only", "tls_cert"), "needs a certificate: set tls_cert"
    elif s.port == s.tls_port != 0 and not s.tls_only:
        yield (
            ("tls_port", "port"),
            f"{s.tls_port} is port, too: choose another, or say --tls-only",
        )


def _of_ports(s: Settings) -> Iterator[Complaint]:
    """A port that two are to listen at; several hosts may have one of the same number each."""
    port = admin_port(s.admin)
    if s.no_admin or port == 0 or s.host not in {admin_host(s.admin), *EVERYWHERE}:
        return
    taken = {s.port: "port"} if s.tls_cert is None or s.tls_only else {s.port: "port", s.tls_port: "tls_port"}
    if port in taken:
        yield ("admin", taken[port]), f"{port} is {taken[port]}, too: choose another"
