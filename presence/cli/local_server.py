"""Finds the server of this machine for commands that are not given one."""

from collections.abc import Callable

from presence.cli.errors import print_error
from presence.cli.options import UsageError
from presence.server.running_servers import RunningServer, running_servers


def local_server(wanted: str, flags: Callable[[RunningServer], str]) -> RunningServer | None:
    """Return the server that this user runs here, and print on standard error which; None: there is none.

    Servers with the same `flags`, the arguments that name a server to the command, count as one.

    Raises:
        UsageError: there are several; it begins with `wanted` and lists them.
    """
    servers = {flags(each): each for each in running_servers()}
    if len(servers) > 1:
        listed = [f"  {server}: {arguments}" for arguments, server in servers.items()]
        raise UsageError("\n".join([f"{wanted} (several servers run here)", *listed]))
    for server in servers.values():
        print_error(f"using the server at {server}")
        return server
    return None
