"""Access rules: tokens, roles, and protection against requests by other web pages. Pure.

Without tokens everyone who reaches the loopback address may do everything, so other web pages could misuse a
browser on this machine: by DNS rebinding (detected by a foreign `Host`), or by plain cross-site requests
(detected by `Origin` or `Sec-Fetch-Site`; they cannot send JSON without a preflight). With tokens a browser
sends the password only to our name, which leaves cross-site requests, refused in the same way.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

from presence.admin.responses import ApiError
from presence.auth.operator_tokens import OperatorToken, Role, Tokens
from presence.common import networks

ANONYMOUS: Final = OperatorToken("act", "anybody", b"")
NO_OPERATOR: Final = OperatorToken("read", "none", b"")
JSON: Final = "application/json"
CHALLENGE: Final = 'Basic realm="presence", charset="UTF-8"'
# Status, message, and the reason under which it is counted.
_REFUSALS: Final = {
    "no_token": (
        401,
        "a token is needed: Authorization: Bearer SECRET, or Basic with it as password",
        "token",
    ),
    "wrong_token": (401, "unknown token", "token"),
    "no_tokens": (503, "the token file cannot be used: see the server's log", "token"),
    "wrong_role": (403, "this token may read but not act", "role"),
    "wrong_host": (403, "without tokens the Host header must name this machine's loopback address", "host"),
    "cross_site": (403, "request from another web page", "origin"),
    "not_json": (415, "actions need Content-Type: application/json", "content_type"),
}


_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:@/]+))(?::[0-9]{1,5})?")


def _refused(code: str) -> ApiError:
    status, message, reason = _REFUSALS[code]
    challenge = {"WWW-Authenticate": CHALLENGE} if status == 401 else {}
    return ApiError(status, code, message, headers=challenge, reason=reason)


class AccessRules:
    """The access rules of HTTP that is served at the address `host`.

    `tokens` are those of operators, and may be replaced. None: there is no token file. Empty: it cannot be
    used.
    """

    def __init__(self, tokens: Tokens | None, host: str) -> None:
        self.tokens = tokens
        self._host = host

    def admit(self, need: Role | None, headers: Mapping[str, str]) -> OperatorToken:
        """Return the operator of a request, whose `headers` have lower-case names.

        `need` is the role that the endpoint requires; None: it is open to everyone.

        Raises:
            ApiError: access is refused.
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
        """Return the operator of a request regardless of the role; None if there is none."""
        try:
            return self._bearer(headers)
        except ApiError:
            return None

    def _local_operator(self, headers: Mapping[str, str]) -> OperatorToken:
        if not networks.is_loopback(self._host):
            raise _refused("no_token")  # a server does not start like this; if it did, refuse everyone
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
    """Return the secret of an Authorization header: a bearer token, or the password of any user."""
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
    """Refuse requests by other web pages.

    Links to pages here are allowed: the other page cannot read the response.

    Raises:
        ApiError: it is a cross-site request.
    """
    site = headers.get("sec-fetch-site", "none").lower()
    is_link = need == "read" and headers.get("sec-fetch-mode", "").lower() == "navigate"
    if site not in {"none", "same-origin"} and not is_link:
        raise _refused("cross_site")
    origin = headers.get("origin")
    if origin is None:
        return
    page = origin.partition("://")[2].lower()  # empty for `null`, an opaque origin
    if not page or page != headers.get("host", "").lower():
        raise _refused("cross_site")


def _name_of(host: str) -> str:
    """Return the name or address of a `Host` header, without the port; "" if it is none."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]) if found else ""
