"""Which errors count as a lack of something."""

import errno
import os

import pytest

from presence.common.scarcity import scarcity


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (SystemError("error return without exception set"), "out of memory"),
        (SystemError("<function f> returned NULL without setting an exception"), "out of memory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files: a higher limit"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"), "/data/x: No space left on device"),
        (RuntimeError("can't start new thread"), "a higher limit of processes"),
        (ImportError("libssl.so.3: failed to map segment from shared object"), "more memory"),
        (ImportError("libssl.so.3: cannot open shared object file: Too many open files"), "ulimit -n"),
        (ExceptionGroup("tasks", [MemoryError(), RuntimeError("can't start new thread")]), "out of memory"),
    ],
)
def test_a_lack_is_named_in_one_line(error: BaseException, words: str) -> None:
    assert words in scarcity(error)
    assert "\n" not in scarcity(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("dictionary changed size during iteration"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        ImportError("cannot import name"),
        ExceptionGroup("tasks", [MemoryError(), KeyError("uid")]),
    ],
)
def test_another_error_is_none(error: BaseException) -> None:
    assert scarcity(error) == ""


def test_a_slow_reader_of_a_pipe_that_does_not_wait_is_none() -> None:
    """The error number is that of a lack of processes."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(reader, "rb"), pytest.raises(BlockingIOError) as caught, open(writer, "w") as output:
        output.write("x" * 1_000_000)
    assert scarcity(caught.value) == ""
