"""What operators had better know beside a user's state: what does not fit together, who is silent. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from presence.reasons import device, span

State = Mapping[str, Any]
Answers = Mapping[str, Mapping[str, Any]]
"""What nodes told, see `presence.explaining`."""

_SILENT = {
    ("dead", "not_listening"): "it is dead, and others end its sessions",
    ("dead", "no_answer"): "it is dead, and others end its sessions",
    ("left", "not_listening"): "it has drained and ended; its users have time to return",
    ("left", "no_answer"): "it has drained and ended; its users have time to return",
    ("silent", "not_listening"): "its lease has ended, and it does not listen",
    ("silent", "no_answer"): "its lease has ended",
    ("alive", "not_listening"): "it does not listen: it starts or stops, or its connection to Redis broke",
    ("gone", "not_listening"): "no node of this name has a lease",
    ("gone", "no_answer"): "no node of this name has a lease",
}
_LATE = "it is busy, asked too much, or too old to know the question"


def is_on_record(state: State | None, session: Mapping[str, Any]) -> bool | None:
    """Whether a state names the session of a node; None: it is not known."""
    if state is None:
        return None
    return any(
        (each["device"], each["session"]) == (session["device"], session["session"])
        for each in state["sessions"]
    )


def disagree(state: State | None, answers: Answers) -> bool:
    """Whether nodes have other sessions than the state names."""
    return any(_unregistered(state, answers)) or any(_unknown_there(state, answers))


def notes(state: State | None, answers: Answers, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences; none where all is as it should be.

    Args:
        state: the user's; None if Redis could not be asked.
        answers: what nodes told.
        nodes: all of them, as `presence.explanation` tells.
    """
    return [
        *_lost(answers),
        *_unregistered(state, answers),
        *_unknown_there(state, answers),
        *_without_answer(state, nodes),
        *(
            f"node {node} has {answer['more']} more sessions of this user"
            for node, answer in sorted(answers.items())
            if answer.get("more")
        ),
    ]


def _lost(answers: Answers) -> Iterator[str]:
    for node, answer in sorted(answers.items()):
        for session in answer["sessions"]:
            if session["link"] == "lost" and session["due_in_s"] is not None:
                due, reason = span(session["due_in_s"]), session["ends_as"].get("reason")
                yield (
                    f"{device(session)} at node {node} has lost its connection: "
                    f"its session ends as {reason} in {due} unless it comes back"
                )


def _unregistered(state: State | None, answers: Answers) -> Iterator[str]:
    for node, answer in sorted(answers.items()):
        for session in answer["sessions"]:
            if is_on_record(state, session) is False:
                told = f"Redis has not been told yet; {answer.get('outbox', 0)} changes wait there"
                if not session["vouched"]:
                    told = "Redis is not told of it until its client, silent for too long, is heard again"
                yield f"node {node} has a session of {device(session)} that is not on record: {told}"


def _unknown_there(state: State | None, answers: Answers) -> Iterator[str]:
    for each in state["sessions"] if state else ():
        answer = answers.get(each["node"])
        if answer is not None and not any(s["session"] == each["session"] for s in answer["sessions"]):
            yield (
                f"the record names a session of {device(each)} at node {each['node']}, which does not have "
                f"it: its end is on the way ({answer.get('outbox', 0)} changes wait there), "
                "or is made up for soon"
            )


def _without_answer(state: State | None, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in nodes:
        if each["answer"] in {"answered", "not_asked"}:
            continue
        node, version = each["node"], each["version"] or "unknown"
        on_record = [s for s in (state or {"sessions": ()})["sessions"] if s["node"] == node]
        named = f", which has {', '.join(map(device, on_record))}," if on_record else ""
        reason = _SILENT.get((each["status"], each["answer"]), f"{_LATE} (version {version})")
        yield f"node {node}{named} did not answer: {reason}"
