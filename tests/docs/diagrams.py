"""The diagrams of the pages, in Mermaid, made from the tables of the code.

Tests: `tests/docs/test_diagrams.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from presence.outbox.shard_writer import NEXT_PHASE, Phase, PhaseEvent
from presence.protocol import TABLE, ConnectionState, Kind, Other, ServerAnswer

_PHASE_EVENTS: Final = {
    PhaseEvent.OPENED: "opening accepted",
    PhaseEvent.COMPLETED: "all is registered",
    PhaseEvent.LEFT: "data lost",
    PhaseEvent.FENCED: "fenced",
    PhaseEvent.RENAMED: "new node id",
}


def connection_states() -> str:
    """Return the states of a connection; inputs that change nothing and have no answer are left out."""
    start = f"[*] --> {ConnectionState.CONNECTED.value}: accepted"
    return _diagram("stateDiagram-v2", start, *_arrows(_reactions()))


def generation_phases() -> str:
    """Return the phases of a node's generation in a shard."""
    changes = [
        (before.name.lower(), after.name.lower(), _PHASE_EVENTS[event])
        for (before, event), after in NEXT_PHASE.items()
    ]
    return _diagram("stateDiagram-v2", f"[*] --> {Phase.CLOSED.name.lower()}", *_arrows(changes))


def processes(started: Mapping[str, Iterable[str]]) -> str:
    """Return which process starts which."""
    names = dict.fromkeys([*started, *chain.from_iterable(started.values())])
    ids = {name: name.replace(" ", "_") for name in names}
    boxes = (f"{ids[name]}[{name}]" for name in names)
    return _diagram("flowchart TD", *boxes, *(f"{ids[a]} --> {ids[b]}" for a in started for b in started[a]))


def _reactions() -> Iterator[tuple[str, str, str]]:
    """Yield state, next state, and the input that leads there."""
    for (state, trigger), reaction in TABLE.items():
        is_expected = state is ConnectionState.LOGGED_IN or trigger is Kind.LOGIN
        if state is ConnectionState.CLOSING or reaction.answer is ServerAnswer.NOTHING:
            continue
        name = _name(trigger) if is_expected else "anything else, or nothing in time"
        yield state.value, reaction.then.value, name
        if reaction.answer is ServerAnswer.OK_OR_ERROR:
            yield state.value, ConnectionState.CLOSING.value, f"refused {name}"


def _name(trigger: Kind | Other) -> str:
    if isinstance(trigger, Other):
        return trigger.value
    return trigger.name.lower() if trigger < Kind.OK else "packet that servers send"


def _arrows(changes: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    causes: dict[tuple[str, str], dict[str, None]] = {}
    for before, after, cause in changes:
        causes.setdefault((before, after), {})[cause] = None
    for (before, after), names in causes.items():
        yield f"{before} --> {after}: {', '.join(names)}"


def _diagram(kind: str, *lines: str) -> str:
    return "\n".join(["```mermaid", kind, *(f"    {line}" for line in lines), "```"])
