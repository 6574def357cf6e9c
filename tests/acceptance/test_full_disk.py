"""A disk without room, or one that may not be written to: what is said, and with which status (SPEC 11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.disks import on_a_disk

INIT = "ductile init disk/c >/dev/null || exit 98\n"
FULL = "the disk is full"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("run echo --config disk/c", "disk/c/data"),
        ("system start --config disk/c", "disk/c/data"),
        ("token create ci --config disk/c", "disk/c/"),
        ("config set service.log_level warn --config disk/c", "disk/c/config.yaml"),
        ("config lock --config disk/c", "disk/c/.checksums"),
        ("plugin new mine --dir disk", "disk/mine"),
        ("init disk/d", "disk/d"),
        ("system backup disk/b.tar.gz --config disk/c", "disk/b.tar.gz"),
    ],
)
def test_a_full_disk_is_said_to_be_full(words: str, names: str, tmp_path: Path) -> None:
    """Exit 75, naming the file that was to be written and none that nobody knows."""
    ran = on_a_disk(tmp_path, f"{INIT}fill\nductile {words}\n")
    assert ran.status == 75, ran
    assert ran.err.startswith("error: ")
    assert FULL in ran.err
    (named,) = [word.rstrip(":") for word in ran.err.split() if names in word]
    assert not Path(named).name.startswith("..")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("run echo --config disk/c", "disk/c/data"),
        ("token create ci --config disk/c", "disk/c/.checksums"),
        ("config set service.log_level warn --config disk/c", "disk/c/config.yaml"),
        ("plugin new mine --dir disk", "disk/mine"),
    ],
)
def test_a_disk_that_may_not_be_written_to_is_a_refusal(words: str, names: str, tmp_path: Path) -> None:
    """Exit 77, with the same names."""
    ran = on_a_disk(tmp_path, f"{INIT}mount -o remount,ro disk\nductile {words}\n")
    assert ran.status == 77, ran
    assert f"{names}" in ran.err
    assert "Read-only file system" in ran.err
