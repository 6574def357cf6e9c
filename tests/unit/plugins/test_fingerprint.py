"""The fingerprint of the code of a plugin."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from builders.plugins import a_plugin
from ductile.plugins.discovery import discover, fingerprint

FILES = st.tuples(st.binary(max_size=20), st.binary(max_size=20))


def fingerprint_of(manifest: bytes, code: bytes) -> str:
    with tempfile.TemporaryDirectory() as directory:
        entrypoint = Path(directory) / "run"
        entrypoint.write_bytes(code)
        return fingerprint(manifest, entrypoint)


@given(FILES, FILES)
def test_equal_only_for_equal_files(first: tuple[bytes, bytes], second: tuple[bytes, bytes]) -> None:
    """The fingerprint covers each of the two files separately."""
    assert (fingerprint_of(*first) == fingerprint_of(*second)) == (first == second)


@given(st.binary(min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_moving_bytes_between_the_files_changes_it(data: bytes, first: int, second: int) -> None:
    same = data[:first] == data[:second]
    assert (
        fingerprint_of(data[:first], data[first:]) == fingerprint_of(data[:second], data[second:])
    ) == same


def test_a_changed_file_changes_it(tmp_path: Path) -> None:
    """Discovery reports the fingerprint of the files on disk."""
    directory = a_plugin(tmp_path)
    fingerprints = {discover([tmp_path]).installed["echo"].fingerprint}
    for name in ("manifest.yaml", "run.sh"):
        with (directory / name).open("a") as file:
            file.write("# changed\n")
        fingerprints.add(discover([tmp_path]).installed["echo"].fingerprint)
    assert len(fingerprints) == 3
    assert all(text.startswith("blake3:") for text in fingerprints)
