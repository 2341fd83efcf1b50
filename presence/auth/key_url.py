"""The keys of an identity provider: a JSON Web Key Set (RFC 7517) at a URL.

A provider's set also holds keys for other purposes, which are ignored and counted: other algorithms, sizes
and uses, and keys without a `kid`. A key without `alg` gets the algorithm of its type: RS256, ES256 or EdDSA.
A key with a secret part is ignored too, because everyone can read it.

A request takes `TIMEOUT_S` and `MAX_FILE_BYTES` at most. It follows no redirect, uses no proxy or password
that the environment names, and keeps no cookie.
"""

import logging
import ssl
from contextlib import suppress
from typing import Final

import httpx2
import trio

from presence.auth.key_file import MAX_FILE_BYTES, SECRET_MEMBERS, digest, entries_of, key_of
from presence.auth.signing_keys import EDDSA, ES256, KTY, RS256, InvalidKey, Key, Keyring, KeySetError

TIMEOUT_S: Final = 5.0  # of a request in all
RETRY_S: Final = 10.0  # between two requests: soon enough for a new key, and bearable for the provider
logging.getLogger("httpx2").setLevel(logging.WARNING)  # else it logs every request
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity"}  # compressed content can grow
_ALG_BY_KTY: Final = {KTY[alg]: alg for alg in (RS256, ES256, EDDSA)}


class KeyUrl:
    """Keys from a URL, a `KeySource` that is read every `interval_s` seconds."""

    retry_s = RETRY_S

    def __init__(self, url: str, interval_s: float) -> None:
        self.interval_s = interval_s
        self._url = url
        self._tls: ssl.SSLContext | None = None

    def initial(self) -> Keyring:
        """Return no keys: the server starts even if the provider is down."""
        return Keyring(())

    async def read(self) -> bytes:
        try:
            with trio.fail_after(TIMEOUT_S):
                return await self._request()
        except trio.TooSlowError:
            problem = f"takes longer than {TIMEOUT_S:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:  # OSError: of `create_ssl_context`
            problem = f"cannot be read: {error or type(error).__name__}"
        raise KeySetError(f"{self._url}: {problem}")

    async def _request(self) -> bytes:
        if self._tls is None:  # reading the certificates of all authorities takes 0.1 s
            self._tls = httpx2.create_ssl_context()
        raw = bytearray()
        async with (
            httpx2.AsyncClient(verify=self._tls, trust_env=False, timeout=None) as client,
            client.stream("GET", self._url, headers=_HEADERS) as response,
        ):
            if response.status_code != httpx2.codes.OK:
                raise KeySetError(f"{self._url}: answers with status {response.status_code}")
            async for chunk in response.aiter_raw():
                if len(raw) <= MAX_FILE_BYTES:
                    raw += chunk
        if len(raw) > MAX_FILE_BYTES:
            raise KeySetError(f"{self._url}: is larger than {MAX_FILE_BYTES:,} bytes")
        return bytes(raw)

    def parse(self, raw: bytes) -> Keyring:
        try:
            entries = entries_of(raw)
        except InvalidKey as error:
            raise KeySetError(f"{self._url}: {error}") from None
        keys: dict[tuple[str, str], Key] = {}
        for entry in entries:
            with suppress(InvalidKey):
                key = _public_key(entry)
                keys.setdefault((key.kid, key.alg), key)
        if not keys:
            raise KeySetError(f"{self._url}: holds no key that can check tokens")
        return Keyring(keys.values(), digest(raw), ignored=len(entries) - len(keys))


def _public_key(entry: object) -> Key:
    if not isinstance(entry, dict):
        raise InvalidKey("must be an object")
    if not entry.keys().isdisjoint(SECRET_MEMBERS):
        raise InvalidKey("holds a secret")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise InvalidKey("key_ops must contain verify, where it is given")
    return key_of({**entry, "alg": entry.get("alg") or _ALG_BY_KTY.get(str(entry.get("kty")))})
