"""The command line: which room answers what was said."""

import argparse
import io
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from presence import titles
from presence.arguments import argument_parser
from presence.commands.outcome import FAILED, OK, USAGE, abandon_output, complain
from presence.config import DEFAULT_SOURCE, SPECS, ConfigError, Loaded, Settings, load
from presence.doctor_arguments import run_doctor
from presence.followup_arguments import run_followups
from presence.timer_arguments import run_timers
from presence.token_arguments import run_token


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 after success or a clean stop, 2 for a usage or configuration error, 1 otherwise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a uid may be more than the terminal can show
    if argv is None and not titles.hide(sys.argv):
        complain(
            "everybody on this machine can read the secrets on this command line: use a variable or a file"
        )
    try:
        args = argument_parser().parse_args(argv)
        load_again = partial(load, _given_flags(args), serving=args.command in {"serve", "config", "doctor"})
        # To the doctor settings that are wrong are a finding like any other.
        status = run_doctor(args, load_again) if args.command == "doctor" else _load_and_run(args, load_again)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output, such as head, has seen enough
        abandon_output()
        return OK
    except ConfigError as error:
        complain(error)
        return USAGE
    except KeyboardInterrupt:
        return FAILED
    except Exception:  # a mistake of ours; what Python would print may hold a secret
        complain(traceback.format_exc())
        return FAILED
    except SystemExit as stop:  # argparse has printed help, the version or a complaint
        return stop.code if isinstance(stop.code, int) else OK
    return status


def _load_and_run(args: argparse.Namespace, load_again: Callable[[], Loaded]) -> int:
    loaded = load_again()
    if args.command == "serve" or (args.command, getattr(args, "action", "")) == ("config", "check"):
        _check_files(loaded)
    return _run(args, loaded, load_again)


def _check_files(loaded: Loaded) -> None:
    """Find out whether the files can be used that a server needs.

    Raises:
        ConfigError: with every problem that was found.
    """
    from presence import credential_files  # noqa: PLC0415 - as below

    settings = loaded.settings
    found = [
        f"{error} (from {loaded.sources[error.setting]})"
        for error in (
            *credential_files.problems(settings),
            *credential_files.problems_of_operators(settings),
        )
    ]
    if found:
        raise ConfigError(found)


def _run(args: argparse.Namespace, loaded: Loaded, load_again: Callable[[], Loaded]) -> int:
    # Each room is loaded when it is entered: help must not wait for redis-py and trio.
    if args.command == "serve":
        from presence.commands import serve  # noqa: PLC0415

        return serve.run(loaded, load_again)
    if args.command == "config":
        from presence.commands import settings  # noqa: PLC0415

        return settings.show(loaded, as_json=args.json) if args.action == "show" else settings.check()
    if args.command in {"demo", "token"}:
        return _run_alone(args, loaded.settings)
    if args.command == "client":
        from presence.commands import client  # noqa: PLC0415

        given = loaded.settings
        if not given.port:
            complain("client: --port must name the server's port")
            return USAGE
        wish = None if loaded.sources["idle_timeout"] == DEFAULT_SOURCE else given.idle_timeout
        where = (given.host, given.port, args.uid, args.device, args.token, wish)
        return client.run(client.Device(*where, tls=args.tls, ca=args.ca))
    return _ask(args, loaded.settings)


def _run_alone(args: argparse.Namespace, settings: Settings) -> int:
    """Run a command that needs nobody else."""
    if args.command == "token":
        return run_token(args, settings)
    from presence.commands import demo  # noqa: PLC0415

    return demo.run(settings, args.seconds, args.clients)


def _ask(args: argparse.Namespace, settings: Settings) -> int:
    """Run a command that asks the servers' Redis and nobody else."""
    redis_url = settings.redis or _embedded_url(args.command)
    if redis_url is None:
        return USAGE
    if args.command == "tail":
        return _tail(args, redis_url, settings.prefix)
    if args.command == "status":
        return _status(args, redis_url, settings.prefix)
    if args.command == "timers":
        return run_timers(args, settings, redis_url)
    if args.command == "followups":
        return run_followups(args, settings, redis_url)
    return _operate(args, redis_url, settings.prefix)


def _embedded_url(command: str) -> str | None:
    """Return the URL of the one embedded Redis that this user runs here; None, with a complaint, else."""
    from presence.embedded import announced  # noqa: PLC0415 - as below

    urls = announced()
    if len(urls) == 1:
        return urls[0]
    found = (
        f"several servers here have one of their own: {', '.join(urls)}" if urls else "no server here has one"
    )
    complain(f"{command} asks the servers' Redis: give --redis URL or PRESENCE_REDIS ({found})")
    return None


def _operate(args: argparse.Namespace, redis_url: str, prefix: str) -> int:
    from presence.commands import explain, forget, kick, nodes  # noqa: PLC0415

    if args.command == "kick":
        return kick.run(redis_url, prefix, args.uids, wait_s=args.wait, as_json=args.json)
    if args.command == "forget":
        return forget.run(redis_url, prefix, args.uids, as_json=args.json)
    if args.command == "explain":
        return explain.run(redis_url, prefix, args.uid, as_json=args.json)
    return nodes.run(redis_url, prefix, as_json=args.json)


def _tail(args: argparse.Namespace, redis_url: str, prefix: str) -> int:
    from presence.commands import tail  # noqa: PLC0415

    if (args.group is None) != (args.consumer is None):
        complain("tail: --group and --consumer belong together")
        return USAGE
    selection = tail.Selection(args.type, args.after, args.json, args.group, args.consumer)
    return tail.run(redis_url, prefix, selection)


def _status(args: argparse.Namespace, redis_url: str, prefix: str) -> int:
    from presence.commands import status  # noqa: PLC0415

    if args.uids and (args.count or args.list):
        complain("status: name users, or ask for --count or --list")
        return USAGE
    if args.count:
        return status.count(redis_url, prefix, as_json=args.json)
    if args.list:
        return status.list_online(redis_url, prefix, as_json=args.json)
    if not args.uids:
        complain("status: name at least one uid, or ask for --count or --list")
        return USAGE
    return status.run(redis_url, prefix, args.uids, as_json=args.json)


def _given_flags(args: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(args).items() if name in SPECS or name == "config"}
