"""Errors of the operating system about files become errors of Ductile in one place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ductile.config.file_io import write_atomically
from ductile.errors import Exit, file_error


@pytest.mark.parametrize(
    ("number", "code", "status", "says"),
    [
        (errno.ENOSPC, "store_full", Exit.TRY_AGAIN, "cannot write x: the disk is full"),
        (errno.EDQUOT, "store_full", Exit.TRY_AGAIN, "cannot write x: the disk is full"),
        (errno.EROFS, "denied", Exit.DENIED, "cannot write x: Read-only file system"),
        (errno.EACCES, "denied", Exit.DENIED, "cannot write x: Permission denied"),
        (errno.EPERM, "denied", Exit.DENIED, "cannot write x: Operation not permitted"),
    ],
)
def test_a_file_error_has_the_code_and_status_of_its_errno(
    number: int, code: str, status: Exit, says: str
) -> None:
    """A full disk is an error to try again; a missing permission is `denied`."""
    error = file_error("cannot write x", OSError(number, os.strerror(number), "x.a1b2"), hint="look")
    assert (error.code, error.exit_status, error.message) == (code, status, says)
    assert error.hint == ("Free some space, then try again." if code == "store_full" else "look")


def test_a_file_that_cannot_be_replaced_is_named_itself(tmp_path: Path) -> None:
    """The error names the target, not the temporary file."""
    target = tmp_path / "file" / "below"
    target.parent.write_text("no directory")
    with pytest.raises(OSError, match="below") as excinfo:
        write_atomically(target, b"data")
    assert excinfo.value.filename == str(target)
