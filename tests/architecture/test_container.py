"""The files that the Containerfile copies exist, and only they are in the build context."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def lines_of(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


def copied_names() -> set[str]:
    """Return the sources of every COPY out of the checkout; the last argument is its target."""
    steps = [line.split() for line in lines_of("Containerfile") if line.startswith("COPY ")]
    return {Path(source).name for step in steps if "--from" not in step[1] for source in step[1:-1]}


def test_exactly_what_is_copied_is_sent() -> None:
    first, *rest = lines_of(".dockerignore")
    assert first == "*"
    assert {line[1:] for line in rest if line.startswith("!")} == copied_names()


def test_copied_files_exist() -> None:
    assert copied_names() >= {"src", "requirements.lock"}
    assert [name for name in sorted(copied_names()) if not (ROOT / name).exists()] == []
