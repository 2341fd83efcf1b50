"""The handlers of all endpoints; access is checked before, in `presence.admin.auth_middleware`.

Tests: `tests/admin/test_access.py`, `tests/admin/test_messages.py`, `tests/system/admin/test_openapi.py`.
"""

import math
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import trio
from starlette.requests import Request
from starlette.responses import Response

from presence import __version__
from presence.admin import request_checks
from presence.admin.auth_middleware import Audit, Outcome, operator_of
from presence.admin.broadcast import EventBroadcaster
from presence.admin.event_feed import TYPES, EventFeed, parse_position
from presence.admin.history import EventHistory
from presence.admin.http_metrics import HttpMetrics
from presence.admin.prometheus import Scrape, render
from presence.admin.responses import NO_STORE, ApiError, bad_request, json_answer, to_json
from presence.admin.sampler import Sampler
from presence.admin.sse import MAX_EVENTS_SHOWN, EventStream, ViewerMailbox, message
from presence.admin.views import RedisQueries
from presence.admin.workers import Workers
from presence.common.rate_limit import KeyedRateLimiter
from presence.config.settings import Settings
from presence.sender import Message
from presence.sender import Outcome as SendOutcome
from presence.server.readiness import Readiness
from presence.subscriber.events import entry_values

WORKER_TIMEOUT_S: Final = 10.0  # a worker that is silent for longer counts as dead
SERVING: Final = frozenset(each.value for each in Readiness if each.serves)
MESSAGES_PER_S: Final = 200  # of one token, to users; not below `MAX_MESSAGES`, the most in one request
MAX_UIDS_LOGGED: Final = 10  # of the users of one action
MAX_SAMPLE_AGE_S: Final = 0.5  # so that a scrape shares answers with the live page


@dataclass(frozen=True, slots=True)
class Context:
    """The configuration of the process."""

    settings: Settings  # checked; ports may be zeros
    redis_url: str  # where Redis is; `settings.redis`, or the embedded server's
    # the requesting ends for workers 1, 2, …, or the only one, see `presence.server.stats_socket`
    lines: tuple[socket.socket, ...]
    host: str  # where HTTP is served
    url: str  # the same as a URL: ``http://127.0.0.1:7480/``
    http: HttpMetrics = field(default_factory=HttpMetrics)  # metrics of connections and requests

    @property
    def first_number(self) -> int:
        """The number of the worker of the first line; 0 without a supervisor."""
        return 0 if len(self.lines) == 1 else 1


@dataclass(frozen=True, slots=True)
class Sources:
    workers: Workers
    sampler: Sampler
    queries: RedisQueries
    broadcaster: EventBroadcaster
    history: EventHistory
    audit: Audit


def _bad_cursor() -> ApiError:
    return bad_request("bad_cursor", "cursor must be that of a previous page")


def _outcome_report(outcome: SendOutcome) -> dict[str, Any]:
    """Return an outcome as JSON values, with confirmations only if they are known."""
    report = asdict(outcome)
    if outcome.confirmed is None:
        for name in ("confirmed", "by_app", "unconfirmed"):
            del report[name]
    return report


class Handlers:
    """A method for each endpoint."""

    def __init__(self, context: Context, sources: Sources) -> None:
        self._context = context
        self._sources = sources
        self._begun_at: float | None = None
        self._messages = KeyedRateLimiter[str](rate=MESSAGES_PER_S, burst=MESSAGES_PER_S)

    def begin(self) -> None:
        """Record the start of the process, because workers need time for their first answer."""
        self._begun_at = trio.current_time()

    async def healthz(self, _request: Request) -> Response:
        """Whether the workers are alive (liveness)."""
        now, answered_at = trio.current_time(), self._sources.workers.answered_at
        begun_at = now if self._begun_at is None else self._begun_at
        silent_s = {n: now - answered_at.get(n, begun_at) for n in self._sources.workers.numbers}
        is_well = all(each < WORKER_TIMEOUT_S for each in silent_s.values())
        workers = {str(n): {"silent_s": round(each, 1)} for n, each in silent_s.items()}
        answer = {"status": "ok" if is_well else "failing", "workers": workers}
        return json_answer(answer, 200 if is_well else 503)

    async def readyz(self, _request: Request) -> Response:
        """Whether this instance should receive traffic (readiness): all of its workers can serve clients."""
        answers = await self._sources.workers.samples(max_age_s=MAX_SAMPLE_AGE_S)
        workers = {
            str(a.number): "no_answer" if a.sample is None else str(a.sample.get("readiness"))
            for a in answers
        }
        serves = SERVING.issuperset(workers.values())
        is_ready = all(each == Readiness.READY.value for each in workers.values())
        status = "not_ready" if not serves else "ready" if is_ready else "degraded"
        return json_answer({"status": status, "workers": workers}, 200 if serves else 503)

    async def metrics(self, request: Request) -> Response:
        answers = await self._sources.workers.samples(max_age_s=MAX_SAMPLE_AGE_S)
        cluster = self._sources.sampler.cluster
        scrape = Scrape(
            answers=answers,
            now=trio.current_time(),
            settings=self._context.settings,
            online=cluster.online,
            nodes=cluster.nodes,
            redis=self._sources.sampler.redis_map(),
            http=self._context.http,
        )
        body, kind = render(scrape, request.headers.get("accept", ""))
        return Response(body, 200, {**NO_STORE, "Content-Type": kind})

    async def presence(self, request: Request) -> Response:
        return await self._presence(request_checks.uid_of_path(request, "/v1/presence/"))

    async def presence_of(self, request: Request) -> Response:
        """As `presence`, with the uid in a parameter."""
        return await self._presence(request_checks.uid_of_query(request))

    async def _presence(self, uid: str) -> Response:
        return json_answer((await self._sources.queries.states([uid]))[uid])

    async def query(self, request: Request) -> Response:
        uids = request_checks.uids_of(await request_checks.json_object(request, "uids"))
        return json_answer({"presence": await self._sources.queries.states(uids)})

    async def online(self, request: Request) -> Response:
        """How many users are online, and a page of those who meet the conditions."""
        limit, wanted = request_checks.limit_of(request), request_checks.filter_of(request)
        count = await self._sources.queries.count()
        if limit == 0:
            return json_answer({"count": count, "users": {}, "cursor": None})
        try:
            page = await self._sources.queries.page(request.query_params.get("cursor"), limit, wanted)
        except ValueError:
            raise _bad_cursor() from None
        return json_answer({"count": count, "users": page.states, "cursor": page.cursor})

    async def nodes(self, _request: Request) -> Response:
        """The nodes that have a lease."""
        return json_answer(await self._sources.queries.nodes())

    async def explain(self, request: Request) -> Response:
        """Why a user is online or offline."""
        return await self._explain(request_checks.uid_of_path(request, "/v1/explain/"))

    async def explain_of(self, request: Request) -> Response:
        """As `explain`, with the uid in a parameter."""
        return await self._explain(request_checks.uid_of_query(request))

    async def _explain(self, uid: str) -> Response:
        here = await self._sources.workers.explain(uid)
        try:
            explained = await self._sources.queries.explain(uid, here)
        except ValueError as error:
            raise bad_request("bad_uid", str(error)) from None
        return json_answer(explained)

    async def kick(self, request: Request) -> Response:
        operator = operator_of(request.scope)
        log_action, scope = self._sources.audit.log_action, request.scope
        try:
            body = await request_checks.json_object(request, "uid", "device", "wait_s")
            uid, device = request_checks.checked_uid(body.get("uid")), request_checks.device_of(body)
            wait_s = request_checks.wait_of(body)
        except ApiError as error:
            log_action(operator, scope, "kick", "refused", reason=error.code)
            raise
        try:
            kicked = await self._sources.queries.kick(uid, device, wait_s, f"{operator.name} (HTTP)")
        except ApiError as error:
            log_action(operator, scope, "kick", "failed", uid=uid, device=device, reason=error.code)
            raise
        report = kicked.report(uid)
        left = len(kicked.reasons)
        outcome: Outcome = "failed" if left else "done"
        log_action(
            operator, scope, "kick", outcome, uid=uid, device=device, sessions=len(kicked.targets), left=left
        )
        return json_answer({"uid": uid, **report}, 202 if left else 200)

    async def bans(self, _request: Request) -> Response:
        bans, addresses = await self._sources.queries.bans()
        return json_answer({"bans": bans, "addresses": addresses})

    async def ban(self, request: Request) -> Response:
        """Keep users or addresses out, and end their sessions."""
        operator, scope = operator_of(request.scope), request.scope
        log_action = self._sources.audit.log_action
        try:
            body = await request_checks.json_object(
                request, "uids", "addresses", "force", "device", "for_s", "reason", "wait_s"
            )
            addresses = request_checks.addresses_of(body)
            uids = [] if addresses else request_checks.uids_of(body)
            device = request_checks.device_of(body)
            for_s, reason = request_checks.ban_of(body)
            wait_s = request_checks.wait_of(body)
        except ApiError as error:
            log_action(operator, scope, "ban", "refused", reason=error.code)
            raise
        by = f"{operator.name} (HTTP)"
        if addresses:
            logged = addresses[:MAX_UIDS_LOGGED]
            try:
                until_ms = await self._sources.queries.ban_addresses(
                    addresses, for_s=for_s, reason=reason, by=by
                )
            except ApiError as error:
                log_action(operator, scope, "ban", "failed", reason=error.code, addresses=logged)
                raise
            log_action(operator, scope, "ban", "done", addresses=logged, until_ms=until_ms)
            return json_answer({"until_ms": until_ms, "users": {}, "addresses": addresses})
        users: dict[str, Any] = {"device": device, "users": len(uids), "uids": uids[:MAX_UIDS_LOGGED]}
        try:
            banned = await self._sources.queries.ban(
                uids, device=device, for_s=for_s, reason=reason, by=by, wait_s=wait_s
            )
        except ApiError as error:
            log_action(operator, scope, "ban", "failed", reason=error.code, **users)
            raise
        left = len(banned.ended.reasons)
        counts: dict[str, Any] = {
            "until_ms": banned.until_ms,
            "sessions": len(banned.ended.targets),
            "left": left,
        }
        log_action(operator, scope, "ban", "failed" if left else "done", **users, **counts)
        answer = {"until_ms": banned.until_ms, "users": {uid: banned.ended.report(uid) for uid in uids}}
        return json_answer(answer, 202 if left else 200)

    async def unban(self, request: Request) -> Response:
        operator, scope = operator_of(request.scope), request.scope
        log_action = self._sources.audit.log_action
        try:
            body = await request_checks.json_object(request, "uids", "addresses", "device")
            addresses = request_checks.addresses_of(body, force=True)
            uids = [] if addresses else request_checks.uids_of(body)
            device = request_checks.device_of(body)
        except ApiError as error:
            log_action(operator, scope, "unban", "refused", reason=error.code)
            raise
        if addresses:
            logged = addresses[:MAX_UIDS_LOGGED]
            try:
                found = await self._sources.queries.unban_addresses(addresses, f"{operator.name} (HTTP)")
            except ApiError as error:
                log_action(operator, scope, "unban", "failed", reason=error.code, addresses=logged)
                raise
            log_action(operator, scope, "unban", "done", lifted=sum(found.values()), addresses=logged)
            return json_answer({"lifted": {}, "addresses": found})
        users: dict[str, Any] = {"device": device, "users": len(uids), "uids": uids[:MAX_UIDS_LOGGED]}
        try:
            lifted = await self._sources.queries.unban(uids, device, f"{operator.name} (HTTP)")
        except ApiError as error:
            log_action(operator, scope, "unban", "failed", reason=error.code, **users)
            raise
        log_action(operator, scope, "unban", "done", lifted=sum(map(len, lifted.values())), **users)
        return json_answer({"lifted": lifted})

    async def roster(self, request: Request) -> Response:
        """The users whom a user's clients watch, as the backend has said."""
        return await self._roster(request_checks.uid_of_path(request, "/v1/roster/"))

    async def roster_of(self, request: Request) -> Response:
        """As `roster`, with the uid in a parameter."""
        return await self._roster(request_checks.uid_of_query(request))

    async def _roster(self, uid: str) -> Response:
        return json_answer({"uid": uid, "users": await self._sources.queries.roster(uid)})

    async def change_roster(self, request: Request) -> Response:
        operator, scope = operator_of(request.scope), request.scope
        log_action = self._sources.audit.log_action
        try:
            body = await request_checks.json_object(request, "uid", "put", "add", "remove")
            change = request_checks.roster_change_of(body)
        except ApiError as error:
            log_action(operator, scope, "roster", "refused", reason=error.code)
            raise
        try:
            users = await self._sources.queries.change_roster(change)
        except ApiError as error:
            log_action(operator, scope, "roster", "failed", uid=change.uid, reason=error.code)
            raise
        added, removed = len(change.added), len(change.removed)
        done: dict[str, Any] = {"put": change.is_new, "added": added, "removed": removed, "users": users}
        log_action(operator, scope, "roster", "done", uid=change.uid, **done)
        return json_answer({"uid": change.uid, "users": users})

    async def rooms(self, request: Request) -> Response:
        """The largest rooms, or a page of all that have members."""
        largest, limit = request_checks.largest_of(request), request_checks.limit_of(request)
        try:
            page = await self._sources.queries.rooms(largest, request.query_params.get("cursor"), limit)
        except ValueError:
            raise _bad_cursor() from None
        rooms = [{"name": name, "count": count} for name, count in page.rooms.items()]
        return json_answer({"rooms": rooms, "cursor": page.cursor})

    async def room(self, request: Request) -> Response:
        """A room, and a page of its members if they are asked for."""
        name = request_checks.room_of_path(request, "/v1/rooms/")
        members, cursor = request_checks.members_of(request), request.query_params.get("cursor")
        try:
            room, page = await self._sources.queries.room(name, cursor, members)
        except ValueError:
            raise _bad_cursor() from None
        return json_answer({**asdict(room), **asdict(page)})

    async def message(self, request: Request) -> Response:
        operator, scope, audit = operator_of(request.scope), request.scope, self._sources.audit
        try:
            names = "from", "to", "device", "body", "confirm", "messages"
            body = await request_checks.json_object(request, *names)
            name, checked = request_checks.sender_of(body), request_checks.messages_of(body)
            self._take_messages(operator.name, len(checked))
        except ApiError as error:
            audit.log_refusal(scope, "message", error.code, operator)
            raise

        def log(message: Message, size: int, status: str) -> None:
            done: Outcome = "done" if status == "delivered" else "failed"
            details = {"sender": name, "bytes": size, "status": status}
            uid, device = message.to, message.device
            audit.log_action(operator, scope, "message", done, uid=uid, device=device, **details)

        try:
            outcomes = await self._sources.queries.send([message for message, _ in checked], name)
        except ApiError as error:
            for message, size in checked:
                log(message, size, error.code)
            raise
        answers = []
        for (message, size), outcome in zip(checked, outcomes, strict=True):
            log(message, size, outcome.status)
            answers.append({"to": message.to, **_outcome_report(outcome)})
        return json_answer({"messages": answers} if "messages" in body else answers[0])

    def _take_messages(self, operator: str, count: int) -> None:
        """Count messages of an operator.

        Raises:
            ApiError: they exceed the rate.
        """
        now = trio.current_time()
        wait_s = self._messages.wait_s(operator, now, count)
        if not self._messages.take(operator, now, count):
            text = f"at most {MESSAGES_PER_S} messages per second"
            after = max(1, math.ceil(wait_s))
            raise ApiError(429, "too_many_messages", text, reason="messages", retry_after=after)

    async def events(self, request: Request) -> Response:
        """A stream of events, from now on or from an earlier one."""
        types = request.query_params.getlist("type")
        if unknown := set(types).difference(TYPES):
            raise bad_request(
                "bad_type", f"type must be one of {', '.join(TYPES)}, not {min(unknown)[:64]!a}"
            )
        last, begin = request.headers.get("last-event-id"), request.query_params.get("from")
        text = last or begin
        after = parse_position(text) if text else None
        await self._sources.queries.count()  # detects a hanging Redis before the response begins
        feed = EventFeed(
            self._sources.broadcaster, self._sources.history, after, is_seen=bool(last), types=types
        )
        return EventStream(feed.messages(), "events", self._context.http)

    async def live(self, request: Request) -> Response:
        """The stream for the live page."""
        acts = operator_of(request.scope).role == "act"
        return EventStream(self._live(acts=acts), "live", self._context.http)

    async def _live(self, *, acts: bool) -> AsyncGenerator[bytes, None]:
        mailbox = ViewerMailbox(self._context.http)
        self._sources.sampler.subscribe(mailbox.put_snapshot)
        self._sources.broadcaster.subscribe_nowait(mailbox.put_event)
        try:
            yield message("hello", to_json(self._hello(acts=acts)))
            yield message("past", to_json(await self._past()))
            async with aclosing(mailbox.messages()) as messages:
                async for each in messages:
                    yield each
        finally:
            self._sources.broadcaster.unsubscribe(mailbox.put_event)
            self._sources.sampler.unsubscribe(mailbox.put_snapshot)

    async def _past(self) -> dict[str, Any]:
        """Return the last events; concurrent ones are sent twice, which the page filters."""
        try:
            newest = await self._sources.history.newest(MAX_EVENTS_SHOWN)
        except ApiError as error:
            return {"events": [], "problem": error.message}
        return {"events": [entry_values(entry) for entry in newest]}

    def _hello(self, *, acts: bool) -> dict[str, Any]:
        settings = self._context.settings
        wheels = [
            a.sample["wheel"]["slot_s"]
            for a in self._sources.workers.last
            if a.sample and "wheel" in a.sample
        ]
        return {
            "version": __version__,
            "url": self._context.url,
            "now_ms": int(time.time() * 1000),
            "idle_timeout_s": settings.idle_timeout,
            "tick_s": settings.tick,
            "slot_s": wheels[0] if wheels else None,
            "prefix": settings.prefix,
            "workers": len(self._sources.workers.numbers),
            "acts": acts,
            **self._sources.sampler.history.report(),
        }
