"""The diff that `config set` shows, with secrets masked."""

from __future__ import annotations

import json
import re
from difflib import unified_diff
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.config.edit.change import mask_lines, masked_diff

FILE = Path("config.yaml")
LINES = st.lists(st.sampled_from(["a", "b", "# c", ""]), max_size=12)

#: Notations of a secret. The canary, or its letters, are in each of them.
NOTATIONS = {
    "plain": "canary",
    "comment": "canary  # from the vault",
    "single": "'canary'",
    "double": '"canary"',
    "escaped": r'"\"canary"',
    "spelled": r'"\x63anary"',
    "default": "${KEY:-canary}",
    "around": "${USER}:canary",
    "literal": "|\n        canary\n        canary",
    "folded": ">-\n        canary\n\n        canary",
    "continued": "one\n        canary",
    "quoted over lines": '"one\n        canary"',
    "flow": "[canary, canary]",
    "anchored": "&it canary",
}


def config(secret: str) -> bytes:
    return f"plugins:\n  echo:\n    config:\n      api_key: {secret}\n      url: here\n".encode()


@pytest.mark.parametrize("notation", NOTATIONS.values(), ids=NOTATIONS)
def test_a_secret_is_masked_however_it_is_written(notation: str) -> None:
    """A secret is masked by its position; the text after it is shown."""
    lines = mask_lines(config(notation), "f")
    assert "anary" not in "\n".join(lines)
    assert re.fullmatch(r"      api_key: \[?\*{8}", lines[3])
    assert lines[-2:] == ["      url: here", ""]
    assert len(lines) == config(notation).count(b"\n") + 1


def test_a_reference_is_not_a_secret() -> None:
    """The name of a variable is helpful and not secret."""
    assert mask_lines(config("${KEY}"), "f")[3] == "      api_key: ${KEY}"


def test_two_secrets_on_one_line_are_both_masked() -> None:
    data = b"plugins: {echo: {config: {api_key: canary, password: canary}}}\n"
    assert "canary" not in "\n".join(mask_lines(data, "f"))


def test_a_secret_behind_an_alias_is_masked_where_it_is_written() -> None:
    data = b"plugins:\n  echo:\n    config:\n      url: &it canary\n      api_key: *it\n"
    assert "canary" not in "\n".join(mask_lines(data, "f"))


def test_a_changed_secret_is_in_the_diff() -> None:
    """`config set` must not report that there is nothing to change."""
    diff = masked_diff(FILE, config("canary-1"), config("canary-2"))
    assert "canary" not in diff
    assert "-      api_key: ********\n+      api_key: ********\n" in diff


@given(LINES, LINES)
def test_without_secrets_it_is_an_ordinary_diff(old: list[str], new: list[str]) -> None:
    """The diff is empty only if the files are equal."""
    before, after = ("\n".join(f"- {json.dumps(line)}" for line in lines) + "\n" for lines in (old, new))
    diff = masked_diff(FILE, before.encode(), after.encode())
    ordinary = unified_diff(before.split("\n"), after.split("\n"), "config.yaml", "config.yaml", lineterm="")
    assert [line for line in diff.splitlines() if line[:2] != "@@"] == [
        line for line in ordinary if line[:2] != "@@"
    ]
    assert (diff == "") == (before == after)
