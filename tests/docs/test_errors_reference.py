"""docs/reference/errors.md has every error code with its statuses, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from ductile.errors import STATUSES

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (.+) \| (.+) \|$", REFERENCE, re.MULTILINE)


def test_every_code_is_documented_with_its_statuses() -> None:
    """The reference has the table of the code."""
    documented = {code: (int(http), int(status)) for code, http, status, _, _ in ROWS}
    assert documented == {code: (http, int(status)) for code, (http, status) in STATUSES.items()}


def test_no_code_is_documented_twice() -> None:
    assert len(ROWS) == len({row[0] for row in ROWS})
