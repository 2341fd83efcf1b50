"""The plain JavaScript of the page for apps, in a real browser, before a real server."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers import PresenceServer, free_port
from presence.store.embedded import EmbeddedRedis
from tests.admin.browser import Browser, browsing
from tests.docs.pages import blocks, pages
from tests.support.events import read_events
from tests.support.page_server import serving_files
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

PAGE = "docs/own-client.md"
CLIENT, USE = (each.text for each in blocks(PAGE, pages()[PAGE]) if each.language == "js")
EXAMPLE = Path(__file__).parents[3] / "examples" / "web_roster" / "index.html"
# A function's body has no names for others; what is logged stays in the page.
RUN = """
window.log ??= [];
const console = { log: (...words) => log.push(words.join(" ")) };
%s
%s
window[arguments[0]] = presence;
"""
PATIENT = ("--disconnect-grace", "60")
SHORT_S = 5  # the shortest idle time-out that a server grants

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.needs("chromedriver")]


class Tab:
    """A page with clients of the documentation."""

    def __init__(self, browser: Browser, ws_port: int) -> None:
        self.browser, self.ws_port = browser, ws_port

    def open(self, uid: str = "ann", friend: str = "bob", idle_timeout: float = 120) -> None:
        """Run the program of the page as another user, with another friend."""
        server = f"127.0.0.1:{self.ws_port}"
        given = {"ann": uid, "bob": friend, "120": f"{idle_timeout}", "127.0.0.1:7401": server}
        use = re.sub("|".join(given), lambda found: given[found[0]], USE)
        self.browser.run(RUN % (CLIENT, use), uid)

    def log(self) -> list[str]:
        return list(self.browser.run("return window.log ?? []"))

    def says(self, words: str, count: int = 1) -> None:
        try:
            wait_for(lambda: sum(words in each for each in self.log()) >= count)
        except AssertionError:
            raise AssertionError(f"{words}: {self.log()}") from None

    def send(self, uid: str, kind: int, payload: dict[str, Any]) -> None:
        self.browser.run("window[arguments[0]].send(arguments[1], arguments[2])", uid, kind, payload)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as driven:
        yield driven


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """The URL of an empty page: a server lets pages of this machine connect."""
    with serving_files({"/": ("text/html", lambda: b"<!doctype html><title>plain</title>")}) as url:
        yield url


@pytest.fixture
def tab(browser: Browser, origin: str) -> Tab:
    browser.driver.get(origin)
    return Tab(browser, free_port())


def serving(redis: EmbeddedRedis, tab: Tab, *flags: str) -> AbstractContextManager[PresenceServer]:
    return running_server("--redis", redis.url, "--ws-port", str(tab.ws_port), *flags)


def test_the_example_has_the_same_client() -> None:
    assert CLIENT in EXAMPLE.read_text("utf-8")


def test_two_users_see_each_other_and_talk(tab: Tab, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server, tab, *PATIENT):
        tab.open("bob", friend="ann")
        tab.says("ann is offline")
        tab.says("request 3 failed: recipient_offline")
        tab.open("ann", friend="bob")
        tab.says("bob is online")
        tab.says("ann says hello")
        tab.says("ann is now online")
        tab.send("bob", 8, {"status": "away"})
        tab.says("bob is now away")
        tab.send("bob", 4, {})
        tab.says("ended: logged out")
        tab.says("bob is now offline")


def test_it_stays_online_by_its_keepalives(tab: Tab, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server, tab):
        tab.open(idle_timeout=SHORT_S)
        tab.says("bob is offline")
        time.sleep(3 * SHORT_S)
        assert [each["type"] for each in read_events(redis_server.url)] == ["online"]
        assert not [each for each in tab.log() if "reconnecting" in each]


def test_it_comes_back_to_a_server_that_has_started_again(tab: Tab, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server, tab, *PATIENT):
        tab.open()
        tab.says("bob is offline")
    tab.says("reconnecting in")
    with serving(redis_server, tab, *PATIENT):
        tab.says("bob is offline", 2)
    assert "offline" not in [each["type"] for each in read_events(redis_server.url)]


def test_it_leaves_a_server_that_does_not_answer(tab: Tab, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server, tab) as server:
        tab.open(idle_timeout=SHORT_S)
        tab.says("bob is offline")
        server.process.send_signal(signal.SIGSTOP)
        tab.says("reconnecting in")
        server.process.send_signal(signal.SIGCONT)
        tab.says("bob is offline", 2)


def test_it_does_not_come_back_when_it_must_not(tab: Tab, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server, tab):
        tab.open("ann")
        tab.says("bob is offline")
        tab.open("ann")  # the same device
        tab.says("ended: replaced")
        tab.open("eve eve")
        tab.says("ended: protocol_error")
        time.sleep(2)  # longer than before a first attempt
        assert len([each for each in tab.log() if each == "bob is offline"]) == 2
