"""Requests reach the service that answers them; its errors end one connection at most."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from presence.common.faults import Faults
from presence.core.registry import Session
from presence.core.service_requests import (
    ConfirmationRequest,
    MessageRequest,
    QueryRequest,
    Request,
    RoomWatchRequest,
)
from presence.server.request_router import RequestRouter
from presence.watching.watch_service import Watching

MESSAGE, QUERY = MessageRequest(1, "bob", "hi"), QueryRequest(2, ["bob"])
ROOMS = RoomWatchRequest(3, ["lobby"])
ANN = cast(Session, object())


class FailingWatching:
    """Takes requests, and fails otherwise."""

    def __init__(self) -> None:
        self.taken: list[Request] = []
        self.askers = {ANN}

    def take(self, _session: Session, request: Request) -> None:
        self.taken.append(request)

    def all_sent(self, _session: Session) -> None:
        raise LookupError("a mistake")

    sight_changed = left = release_held = all_sent


class Stage:
    def __init__(self) -> None:
        self.watching = FailingWatching()
        self.sent: list[Request] = []
        self.confirmed: list[int] = []
        self.disconnected: list[Session] = []
        self.faults = Faults(self.disconnected.append)
        self.router = RequestRouter(
            cast(Watching, self.watching),
            lambda _session, request: self.sent.append(request),
            lambda _session, numbers: self.confirmed.extend(numbers),
            self.faults,
        )


def test_messages_and_confirmations_are_routed_and_other_requests_are_about_watches() -> None:
    stage = Stage()
    for request in (MESSAGE, QUERY, ROOMS, ConfirmationRequest(None, [5, 6])):
        stage.router.handle(ANN, request)
    assert (stage.sent, stage.watching.taken, stage.confirmed) == ([MESSAGE], [QUERY, ROOMS], [5, 6])


Notify = Callable[[Any, Session], None]


@pytest.mark.parametrize(
    ("notify", "work", "ends"),
    [
        (RequestRouter.all_sent, "push", [ANN]),
        (RequestRouter.sight_changed, "watch", [ANN]),
        (RequestRouter.session_disconnected, "watch", []),
    ],
    ids=["all sent", "sight changed", "disconnected"],
)
def test_an_error_is_contained_and_ends_the_connection_if_there_is_one(
    notify: Notify, work: str, ends: list[Session]
) -> None:
    stage = Stage()
    notify(stage.router, ANN)
    assert (stage.faults.counts, stage.disconnected) == ({work: 1}, ends)


@pytest.mark.parametrize("notify", [RequestRouter.sight_changed, RequestRouter.session_disconnected])
def test_sessions_that_never_asked_concern_no_service(notify: Notify) -> None:
    stage = Stage()
    notify(stage.router, cast(Session, object()))
    assert stage.faults.counts == {}
