"""The one place where what the system says of a file becomes our error."""

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
    """No room is something to try again after; what may not be done is denied."""
    error = file_error("cannot write x", OSError(number, os.strerror(number), "x.a1b2"), hint="look")
    assert (error.code, error.exit_status, error.message) == (code, status, says)
    assert error.hint == ("Free some space, then try again." if code == "store_full" else "look")


def test_a_file_that_cannot_be_replaced_is_named_itself(tmp_path: Path) -> None:
    """Not the temporary one that would have become it."""
    target = tmp_path / "file" / "below"
    target.parent.write_text("no directory")
    with pytest.raises(OSError, match="below") as refused:
        write_atomically(target, b"data")
    assert refused.value.filename == str(target)
