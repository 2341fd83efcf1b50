"""Settings: invalid ones are refused with key and source, and the stronger source wins."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from presence.cli import config as command
from presence.config.followup_rules import MAX_PAYLOAD_BYTES, MAX_RULES, Rule
from presence.config.loader import (
    FIELDS,
    MAX_FILE_BYTES,
    RULES,
    ConfigError,
    Loaded,
    Settings,
    exposures,
    load,
    shown,
)
from presence.config.removed import REMOVED


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "presence.toml"
    file.write_text(text)
    return str(file)


def problems(flags: dict[str, object] | None = None, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(flags, environ or {})
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


# Numbers and their bounds are in another test; these settings have forms of their own.
BAD = {
    "host": ["a b", "a\x1bb"],
    "port": ["80.5", "tcp://10.0.0.1:7400"],
    "redis": [
        "http://h",
        "h:6379",
        "redis+cluster://h,",
        "redis+cluster://h/1",
        "redis+cluster://h?db=0",
        "unix://",
    ],
    "prefix": ["a b", "{a}", "a\n"],
    "data_dir": ["a\0b"],
    "idle_timeout": ["30s"],
    "min_idle_timeout": ["1351"],
    "tick": ["16"],
    "disconnect_grace": ["1351"],
    "session_policy": ["Oldest"],
    "class_sessions": [
        "phone",
        "phone=0",
        "phone=65",
        "=1",
        "phone=1:older",
        "a b=1",
        "phone=1,,",
        "x" * 33 + "=1",
    ],
    "token_keys": ["http://h/keys", "https://", "https://h:x/", "ftp://h/", "https://u:p@h/", "https://h/ k"],
    "token_issuer": ["a b"],
    "token_audience": ["a b", "a\x07", "a,,b", ","],
    "tls_only": ["maybe"],
    "proxy_from": ["10.0.0.0/40", "10.0.0.1/8", "localhost"],
    "admin": ["7480", ":7480", "h:99999", "h:x"],
    "log_format": ["JSON"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_value_of_wrong_form_is_refused_with_key_and_source(key: str, value: str) -> None:
    (problem,) = problems(environ={FIELDS[key].variable: value})
    assert problem.startswith(f"{key}: ")
    assert FIELDS[key].variable in problem


def test_every_setting_refuses_invalid_values_with_their_source(tmp_path: Path) -> None:
    assert set(FIELDS) == set(Settings.__dataclass_fields__) - {RULES}
    for key, spec in FIELDS.items():
        path = written(tmp_path, f"{key} = [1]")
        for found, source in (
            (problems({key: ""}), spec.flag),
            (problems(environ={spec.variable: ""}), spec.variable),
            (problems({"config": path}), f"file {path}"),
        ):
            (problem,) = found
            assert problem.startswith(f"{key}: must ")
            assert source in problem


@pytest.mark.parametrize(("key", "value"), [("port", "true"), ("port", "80.0"), ("no_admin", "1")])
def test_file_does_not_mix_up_numbers_and_booleans(key: str, value: str, tmp_path: Path) -> None:
    assert problems({"config": written(tmp_path, f"{key} = {value}")})[0].startswith(f"{key}: must be ")


def test_limits_of_a_number_are_inside_and_the_next_value_is_not() -> None:
    for spec in FIELDS.values():
        if spec.kind not in {int, float}:
            continue
        assert spec.bounds is not None, spec.name
        for bound, step in zip(spec.bounds, (-1, 1), strict=True):
            assert spec.parse(str(bound)) == bound
            for other in (str(bound + step), "x", "nan", "inf"):
                with pytest.raises(ValueError, match="must be a"):
                    spec.parse(other)


def test_defaults_are_sound() -> None:
    loaded = load({}, {})
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {"default"}


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    path = written(tmp_path, "port = 1\ntick = 2\nshards = 3")
    loaded = load(
        {"config": path, "port": "1000"},
        {"PRESENCE_PORT": "10", "PRESENCE_TICK": "5", "PRESENCE_CONFIG": "/nowhere"},
    )
    settings, sources = loaded.settings, loaded.sources
    assert (settings.port, settings.tick, settings.shards, settings.host) == (1000, 5.0, 3, "127.0.0.1")
    assert [sources[key] for key in ("port", "tick", "shards", "host")] == [
        "--port",
        "PRESENCE_TICK",
        f"file {path}",
        "default",
    ]


@pytest.mark.parametrize(
    "variable", ["PRESENCE_SERVICE_HOST", "PRESENCE_PORT_7400_TCP_ADDR", "PRESENCE_PORT"]
)
def test_service_links_of_kubernetes_are_recognised(variable: str) -> None:
    (problem,) = problems(environ={variable: "tcp://10.0.0.1:7400"})
    assert "enableServiceLinks" in problem


def test_a_list_is_comma_separated_text_or_a_list_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'token_audience = ["web", "phone"]\nproxy_from = ["10.0.0.0/8", "::1"]')
    settings = load({"config": path}, {}).settings
    assert (settings.token_audiences, settings.proxy_from) == (("web", "phone"), "10.0.0.0/8,::1")
    assert load({"token_audience": "web, phone"}, {}).settings.token_audiences == ("web", "phone")
    assert load({}, {}).settings.token_audiences == ("presence",)
    for invalid in ('["web", 7]', "[]", '["web", ""]', '["a b"]'):
        assert problems({"config": written(tmp_path, f"token_audience = {invalid}")}), invalid
    assert problems({"config": written(tmp_path, 'redis = ["redis://h"]')}), "it is no list"


def test_the_limits_of_classes_are_read(tmp_path: Path) -> None:
    wanted = {"phone": (1, "oldest"), "web": (3, "newest")}
    assert load({"class_sessions": "phone=1, web=3:newest"}, {}).settings.class_limits == wanted
    path = written(tmp_path, 'class_sessions = ["phone=1:oldest", "web=3:newest"]')
    assert load({"config": path}, {}).settings.class_limits == wanted
    assert load({}, {}).settings.class_limits == {}


def test_all_problems_are_reported_together_and_unknown_names_with_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, "idle-timeout = 3\nzzz = 1\nshards = -1")
    found = problems({"config": path, "port": "x"}, {"PRESENCE_TICK": "x", "PRESENCE_IDLE_TIMOUT": "1"})
    assert len(found) == 6
    assert f"'idle-timeout': unknown key (from file {path}); did you mean idle_timeout?" in found
    assert f"'zzz': unknown key (from file {path})" in found
    assert "'PRESENCE_IDLE_TIMOUT': unknown variable; did you mean PRESENCE_IDLE_TIMEOUT?" in found


def test_each_removed_setting_is_named_with_what_holds_now(tmp_path: Path) -> None:
    path = written(tmp_path, "".join(f"{name} = 1\n" for name in REMOVED))
    variables = {f"PRESENCE_{name.upper()}": "1" for name in REMOVED}
    words = {name: f"{name}: is no longer a setting, it {what}: remove it" for name, what in REMOVED.items()}
    assert problems({"config": path}) == [f"{each} (from file {path})" for each in words.values()]
    assert set(problems(environ=variables)) == {
        f"{each} (from PRESENCE_{name.upper()})" for name, each in words.items()
    }
    assert REMOVED.keys().isdisjoint(FIELDS)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"port 7", "is not valid TOML"),
        (b"port = 7\nport = 8", "is not valid TOML"),
        (b'prefix = "\xe9"', "is not valid TOML"),
        (b"x = " + 3000 * b"[" + 3000 * b"]", "is not valid TOML: it is nested too deeply"),
        (b"#" * (MAX_FILE_BYTES + 1), "is larger than 1,048,576 bytes"),
        (None, "No such file or directory"),
    ],
)
def test_unreadable_file_is_refused(content: bytes | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "presence.toml"
    if content is not None:
        file.write_bytes(content)
    (problem,) = problems(environ={"PRESENCE_CONFIG": str(file)})
    assert problem.startswith("config: ")
    assert why in problem


@pytest.mark.timeout(10)
def test_a_file_that_is_none_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    fifo = tmp_path / "presence.toml"
    os.mkfifo(fifo)
    assert problems({"config": str(fifo)}) == [f"config: cannot read {fifo}: Not a regular file"]


@pytest.mark.parametrize("key", ["host", "port", "idle_timeout", RULES])
@pytest.mark.parametrize(
    "line",
    [
        "{}" + 3000 * ".a" + " = 1",
        "{} = 0x" + 6000 * "f",
        "{} = 1" + 400 * "0",
        "[[{}]]\nafter = 0x" + 6000 * "f",
    ],
)
def test_values_that_cannot_even_be_shown_are_problems_too(key: str, line: str, tmp_path: Path) -> None:
    (problem, *_) = problems({"config": written(tmp_path, line.format(key))})
    assert problem.startswith(f"{key}: ")


REACHED = "is reachable from other machines without authentication"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tick": "16"}, "tick: 16 s is more than half of idle_timeout, 30 s"),
        ({"min_idle_timeout": "50", "max_idle_timeout": "40"}, "min_idle_timeout: 50 s is above max_idle"),
        ({"disconnect_grace": "1351"}, "disconnect_grace: 1351 s is above max_idle_timeout, 1350 s"),
        (
            {"visibility": "claims", "token_keys": "k", "token_audience": "chat,chat:pass"},
            "token_audience: chat:pass is the audience of passes for chat: a pass would be a token",
        ),
        ({"tls_key": "k.pem"}, "tls_key: is set without a certificate: set tls_cert, too"),
        ({"tls_only": True}, "tls_only: needs a certificate: set tls_cert"),
        (
            {"tls_client_ca": "ca", "token_keys": "k"},
            "tls_client_ca: is set without a certificate: set tls_cert, too",
        ),
        ({"tls_client_crl": "crl"}, "tls_client_crl: is set without authorities: set tls_client_ca, too"),
        (
            {"tls_client_ca": "ca", "tls_cert": "c", "insecure": True},
            "tls_client_ca: clients of the plain port have no certificate: set tls_only, or token_keys",
        ),
        (
            {"tls_cert": "c", "port": "7000", "tls_port": "7000"},
            "tls_port: 7000 is already used by port",
        ),
        ({"rooms": "claimed"}, "rooms: claims are those of tokens"),
        ({"rooms": "open", "shards": "65"}, "rooms: needs at most 64 shards, not 65"),
        ({"data_dir": "d", "redis": "redis://h"}, "data_dir: is for the embedded Redis"),
        ({"admin": "0.0.0.0:7480", "insecure": True}, f"admin: 0.0.0.0:7480 {REACHED}"),
        ({"admin": "127.0.0.1:7400"}, "admin: 7400 is already used by port"),
        (
            {"admin": "127.0.0.1:7400", "host": "0.0.0.0", "insecure": True},
            "admin: 7400 is already used by port",
        ),
        ({"admin": "127.0.0.1:7443", "tls_cert": "c"}, "admin: 7443 is already used by tls_port"),
        ({"ws_port": "7400"}, "ws_port: 7400 is already used by port"),
        ({"ws_port": "7443", "tls_cert": "c"}, "ws_port: 7443 is already used by tls_port"),
        ({"ws_port": "7480", "admin": "127.0.0.1:7480"}, "admin: 7480 is already used by ws_port"),
        ({"ws_origins": "*"}, "ws_origins: is set without a port for WebSocket"),
        ({"ws_host": "127.0.0.1"}, "ws_host: is set without a port for WebSocket"),
        *(
            ({"host": host}, f"host: {host} {REACHED}")
            for host in ("0.0.0.0", "::", "10.1.2.3", "::ffff:10.1.2.3", "presence.example")
        ),
    ],
)
def test_conflicts_are_refused(flags: dict[str, object], message: str) -> None:
    (problem,) = problems(flags)
    assert problem.startswith(message)
    assert all(
        FIELDS[key].flag in problem
        for key in flags
        if key not in {"insecure", "tls_cert", "host", "token_keys"}
    )


def test_websocket_beyond_loopback_needs_authentication_like_tcp() -> None:
    (problem,) = problems({"ws_port": "7401", "ws_host": "10.1.2.3"})
    assert problem.startswith(f"ws_host: 10.1.2.3 {REACHED}")
    load({"ws_port": "7401", "ws_host": "10.1.2.3", "insecure": True}, {})


@pytest.mark.parametrize(("key", "value"), [("workers", "2"), ("proxy_from", "10.0.0.0/8")])
def test_workers_and_proxy_headers_need_linux(key: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load({key: value}, {})
    monkeypatch.setattr("sys.platform", "darwin")
    (problem,) = problems({key: value})
    assert problem.startswith(f"{key}: ")
    assert "Linux" in problem


def test_invalid_value_is_not_reported_again_as_a_conflict() -> None:
    (problem,) = problems({"idle_timeout": "x" * 10_000, "tick": "16"})
    assert len(problem) < 200, "a long one is cut"


@pytest.mark.parametrize("flag", ["port", "tls_port"])
def test_default_admin_port_yields_to_a_requested_port(flag: str) -> None:
    assert load({flag: "7480"}, {}).settings.admin == "127.0.0.1:0"


@pytest.mark.parametrize(
    "flags",
    [
        {"host": "0.0.0.0", "insecure": True},
        {"host": "0.0.0.0", "token_keys": "keys.json"},
        {"tls_cert": "c.pem", "tls_only": True, "port": "7443"},
        {"tls_cert": "c.pem", "tls_only": True, "tls_client_ca": "ca.pem", "host": "0.0.0.0"},
        {"tls_cert": "c.pem", "token_keys": "keys.json", "tls_client_ca": "ca.pem"},
        {"admin": "127.0.0.2:7400"},
        {"admin": "[::1]:0"},
        {"admin": "localhost:80"},
        {"admin": "0.0.0.0:80", "no_admin": True},
        {"tick": "1", "idle_timeout": "2", "disconnect_grace": "300"},
        {"admin": "[::]:7480", "admin_tokens": "operators"},
        {"rooms": "open", "shards": "64"},
        {"rooms": "claimed", "token_keys": "keys.json"},
        {"shards": "65"},
    ],
)
def test_settings_that_only_look_like_a_conflict_are_accepted(flags: dict[str, object]) -> None:
    load(flags, {})


def test_reader_may_share_the_file_of_a_server(tmp_path: Path) -> None:
    path = written(tmp_path, 'data_dir = "d"\nworkers = 4\nhost = "0.0.0.0"')
    loaded = load({"config": path, "redis": "unix:///r.sock"}, {}, serving=False)
    assert loaded.settings.redis == "unix:///r.sock"


@pytest.mark.parametrize(
    ("idle", "wish", "granted"),
    [
        (30.0, None, 30.0),
        (30.0, 60.0, 60.0),
        (30.0, 1.0, 5.0),
        (30.0, 1e9, 1350.0),
        (2.0, 1.0, 2.0),
        (2.0, 3.0, 3.0),
        (1800.0, 1e9, 1800.0),
        (1800.0, 1.0, 5.0),
    ],
)
def test_wish_for_an_idle_timeout_is_clamped(idle: float, wish: float | None, granted: float) -> None:
    assert Settings(idle_timeout=idle).clamp_idle_timeout(wish) == granted


@pytest.mark.parametrize(
    "url",
    ["redis://u:s3cret@h:6379", "rediss://:s3cret@h/0?ssl_cert_reqs=none&db=1", "unix://:s3cret@/r.sock"],
)
def test_redis_url_is_kept_whole_and_shown_without_its_password(url: str) -> None:
    loaded: Loaded = load({"redis": url}, {})
    assert loaded.settings.redis == url
    assert "s3cret" not in str(shown(loaded.settings, "redis"))
    assert "***" in str(shown(loaded.settings, "redis"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://h h?password=s3cret",
        "http://u:s3cret@h",
        "redis://u:s3cret@h:port",
        "redis://h?password=s3cret",
        "u:s3cret@h",
        "redis://u:s3cret/x@h",
        "redis://[s3cret",
        "redis:/u:s3cret@h",
        "redis:u:s3cret@h",
        "redis://:s3cret\u2100@h",
    ],
)
def test_password_of_an_invalid_url_is_not_reported(url: str) -> None:
    assert "s3cret" not in "".join(problems({"redis": url}))


# Exposure

KEYS, CERT = Path("keys.json"), Path("cert.pem")
ANY_USER, BY_PROXY, IN_THE_CLEAR = "reaches this server", "a proxy lets in", "over plain TCP"
OPERATORS_IN_THE_CLEAR = "over plain HTTP"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"host": "localhost", "token_keys": KEYS}, []),
        ({"host": "::", "insecure": True}, [ANY_USER]),
        ({"proxy_from": "10.0.0.0/8"}, [BY_PROXY]),
        ({"proxy_from": "10.0.0.0/8", "token_keys": KEYS, "host": "::"}, []),
        ({"host": "::", "token_keys": KEYS}, [IN_THE_CLEAR]),
        ({"host": "::", "token_keys": KEYS}, ["set tls_cert, tls_only"]),
        (
            {"host": "::", "token_keys": KEYS, "tls_cert": CERT},
            [f"{IN_THE_CLEAR} can be read in transit: set tls_only"],
        ),
        ({"host": "::", "token_keys": KEYS, "tls_cert": CERT, "tls_only": True}, []),
        ({"host": "::", "tls_client_ca": CERT, "tls_cert": CERT, "tls_only": True}, []),
        ({"admin": "[::]:7480", "admin_tokens": KEYS}, [OPERATORS_IN_THE_CLEAR]),
        ({"admin": "[::1]:7480", "admin_tokens": KEYS}, []),
        ({"admin": "0.0.0.0:7480", "no_admin": True}, []),
    ],
)
def test_exposures_are_reported(given: dict[str, Any], expected: list[str]) -> None:
    found = list(exposures(Settings(**given)))
    assert len(found) == len(expected)
    for text, part in zip(found, expected, strict=True):
        assert part in text


def test_settings_that_nodes_should_share_are_listed_by_name() -> None:
    expected = dict(pair.split("=") for pair in Settings(lease=12.5, max_sessions=3).shared.split())
    assert expected.keys() <= FIELDS.keys()
    assert expected.items() >= {"lease": "12.5", "max_sessions": "3", "session_policy": "oldest"}.items()


# Rules of follow-ups

MAIL = Rule("mail", 3600.0, ("idle_timeout", "node_down"), 'a "template"')
FILE = """
[[followups]]
name = "mail"
after = 3600
reasons = ["idle_timeout", "node_down"]
payload = 'a "template"'
[[followups]]
name = "note.2"
after = 0.5
"""


def test_rules_come_from_the_file(tmp_path: Path) -> None:
    flags: dict[str, object] = {"config": written(tmp_path, FILE)}
    loaded = load(flags, {})
    assert loaded.settings.followups == (MAIL, Rule("note.2", 0.5))
    assert loaded.sources["followups"] == f"file {flags['config']}"


def test_unset_and_empty_rules_differ(tmp_path: Path) -> None:
    assert load({}, {}).settings.followups is None
    assert load({"config": written(tmp_path, "followups = []")}, {}).settings.followups == ()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("after = 1", "number 1: name must be 1 to 64 letters"),
        ('name = "a:b"\nafter = 1', "number 1: name must be"),
        ('name = "a"', "'a': after must be a number from 0 to 31,622,400 s"),
        ('name = "a"\nafter = -1', "'a': after must be"),
        (f'name = "a"\nafter = 1{"0" * 400}', "'a': after must be"),
        ('name = "a"\nafter = nan', "'a': after must be"),
        ('name = "a"\nafter = true', "'a': after must be"),
        ('name = "a"\nafter = "1"', "'a': after must be"),
        ('name = "a"\nafter = 1\nreason = "x"', "'a': unknown key 'reason'; did you mean reasons?"),
        ('name = "a"\nafter = 1\nreasons = "closed"', "'a': reasons must be a list"),
        ('name = "a"\nafter = 1\nreasons = []', "'a': reasons must not be empty"),
        (
            'name = "a"\nafter = 1\nreasons = ["idle_timout"]',
            "'a': unknown reason 'idle_timout'; did you mean idle_timeout?",
        ),
        ('name = "a"\nafter = 1\nreasons = ["login"]', "'a': unknown reason 'login'"),
        ('name = "a"\nafter = 1\npayload = 1', "'a': payload must be text of at most 4,096 bytes"),
        (f'name = "a"\nafter = 1\npayload = "{"x" * (MAX_PAYLOAD_BYTES + 1)}"', "'a': payload must be"),
        ('name = "a"\nafter = 1\n[[followups]]\nname = "a"\nafter = 2', "'a': the name is already used"),
    ],
)
def test_invalid_rule_is_refused_with_name_and_source(tmp_path: Path, table: str, problem: str) -> None:
    path = written(tmp_path, f"[[followups]]\n{table}")
    (line,) = problems({"config": path})
    assert line.startswith(f"followups: {problem}")
    assert line.endswith(f"(from file {path})")


MANY = "".join(f'[[followups]]\nname = "n{n}"\nafter = 1\n' for n in range(MAX_RULES + 1))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("followups = 1", "followups: must be tables: [[followups]]"),
        ("followups = [1]", "followups: must be tables: [[followups]]"),
        ("[followups]\nname = 'a'", "followups: must be tables: [[followups]]"),
        ("followup = []", "did you mean followups?"),
        (MANY, "followups: must be at most 64 tables, not 65"),
    ],
    ids=["a number", "numbers", "a table", "misspelt", "too many"],
)
def test_value_that_is_no_list_of_rules_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (line,) = problems({"config": written(tmp_path, text)})
    assert problem in line


def test_variable_for_rules_is_refused_with_a_hint_at_the_file() -> None:
    (line,) = problems(environ={"PRESENCE_FOLLOWUPS": "[]"})
    assert line.startswith("PRESENCE_FOLLOWUPS: ")
    assert "in the file: [[followups]]" in line


def test_shown_settings_can_be_loaded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags: dict[str, object] = {"config": written(tmp_path, FILE)}
    command.show(load(flags, {}), as_json=False)
    printed = tomllib.loads(capsys.readouterr().out)
    command.show(load(flags, {}), as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert (
        rows["followups"]["value"]
        == printed["followups"]
        == [MAIL.as_table(), Rule("note.2", 0.5).as_table()]
    )


def test_rule_made_by_a_program_is_checked_too() -> None:
    with pytest.raises(ValueError, match="after must be"):
        Rule("a", -1)
