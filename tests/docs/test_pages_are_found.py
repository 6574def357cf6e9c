"""Every page of docs/ can be found from the README, and the index has all of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {path.resolve() for path in DOCS.rglob("*.md")}
#: The number of lines that a terminal or a browser shows without scrolling far.
ONE_SCREEN = 64


def links(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in targets if "://" not in link}


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    pending = {ROOT / "README.md"}
    while pending:
        page = pending.pop()
        reached.add(page)
        pending |= {link for link in links(page) if link.suffix == ".md" and link.exists()} - reached
    assert {path.relative_to(ROOT).as_posix() for path in PAGES - reached} == set()


def test_the_index_has_every_page() -> None:
    """Decisions have an index of their own."""
    index = DOCS / "README.md"
    missing = {page for page in PAGES - links(index) - {index} if page.parent.name != "decisions"}
    assert {path.relative_to(ROOT).as_posix() for path in missing} == set()


def test_the_readme_shows_the_product_on_one_screen() -> None:
    """The summary, a script and the first commands come before the list of pages."""
    introduction, heading, _ = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## Documentation\n")
    )
    assert heading
    assert len(introduction.splitlines()) <= ONE_SCREEN
    for phrase in (
        "A script of yours is a job",
        "ductile apply",
        "make run",
        "ductile run echo",
    ):
        assert phrase in introduction
