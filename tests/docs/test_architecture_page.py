"""The architecture page names modules and packages that exist, and every package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ductile"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_every_module_and_package_it_names_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|/[a-z_]+\.(?:py|sql)|\.py))`", PAGE))
    assert len(named) > 30
    roots = [SOURCE, *(SOURCE / package for package in PACKAGES)]
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()


def test_it_names_every_package() -> None:
    assert {package for package in PACKAGES if f"`{package}/`" not in PAGE} == set()


def test_it_names_twelve_files() -> None:
    section = PAGE.partition("## Twelve files")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| `", section, re.MULTILINE)) == 12
