"""Validates requests: uids, bodies, parameters. All functions raise `ApiError`.

Tests: `tests/system/admin/test_openapi.py`, `tests/admin/test_messages.py`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.requests import Request

from presence.admin.access import JSON
from presence.admin.responses import ApiError, bad_request, not_found
from presence.ops.ban import check_addresses
from presence.protocol.schema import confirm_complaint, device_complaint, room_complaint, uid_complaint
from presence.reader import MAX_LARGEST, UserFilter
from presence.sender import MAX_MESSAGES, Message, check_message, check_name
from presence.store.ban_table import MAX_DURATION_S, MAX_REASON_CHARS
from presence.store.roster_table import RosterChange

MAX_UIDS: Final = 500  # as in a query of a client
USERS_DEFAULT: Final = 100
MAX_USERS: Final = 1000  # of a page
WAIT_DEFAULT_S: Final = 5.0
MAX_WAIT_S: Final = 30.0


def checked_uid(value: object) -> str:
    return _checked(value, "bad_uid", uid_complaint)


def checked_room(value: object) -> str:
    return _checked(value, "bad_name", room_complaint)


def uid_of_query(request: Request) -> str:
    """Return the parameter `uid`.

    Browsers and other clients remove ``.`` and ``..`` from the end of a path, also percent-encoded, so a path
    cannot name these users.
    """
    try:
        found = parse_qs(request.scope["query_string"].decode("ascii"), True, errors="strict").get("uid", [])
    except ValueError:
        raise bad_request("bad_uid", "a uid is UTF-8, percent-encoded") from None
    if len(found) != 1:
        raise bad_request("bad_uid", "there must be one uid")
    return checked_uid(found[0])


def uid_of_path(request: Request, prefix: str) -> str:
    """Return the percent-decoded uid at the end of a path."""
    return checked_uid(_of_path(request, prefix, "uid"))


def room_of_path(request: Request, prefix: str) -> str:
    """Return the percent-decoded name of a room at the end of a path."""
    return checked_room(_of_path(request, prefix, "name"))


def _of_path(request: Request, prefix: str, name: str) -> str:
    """Return the percent-decoded end of a path.

    The prefix must not be percent-encoded, or its end would be ambiguous.
    """
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.partition(b"?")[0]
    if not path.startswith(prefix.encode()):
        raise not_found()
    try:
        return unquote_to_bytes(path[len(prefix) :]).decode()
    except UnicodeDecodeError:
        raise bad_request(f"bad_{name}", f"a {name} is UTF-8, percent-encoded") from None


async def json_object(request: Request, *names: str) -> dict[str, Any]:
    """Return the body, an object with no other names than these."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise ApiError(415, "not_json", f"the body must be {JSON}", reason="content_type")
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise bad_request("bad_json", "the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise bad_request("bad_json", "the body must be an object")
    if others := sorted(set(body).difference(names)):
        raise bad_request("unknown_name", f"the known names are {', '.join(names)}, not {others[0][:64]!a}")
    return body


def uids_of(body: dict[str, Any]) -> list[str]:
    """Return the `uids` of a query, each once."""
    uids = body.get("uids")
    if not isinstance(uids, list):
        raise bad_request("bad_uids", "uids must be a list")
    if len(uids) > MAX_UIDS:
        raise ApiError(413, "too_many_uids", f"at most {MAX_UIDS} uids per query", reason="uids")
    return list(dict.fromkeys(checked_uid(uid) for uid in uids))


def roster_change_of(body: dict[str, Any]) -> RosterChange:
    """Return the change of a roster: `put` in place of all, or `remove` and `add`."""
    uid = checked_uid(body.get("uid"))
    lists = {name: _roster_users(body[name], name) for name in ("put", "add", "remove") if name in body}
    if not lists or ("put" in lists and len(lists) > 1):
        raise bad_request("bad_roster", "there must be put alone, or add or remove or both")
    if "put" in lists:
        return RosterChange(uid, (), lists["put"], is_new=True)
    return RosterChange(uid, lists.get("remove", ()), lists.get("add", ()))


def _roster_users(uids: object, name: str) -> list[str]:
    if not isinstance(uids, list):
        raise bad_request("bad_roster", f"{name} must be a list of uids")
    if len(uids) > MAX_UIDS:
        raise ApiError(413, "too_many_uids", f"at most {MAX_UIDS} users in {name}", reason="uids")
    return list(dict.fromkeys(checked_uid(uid) for uid in uids))


def addresses_of(body: dict[str, Any], *, force: bool = False) -> list[str]:
    """Return the `addresses` to ban or unban, as the table has them; empty if the body names users.

    `force`: whether all valid ones are accepted, as with `force` in the body.
    """
    addresses, given_force = body.get("addresses"), body.get("force", False)
    if not isinstance(given_force, bool):
        raise bad_request("bad_force", "force must be true or false")
    if addresses is None:
        return []
    if not isinstance(addresses, list) or not addresses or not all(isinstance(e, str) for e in addresses):
        raise bad_request("bad_addresses", "addresses must be a list of texts, and not empty")
    if "uids" in body or body.get("device") is not None:
        raise bad_request("bad_addresses", "beside addresses there must be no uids and no device")
    if len(addresses) > MAX_UIDS:
        raise ApiError(413, "too_many_addresses", f"at most {MAX_UIDS} addresses", reason="addresses")
    try:
        return check_addresses(addresses, force=force or given_force)
    except ValueError as error:
        raise bad_request("bad_addresses", str(error)) from None


def device_of(body: dict[str, Any]) -> str | None:
    """Return the `device`: "" for the default one, None for all."""
    device = body.get("device")
    return (
        None if device is None else "" if device == "" else _checked(device, "bad_device", device_complaint)
    )


def sender_of(body: Mapping[str, Any]) -> str:
    """Return the `from` of messages."""
    name = body.get("from")
    try:
        check_name(name)
    except ValueError as error:
        raise bad_request("bad_from", str(error)) from None
    return str(name)


def messages_of(body: Mapping[str, Any]) -> list[tuple[Message, int]]:
    """Return the messages of a request, each with its size in bytes: its `messages`, or itself as one."""
    if "messages" not in body:
        return [_message_of({name: value for name, value in body.items() if name != "from"})]
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise bad_request("bad_messages", "messages must be a list, and not empty")
    if others := sorted(set(body).difference({"from", "messages"})):
        raise bad_request("bad_messages", f"beside messages there must be no {others[0]}")
    if len(messages) > MAX_MESSAGES:
        text = f"at most {MAX_MESSAGES} messages per request"
        raise ApiError(413, "too_many_messages", text, reason="messages")
    return [_message_of(each) for each in messages]


def _message_of(given: object) -> tuple[Message, int]:
    if not isinstance(given, dict) or set(given).difference(Message._fields):
        names = ", ".join(Message._fields)
        raise bad_request("bad_messages", f"a message must be an object with no other names than {names}")
    if "body" not in given:
        raise bad_request("bad_body", "a message must have a body, which may be null")
    message = Message(checked_uid(given.get("to")), given["body"], device_of(given), given.get("confirm"))
    if message.confirm is not None and (complaint := confirm_complaint(message.confirm)):
        raise bad_request("bad_confirm", f"confirm {complaint}")
    try:
        return message, check_message(message)
    except ValueError as error:
        raise bad_request("bad_body", str(error)) from None


def wait_of(body: dict[str, Any]) -> float:
    """Return the time to wait, seconds."""
    wait_s = body.get("wait_s", WAIT_DEFAULT_S)
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= MAX_WAIT_S:
        raise bad_request("bad_wait_s", f"wait_s must be a number from 0 to {MAX_WAIT_S:g}")
    return float(wait_s)


def ban_of(body: dict[str, Any]) -> tuple[float | None, str]:
    """Return the `for_s` of a ban, seconds or None for ever, and its `reason`."""
    for_s, reason = body.get("for_s"), body.get("reason", "")
    if for_s is not None:
        is_number = isinstance(for_s, int | float) and not isinstance(for_s, bool)
        if not is_number or not 0 < for_s <= MAX_DURATION_S:
            raise bad_request("bad_for_s", f"for_s must be a number above 0, of at most {MAX_DURATION_S}")
    if not (isinstance(reason, str) and reason.isprintable() and len(reason) <= MAX_REASON_CHARS):
        raise bad_request(
            "bad_reason",
            f"reason must be text of at most {MAX_REASON_CHARS} characters, none of them a control character",
        )
    return for_s, reason


def limit_of(request: Request) -> int:
    """Return the number of users, or rooms, per page."""
    return _number(request, "limit", USERS_DEFAULT, MAX_USERS)


def largest_of(request: Request) -> int | None:
    """Return how many of the largest rooms are asked for; None: a page of all."""
    if "largest" not in request.query_params:
        return None
    if {"cursor", "limit"} & request.query_params.keys():
        raise bad_request("bad_largest", "beside largest there must be no cursor and no limit")
    return _number(request, "largest", 1, MAX_LARGEST, least=1)


def members_of(request: Request) -> int:
    """Return the number of members of a room per page; 0: none."""
    return _number(request, "members", 0, MAX_USERS)


def _number(request: Request, name: str, default: int, most: int, *, least: int = 0) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 6 and least <= int(text) <= most):
        raise bad_request(f"bad_{name}", f"{name} must be a number from {least} to {most}")
    return int(text)


def filter_of(request: Request) -> UserFilter:
    """Return which users a page has, by the parameters `uid_prefix`, `class`, `node` and `status`."""
    given = request.query_params
    try:
        return UserFilter(
            uid_prefix=given.get("uid_prefix"),
            device_class=given.get("class"),
            node=given.get("node"),
            status=given.get("status"),
        )
    except ValueError as error:
        raise bad_request("bad_filter", str(error)) from None


def _checked(value: object, code: str, complaint: Callable[[object], str | None]) -> str:
    if what := complaint(value):
        raise bad_request(code, f"{code.removeprefix('bad_')} {what}")
    return str(value)
