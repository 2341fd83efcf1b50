"""HTTP for operators: a client that is gone before its answer."""

import pytest
import trio

from tests.admin.test_http import GET, serving


async def test_who_is_gone_before_the_answer_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as stage:
        for _ in range(30):
            async with await stage.connect() as stream:
                await stream.send_all(GET)
        await trio.sleep(0.05)
        await stage.until_idle()
    assert not caplog.records
