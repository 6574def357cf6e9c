"""Every page of the documentation has a title and a summary, and is read whole or by section."""

from __future__ import annotations

import pytest

from ductile.admin.docs_pages import docs_pages, read_page
from ductile.errors import NotFoundError


def test_every_page_has_a_title_and_a_summary() -> None:
    pages = docs_pages()
    assert {"how-to/diagnose", "reference/cli", "tutorials/first-plugin", "glossary"} <= {
        page.name for page in pages
    }
    assert [page.name for page in pages if not page.title or not page.summary] == []
    assert [page.name for page in pages if "](" in page.summary or "\n" in page.summary] == []


def test_developers_pages_are_left_out() -> None:
    assert [page.name for page in docs_pages() if page.name.startswith(("decisions", "architecture"))] == []


def test_a_page_is_read_whole_or_by_section() -> None:
    """A section ends at the next heading of its level; a comment in code is no heading."""
    whole_page = read_page("reference/cli")
    section = read_page("reference/cli", "exit-status")
    assert section in whole_page
    assert section.startswith("## Exit status\n")
    assert "\n## " not in section
    page = read_page("how-to/call-from-an-agent", "over-mcp")
    assert page.startswith("## Over MCP\n")


def test_comments_for_tests_and_generators_are_left_out() -> None:
    assert [page.name for page in docs_pages() if "<!--" in read_page(page.name)] == []


@pytest.mark.parametrize(
    ("name", "section", "hint"),
    [
        ("how-to/diagnos", None, "how-to/diagnose"),
        ("../README", None, "List the pages again."),
        ("/etc/passwd", None, "List the pages again."),
        ("reference/cli", "exit-statsu", "exit-status"),
        ("reference/cli", "qqqqqq", "exit-status"),
    ],
)
def test_an_unknown_page_or_section_is_refused(name: str, section: str | None, hint: str) -> None:
    """Only listed pages are read, so no path leads out of them."""
    with pytest.raises(NotFoundError) as excinfo:
        read_page(name, section)
    assert hint in (excinfo.value.hint or "")
