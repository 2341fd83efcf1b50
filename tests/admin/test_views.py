"""Questions of operators to Redis, which are asked in threads."""

import pytest
import trio

from presence.admin.responses import ApiError
from presence.admin.views import ask_redis
from tests.support.no_threads import MESSAGE


async def test_a_question_without_a_thread_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(MESSAGE)

    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)
    with pytest.raises(ApiError) as caught:
        await ask_redis(lambda: 1, trio.CapacityLimiter(1))
    assert caught.value.status == 503
