"""The pages of the documentation that this version was shipped with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError
from ductile.struct import Value

#: The pages inside an installed package, and those beside `src` in a checkout of the source.
_DOCS_DIRECTORIES = (Path(__file__).parents[1] / "shipped_docs", Path(__file__).parents[3] / "docs")
#: The directories for users. Decisions and the map of the code are for developers.
_PARTS = ("tutorials", "how-to", "reference", "explanation")
_SINGLE_PAGES = ("glossary",)
#: A larger page is better read section by section.
LARGE_PAGE = 16_000
_MAX_SUMMARY = 200
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6}) (.+)$")
#: A comment for the tests and generators of the pages.
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^]]*)]\([^)]*\)")
#: The beginnings of paragraphs that are no prose: comments, tables, code, headings, lists, pictures.
_NOT_PROSE = ("<", "|", "```", "#", "- ", "!")
#: Begins a sentence about where the commands of a page are run, which is no summary of the page.
_WHERE_COMMANDS_RUN = "The commands below"


class DocsPage(Value):
    #: The path below `docs/` without its suffix, such as `how-to/diagnose`.
    name: str
    path: Path
    title: str
    #: The first sentence.
    summary: str
    size: int


@cache
def docs_pages() -> tuple[DocsPage, ...]:
    """Return every page, in the order of the parts; none if this installation lacks them."""
    root = next(
        (directory.resolve() for directory in _DOCS_DIRECTORIES if (directory / "glossary.md").is_file()),
        None,
    )
    if root is None:
        return ()
    files = [path for part in _PARTS for path in sorted((root / part).glob("*.md"))]
    files += [root / f"{name}.md" for name in _SINGLE_PAGES]
    pages = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        title = _TITLE.search(text)
        body = text[title.end() :] if title else text
        paragraphs = [part.strip() for part in body.split("\n\n")]
        prose = [_LINK.sub(r"\1", part) for part in paragraphs if not part.startswith(_NOT_PROSE)]
        sentences = [sentence for part in prose for sentence in " ".join(part.split()).split(". ")]
        summaries = (line for line in sentences if line and not line.startswith(_WHERE_COMMANDS_RUN))
        page = DocsPage(
            name=path.relative_to(root).with_suffix("").as_posix(),
            path=path,
            title=title[1] if title else path.stem,
            summary=next(summaries, "").rstrip(".:")[:_MAX_SUMMARY],
            size=len(text),
        )
        pages.append(page)
    return tuple(pages)


def read_page(name: str, section: str | None = None) -> str:
    """Return the text of a page, or of a section with its subsections, named as in links: `exit-status`.

    Raises NotFoundError.
    """
    pages_by_name = {page.name: page for page in docs_pages()}
    page = pages_by_name.get(name)
    if page is None:
        suggestion = did_you_mean(name, pages_by_name)
        raise NotFoundError(f"there is no page {name[:100]}", hint=suggestion or "List the pages again.")
    text = _COMMENT.sub("", page.path.read_text(encoding="utf-8"))
    if section is None:
        return text
    lines = text.splitlines()
    headings: list[tuple[int, int, str]] = []  # the line, the level and the slug of each
    in_code = False  # where a line may look like a heading
    for number, line in enumerate(lines):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and (heading := _HEADING.match(line)) is not None:
            headings.append((number, len(heading[1]), _slug(heading[2])))
    begin, level = next(((number, level) for number, level, slug in headings if slug == section), (None, 0))
    if begin is None:
        suggestion = did_you_mean(section, [slug for _number, _level, slug in headings])
        main_sections = ", ".join(slug for _number, level, slug in headings if level == 2)  # noqa: PLR2004
        raise NotFoundError(
            f"{name} has no section {section[:100]}", hint=suggestion or f"There are {main_sections}."
        )
    following = (number for number, other, _slug in headings if number > begin and other <= level)
    return "\n".join(lines[begin : next(following, len(lines))]).rstrip() + "\n"


def _slug(heading: str) -> str:
    """Return the heading as the fragment of a link: lower case, dashes for blanks, no punctuation."""
    return re.sub(r"[^\w\- ]", "", _LINK.sub(r"\1", heading).lower()).strip().replace(" ", "-")
