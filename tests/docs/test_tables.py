"""The tables of the pages match the code: settings, constants, metrics, events, attacks."""

import ast
import dataclasses
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import presence
import presence.client
from presence import subscriber
from presence.admin.metric_table import TABLE
from presence.cli.main import main
from presence.config.loader import FIELDS
from presence.protocol import Code
from tests.docs.pages import FOR_APPS, FOR_OPERATORS, ROOT, pages, prose
from tests.docs.roles import ask
from tests.store.servers import Server
from tests.system.security.__main__ import CASES

TOP = Path(presence.__file__).parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PAGES = {Path(page).stem: text for page, text in pages().items() if page.startswith("docs/")}
CONSTANTS = {
    "presence.protocol.UIDS_MAX": "users in one query or watch",
    "presence.protocol.META_MAX_BYTES": "bytes of `meta`, packed",
    "presence.protocol.FRAME_LIMIT_BYTES": "bytes of a client's frame",
    "presence.client.reconnect.RECONNECT_MAX_S": "maximum seconds before a client tries to reconnect",
    "presence.cluster.lease_renewal.RENEWALS_PER_LEASE": "heartbeats of a node within `lease`",
    "presence.outbox.relay.PROBE_INTERVAL_S": "seconds between two checks that Redis has lost no data",
    "presence.outbox.end_gate.RECOVERY_SETTLE_TIMEOUT_S": "seconds without ends after a Redis outage",
    "presence.outbox.end_gate.SETTLE_TIMEOUT_S": "maximum seconds without expirations after a resync",
    "presence.store.redis_client.CALL_TIMEOUT_S": "time-out of a Redis call in seconds",
    "presence.outbox.relay.GATHER_S": "seconds from one batch of changes to the next",
    "presence.outbox.relay.SHORT_GATHER_S": "the same for a few changes where clients watch others",
    "presence.transports.epoll_transport.ANSWER_WINDOW_S": "seconds between reads if a reply is awaited",
    "presence.core.slots.SLOTS_PER_TICK": "slots of the wheel in one `tick`",
    "presence.outbox.queue.CHANGE_BYTES": "bytes of a change in the outbox, without its texts",
    "presence.common.runtime.CALL_TIMEOUT_S": "seconds after which reading a file that hangs is given up",
    "presence.subscriber.retry.RETRY_MAX_S": "maximum seconds between two attempts of a subscriber",
    "presence.subscriber.redis_connections.POLL_INTERVAL_MAX_S": "seconds between idle reads, in a cluster",
    "presence.subscriber.dead_letters.MAX_DEAD_LETTERS": "dead letters kept per shard",
    "presence.subscriber.consumer_names.IDLE_CONSUMER_KEPT_S": "seconds until an idle consumer is removed",
    "presence.subscriber.consumer_names.NAME_LOCK_S": "seconds until two consumers of one name are noticed",
    "presence.followups.script_calls.MAX_PENDING_PER_SHARD": "pending follow-ups per shard",
    "presence.followups.script_calls.MAX_PENDING_BYTES_PER_SHARD": "approximate bytes in Redis, per shard",
    "presence.followups.script_calls.MAX_PENDING_PER_USER": "pending follow-ups per user",
    "presence.followups.script_calls.MAX_DUE_PER_RUN": "follow-ups delivered per shard in one call",
    "presence.config.followup_rules.MAX_PAYLOAD_BYTES": "bytes of a follow-up's payload",
}


def settings_table() -> str:
    """Return the table of settings that the page must have."""
    rows = ["| setting | default | unit | what it does |", "| --- | --- | --- | --- |"]
    group = None
    for spec in FIELDS.values():
        if spec.group != group:
            group = spec.group
            rows.append(f"| **{group}** | | | |")
        default = (
            "" if spec.default is None else str(spec.default).lower() if spec.kind is bool else spec.default
        )
        rows.append(f"| `{spec.name}` | {default} | {spec.unit} | {spec.help} |")
    return "\n".join(rows)


def constants_table() -> str:
    """Return the table of constants that the page must have."""
    rows = [f"| `{name}` | {pkgutil.resolve_name(name):,} | {text} |" for name, text in CONSTANTS.items()]
    return "\n".join(["| constant | value | what it is |", "| --- | --- | --- |", *rows])


def test_the_page_on_settings_has_the_current_tables() -> None:
    for table in (settings_table(), constants_table()):
        assert table in PAGES["settings"], f"the page must hold:\n{table}"


def test_every_setting_is_on_a_page_for_its_users() -> None:
    others = "".join(text for name, text in pages().items() if not name.endswith("settings.md"))
    absent = {
        name
        for name, spec in FIELDS.items()
        if not re.search(rf"\b{name}\b|{spec.flag}\b|\b{spec.variable}\b", others)
    }
    assert absent == set()


def test_the_documented_limits_per_turn_are_those_of_the_code() -> None:
    bounds = re.findall(r"`((?:presence|protocol)[.\w]*\.[A-Z_]+)` = ([\d.]+)", PAGES["architecture"])
    assert len(bounds) >= 20
    assert [each for each in bounds if pkgutil.resolve_name(each[0]) != float(each[1])] == []


WALK = re.compile(r"^ ((?:presence|protocol)/[\w/]+\.(?:py|lua)) +([A-Za-z_.]+)  ", re.MULTILINE)


def is_defined(path: Path, name: str) -> bool:
    """Whether a source file defines a function, or `Class.method`; without a class any method counts."""
    text = path.read_text("utf-8")
    if path.suffix == ".lua":
        return re.search(rf"^local function {name}\(", text, re.MULTILINE) is not None
    owner, _, function = name.rpartition(".")
    classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    places = [node for node in classes if node.name == owner] if owner else [ast.parse(text)]
    functions = (node for place in places for node in ast.walk(place))
    return any(isinstance(each, FUNCTIONS) and each.name == function for each in functions)


def test_each_step_from_bytes_to_redis_is_a_function_of_that_module() -> None:
    steps = WALK.findall(PAGES["architecture"])
    assert len(steps) > 10
    assert len(steps) == len(re.findall(r"^ (?:presence|protocol)/", PAGES["architecture"], re.MULTILINE))
    assert [step for step in steps if not is_defined(ROOT / step[0], step[1])] == []


@pytest.mark.parametrize("name", ["Engine.receive_bytes", "Registry.received", "nowhere"])
def test_a_wrong_step_is_noticed(name: str) -> None:
    assert not is_defined(TOP / "core" / "engine.py", name)


def test_every_package_is_in_the_architecture() -> None:
    packages = {path.parent for path in TOP.glob("*/__init__.py") if not path.parent.is_symlink()}
    assert len(packages) > 8
    assert [each.name for each in packages if f"`presence/{each.name}/`" not in PAGES["architecture"]] == []


# Operations


def section(page: str, heading: str) -> str:
    """Return the text below a heading of a page."""
    text = PAGES[page].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return text


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(text))


def rows(text: str) -> list[list[str]]:
    """Return the cells of all tables in a text, without headings."""
    lines = re.findall(r"^\| ?(.+) \|\n(?!\| ---)", text, re.MULTILINE)
    return [re.split(r" ?\| ?", line) for line in lines if not line.startswith("---")]


def test_each_named_metric_exists_with_that_label() -> None:
    metrics = {metric.name: metric for metric in TABLE}
    pages_of_operators = "".join(PAGES[Path(each).stem] for each in (*FOR_OPERATORS, "docs/metrics.md"))
    named = [text for text in quoted(pages_of_operators) if re.match(r"presence_\w+", text)]
    assert len(named) > 50
    for text in named:
        found = re.fullmatch(r"(presence_\w+)(?:\{(\w+)=\"(\w+)\"\})?", text)
        assert found, text
        name, label, value = found.groups()
        assert name in metrics, name
        if label:
            metric = metrics[name]
            assert label in metric.labels, text
            values = {each for labels in (*metric.places, *(metric.known or ())) for each in labels}
            assert value in values, text


def test_remedies_for_refusals_are_settings() -> None:
    cells = [row[3] for row in rows(section("troubleshooting", "Refusals"))]
    names = {name for text in cells for name in quoted(text) if re.fullmatch(r"[a-z_]+", name)}
    assert len(names) > 10
    assert names <= set(FIELDS)


def test_each_documented_log_event_is_in_the_code() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in TOP.rglob("*.py"))
    events = [event for row in rows(section("troubleshooting", "The log")) for event in quoted(row[0])]
    assert len(events) > 15
    assert [event for event in events if f'"{event}"' not in sources] == []


# Redis


SETTINGS = re.findall(r"^\| `([a-z-]+) ([^` ]+)` \|", PAGES["redis"], re.MULTILINE)
OF_TLS = {name for name, _ in SETTINGS if name.startswith("tls-")}


def test_settings_of_redis_accept_their_values(server: Server) -> None:
    plain = [(name, value) for name, value in SETTINGS if name not in OF_TLS]
    assert len(plain) > 8
    for name, value in plain:
        server.client.config_set(name, value)


@pytest.mark.parametrize("server", ["redis-server"], indirect=True)
@pytest.mark.needs("redis-server")  # the embedded one has no TLS
def test_tls_settings_of_redis_are_known(server: Server) -> None:
    assert OF_TLS
    assert all(ask(server.client, "CONFIG", "GET", name) for name in OF_TLS)


# Security


ATTACKS = [row for row in rows(section("security", "Attacks, and what bounds them")) if len(row) > 1]


def test_settings_of_attacks_are_those_that_limit_clients() -> None:
    assert len(ATTACKS) > 20
    assert [row for row in ATTACKS if len(row) != 5 or not all((row[0], row[1], row[3], row[4]))] == []
    assert {name for row in ATTACKS for name in quoted(row[2])} <= set(FIELDS)
    bounding = {name for name, spec in FIELDS.items() if spec.group in {"limits", "authentication", "tls"}}
    served = {"tls_cert", "tls_key", "tls_port", "tls_only"}  # where TLS is served; no limit
    assert bounding - served <= {*quoted(section("security", "Attacks, and what bounds them"))}


def test_tests_of_attacks_exist_and_every_attack_program_is_on_the_page() -> None:
    for each in {name for row in ATTACKS for name in quoted(row[3])} - set(CASES):
        if each.startswith("python -m "):
            assert importlib.util.find_spec(each.split()[2]) is not None, each
        else:
            assert (ROOT / each).is_file(), each
    named = {*quoted(PAGES["security"] + PAGES["tls"] + PAGES["authentication"])}
    assert [case for case in CASES if not {case, f"python -m tests.system.security {case}"} & named] == []


# Apps, subscribers and timers


OF_BACKENDS = {"docs/messages.md": ("presence.common.errors",), "docs/rooms.md": ("presence.rooms",)}
"""By page for apps: whose types it names, besides those of the client."""


def test_client_types_exist_and_have_their_codes() -> None:
    for each in FOR_APPS:
        homes = [presence.client, *map(importlib.import_module, OF_BACKENDS.get(each, ()))]
        names = re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", PAGES[Path(each).stem])
        assert [name for name in names if not any(hasattr(home, name) for home in homes)] == []
    page = "".join(PAGES[Path(each).stem] for each in FOR_APPS)
    errors = presence.client.errors
    for name, code in re.findall(r"`([A-Z]\w+)` \((\d{3})\)", page):
        known = {errors.FAILED.get(int(code)), errors.ENDED.get(int(code)), errors.LoginRefused}
        assert getattr(errors, name) in known, name


@pytest.mark.parametrize("name", ["Online", "Offline", "Away", "Updated", "Gap"])
def test_each_event_has_a_row_with_its_fields(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}`.*$", PAGES["subscribers"], re.MULTILINE)
    known = {field.name for field in dataclasses.fields(getattr(subscriber, name))}
    named = set(re.findall(r"`([a-z_]+)`", row)) - {code.reason for code in Code}
    assert named, row
    assert named <= known, row


def test_the_plan_on_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for command in re.findall(r"^presence (plan .+)$", PAGES["sizing"], re.MULTILINE):
        assert main(command.split()) == 0
        assert f"```text\n{capsys.readouterr().out}```" in PAGES["sizing"]
