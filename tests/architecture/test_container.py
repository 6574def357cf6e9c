"""The files that the Containerfile copies exist and are in the build context; others are not."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def lines_of(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


def copied() -> set[str]:
    """The sources of every COPY out of the checkout; the last word is where it goes."""
    steps = [line.split() for line in lines_of("Containerfile") if line.startswith("COPY ")]
    return {Path(word).name for step in steps if "--from" not in step[1] for word in step[1:-1]}


def test_exactly_what_is_copied_is_sent() -> None:
    first, *rest = lines_of(".dockerignore")
    assert first == "*"
    assert {line[1:] for line in rest if line.startswith("!")} == copied()


def test_copied_files_exist() -> None:
    assert copied() >= {"src", "requirements.lock"}
    assert [name for name in sorted(copied()) if not (ROOT / name).exists()] == []
