"""The page of the demo, and the browser that opens it."""

import urllib.error
import urllib.parse
import urllib.request
import webbrowser

import pytest

from presence.demo.web_roster import open_in_browser, serving_page

SERVER = ("127.0.0.1", 7401)


def test_the_page_is_served_with_its_server_and_users() -> None:
    with serving_page(SERVER, ["user-0", "a&b"]) as url, urllib.request.urlopen(url, timeout=5) as answer:
        content = answer.read().decode()
        parameters = urllib.parse.parse_qs(urllib.parse.urlsplit(answer.url).query)
    assert "<title>Who is online</title>" in content
    assert parameters == {"server": ["ws://127.0.0.1:7401/"], "watch": ["user-0,a&b"]}


def test_nothing_else_is_served() -> None:
    with serving_page(SERVER, []) as url, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}etc/passwd", timeout=5)
    assert refused.value.code == 404
    refused.value.close()


def test_no_page_is_served_afterwards() -> None:
    with serving_page(SERVER, []) as url:
        pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


@pytest.mark.parametrize(
    ("variables", "opened"),
    [({}, []), ({"DISPLAY": ":0"}, ["http://here/"]), ({"BROWSER": "true"}, ["http://here/"])],
)
def test_a_browser_is_opened_on_a_screen_only(
    variables: dict[str, str], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: list[str] = []
    monkeypatch.setattr(webbrowser, "open", urls.append)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    open_in_browser("http://here/")
    assert urls == opened
