"""The format of a backup: a compressed tar whose first member, `manifest.json`, says what must be in it.

Nothing of an archive is believed: a name has to stay below the directory it is put in, a member has to be a
plain file that the manifest lists, and its bytes have to have the hash that is written there.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from ductile.errors import ConflictError, RefusedError
from ductile.value import Value

if TYPE_CHECKING:
    from blake3 import blake3

MANIFEST = "manifest.json"
FORMAT = 1
_CHUNK = 1024 * 1024
_LARGEST_MANIFEST = 64 * 1024 * 1024


class Member(Value):
    """A file of the backup. `origin` is where it lay, if that is outside of the configuration's directory."""

    name: str
    scope: str
    size: int
    hash: str
    mode: int
    origin: str | None = None


class Manifest(Value):
    version: str
    created_at: str
    #: The directory of the configuration.
    directory: str
    config_file: str
    scopes: tuple[str, ...]
    secrets: bool
    members: tuple[Member, ...]
    #: The member that is the store, if there is one.
    store: str | None = None
    left_out: tuple[str, ...] = ()


def digest_of(stream: IO[bytes], passed: Callable[[bytes], object] = lambda _: None) -> tuple[int, str]:
    """Size and hash of what is left of a stream; `passed` is given each piece."""
    digest, size = _hasher(), 0
    while piece := stream.read(_CHUNK):
        digest.update(piece)
        passed(piece)
        size += len(piece)
    return size, f"blake3:{digest.hexdigest()}"


def _hasher() -> blake3:
    from blake3 import blake3  # noqa: PLC0415 - only who makes or reads a backup pays for it

    return blake3()


# ------------------------------------------------------------------------------------------ writing


def write_archive(
    target: IO[bytes], manifest: Manifest, sources: dict[str, Path], progressed: Callable[[int], None]
) -> None:
    """Write the manifest and every member; a file that has changed since it was hashed is an error."""
    with tarfile.open(fileobj=target, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        text = json.dumps(_as_json(manifest), indent=2, ensure_ascii=False).encode()
        archive.addfile(_info(MANIFEST, len(text), 0o600), io.BytesIO(text))
        for member in manifest.members:
            _add(archive, member, sources[member.name])
            progressed(member.size)


def _add(archive: tarfile.TarFile, member: Member, source: Path) -> None:
    with source.open("rb") as stream:
        watched = _Watched(stream)
        try:
            archive.addfile(_info(member.name, member.size, member.mode), watched)
        except OSError as error:
            if error.errno is not None:  # the disk's; without a number it is tarfile's word for too short
                raise
        if watched.result() != (member.size, member.hash):
            raise ConflictError(
                f"{source} was changed while it was being backed up", hint="Nothing was written. Try again."
            )


def _info(name: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    return info


class _Watched(io.RawIOBase):
    """A stream that hashes what is read from it, and the rest in the end: longer is changed too."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = _hasher()
        self._size = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self._digest.update(piece)
        self._size += len(piece)
        return piece

    def result(self) -> tuple[int, str]:
        while self.read(_CHUNK):
            pass
        return self._size, f"blake3:{self._digest.hexdigest()}"


def _as_json(manifest: Manifest) -> dict[str, object]:
    return {
        "format": FORMAT,
        "ductile": manifest.version,
        "created_at": manifest.created_at,
        "directory": manifest.directory,
        "config_file": manifest.config_file,
        "scopes": list(manifest.scopes),
        "secrets": manifest.secrets,
        "store": manifest.store,
        "left_out": list(manifest.left_out),
        "files": [
            {
                "name": member.name,
                "scope": member.scope,
                "size": member.size,
                "hash": member.hash,
                "mode": f"{member.mode:04o}",
                "origin": member.origin,
            }
            for member in manifest.members
        ],
    }


# ------------------------------------------------------------------------------------------ reading


@contextmanager
def opened_archive(path: Path) -> Iterator[tuple[Manifest, Iterator[tuple[Member, IO[bytes]]]]]:
    """The manifest, and the members as they come, each with its bytes; whoever reads them checks the hash."""
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            manifest = _read_manifest(archive, path)
            yield manifest, _members(archive, manifest, path)
    except FileNotFoundError as error:
        raise RefusedError(f"there is no file {path}") from error
    except (OSError, EOFError, tarfile.TarError) as error:
        raise _broken(path, f"it cannot be read: {error}") from error


def _read_manifest(archive: tarfile.TarFile, path: Path) -> Manifest:
    first = archive.next()
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > _LARGEST_MANIFEST:
        raise _broken(path, "it does not begin with a manifest")
    stream = archive.extractfile(first)
    try:
        content = json.loads(stream.read() if stream is not None else b"")
        if content["format"] != FORMAT:
            raise _broken(path, f"its format is {content['format']}, and this Ductile knows {FORMAT}")
        return _parse(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(path, "its manifest was not written by Ductile") from error


def _parse(content: dict[str, object]) -> Manifest:
    files = content["files"]
    if not isinstance(files, list):
        raise TypeError
    members = tuple(
        Member(
            name=_safe_name(str(entry["name"])),
            scope=str(entry["scope"]),
            size=int(entry["size"]),
            hash=str(entry["hash"]),
            mode=int(str(entry["mode"]), 8),
            origin=None if entry["origin"] is None else str(entry["origin"]),
        )
        for entry in files
    )
    scopes, left_out = content["scopes"], content["left_out"]
    if not isinstance(scopes, list) or not isinstance(left_out, list):
        raise TypeError
    return Manifest(
        version=str(content["ductile"]),
        created_at=str(content["created_at"]),
        directory=str(content["directory"]),
        config_file=str(content["config_file"]),
        scopes=tuple(str(scope) for scope in scopes),
        secrets=bool(content["secrets"]),
        members=members,
        store=None if content["store"] is None else str(content["store"]),
        left_out=tuple(str(name) for name in left_out),
    )


def _safe_name(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or path.as_posix() != name:
        raise ValueError(name)
    return name


def _members(archive: tarfile.TarFile, manifest: Manifest, path: Path) -> Iterator[tuple[Member, IO[bytes]]]:
    """In the order of the archive: a compressed one can only be read from its beginning to its end."""
    expected = {member.name: member for member in manifest.members}
    while (info := archive.next()) is not None:
        member = expected.pop(info.name, None)
        stream = archive.extractfile(info) if info.isreg() else None
        if member is None or stream is None:
            raise _broken(path, f"it holds {info.name}, which its manifest does not list")
        if info.size != member.size:  # known before any of it is read: it might be very large
            raise _broken(path, f"{member.name} is not what was backed up")
        yield member, stream
    if expected:
        raise _broken(path, f"it lacks {', '.join(sorted(expected))}")


def check_digest(path: Path, member: Member, found: tuple[int, str]) -> None:
    if found != (member.size, member.hash):
        raise _broken(path, f"{member.name} is not what was backed up")


def _broken(path: Path, why: str) -> RefusedError:
    return RefusedError(f"{path} is not a whole backup: {why}", hint="Use another archive.")
