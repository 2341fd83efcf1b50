"""Which failures are logged, and the pauses after them."""

from structlog.testing import CapturingLogger

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.outage import Outage


def an_outage(log: CapturingLogger) -> Outage:
    return Outage(
        log,
        unreachable="away",
        refused="refused",
        failed_otherwise="broken",
        recovered="back",
        first_s=0.1,
        limit_s=0.4,
    )


def test_an_outage_is_logged_once_and_each_refusal_in_it_too() -> None:
    log = CapturingLogger()
    outage = an_outage(log)
    pauses = [outage.failed("read", StoreUnavailable("no route")) for _ in range(4)]
    for text in ("no rights", "no rights", "no memory"):
        outage.failed("write", StoreError(text))
    outage.worked("read")
    outage.worked("write")
    outage.worked("write")
    assert [call.args[0] for call in log.calls] == ["away", "refused", "refused", "back"]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, (0.1, 0.2, 0.4, 0.4), strict=True))


def test_other_errors_have_an_event_of_their_own_and_say_what_is_lacking() -> None:
    log = CapturingLogger()
    outage = an_outage(log)
    for error in (MemoryError(), MemoryError(), StoreError("no rights"), ZeroDivisionError()):
        outage.failed("read", error)
    outage.worked("read")
    logged = [(call.args[0], call.kwargs.get("error")) for call in log.calls]
    lack = "out of memory: more memory is needed"
    assert logged == [
        ("broken", lack),
        ("refused", "no rights"),
        ("broken", "ZeroDivisionError"),
        ("back", None),
    ]
