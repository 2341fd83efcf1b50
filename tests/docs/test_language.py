"""Texts that operators read follow the rules: log events, help of settings, commands and metrics.

Log events are part of the interface, because alerts and searches name them: a fixed lower-case phrase, the
details in fields. Help is one line in the field's words.
"""

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import structlog

import presence
from presence.admin.metric_table import TABLE
from presence.cli.main import COMMANDS, argument_parser
from presence.common.errors import StoreError, StoreUnavailable
from presence.config.loading import FIELDS
from presence.outbox.outage_log import Outage

TOP = Path(presence.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
MAX_WORDS = 6  # of a log event
NAMES = {"Redis", "Valkey"}  # besides acronyms such as HTTP
OUTAGE_EVENTS = {each.name for each in fields(Outage) if each.type is str}  # its texts are log events
PLACEHOLDER = re.compile(r"%[srd]")
AVOIDED = re.compile(
    r"\b(whoever|nobody|somebody|he|him|his|at once|(?:is|are) told|had better|ever so"
    r"|not\b[^.;:]*\bat all)\b",
    re.IGNORECASE,
)


def log_events(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each log event, as far as it is made of constants."""
    tree = ast.parse(source)
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for event in events_of(node):
                yield from ((node.lineno, text) for text in constants(event, assigned))


def events_of(call: ast.Call) -> list[ast.expr]:
    """Return the texts of log events among the arguments of a call."""
    if isinstance(call.func, ast.Name) and call.func.id == "Outage":
        return [word.value for word in call.keywords if word.arg in OUTAGE_EVENTS]
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in LEVELS:
        return []
    is_logger = re.search(r"(?:^|[._])log(?:ger)?$", ast.unparse(call.func.value))
    return call.args[:1] if is_logger else []


def constants(event: ast.expr, assigned: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the texts that an expression may have; a part known only at run time is one word."""
    match event:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.IfExp():
            yield from constants(event.body, assigned)
            yield from constants(event.orelse, assigned)
        case ast.Name():
            for value in assigned.get(event.id, ()):
                yield from constants(value, {})
        case ast.JoinedStr():
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "it" for part in event.values
            )


def faults_of_event(event: str) -> list[str]:
    """Return what is wrong with a log event.

    The libraries use `logging`; their lines have details in the text and may be longer.
    """
    capitals = [word for word in re.findall(r"\w+", event) if not word.islower() and not word.isdigit()]
    found = {
        "is too long": len(event.split()) > MAX_WORDS and not PLACEHOLDER.search(event),
        "is not lower-case": any(not (word in NAMES or word.isupper()) for word in capitals),
        "is snake_case": "_" in event,
        "ends with a full stop": event.endswith("."),
    }
    return [fault for fault, is_there in found.items() if is_there] + faults_of_language(event)


def faults_of_help(text: str) -> list[str]:
    """Return what is wrong with a line of help."""
    return ["ends with a full stop"] * text.endswith(".") + faults_of_language(text)


def faults_of_language(text: str) -> list[str]:
    return [f"says {found[0]!r}" for found in AVOIDED.finditer(text)]


def help_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield each argument's name and help, of subcommands too, and their descriptions."""
    for action in parser._actions:
        if action.help and action.help is not argparse.SUPPRESS:
            yield f"{parser.prog} {'/'.join(action.option_strings) or action.dest}", action.help
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"{parser.prog} {choice.dest}", choice.help or ""
            for name, sub in action.choices.items():
                if name not in COMMANDS or parser.prog != "presence":
                    yield from help_of(sub)
    for text in filter(None, (parser.description, parser.epilog)):
        yield parser.prog, text.rstrip().removesuffix(".")  # a sentence, unlike help


def test_log_events_are_short_lower_case_phrases() -> None:
    events = {
        f"{path.relative_to(TOP.parent)}:{line}": event
        for path in sorted(TOP.rglob("*.py"))
        for line, event in log_events(path.read_text("utf-8"))
    }
    assert len(events) > 80
    assert {
        f"{place} {text}": found for place, text in events.items() if (found := faults_of_event(text))
    } == {}


def test_help_of_settings_is_plain() -> None:
    assert {
        name: (spec.help, found) for name, spec in FIELDS.items() if (found := faults_of_help(spec.help))
    } == {}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_plain(command: str) -> None:
    (commands,) = (
        each for each in argument_parser([command])._actions if isinstance(each, argparse._SubParsersAction)
    )
    texts = [*help_of(commands.choices[command]), (command, COMMANDS[command])]
    assert [(name, text, found) for name, text in texts if (found := faults_of_help(text))] == []


def test_help_of_metrics_is_plain() -> None:
    assert {
        metric.name: (metric.help, found) for metric in TABLE if (found := faults_of_help(metric.help))
    } == {}


@pytest.mark.parametrize(
    "event",
    [
        "connection_failed",
        "Connection failed",
        "node lease expired.",
        "the clients are told to come back",
        "one two three four five six seven",
        "whoever asked has gone",
    ],
)
def test_a_wrong_event_is_found(event: str) -> None:
    assert faults_of_event(event)


@pytest.mark.parametrize(
    "event", ["Redis reachable again", "admin HTTP server ready", "node lease expired, fencing it"]
)
def test_a_right_event_passes(event: str) -> None:
    assert faults_of_event(event) == []


@pytest.mark.parametrize("text", ["Ends here.", "how many at once", "does not wait at all", "what he sent"])
def test_wrong_help_is_found(text: str) -> None:
    assert faults_of_help(text)


def test_events_are_found_in_source_code() -> None:
    source = """
event = "sweep finished" if swept else "sweep begun"
self._log.info(event, node=node)
_log.error(f"worker killed: {late}", pid=pid)
protocol.error(7, "not this")
"""
    texts = [
        "sweep finished",
        "sweep begun",
        "worker killed: it",
    ]
    assert [text for _, text in log_events(source)] == texts


OUTAGE = """
LOST = "control channel lost"
keywords = dict(first_s=1, limit_s=2)
outage = Outage(log, unreachable="Redis unreachable", refused=LOST, recovered="it is back", **keywords)
"""


def test_the_events_of_an_outage_are_found() -> None:
    """The planted call runs: all that the real class logs is found in its source."""
    names: dict[str, Any] = {"Outage": Outage, "log": structlog.get_logger()}
    exec(OUTAGE, names)
    with structlog.testing.capture_logs() as logged:
        names["outage"].failed("call", StoreUnavailable("away"))
        names["outage"].failed("call", StoreError("no"))
        names["outage"].worked("call")
    assert {text for _, text in log_events(OUTAGE)} == {each["event"] for each in logged}
    assert len(logged) == len(OUTAGE_EVENTS)
