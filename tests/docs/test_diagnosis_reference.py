"""docs/reference/diagnosis.md has every check, rule and cause, as the code has them."""

from __future__ import annotations

import importlib.util
import json
import re
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from builders.daemons import a_workspace
from ductile.core.schedules.admission import ScheduleCause
from ductile.operations.diagnose.findings import DoctorCheck
from ductile.store.model.maintenance import Invariant

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "diagnosis.md").read_text(encoding="utf-8")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_parts_are_what_the_code_says_now() -> None:
    """After a change, `make docs` writes them anew."""
    assert generator().regenerate("reference/diagnosis.md", PAGE) == PAGE


@pytest.mark.parametrize("word", [*DoctorCheck, *Invariant, *ScheduleCause])
def test_every_word_is_explained(word: str) -> None:
    assert f"| `{word}` | " in PAGE


def test_every_key_of_a_manifest_is_documented_and_no_other(tmp_path: Path) -> None:
    """Other programs than Ductile can read a backup."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("system", "backup", "saved.tar.gz").status == 0
    with tarfile.open(tmp_path / "saved.tar.gz") as archive:
        stream = archive.extractfile("manifest.json")
        assert stream is not None
        manifest = json.load(stream)
    section = PAGE.partition("## The archive of a backup")[2]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(manifest)
    assert all(f"`{key}`" in section for key in manifest["files"][0])
