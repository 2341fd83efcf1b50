"""The limit of sessions against a naive model: devices come, lose their connection, leave and are silent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence import protocol
from presence.core.login_policy import SessionQuota
from presence.protocol import Code, Kind
from tests.support.worlds import GRACE, TICK, T, World

MOST = 2
DEVICES = ("phone", "tablet", "desk", "car")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "lose", "leave", "wait a moment", "wait a grace"]),
        st.sampled_from(DEVICES),
    ),
    min_size=4,
    max_size=30,
)


class Household:
    """The devices of one user, and their connections."""

    def __init__(self, limit: SessionQuota) -> None:
        self.world = World(session_limit=limit)
        self.handles: dict[str, int] = {}

    def connected(self) -> set[str]:
        return {device for device, handle in self.handles.items() if not self.world.is_disconnected(handle)}

    def live(self) -> set[str]:
        return {session.device for session in self.world.registry.sessions_of("ada")}

    def come(self, device: str) -> protocol.Packet:
        """Log in; return the answer."""
        handle = self.world.login(device=device)
        answer = self.world.sockets.answers(handle)[0]
        if answer.kind == Kind.OK:
            self.handles[device] = handle
        return answer

    def lose(self, device: str) -> None:
        if device in self.connected():
            self.world.sockets.close(self.handles.pop(device))

    def leave(self, device: str) -> None:
        if device in self.connected():
            self.world.send(self.handles.pop(device), protocol.logout())


@pytest.mark.parametrize("refuse_new", [False, True])
@given(steps=STEPS)
def test_a_device_gets_in_or_is_told_when(steps: list[tuple[str, str]], *, refuse_new: bool) -> None:
    home = Household(SessionQuota(MOST, refuse_new=refuse_new))
    for action, device in steps:
        before = home.connected()
        if action == "come":
            answer = home.come(device)
            is_full = refuse_new and device not in home.live() and len(before - {device}) >= MOST
            assert (answer.kind == Kind.ERROR) is is_full
            if is_full:
                assert answer.payload["code"] == Code.SESSION_LIMIT
                assert 1.0 <= answer.payload["retry_after"] <= T
                assert home.connected() == before, "a refused login ends nothing"
        elif action.startswith("wait"):
            home.world.pass_time(GRACE + TICK if action.endswith("grace") else 1.0)
        else:
            getattr(home, action)(device)
        assert len(home.live()) <= MOST
        assert home.connected() <= home.live()
    newcomer = home.come("newcomer")
    if newcomer.kind == Kind.ERROR:  # the server says nothing more: the named time is enough
        home.world.pass_time(newcomer.payload["retry_after"] + TICK)
        assert home.come("newcomer").kind == Kind.OK
