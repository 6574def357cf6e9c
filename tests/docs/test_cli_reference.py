"""docs/reference/cli.md has every command, argument, option and exit status."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from ductile.cli.command_table import NOUNS, SHORT_FORMS
from ductile.cli.spec import GLOBAL_OPTIONS, VERSION, Action
from ductile.errors import Exit

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "cli.md").read_text()
ACTIONS = {f"ductile {noun.name} {action.name}": action for noun in NOUNS for action in noun.actions}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_part_is_what_the_table_says_now() -> None:
    """After a change of the table, `make docs` writes it anew."""
    assert generator().regenerate("reference/cli.md", REFERENCE) == REFERENCE


def test_the_options_of_operations_are_those_of_their_requests() -> None:
    """After a change of a request, `make docs` writes the module anew."""
    generate = generator()
    assert generate.OPTIONS_MODULE.read_text(encoding="utf-8") == generate.operation_options_module()


@pytest.mark.parametrize("line", ACTIONS)
def test_every_action_is_documented_with_all_it_takes(line: str) -> None:
    """Every action has a heading of its own."""
    action: Action = ACTIONS[line]
    section = re.search(rf"^#### {re.escape(line)}\n(.*?)(?=^###|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    assert section
    for name in [argument.name for argument in action.arguments] + [
        flag for option in action.options for flag in option.flags
    ]:
        assert name.replace("|", "\\|") in section[1] or name in section[1]


def test_no_action_is_documented_that_does_not_exist() -> None:
    assert set(re.findall(r"^#### (.+)$", REFERENCE, re.MULTILINE)) == set(ACTIONS)


def test_common_options_and_short_forms_are_documented() -> None:
    for option in (*GLOBAL_OPTIONS, VERSION):
        assert all(flag in REFERENCE for flag in option.flags)
    for form in SHORT_FORMS:
        assert f"| `ductile {form.name}` | `ductile {form.noun} {form.action}` |" in REFERENCE


def test_every_exit_status_is_documented() -> None:
    rows = {int(status) for status in re.findall(r"^\| (\d+) \|", REFERENCE, re.MULTILINE)}
    assert rows == {*(int(status) for status in Exit), 130, 141}
