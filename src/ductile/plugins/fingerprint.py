"""The fingerprint of a plugin's code: one hash over its manifest and its entrypoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from pathlib import Path

#: Part of the hashed bytes, so that no other hash of this program can equal a fingerprint.
_DOMAIN = b"ductile plugin 1\n"


def fingerprint(manifest: bytes, entrypoint: Path) -> str:
    """Return `blake3:<hex>` over the hashes of both files.

    Hashes have a fixed length, so moving a byte from one file to the other changes the result. The entrypoint
    may be large and is not read into memory.
    """
    code = blake3().update_mmap(entrypoint).digest()
    return f"blake3:{blake3(_DOMAIN + blake3(manifest).digest() + code).hexdigest()}"
