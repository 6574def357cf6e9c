"""The pages about plugins name the whole SDK, all shipped plugins and all checks."""

from __future__ import annotations

import re
from pathlib import Path

from ductile import sdk
from ductile.admin.plugin_dev.contract_test import ContractCheck
from ductile.plugins.discovery import discover

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_sdk_s_page_names_all_that_is_public() -> None:
    page = (DOCS / "reference" / "sdk.md").read_text()
    public = {name for name in dir(sdk.Request({})) if not name.startswith("_")}
    missing = [name for name in public if f"request.{name}" not in page]
    missing += [name for name in sdk.__all__ if f"`{name}" not in page and f"{name}(" not in page]
    assert missing == []


def test_the_sdk_s_page_names_nothing_else() -> None:
    page = (DOCS / "reference" / "sdk.md").read_text()
    named = set(re.findall(r"request\.(\w+)", page))
    assert [name for name in named if not hasattr(sdk.Request({}), name)] == []


def test_every_shipped_plugin_has_a_row_and_no_other() -> None:
    page = (DOCS / "reference" / "plugins.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(", page, re.MULTILINE)
    installed = discover([ROOT / "plugins"]).installed
    assert rows == sorted(installed)
    for plugin in installed.values():
        emitted = [event.type for command in plugin.manifest.commands.values() for event in command.emits]
        row = re.search(rf"^\| \[{plugin.name}\].*$", page, re.MULTILINE)
        assert row is not None
        assert all(event_type in row[0] or event_type.startswith("github.") for event_type in emitted)


def test_every_check_is_explained() -> None:
    page = (DOCS / "how-to" / "test-a-plugin.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [check.value for check in ContractCheck]
