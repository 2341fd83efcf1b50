"""Who may do what: tokens, roles, and what other web pages may not have a browser do. Pure.

Without tokens whoever reaches the loopback address may do everything. So a browser on this machine could be
made an accomplice: by a page whose name was bound anew to this address (DNS rebinding: it asks by a `Host`
that is not ours), and by one that just sends a request (it says where it comes from, in `Origin` or
`Sec-Fetch-Site`, and cannot send JSON without being asked first). With tokens a browser keeps the password
for our name only, which leaves the second way, barred in the same manner.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from presence import networks
from presence.admin.token_file import Role, Tokens


class Need(Enum):
    """What a verb takes: nothing, or a role."""

    OPEN = "open"
    READ = "read"
    ACT = "act"


@dataclass(frozen=True, slots=True)
class Operator:
    """Who asks.

    Attributes:
        name: as the log calls him.
        role: what he may do.
    """

    name: str
    role: Role


class Refused(Exception):
    """A request that is not let in.

    Attributes:
        code: ``no_token``, ``wrong_token``, ``no_tokens`` (there are none to compare with), ``wrong_role``,
            ``wrong_host``, ``cross_site``, ``not_json``.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


ANYBODY: Final = Operator("anybody", "act")
NOBODY: Final = Operator("none", "read")
JSON: Final = "application/json"


class Access:
    """The rules.

    Args:
        tokens: of operators; None: there is no file of them. Empty: there is, and it cannot be used.
        host: the address that is listened on.
    """

    def __init__(self, tokens: Tokens | None, host: str) -> None:
        self._tokens = tokens
        self._host = host

    @property
    def tokens(self) -> Tokens | None:
        """The tokens in effect."""
        return self._tokens

    @tokens.setter
    def tokens(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def admit(self, need: Need, headers: Mapping[str, str]) -> Operator:
        """Return who asks.

        Args:
            need: what the verb takes.
            headers: of the request, by lower-case name.

        Raises:
            Refused: he may not.
        """
        if need is Need.OPEN:
            return NOBODY
        operator = self._whoever_is_near(headers) if self._tokens is None else self._bearer(headers)
        _check_origin(need, headers)
        if need is Need.ACT:
            if operator.role != "act":
                raise Refused("wrong_role")
            if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
                raise Refused("not_json")
        return operator

    def known(self, headers: Mapping[str, str]) -> Operator | None:
        """Return whose token a request has, whatever it may; None: nobody's."""
        try:
            return self._bearer(headers)
        except Refused:
            return None

    def _whoever_is_near(self, headers: Mapping[str, str]) -> Operator:
        if not networks.is_loopback(self._host):
            raise Refused("no_token")  # a server does not start so; if it did, nobody would come in
        name = _name_of(headers.get("host", ""))
        if not networks.is_loopback(name) and name.lower() != self._host.lower():
            raise Refused("wrong_host")
        return ANYBODY

    def _bearer(self, headers: Mapping[str, str]) -> Operator:
        if self._tokens is not None and not len(self._tokens):
            raise Refused("no_tokens")
        offered = _offered(headers.get("authorization", ""))
        if offered is None:
            raise Refused("no_token")
        token = self._tokens.find(offered) if self._tokens is not None else None
        if token is None:
            raise Refused("wrong_token")
        return Operator(token.name, token.role)


def _offered(authorization: str) -> str | None:
    """Return the secret that a header offers: a bearer's, or the password of any user."""
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(rest.strip(), validate=True).decode("utf-8", "replace").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _check_origin(need: Need, headers: Mapping[str, str]) -> None:
    """See to it that no other page asks.

    One may lead a browser here, by a link; it does not see what comes then.

    Raises:
        Refused: one does.
    """
    site = headers.get("sec-fetch-site", "none").lower()
    is_link = need is Need.READ and headers.get("sec-fetch-mode", "").lower() == "navigate"
    if site not in {"none", "same-origin"} and not is_link:
        raise Refused("cross_site")
    origin = headers.get("origin")
    if origin is None:
        return
    page = origin.partition("://")[2].lower()  # empty for `null`: a page that nobody may know of
    if not page or page != headers.get("host", "").lower():
        raise Refused("cross_site")


def _name_of(host: str) -> str:
    """Return the name or the address of a `Host` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
