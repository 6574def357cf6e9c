"""What identifies the code of a plugin: one hash over its manifest and its entrypoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blake3 import blake3

if TYPE_CHECKING:
    from pathlib import Path

#: Part of what is hashed, so that no other hash of this program can ever be mistaken for this one.
_DOMAIN = b"ductile plugin 1\n"


def fingerprint(manifest: bytes, entrypoint: Path) -> str:
    """`blake3:<hex>`, over the hashes of both, which are of one length: a byte that moves from the end of
    one file to the start of the other changes it. An entrypoint may be large, so it is never held in memory.
    """
    code = blake3().update_mmap(entrypoint).digest()
    return f"blake3:{blake3(_DOMAIN + blake3(manifest).digest() + code).hexdigest()}"
