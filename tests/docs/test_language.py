"""Log events are fixed lower-case phrases, subject first: alerts and searches name them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import presence

SOURCES = [path.read_text("utf-8") for path in Path(presence.__file__).parent.rglob("*.py")]
NODES = [node for source in SOURCES for node in ast.walk(ast.parse(source))]
PARENTS = {child: node for node in NODES for child in ast.iter_child_nodes(node)}
MAKERS = {"get_logger", "getLogger", "RateLimited"}  # of loggers
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
WORD = "(?:[a-z0-9'-]+|[A-Z]{2,}|Redis|Valkey)"
PHRASE = re.compile(rf"{WORD}(?:[,:]? {WORD}){{0,5}}|.*%[dsr].*")  # with %: a library's, which uses `logging`


def name_of(node: Any) -> str:
    """Return the last part of a name, or of the name of what is called."""
    node = getattr(node, "func", node)
    return getattr(node, "attr", "") or getattr(node, "id", "")


def above(node: ast.AST, kind: type[ast.AST]) -> Any:
    return node if isinstance(node, kind) else above(PARENTS[node], kind)


def values(event: ast.Name | ast.Attribute) -> Iterator[Any]:
    """Yield what is assigned to a name or attribute in its module, or passed for it to its class."""
    for node in ast.walk(above(event, ast.Module)):
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if type(target) is type(event) and name_of(target) == name_of(event):
                yield getattr(node, "value", None)
    if name_of(getattr(event, "value", None)) == "self":
        owner = above(event, ast.ClassDef).name
        for call in (node for node in NODES if isinstance(node, ast.Call) and name_of(node) == owner):
            yield next((each.value for each in call.keywords if each.arg == name_of(event)), None)


def texts(event: Any) -> Iterator[str]:
    """Yield what an event may say; "?" if that cannot be found."""
    match event:
        case ast.Constant(value=str() | None as text):
            yield from filter(None, [text])
        case ast.JoinedStr():
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "it" for part in event.values
            )
        case ast.IfExp():
            yield from [*texts(event.body), *texts(event.orelse)]
        case ast.Name() | ast.Attribute():
            for value in [*values(event)] or [None]:
                yield from texts(value)
        case _:
            yield "?"


def test_log_events_are_short_lower_case_phrases() -> None:
    made = [node for node in NODES if isinstance(node, ast.Call) and name_of(node) in MAKERS]
    loggers = MAKERS | {name_of(each) for node in made for each in getattr(PARENTS[node], "targets", ())}
    uses = [node for node in NODES if isinstance(node, ast.Attribute) and node.attr in LEVELS]
    calls = [above(node, ast.Call) for node in uses if name_of(node.value) in loggers]
    in_text = re.compile(rf"log(?:ger)?(?:\(.*\))?\.(?:{'|'.join(LEVELS)})\b")
    assert len(calls) == sum(len(in_text.findall(source)) for source in SOURCES)  # none is overlooked
    events = {(text, ast.unparse(call)) for call in calls for text in texts(call.args[0])}
    assert [each for each in events if not PHRASE.fullmatch(each[0])] == []


def test_a_wrong_event_is_found() -> None:
    wrong = ["snake_case", "Connection failed", "lease expired.", "one two three four five six seven", "?"]
    assert not any(map(PHRASE.fullmatch, wrong))
