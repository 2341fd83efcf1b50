"""The page of the demo in a real browser: a friend comes and goes."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from tests.admin.browser import Browser, browsing
from tests.support.waiting import WAIT_TIMEOUT_S, wait_for

DEMO = (sys.executable, "-m", "presence", "demo", "--web", "--no-admin", "--clients", "50", "--seconds", "25")
WATCHED = 51  # all of the demo, and the friend
LOOKS = [(1200, False), (1200, True), (390, False), (390, True)]  # width, and whether it is dark
NEWS = "return [...document.querySelectorAll('#news li')].map((line) => line.lastChild.textContent)"

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.needs("chromedriver")]


@contextlib.contextmanager
def running_demo() -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A demo, and the URL of its page."""
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            title, _, url = demo.stdout.readline().partition(": ")
            assert title == "who is online"
            yield demo, url.strip()
        finally:
            demo.kill()


def has_news(browser: Browser, words: str) -> bool:
    return any(words in each for each in browser.run(NEWS))


def test_a_friend_comes_and_goes(tmp_path: Path) -> None:
    with running_demo() as (demo, url), browsing(tmp_path) as browser:
        browser.driver.get(url)
        wait_for(lambda: browser.text("connection") == "connected")
        wait_for(lambda: browser.text("count") == f"50 of {WATCHED} are online")
        for width, dark in LOOKS:
            browser.look(width, 800, dark=dark)
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")

        page = browser.driver.current_window_handle
        browser.driver.find_element(By.ID, "friend").click()
        wait_for(lambda: has_news(browser, "is online: login"))
        (friend,) = [each for each in browser.driver.window_handles if each != page]
        browser.driver.switch_to.window(friend)
        wait_for(lambda: browser.text("connection") == "connected")
        browser.driver.close()
        browser.driver.switch_to.window(page)
        wait_for(lambda: has_news(browser, "is offline: closed"))
        assert browser.complaints() == []

        output = demo.stdout
        assert output is not None
        lines = list(iter(lambda: output.readline().strip(), "everyone stays until Ctrl-C"))
        assert lines[-1] == "events match the clients", lines
        assert browser.text("connection") == "connected"
        demo.send_signal(signal.SIGINT)
        assert demo.wait(WAIT_TIMEOUT_S) == 0
        wait_for(lambda: browser.text("connection").startswith("reconnecting in"))
