"""The receiver on the page: it accepts what a runner signs, and nothing else."""

import hmac
import itertools
import json
import random
import time
from typing import Any

import httpx2
import pytest

from presence.webhooks import SIGNATURE_HEADER, sign
from tests.docs.pages import blocks, pages

SECRET = "the secret of the example"
BODY = json.dumps({"events": [{"type": "offline", "uid": "ann"}, {"type": "gap"}]}).encode()
PAGE = "docs/webhooks.md"


def example() -> Any:
    (text,) = [each.text for each in blocks(PAGE, pages()[PAGE]) if each.text.startswith("# receiver.py")]
    names: dict[str, Any] = {}
    exec(text, names)
    return names["app"]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    return example()


async def status(app: Any, body: bytes, signature: str | None) -> int:
    headers = {} if signature is None else {SIGNATURE_HEADER: signature}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://receiver.test") as client:
        return (await client.post("/events", content=body, headers=headers)).status_code


async def test_a_signed_request_is_accepted(app: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await status(app, BODY, sign(BODY, [SECRET.encode()], int(time.time()))) == 204
    assert capsys.readouterr().out == "offline ann\ngap \n"


async def test_every_other_request_is_refused(app: Any, capsys: pytest.CaptureFixture[str]) -> None:
    now, secret = int(time.time()), SECRET.encode()
    right = sign(BODY, [secret], now)
    place = random.Random(25)
    changed = []
    for _ in range(100):
        n = place.randrange(len(right))
        changed.append(right[:n] + chr(ord(right[n]) ^ 1) + right[n + 1 :])
    wrong: list[tuple[bytes, str | None]] = [
        (BODY, None),
        (BODY, ""),
        (BODY, sign(BODY, [b"the secret of another receiver"], now)),
        (BODY, sign(BODY, [secret], now - 301)),
        (BODY, sign(BODY, [secret], now + 400)),
        (BODY + b" ", right),
        *((BODY, each) for each in changed),
    ]
    answers = [await status(app, body, signature) for body, signature in wrong]
    assert [*itertools.filterfalse(lambda answer: answer == 401, answers)] == []
    assert len(answers) == 106
    assert capsys.readouterr().out == ""


def test_without_the_variable_of_its_secret_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEBHOOK_SECRET", raising=False)
    with pytest.raises(KeyError):
        example()


async def test_with_an_empty_secret_it_accepts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", "")
    now = int(time.time())
    forged = f"t={now},v1={hmac.new(b'', b'%d.%b' % (now, BODY), 'sha256').hexdigest()}"
    with pytest.raises(ValueError, match="the secret is empty"):
        await status(example(), BODY, forged)
