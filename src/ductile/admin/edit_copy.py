"""The copy of a configuration file that an editor works on. It stays if its text is not written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Self

from ductile.config.file_io import KEPT_DIRECTORY, hash_bytes, make_private_directory, read_regular_file
from ductile.errors import file_error
from ductile.struct import Value


class EditCopy(Value):
    """A private copy with the name of the file, so that editors recognise its language."""

    path: Path
    #: The hash of the file when it was copied.
    original: str

    @classmethod
    def of(cls, file: Path) -> Self:
        """Copy a file to `.ductile/edit-…` beside it. Raises a DuctileError if it cannot be done."""
        try:
            data = read_regular_file(file)
            make_private_directory(file.parent / KEPT_DIRECTORY)
            directory = Path(tempfile.mkdtemp(prefix="edit-", dir=file.parent / KEPT_DIRECTORY))
            path = directory / file.name
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as copy:
                copy.write(data)
        except OSError as error:
            raise file_error(f"cannot copy {file}", error) from error
        return cls(path=path, original=hash_bytes(data))

    def read(self) -> bytes:
        try:
            return read_regular_file(self.path)
        except OSError as error:
            raise file_error(f"cannot read {self.path}", error) from error

    def remove(self) -> None:
        """Remove the copy, and what the editor left beside it."""
        for path in self.path.parent.iterdir():
            path.unlink(missing_ok=True)
        self.path.parent.rmdir()
