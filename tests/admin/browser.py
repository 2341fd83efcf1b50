"""A headless browser and its records: console, requests, violations of the content policy."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = "/usr/bin/chromium"
CHROMEDRIVER = "/usr/bin/chromedriver"
WAIT_S = 60.0  # for a slow machine
_COLLECT_BREACHES = (
    "window.breaches = [];"
    "addEventListener('securitypolicyviolation',"
    " (e) => breaches.push(`${e.violatedDirective} ${e.blockedURI}`))"
)


class Browser:
    """A page in Chromium.

    Args:
        profile: folder of its profile.
        flags: more of its command line.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, profile: Path, *flags: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *flags):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
        self.driver.set_page_load_timeout(WAIT_S)
        self.driver.set_script_timeout(WAIT_S)
        self.command("Page.addScriptToEvaluateOnNewDocument", source=_COLLECT_BREACHES)

    def command(self, name: str, **arguments: object) -> dict[str, Any]:
        """Send a command of the DevTools protocol."""
        return dict(self.driver.execute_cdp_cmd(name, arguments) or {})

    def look(self, width: int, height: int, *, dark: bool = False, still: bool = False) -> None:
        """Set the size of the window, a phone's if it is narrow, and the user's media preferences."""
        phone = width < 500
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        wishes = {"prefers-color-scheme": "dark" if dark else "light"}
        wishes["prefers-reduced-motion"] = "reduce" if still else "no-preference"
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.command("Emulation.setEmulatedMedia", features=features)

    def find(self, name: str) -> WebElement:
        """Return the element with this id."""
        return self.driver.find_element(By.ID, name)

    def text(self, name: str) -> str:
        """Return the text of an element, shown or not."""
        return self.find(name).get_attribute("textContent") or ""

    def state(self) -> str | None:
        """Return the state that the page reports."""
        return self.find("state").get_attribute("data-state")

    def run(self, script: str, *arguments: object) -> Any:
        """Run a function's body in the page."""
        return self.driver.execute_script(script, *arguments)

    def wheel(self) -> str:
        return str(self.run("return document.getElementById('wheel').toDataURL()"))

    def search(self, uid: str) -> None:
        """Type a user into the search field."""
        field = self.find("search-uid")
        field.clear()
        field.send_keys(uid + "\n")

    def complaints(self) -> list[str]:
        """Return the console's warnings and errors since the last call."""
        return [entry["message"] for entry in self._log("browser") if entry["level"] not in {"INFO", "DEBUG"}]

    def _log(self, name: str) -> list[dict[str, Any]]:
        return list(self.driver.execute("getLog", {"type": name})["value"])

    def breaches(self) -> list[str]:
        """Return the violations of the content policy."""
        return list(self.run("return window.breaches"))

    def network(self) -> tuple[set[str], dict[str, int]]:
        """Return the network addresses that were requested, and the status of each response."""
        asked: set[str] = set()
        answered: dict[str, int] = {}
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                if address.startswith(("http", "ws")):  # not those inside the browser
                    asked.add(address)
            elif message["method"] == "Network.responseReceived":
                answered[message["params"]["response"]["url"]] = message["params"]["response"]["status"]
        return asked, answered


@contextlib.contextmanager
def browsing(profile: Path, *flags: str) -> Iterator[Browser]:
    """A browser for the length of a ``with`` block, with a profile of its own."""
    browser = Browser(profile, *flags)
    try:
        yield browser
    finally:
        browser.driver.quit()


def wait_until(condition: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    """Poll until a condition holds; fail, naming `what`, if it does not."""
    end = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)
