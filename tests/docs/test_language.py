"""Log events are fixed lower-case phrases, subject first: alerts and searches name them."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import presence

MAKERS = {"get_logger", "getLogger", "RateLimited"}  # of loggers
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
WORD = "(?:[a-z0-9'-]+|[A-Z]{2,}|Redis|Valkey)"
PHRASE = re.compile(rf"{WORD}(?:[,:]? {WORD}){{0,5}}|.*%[dsr].*")  # with %: a library's, which uses `logging`


def name_of(node: Any) -> str:
    """Return the last part of a name, or of the name of what is called."""
    node = getattr(node, "func", node)
    return getattr(node, "attr", "") or getattr(node, "id", "")


@cache
def assignments(module: ast.Module) -> list[ast.AST]:
    return [node for node in ast.walk(module) if hasattr(node, "targets") or hasattr(node, "target")]


class Program:
    """The parsed sources of the package."""

    def __init__(self) -> None:
        self.sources = [path.read_text("utf-8") for path in Path(presence.__file__).parent.rglob("*.py")]
        self.nodes: list[ast.AST] = [ast.parse(source) for source in self.sources]
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:  # which grows
            children = [*ast.iter_child_nodes(node)]
            self.parents.update(dict.fromkeys(children, node))
            self.nodes += children
        self.calls: defaultdict[str, list[ast.Call]] = defaultdict(list)  # by the name of what is called
        for node in self.nodes:
            if isinstance(node, ast.Call):
                self.calls[name_of(node)].append(node)

    def above(self, node: ast.AST, kind: type[ast.AST]) -> Any:
        return node if isinstance(node, kind) else self.above(self.parents[node], kind)

    def values(self, event: ast.Name | ast.Attribute) -> Iterator[Any]:
        """Yield what is assigned to a name or attribute in its module, or passed for it to its class."""
        for node in assignments(self.above(event, ast.Module)):
            for target in getattr(node, "targets", [getattr(node, "target", None)]):
                if type(target) is type(event) and name_of(target) == name_of(event):
                    yield getattr(node, "value", None)
        if name_of(getattr(event, "value", None)) == "self":
            owner = self.above(event, ast.ClassDef).name
            for call in self.calls[owner]:
                yield next((each.value for each in call.keywords if each.arg == name_of(event)), None)

    def texts(self, event: Any) -> Iterator[str]:
        """Yield what an event may say; "?" if that cannot be found."""
        match event:
            case ast.Constant(value=str() | None as text):
                yield from filter(None, [text])
            case ast.JoinedStr():
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "it" for part in event.values
                )
            case ast.IfExp():
                yield from [*self.texts(event.body), *self.texts(event.orelse)]
            case ast.Name() | ast.Attribute():
                for value in [*self.values(event)] or [None]:
                    yield from self.texts(value)
            case _:
                yield "?"


def test_log_events_are_short_lower_case_phrases() -> None:
    program = Program()
    nodes = program.nodes
    made = [node for node in nodes if isinstance(node, ast.Call) and name_of(node) in MAKERS]
    loggers = MAKERS | {
        name_of(each) for node in made for each in getattr(program.parents[node], "targets", ())
    }
    uses = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in LEVELS]
    calls = [program.above(node, ast.Call) for node in uses if name_of(node.value) in loggers]
    in_text = re.compile(rf"log(?:ger)?(?:\(.*\))?\.(?:{'|'.join(LEVELS)})\b")
    assert len(calls) == sum(len(in_text.findall(source)) for source in program.sources)  # none is overlooked
    events = {(text, ast.unparse(call)) for call in calls for text in program.texts(call.args[0])}
    assert [each for each in events if not PHRASE.fullmatch(each[0])] == []


def test_a_wrong_event_is_found() -> None:
    wrong = ["snake_case", "Connection failed", "lease expired.", "one two three four five six seven", "?"]
    assert not any(map(PHRASE.fullmatch, wrong))
