"""The words of Python, of what is stored or sent, and of the scripts are those of the table."""

import re

import pytest

from presence.core import changes, event_facts
from presence.outbox import replies, steps
from presence.store import keys, script_arguments, script_runner

MODULES = (changes, event_facts, replies, steps, keys)
ROWS = re.findall(r"^`(\w+)\.(\w+)` +`(\w+)` +`(\w+)`$", script_arguments.__doc__ or "", re.MULTILINE)
SCRIPTS = "\n".join(script_runner._TEXTS.values())


@pytest.mark.parametrize(("owner", "name", "sent", "in_scripts"), ROWS)
def test_a_row_of_the_table_of_words_names_what_there_is(
    owner: str, name: str, sent: str, in_scripts: str
) -> None:
    (of_python,) = (getattr(module, owner) for module in MODULES if hasattr(module, owner))
    assert name in dir(of_python) or name in of_python.__annotations__
    assert re.search(rf"\b{sent}\b", SCRIPTS)
    assert re.search(rf"\b{in_scripts}\b", re.sub(r"--.*", "", SCRIPTS))
