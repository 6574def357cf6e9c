"""The fingerprint of a plugin's code."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from builders.plugins import a_plugin
from ductile.plugins.discovery import discover, fingerprint

FILES = st.tuples(st.binary(max_size=20), st.binary(max_size=20))


def print_of(manifest: bytes, code: bytes) -> str:
    with tempfile.TemporaryDirectory() as directory:
        entrypoint = Path(directory) / "run"
        entrypoint.write_bytes(code)
        return fingerprint(manifest, entrypoint)


@given(FILES, FILES)
def test_equal_only_for_equal_files(one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
    """The fingerprint covers both files, each by itself."""
    assert (print_of(*one) == print_of(*other)) == (one == other)


@given(st.binary(min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_moving_bytes_between_the_files_changes_it(data: bytes, one: int, two: int) -> None:
    same = data[:one] == data[:two]
    assert (print_of(data[:one], data[one:]) == print_of(data[:two], data[two:])) == same


def test_a_changed_file_changes_it(tmp_path: Path) -> None:
    """Discovery reports the fingerprint of the files on disk."""
    directory = a_plugin(tmp_path)
    seen = {discover([tmp_path]).installed["echo"].fingerprint}
    for name in ("manifest.yaml", "run.sh"):
        with (directory / name).open("a") as file:
            file.write("# changed\n")
        seen.add(discover([tmp_path]).installed["echo"].fingerprint)
    assert len(seen) == 3
    assert all(print_.startswith("blake3:") for print_ in seen)
