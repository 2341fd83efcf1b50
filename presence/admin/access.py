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
from typing import Final

from presence.admin.responses import ApiError
from presence.auth.operator_tokens import OperatorToken, Role, Tokens
from presence.common import networks

ANONYMOUS: Final = OperatorToken("act", "anybody", b"")
NO_OPERATOR: Final = OperatorToken("read", "none", b"")
JSON: Final = "application/json"
CHALLENGE: Final = 'Basic realm="presence", charset="UTF-8"'
# Status, message, and the reason by which it is counted.
_REFUSALS: Final = {
    "no_token": (401, "give a token: Authorization: Bearer SECRET, or Basic with it as password", "token"),
    "wrong_token": (401, "this token is not known here", "token"),
    "no_tokens": (503, "the file of tokens cannot be used: see the server's log", "token"),
    "wrong_role": (403, "this token may read, and not act", "role"),
    "wrong_host": (403, "without tokens the Host header must name this machine's loopback address", "host"),
    "cross_site": (403, "another web page asks", "origin"),
    "not_json": (415, "an act takes Content-Type: application/json", "content_type"),
}


def _refused(code: str) -> ApiError:
    status, message, reason = _REFUSALS[code]
    challenge = {"WWW-Authenticate": CHALLENGE} if status == 401 else {}
    return ApiError(status, code, message, headers=challenge, reason=reason)


class AccessRules:
    """The rules.

    Args:
        tokens: of operators; None: there is no file of them. Empty: there is, and it cannot be used.
        host: the address that is listened on.

    Attributes:
        tokens: those in effect.
    """

    def __init__(self, tokens: Tokens | None, host: str) -> None:
        self.tokens = tokens
        self._host = host

    def admit(self, need: Role | None, headers: Mapping[str, str]) -> OperatorToken:
        """Return who asks.

        Args:
            need: the role that the verb takes; None: it is open to everybody.
            headers: of the request, by lower-case name.

        Raises:
            ApiError: he may not.
        """
        if need is None:
            return NO_OPERATOR
        operator = self._local_operator(headers) if self.tokens is None else self._bearer(headers)
        _check_origin(need, headers)
        if need == "act":
            if operator.role != "act":
                raise _refused("wrong_role")
            if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
                raise _refused("not_json")
        return operator

    def identify(self, headers: Mapping[str, str]) -> OperatorToken | None:
        """Return whose token a request has, whatever it may; None: nobody's."""
        try:
            return self._bearer(headers)
        except ApiError:
            return None

    def _local_operator(self, headers: Mapping[str, str]) -> OperatorToken:
        if not networks.is_loopback(self._host):
            raise _refused("no_token")  # a server does not start so; if it did, nobody would come in
        name = _name_of(headers.get("host", ""))
        if not networks.is_loopback(name) and name.lower() != self._host.lower():
            raise _refused("wrong_host")
        return ANONYMOUS

    def _bearer(self, headers: Mapping[str, str]) -> OperatorToken:
        if self.tokens is not None and not len(self.tokens):
            raise _refused("no_tokens")
        secret = _secret_of(headers.get("authorization", ""))
        if secret is None:
            raise _refused("no_token")
        token = self.tokens.find(secret) if self.tokens is not None else None
        if token is None:
            raise _refused("wrong_token")
        return token


def _secret_of(authorization: str) -> str | None:
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


def _check_origin(need: Role, headers: Mapping[str, str]) -> None:
    """See to it that no other page asks.

    One may lead a browser here, by a link; it does not see what comes then.

    Raises:
        ApiError: one does.
    """
    site = headers.get("sec-fetch-site", "none").lower()
    is_link = need == "read" and headers.get("sec-fetch-mode", "").lower() == "navigate"
    if site not in {"none", "same-origin"} and not is_link:
        raise _refused("cross_site")
    origin = headers.get("origin")
    if origin is None:
        return
    page = origin.partition("://")[2].lower()  # empty for `null`: a page that nobody may know of
    if not page or page != headers.get("host", "").lower():
        raise _refused("cross_site")


def _name_of(host: str) -> str:
    """Return the name or the address of a `Host` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
