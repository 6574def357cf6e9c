"""A wheel contains the shipped plugins and the pages that agents read, besides the package."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ductile.admin.docs_pages import docs_pages
from ductile.plugins.shipped import shipped_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of the files of the wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    process = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert process.returncode == 0, process.stderr
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_page_that_is_listed_in_a_checkout_is_in_the_wheel(names: set[str]) -> None:
    pages = {f"ductile/shipped_docs/{page.name}.md" for page in docs_pages()}
    assert len(pages) > 40
    assert pages - names == set()


def test_shipped_plugins_are_in_the_wheel(names: set[str]) -> None:
    manifests = {f"ductile/shipped_plugins/{name}/manifest.yaml" for name in shipped_names()}
    assert manifests
    assert manifests - names == set()
