"""Writes a set of new files, all or none: written files are removed again if a later step fails."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ductile.errors import file_error
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class NewFile(Value):
    """The content of a file that does not exist yet, and its mode."""

    data: bytes
    mode: int


@contextmanager
def write_new_files(directory: Path, files: Mapping[str, NewFile], *, directory_mode: int) -> Iterator[None]:
    """Write the files below `directory`, then run the block; if either fails, remove them again.

    Modes hold whatever the umask is. Raises a DuctileError that names the file, and overwrites nothing.
    """
    created: list[Path] = []
    path = directory
    try:
        for name, file in files.items():
            path = directory / name
            missing = [parent for parent in (path.parent, *path.parent.parents) if not parent.is_dir()]
            for parent in reversed(missing):
                parent.mkdir(mode=directory_mode)
                parent.chmod(directory_mode)
                created.append(parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
            created.append(path)
            with os.fdopen(descriptor, "wb") as stream:
                os.fchmod(descriptor, file.mode)
                stream.write(file.data)
        yield
    except BaseException as error:
        # A directory that holds anything else stays.
        for parent in reversed(created):
            with suppress(OSError):
                parent.rmdir() if parent.is_dir() else parent.unlink()
        if isinstance(error, OSError):
            raise file_error(f"cannot write {error.filename or path}", error) from error
        raise
