"""Parsing of Redis URLs: one server, some servers of a cluster, or the Sentinels of a primary.

::

    redis://user:password@host:6379/0        rediss://…?ssl_ca_certs=/path/ca.pem        unix:///path/to.sock
    redis+cluster://user:password@host-a:6379,host-b:6379        rediss+cluster://…?ssl_ca_certs=/path/ca.pem
    redis+sentinel://user:password@host-a:26379,host-b:26379/name/0?sentinel_password=…        rediss+sentinel://…

User and password before the @ are those of the Redis servers, also with Sentinels.
Names and passwords with special characters are percent-encoded.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

CLUSTER_SHARDS: Final = 16  # default number of shards in a cluster; one server needs only one
_TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
_VALUES: Final = {
    "ssl_cert_reqs": {"none", "optional", "required"},
    "ssl_check_hostname": {"true", "false", "True", "False"},
}
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
_CLUSTER: Final = "+cluster"
_SENTINEL: Final = "+sentinel"
SENTINEL_PORT: Final = 26379
_SECRET_OPTIONS: Final = frozenset({"ssl_password", "sentinel_password"})
_SCHEMES: Final = frozenset(
    {"unix", *(f"{scheme}{kind}" for scheme in ("redis", "rediss") for kind in ("", _CLUSTER, _SENTINEL))}
)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    url: str
    is_cluster: bool
    seeds: tuple[str, ...]  # plain URLs of the servers that it names, in its order; with Sentinels `url`
    sentinels: tuple[str, ...] = ()  # their plain URLs, in its order
    service: str = ""  # the name by which Sentinels know the primary

    @property
    def host(self) -> str:
        """The host of the first server; "" for a Unix socket."""
        return urlsplit(self.seeds[0]).hostname or ""

    def for_server(self, host: str, port: int) -> str:
        """Return the plain URL of another server, with the same user, password and options."""
        return _with_host(self._plain, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def _plain(self) -> str:
        if not self.sentinels:
            return self.seeds[0]
        parts = urlsplit(self.url)
        return urlunsplit(
            parts._replace(
                scheme=parts.scheme.removesuffix(_SENTINEL),
                path=f"/{database(self.url)}",
                query=_split_options(parts.query)[1],
            )
        )


def parse(url: str) -> RedisUrl:
    """Parse a URL.

    Raises:
        ValueError: it is invalid; the message contains no part of it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # its message would show a part of the URL, which may be the password
        raise ValueError("is not a URL with a valid host and port") from None
    if parts.scheme not in _SCHEMES or url[len(parts.scheme) :][:3] != "://":
        raise ValueError(
            "must begin with redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://"
        )
    if not url.isprintable() or " " in url:
        raise ValueError("must not contain white space or control characters")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("must name the socket: unix:///path/to/redis.sock")
    if parts.scheme.endswith(_SENTINEL):
        return _parse_sentinels(url)
    is_cluster = parts.scheme.endswith(_CLUSTER)
    if is_cluster and parts.path not in {"", "/", "/0"}:
        raise ValueError("must not name a database: a cluster has only number 0")
    is_tls = parts.scheme.startswith("rediss")
    _check_options(parts.query, () if is_cluster else ("db",), is_tls=is_tls)
    if parts.scheme == "unix":
        return RedisUrl(url, is_cluster=False, seeds=(url,))
    user, at, hosts = parts.netloc.rpartition("@")
    names = hosts.split(",") if is_cluster else [hosts]
    _check_hosts(names, needs_host=is_cluster)
    if not is_cluster:
        return RedisUrl(url, is_cluster=False, seeds=(url,))
    plain = parts._replace(scheme=parts.scheme.removesuffix(_CLUSTER), path="")
    return RedisUrl(
        url, is_cluster=True, seeds=tuple(urlunsplit(plain._replace(netloc=f"{user}{at}{n}")) for n in names)
    )


def _parse_sentinels(url: str) -> RedisUrl:
    parts = urlsplit(url)
    service, _, number = parts.path.removeprefix("/").partition("/")
    if not service or (number and not number.isdecimal()):
        raise ValueError("must name the primary, and may name a database: redis+sentinel://host:port/name/0")
    _check_options(parts.query, _SENTINEL_OPTIONS, is_tls=parts.scheme.startswith("rediss"))
    names = parts.netloc.rpartition("@")[2].split(",")
    _check_hosts(names, needs_host=True)
    own, shared = _split_options(parts.query)
    user, password = (quote(own.get(name, ""), safe="") for name in _SENTINEL_OPTIONS)
    login = f"{user}:{password}@" if user or password else ""
    plain = parts._replace(scheme=parts.scheme.removesuffix(_SENTINEL), path="", query=shared)
    ports = ["" if urlsplit(f"redis://{name}").port else f":{SENTINEL_PORT}" for name in names]
    return RedisUrl(
        url,
        is_cluster=False,
        seeds=(url,),
        sentinels=tuple(
            urlunsplit(plain._replace(netloc=f"{login}{name}{port}"))
            for name, port in zip(names, ports, strict=True)
        ),
        service=unquote(service),
    )


def _split_options(query: str) -> tuple[dict[str, str], str]:
    """Return the options that concern Sentinels only, and the others as a query."""
    options = parse_qsl(query)
    own = {name: value for name, value in options if name in _SENTINEL_OPTIONS}
    return own, urlencode([each for each in options if each[0] not in _SENTINEL_OPTIONS])


def is_cluster(url: str | None) -> bool:
    """Whether a valid URL is that of a Redis Cluster."""
    return url is not None and parse(url).is_cluster


def database(url: str | None) -> int:
    """Return the database number of a URL; 0 without a URL."""
    parts = urlsplit(url or "")
    path = "" if parts.scheme == "unix" else parts.path.lstrip("/")
    if parts.scheme.endswith(_SENTINEL):
        path = path.partition("/")[2]
    number = dict(parse_qsl(parts.query)).get("db", path)
    return int(number) if number.isdecimal() else 0


def user(url: str) -> str:
    """Return the user name in `url`; "" for the default user."""
    return unquote(urlsplit(url).username or "")


def redacted(url: str) -> str:
    """Return `url` with the passwords of the user, of the Sentinels and of a TLS key replaced by ``***``."""
    parts = urlsplit(url)
    options = [_redacted_option(each) for each in parts.query.split("&")]
    if "&".join(options) != parts.query:
        url = urlunsplit(parts._replace(query="&".join(options)))
    if parts.password is None:
        return url
    return _with_host(url, parts.netloc.rpartition("@")[2], f"{parts.username or ''}:***")


def _redacted_option(option: str) -> str:
    name = unquote(option.partition("=")[0])
    return f"{name}=***" if name in _SECRET_OPTIONS else option


def _with_host(url: str, host: str, user: str | None = None) -> str:
    parts = urlsplit(url)
    before, at, _ = parts.netloc.rpartition("@")
    if user is not None:
        before, at = user, "@"
    return urlunsplit(parts._replace(netloc=f"{before}{at}{host}"))


def _check_options(query: str, own: tuple[str, ...], *, is_tls: bool) -> None:
    # redis-py accepts all of its own options here, including the password and time-outs.
    allowed = [*own, *(_TLS_OPTIONS if is_tls else ())]
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TLS_OPTIONS and not is_tls:
            raise ValueError(f"must begin with rediss:// to use {name}")
        if name not in allowed:
            names = ", ".join(allowed) or "nothing"
            raise ValueError(f"may have only {names} after the question mark; the password goes before @")
        values = _VALUES.get(name)
        if not value or (values and value not in values) or (name == "db" and not value.isdecimal()):
            raise ValueError(f"must have a valid value for {name}")


def _check_hosts(names: Iterable[str], *, needs_host: bool) -> None:
    for name in names:
        try:
            parts = urlsplit(f"redis://{name}")
            is_bad = parts.port == 0 or (needs_host and not parts.hostname)
        except ValueError:
            is_bad = True
        if is_bad:
            raise ValueError("is not a URL with a valid host and port")
