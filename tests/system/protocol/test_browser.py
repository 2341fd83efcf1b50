"""The client in TypeScript in a browser: a page in Chromium, before a real server, over ws and wss."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers import PresenceServer, free_port
from presence.store.embedded import EmbeddedRedis
from tests.admin.browser import Browser, browsing
from tests.docs.pages import blocks, pages
from tests.support.credentials import SECRET, token, write_keys
from tests.support.events import read_events
from tests.support.page_server import serving_files
from tests.support.preloaded import PreloadedServer
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.system.protocol.device import in_typescript
from tests.transports import certificates

README = "protocol/clients/node/README.md"
BUNDLE = "dist/browser/presence-client.mjs"
PAGE = b"""<!doctype html><title>client</title><script type="module">
import { PresenceClient, storedDevice } from "/presence-client.mjs";
const plain = (value) => JSON.parse(JSON.stringify(value ?? null));
window.start = (options) => {
  const device = storedDevice(sessionStorage);
  const token = options.fetchesToken ? async () => (await fetch("/token")).text() : undefined;
  const client = new PresenceClient({ device, token, persistent: true, ...options.client });
  window.client = client;
  window.seen = [];
  for (const name of ["connected", "disconnected", "presence", "message", "goodbye", "end"]) {
    client.on(name, (event) => seen.push({ event: name, ...plain(event) }));
  }
  client.connect().catch((error) => seen.push({ event: "failed", message: String(error) }));
};
window.ask = async (method, ...rest) => {
  const answer = await client[method](...rest);
  return answer instanceof Map ? Object.fromEntries(answer) : answer;
};
</script>"""
ASK = """
const done = arguments[arguments.length - 1];
const failed = (error) => done({ error: error.name });
ask(...[...arguments].slice(0, -1)).then((answer) => done({ answer: answer ?? null }), failed);
"""
SHORT_S = 5  # the shortest idle time-out that a server grants
# Time in which a server starts again, before those who were with it are offline for others.
PATIENT = ("--idle-timeout", "60", "--disconnect-grace", "60")
TOKEN_TTL_S = 4.0

Line = dict[str, Any]
pytestmark = [
    pytest.mark.needs("node"),
    pytest.mark.needs("npm"),
    pytest.mark.needs("chromium"),
    pytest.mark.needs("chromedriver"),
]


class Page:
    """The address of the page.

    Attributes:
        tokens: how many it has fetched.
        example: the program of the page /example.
    """

    def __init__(self) -> None:
        self.url = self.example = ""
        self.tokens = 0

    def example_page(self) -> bytes:
        return f'<script type="module">{self.example}</script>'.encode()

    def token(self) -> bytes:
        self.tokens += 1
        return token("ann", ttl_s=TOKEN_TTL_S).encode()


class Tab:
    """A client in a page."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        browser.driver.get(url)
        wait_for(lambda: browser.run("return typeof window.start === 'function'"))

    def start(self, url: str, *, fetches_token: bool = False, **options: object) -> Line:
        """Begin to connect; return the event of its login."""
        given = {"fetchesToken": fetches_token, "client": {"url": url, **options}}
        self.browser.run("start(arguments[0])", given)
        return self.sees("connected")

    def ask(self, method: str, *arguments: object) -> Any:
        answer = self.browser.driver.execute_async_script(ASK, method, *arguments)
        return answer["answer"] if "answer" in answer else answer["error"]

    def all(self, event: str) -> list[Line]:
        return [each for each in self.browser.run("return window.seen") if each["event"] == event]

    def sees(self, event: str, count: int = 1) -> Line:
        """Wait until there were `count` of these events; return the last."""
        return wait_for(lambda: self.all(event)[count - 1 : count])[0]

    def life(self, state: str) -> None:
        """Freeze the page, or make it active."""
        self.browser.command("Page.setWebLifecycleState", state=state)

    def network(self, *, offline: bool) -> None:
        conditions = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.browser.command("Network.emulateNetworkConditions", **conditions)


@pytest.fixture(scope="module")
def page(node_client: Path) -> Iterator[Page]:
    page = Page()
    files = {
        "/": ("text/html", lambda: PAGE),
        "/presence-client.mjs": ("text/javascript", (node_client / BUNDLE).read_bytes),
        "/example": ("text/html", page.example_page),
        "/token": ("text/plain", page.token),
    }
    with serving_files(files) as page.url:
        yield page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    # The authority of the tests is in no browser's list.
    with browsing(tmp_path_factory.mktemp("profile"), "--ignore-certificate-errors") as driven:
        driven.command("Network.enable")
        yield driven


@pytest.fixture
def tab(browser: Browser, page: Page) -> Iterator[Tab]:
    tab = Tab(browser, page.url)
    yield tab
    tab.network(offline=False)
    browser.run("window.client?.disconnect()")


@contextlib.contextmanager
def serving(redis: EmbeddedRedis, *flags: str) -> Iterator[tuple[PresenceServer, str]]:
    """A server and the address of its WebSockets."""
    port = free_port()
    with running_server("--redis", redis.url, "--ws-port", str(port), *flags) as server:
        yield server, f"ws://127.0.0.1:{port}/"


def devices_of(tab: Tab, uid: str) -> list[str]:
    state = tab.ask("query", [uid], {"detail": True})[uid]
    return [each["device"] for each in state["devices"]]


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_it_watches_and_sends_messages(
    scheme: str, tab: Tab, node_client: Path, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    flags: tuple[str, ...] = PATIENT
    if scheme == "wss":
        cert, key = certificates.write(tmp_path)
        flags += ("--tls-cert", str(cert), "--tls-key", str(key), "--tls-port", "0")
    with serving(redis_server, *flags) as (server, url):
        with in_typescript(node_client).device(server.address, "bob") as bob:
            bob.told("connected")
            bob.sees("bob")
            connected = tab.start(url.replace("ws:", f"{scheme}:"), uid="ann")
            assert (connected["again"], connected["idleTimeoutMs"]) == (False, 120_000)
            states = tab.ask("watch", ["bob", "eve"])
            assert {uid: each["status"] for uid, each in states.items()} == {
                "bob": "online",
                "eve": "offline",
            }

            assert tab.ask("sendMessage", "bob", {"text": "hello"}) == 1
            assert bob.told("message")["body"] == {"text": "hello"}
            bob.sees("ann")
            assert bob.ask("message", "ann", ["hi", 2.5, None]) == 1
            assert tab.sees("message")["body"] == ["hi", 2.5, None]
            bob.ask("away")
            assert tab.sees("presence")["state"]["status"] == "away"
            assert tab.ask("sendMessage", "eve", "hello") == "RecipientOffline"
            assert bob.close() == 0
            assert tab.sees("presence", 2)["state"]["status"] == "offline"
            assert tab.ask("logout") is None
            assert tab.sees("end")
    told = [
        (event["type"], event["reason"]) for event in read_events(redis_server.url) if event["uid"] == "ann"
    ]
    assert told == [("online", "login"), ("offline", "logout")]


def test_the_example_of_the_readme_runs(browser: Browser, page: Page, redis_server: EmbeddedRedis) -> None:
    (example,) = (each.text for each in blocks(README, pages()[README]) if each.language == "js")
    with serving(redis_server) as (_, url):
        example = example.replace("presence-client/browser", "/presence-client.mjs")
        page.example = example.replace("wss://example.org/presence", url)
        browser.driver.get(f"{page.url}example")
        wait_for(lambda: browser.driver.title == "online")
    wait_for(lambda: browser.driver.title.startswith("closed"))


def test_it_renews_its_token_on_the_same_connection(
    tab: Tab, page: Page, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    before = page.tokens
    with serving(redis_server, *PATIENT, "--token-keys", str(keys)) as (_, url):
        tab.start(url, fetches_token=True)
        wait_for(lambda: page.tokens >= before + 3)
        time.sleep(TOKEN_TTL_S)  # the first has expired, or the server would have ended the session
        assert tab.ask("query", ["ann"])["ann"]["status"] == "online"
        assert not tab.all("disconnected")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_returns_when_its_server_has_started_again(
    how: str, tab: Tab, redis_server: EmbeddedRedis
) -> None:
    port = free_port()
    flags = ("--redis", redis_server.url, "--ws-port", str(port), *PATIENT)
    with PreloadedServer(*flags) as server:
        tab.start(f"ws://127.0.0.1:{port}/", uid="ann")
        assert tab.ask("watch", ["bob"])["bob"]["status"] == "offline"
        if how == "kill":
            server.process.kill()
    tab.sees("disconnected")
    with running_server(*flags):
        assert tab.sees("connected", 2)["again"]
        device = tab.browser.run("return sessionStorage['presence.device']")
        wait_for(lambda: devices_of(tab, "ann") == [device])  # Redis learns of a login within a moment
        assert tab.ask("watched")["bob"]["status"] == "offline"
    events = [each["type"] for each in read_events(redis_server.url)]
    assert "offline" not in events


def test_a_sleep_within_the_time_out_is_no_event(tab: Tab, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server) as (_, url):
        tab.start(url, uid="ann", idleTimeoutMs=30_000)
        tab.life("frozen")
        time.sleep(13)  # a keepalive was due
        tab.life("active")
        tab.sees("connected", 2)  # Chromium closes a connection as it resumes its page
        time.sleep(6)  # longer than a probe waits, and than the grace
        assert len(tab.all("connected")) == 2
        assert len(devices_of(tab, "ann")) == 1
        assert [each["type"] for each in read_events(redis_server.url)] == ["online"]


def test_a_long_sleep_makes_one_new_connection(tab: Tab, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server, "--disconnect-grace", "1") as (_, url):
        tab.start(url, uid="ann", idleTimeoutMs=1000 * SHORT_S)
        tab.life("frozen")
        wait_for(lambda: [each["type"] for each in read_events(redis_server.url)] == ["online", "offline"])
        tab.life("active")
        tab.sees("connected", 2)
        wait_for(lambda: tab.ask("query", ["ann"])["ann"]["status"] == "online")
        time.sleep(6)
        assert len(tab.all("connected")) == 2
        assert len(devices_of(tab, "ann")) == 1


def test_it_notices_that_the_browser_goes_offline_and_comes_back(
    tab: Tab, redis_server: EmbeddedRedis
) -> None:
    with serving(redis_server, *PATIENT) as (_, url):
        tab.start(url, uid="ann")
        tab.network(offline=True)
        assert tab.sees("disconnected")
        tab.sees("disconnected", 4)
        assert tab.all("disconnected")[-1]["message"] == "this device is offline"
        began = time.monotonic()
        tab.network(offline=False)
        tab.sees("connected", 2)
        assert time.monotonic() - began < 2.5
        assert [each["type"] for each in read_events(redis_server.url)] == ["online"]


def test_a_page_that_loads_anew_is_the_same_device(tab: Tab, page: Page, redis_server: EmbeddedRedis) -> None:
    with serving(redis_server) as (_, url):
        first = tab.start(url, uid="ann")
        again = Tab(tab.browser, page.url)
        second = again.start(url, uid="ann")
        assert first["session"] != second["session"]
        wait_for(lambda: len(devices_of(again, "ann")) == 1)
    assert [each["type"] for each in read_events(redis_server.url)] == ["online"]
