"""docs/reference/signals.md has every signal with its level and meaning, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from ductile.telemetry.signals import Signal

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "signals.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.]+)` \| (\w+) \| (.+) \|$", REFERENCE, re.MULTILINE)


def test_every_signal_reads_as_in_the_code() -> None:
    """The reference has the table of the code."""
    documented = {name: (level, meaning) for name, level, meaning in ROWS}
    assert documented == {str(signal): (signal.level.name.lower(), signal.message) for signal in Signal}


def test_every_signal_is_in_the_table_once() -> None:
    assert [name for name, _, _ in ROWS] == [str(signal) for signal in Signal]
