"""A server has the processes that the diagram of the architecture shows."""

from tests.admin.processes import ADMIN, STARTED, admin_of, children, command
from tests.support.server_process import running_server


def name_of(words: list[str]) -> str:
    if words[-1:] == ["presence.admin"]:
        return "admin process"
    return "embedded Redis" if "valkey-server" in words[0] or "redis-server" in words[0] else "worker"


def test_a_supervisor_has_started_what_its_diagram_shows() -> None:
    with running_server("--workers", "2", *ADMIN) as server:
        admin_of(server)  # the last to start
        names = [name_of(command(pid)) for pid in children(server.process.pid)]
    assert sorted(names) == sorted([*STARTED["supervisor"], "worker"])
