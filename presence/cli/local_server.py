"""Finds the server of this machine for commands that are not given one."""

import dataclasses
from collections.abc import Callable

from presence.cli.errors import print_error
from presence.cli.options import DataLocation, UsageError
from presence.config.loader import DEFAULT_SOURCE, Loaded
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


def locate_data(loaded: Loaded, command: str) -> DataLocation:
    """Return where the data is: without a URL, where the servers that this user runs here have it."""
    settings = loaded.settings
    if settings.redis:
        return DataLocation(settings.redis, settings.prefix, settings)

    def place(server: RunningServer) -> tuple[str, str]:
        is_given = loaded.sources["prefix"] != DEFAULT_SOURCE
        return server.redis_url, settings.prefix if is_given else server.prefix

    wanted = f"{command} needs the servers' Redis: give --redis URL or PRESENCE_REDIS"
    server = local_server(wanted, lambda each: "--redis {} --prefix {}".format(*place(each)))
    if server is None:
        raise UsageError(f"{wanted} (no server of this user runs here)")
    redis_url, prefix = place(server)
    return DataLocation(redis_url, prefix, dataclasses.replace(settings, prefix=prefix))
