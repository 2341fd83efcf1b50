"""The rules of follow-ups: what a file may say, what is refused, and how it is shown."""

import json
import tomllib
from pathlib import Path

import pytest

from presence.commands import config as command
from presence.config import ConfigError, load
from presence.rules import PAYLOAD_BYTES_MAX, RULES_MAX, Rule

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


def written(tmp_path: Path, text: str) -> dict[str, object]:
    file = tmp_path / "presence.toml"
    file.write_text(text)
    return {"config": str(file)}


def test_rules_come_from_the_file(tmp_path: Path) -> None:
    flags = written(tmp_path, FILE)
    loaded = load(flags, {})
    assert loaded.settings.followups == (MAIL, Rule("note.2", 0.5))
    assert loaded.sources["followups"] == f"file {flags['config']}"


def test_no_rules_and_none_any_more_are_two_things(tmp_path: Path) -> None:
    assert load({}, {}).settings.followups is None
    assert load(written(tmp_path, "followups = []"), {}).settings.followups == ()


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
        (f'name = "a"\nafter = 1\npayload = "{"x" * (PAYLOAD_BYTES_MAX + 1)}"', "'a': payload must be"),
        ('name = "a"\nafter = 1\n[[followups]]\nname = "a"\nafter = 2', "'a': the name is taken"),
    ],
)
def test_a_bad_rule_is_refused_by_name_and_source(tmp_path: Path, table: str, problem: str) -> None:
    flags = written(tmp_path, f"[[followups]]\n{table}")
    with pytest.raises(ConfigError) as caught:
        load(flags, {})
    (line,) = caught.value.problems
    assert line.startswith(f"followups: {problem}")
    assert line.endswith(f"(from file {flags['config']})")


@pytest.mark.parametrize("text", ["followups = 1", "followups = [1]", "[followups]\nname = 'a'"])
def test_what_is_no_list_of_tables_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"followups: must be tables: \[\[followups\]\]"):
        load(written(tmp_path, text), {})


def test_too_many_rules_are_refused(tmp_path: Path) -> None:
    tables = "".join(f'[[followups]]\nname = "n{n}"\nafter = 1\n' for n in range(RULES_MAX + 1))
    with pytest.raises(ConfigError, match="followups: must be at most 64 tables, not 65"):
        load(written(tmp_path, tables), {})


def test_a_variable_is_told_where_rules_belong() -> None:
    with pytest.raises(ConfigError, match=r"PRESENCE_FOLLOWUPS: .* in the file: \[\[followups\]\]"):
        load({}, {"PRESENCE_FOLLOWUPS": "[]"})


def test_a_misspelt_key_of_the_file_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean followups\?"):
        load(written(tmp_path, "followup = []"), {})


def test_what_is_shown_can_be_loaded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = written(tmp_path, FILE)
    command.show(load(flags, {}), as_json=False)
    shown = tomllib.loads(capsys.readouterr().out)
    command.show(load(flags, {}), as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert (
        rows["followups"]["value"] == shown["followups"] == [MAIL.as_table(), Rule("note.2", 0.5).as_table()]
    )


def test_a_rule_that_a_program_makes_is_checked_too() -> None:
    with pytest.raises(ValueError, match="after must be"):
        Rule("a", -1)
