"""What fails is kept, once for each way in which it does."""

from pathlib import Path

import pytest

from loadtest.fuzz.__main__ import Result, report
from loadtest.fuzz.findings import Catcher


def fail(data: bytes) -> None:
    if data.startswith(b"a"):
        raise KeyError(data)
    if data.startswith(b"b"):
        raise ValueError(data)


def test_the_shortest_input_of_each_way_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catch = Catcher(fail, tmp_path)
    for data in (b"ok", b"a long one", b"a", b"another", b"b1"):
        catch(data)
    kept = {path.name.partition("-")[0]: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {"KeyError": b"a", "ValueError": b"b1"}
    assert capsys.readouterr().err.count("Traceback") == 2


def test_a_finding_fails_the_command() -> None:
    reach = {"inputs": 1, "bytes": 2, "branches": {"protocol.codec": [3, 4]}}
    assert Result(10, 2.0, 1.0, 0, [], reach).is_clean
    found = Result(10, 2.0, 1.0, 0, [Path("KeyError-1")], {})
    assert not found.is_clean
    assert "finding: KeyError-1\nfindings: 1" in report("codec", found)


@pytest.mark.parametrize(("runs", "status"), [(0, 0), (10, 77)])
def test_a_fuzzer_that_did_not_work_fails_the_command(runs: int, status: int) -> None:
    assert not Result(runs, 2.0, 1.0, status, [], {}).is_clean
