"""The command line as it is typed: exit statuses, output, and signals."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from presence import __main__, __version__
from presence.cli import main as main_module
from presence.cli.main import COMMANDS, main
from presence.config.loader import FIELDS
from presence.config.removed import REMOVED

pytestmark = pytest.mark.usefixtures("clean_environment")
UNREACHABLE = "redis://user:s3cret@127.0.0.1:1"


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["config", "show", "--json", *flags]) == 0
    rows: dict[str, Any] = json.loads(capsys.readouterr().out)
    return rows


def test_config_show_prints_a_valid_settings_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.toml"
    main(["config", "show", "--tick", "2", "--log-level", "debug", "--redis", UNREACHABLE])
    file.write_text(printed := capsys.readouterr().out)
    assert "redis://user:***@127.0.0.1:1" in printed
    rows = shown(capsys, "--config", str(file))
    assert rows["tick"] == {"value": 2.0, "source": f"file {file}"}
    assert rows["log_level"]["value"] == "debug"


@pytest.mark.parametrize(
    "command", [["config", "check"], ["config", "show"], ["serve"], ["tail"], ["status", "u"]]
)
def test_bad_environment_is_a_configuration_error_everywhere(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRESENCE_TIK", "1")
    monkeypatch.setenv("PRESENCE_TICK", "x\x1b")
    assert main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("presence: 'PRESENCE_TIK': unknown variable; did you mean PRESENCE_TICK?")
    assert lines[1].startswith("presence: tick: must be")
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["serve", "--idle-timout", "3"], "did you mean --idle-timeout?"),
        (["serve", "--idle", "3"], "unknown argument: '--idle'"),
        (["serve", "--bogus"], "unknown argument: '--bogus'\n"),
        (["status", "--hosts", "h", "u"], "unknown argument: '--hosts'\n"),
        (["serve", "--admin", "h:1", "--no-admin"], "not allowed with"),
        (["serve", "--admin", "0.0.0.0:7480"], "set admin_tokens"),
        (["serve", "--redis", "redis+cluster://h/1"], "must not name a database"),
        (
            ["tail", "--redis", UNREACHABLE, "--consumer", "c"],
            "--consumer needs --group",
        ),
        (["tail", "--redis", UNREACHABLE, "--after", "yesterday"], "'yesterday' is not an entry id"),
        (["tail", "--redis", UNREACHABLE, "--type", "asleep"], "invalid choice: 'asleep'"),
        (["tail"], "give --redis URL"),
        (["status", "--redis", UNREACHABLE, "--count", "u"], "give either users, or"),
        (["status", "--redis", UNREACHABLE, "--list", "--count"], "not allowed with argument"),
        (["tail", "--redis", UNREACHABLE, "--group", ""], "''"),
        (["status", "--redis", UNREACHABLE], "give at least one uid"),
        (["status", "--redis", UNREACHABLE, "a\x1bb"], r"a\u{1b}b"),
        (["status", "--redis", UNREACHABLE, "a\udcffb"], r"a\u{dcff}b"),
        (["kick", "--redis", UNREACHABLE], "required: UID"),
        (["kick", "--redis", UNREACHABLE, "u", "--wait", "-1"], "'-1' is not a number of seconds"),
        (["forget", "--redis", UNREACHABLE, "a\x1bb"], r"a\u{1b}b"),
        (["nodes"], "give --redis URL"),
        (["explain", "--redis", UNREACHABLE, "a" * 129], "is not a valid uid"),
    ],
)
def test_a_usage_error_names_the_mistake(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: presence {name}")


def test_help_of_a_client_describes_its_own_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["client", "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "address of the server" in help_text
    assert "TCP port of the server" in help_text
    assert "listen" not in help_text


def test_help_shows_all_settings_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    groups = list(dict.fromkeys(spec.group for spec in FIELDS.values()))
    assert re.findall(r"^settings: (\w+):$", text, re.MULTILINE) == groups
    assert {spec.flag for spec in FIELDS.values()} <= {*re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)}


def test_each_removed_flag_is_named_with_what_holds_now(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["serve"], ["config", "check"]):
        flags = [f"--{name.replace('_', '-')}=1" for name in REMOVED]
        assert main([*command, *flags]) == 2
        printed = capsys.readouterr().err
        for name, what in REMOVED.items():
            assert f"presence: {name}: is no longer a setting, it {what}: remove it\n" in printed


def test_help_loads_neither_redis_nor_trio() -> None:
    program = "import sys\nfrom presence.cli.main import main\nmain(['--help'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"redis", "trio", "structlog"}.isdisjoint(done.stdout.split())


def test_an_unexpected_error_is_printed_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise RuntimeError(f"cannot talk to {UNREACHABLE}")

    monkeypatch.setattr("presence.cli.nodes.run", fail)
    assert main(["nodes", "--redis", UNREACHABLE]) == 1
    message = capsys.readouterr().err
    assert "RuntimeError: cannot talk to redis://user:***@127.0.0.1:1" in message
    assert "s3cret" not in message


def test_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "presence", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"presence {__version__}\n"


# Before anything is loaded


@pytest.fixture
def hangups() -> Iterator[list[int]]:
    """Count SIGHUPs in a process that does not ignore them."""
    received: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _frame: received.append(number))
    yield received
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("command", "count"), [("serve", 0), ("tail", 1)])
def test_an_early_hangup_is_ignored_by_a_server_only(
    hangups: list[int], monkeypatch: pytest.MonkeyPatch, command: str, count: int
) -> None:
    def early() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 7

    monkeypatch.setattr(main_module, "main", early)
    monkeypatch.setattr(sys, "argv", ["presence", command])
    assert __main__.main() == 7
    assert len(hangups) == count


def test_the_early_hangup_is_handled_before_imports() -> None:
    script = "import sys, presence.__main__; sys.exit('presence.cli.main' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
