"""The format of a backup: a compressed tar whose first member, `manifest.json`, says what must be in it.

Nothing of an archive is believed: a name has to stay below the directory it is put in, a member has to be a
plain file that the manifest lists, and its bytes have to have the hash that is written there. What has to be
held in memory at once is bounded: the headers before a file, and the manifest.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from ductile.errors import ConflictError, RefusedError
from ductile.struct import Value

if TYPE_CHECKING:
    from blake3 import blake3

MANIFEST = "manifest.json"
FORMAT = 1
_CHUNK = 1024 * 1024
_LARGEST_MANIFEST = 64 * 1024 * 1024
#: All that comes before the bytes of one file: a long name and the like.
_LARGEST_HEADER = 1024 * 1024
#: Of names that others wrote, so much is shown, and of lists so many.
_SHOWN = 100
_LISTED = 3


class ArchiveMember(Value):
    """A file of the backup. `origin` is where it lay, if that is outside of the configuration's directory."""

    name: str
    scope: str
    size: int
    hash: str
    mode: int
    origin: str | None = None


class BackupManifest(Value):
    version: str
    created_at: str
    #: The directory of the configuration.
    directory: str
    config_file: str
    scopes: tuple[str, ...]
    secrets: bool
    members: tuple[ArchiveMember, ...]
    #: The member that is the store, if there is one.
    store: str | None = None
    left_out: tuple[str, ...] = ()
    #: The directory of the configuration below the one that holds it and what lay beside it, if anything did.
    prefix: str | None = None

    @property
    def size(self) -> int:
        """Of all files together, unpacked."""
        return sum(member.size for member in self.members)


def hash_stream(stream: IO[bytes], passed: Callable[[bytes], object] = lambda _: None) -> tuple[int, str]:
    """Size and hash of what is left of a stream; `passed` is given each piece."""
    digest, size = _new_hasher(), 0
    while piece := stream.read(_CHUNK):
        digest.update(piece)
        passed(piece)
        size += len(piece)
    return size, f"blake3:{digest.hexdigest()}"


def _new_hasher() -> blake3:
    from blake3 import blake3  # noqa: PLC0415 - only who makes or reads a backup pays for it

    return blake3()


# ------------------------------------------------------------------------------------------ writing


def write_archive(
    target: IO[bytes], manifest: BackupManifest, sources: dict[str, Path], progressed: Callable[[int], None]
) -> None:
    """Write the manifest and every member; a file that has changed since it was hashed is an error."""
    with tarfile.open(fileobj=target, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        text = json.dumps(_as_json(manifest), indent=2, ensure_ascii=False).encode()
        if len(text) > _LARGEST_MANIFEST:
            raise RefusedError(
                f"there are {len(manifest.members)} files, too many for one backup",
                hint="Move what is no plugin out of plugin_roots, or back up without plugins: "
                "--scope config,state",
            )
        archive.addfile(_info(MANIFEST, len(text), 0o600), io.BytesIO(text))
        for member in manifest.members:
            _add(archive, member, sources[member.name])
            progressed(member.size)


def _add(archive: tarfile.TarFile, member: ArchiveMember, source: Path) -> None:
    with source.open("rb") as stream:
        watched = _HashingReader(stream)
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


class _HashingReader(io.RawIOBase):
    """A stream that hashes what is read from it, and the rest in the end: longer is changed too."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = _new_hasher()
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


def _as_json(manifest: BackupManifest) -> dict[str, object]:
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
        "prefix": manifest.prefix,
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
def open_archive(path: Path) -> Iterator[tuple[BackupManifest, Iterator[tuple[ArchiveMember, IO[bytes]]]]]:
    """The manifest, and the members as they come, each with its bytes; whoever reads them checks the hash."""
    try:
        with gzip.open(path) as unpacked:
            stream = _HeaderLimiter(unpacked)
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                manifest = _read_manifest(archive, stream, path)
                yield manifest, _members(archive, stream, manifest, path)
    except FileNotFoundError as error:
        raise RefusedError(f"there is no file {path}") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise _broken(path, f"it cannot be read: {error}") from error
    except RecursionError as error:  # headers before headers
        raise _broken(path, "its headers are not those that Ductile writes") from error


class _HeaderLimiter(io.RawIOBase):
    """The unpacked bytes of an archive, of which only so many may be read before the next file begins.

    `tarfile` takes the length of a header from the header, and holds all of it in memory.
    """

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        #: None while the bytes of a file are read.
        self._left: int | None = _LARGEST_HEADER

    def expect_header(self) -> None:
        self._left = _LARGEST_HEADER

    def expect_file(self) -> None:
        self._left = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._left is not None:
            if not 0 <= size <= self._left:
                raise tarfile.ReadError(f"a header is larger than {_LARGEST_HEADER >> 20} MiB")
            self._left -= size
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _read_manifest(archive: tarfile.TarFile, headers: _HeaderLimiter, path: Path) -> BackupManifest:
    first = archive.next()
    if first is None or first.name != MANIFEST or not _is_plain(first):
        raise _broken(path, "it does not begin with a manifest")
    if first.size > _LARGEST_MANIFEST:
        raise _broken(path, f"its manifest is larger than {_LARGEST_MANIFEST >> 20} MiB")
    headers.expect_file()
    stream = archive.extractfile(first)
    try:
        content = json.loads(stream.read() if stream is not None else b"")
        if content["format"] != FORMAT:
            known = f"its format is {_short(content['format'])}, and this Ductile knows {FORMAT}"
            raise _broken(path, known)
        return _parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(path, "its manifest was not written by Ductile") from error


def _is_plain(info: tarfile.TarInfo) -> bool:
    """A file as it stands there; one with holes can be of any size."""
    return info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()


def _short(text: object) -> str:
    """What somebody else wrote, as far as it fits into a message."""
    shown = str(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _parse(content: dict[str, object]) -> BackupManifest:
    files = content["files"]
    if not isinstance(files, list):
        raise TypeError
    members = tuple(
        ArchiveMember(
            name=_safe_name(str(entry["name"])),
            scope=str(entry["scope"]),
            size=int(entry["size"]),
            hash=str(entry["hash"]),
            mode=int(str(entry["mode"]), 8),
            origin=None if entry["origin"] is None else str(entry["origin"]),
        )
        for entry in files
    )
    scopes, left_out, prefix = content["scopes"], content["left_out"], content.get("prefix")
    if not isinstance(scopes, list) or not isinstance(left_out, list):
        raise TypeError
    return BackupManifest(
        version=str(content["ductile"]),
        created_at=str(content["created_at"]),
        directory=str(content["directory"]),
        config_file=str(content["config_file"]),
        scopes=tuple(str(scope) for scope in scopes),
        secrets=bool(content["secrets"]),
        members=members,
        store=None if content["store"] is None else str(content["store"]),
        left_out=tuple(str(name) for name in left_out),
        prefix=None if prefix is None else _safe_name(str(prefix)),
    )


def _safe_name(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or path.as_posix() != name:
        raise ValueError(name)
    return name


def _members(
    archive: tarfile.TarFile, headers: _HeaderLimiter, manifest: BackupManifest, path: Path
) -> Iterator[tuple[ArchiveMember, IO[bytes]]]:
    """In the order of the archive: a compressed one can only be read from its beginning to its end."""
    expected = {member.name: member for member in manifest.members}
    while (info := _next_header(archive, headers)) is not None:
        member = expected.pop(info.name, None)
        stream = archive.extractfile(info) if _is_plain(info) else None
        if member is None or stream is None:
            raise _broken(path, f"it holds {_short(info.name)}, which its manifest does not list")
        if info.size != member.size:  # known before any of it is read: it might be very large
            raise _broken(path, f"{_short(member.name)} is not what was backed up")
        yield member, stream
    if expected:
        first = ", ".join(_short(name) for name in sorted(expected)[:_LISTED])
        more = f" and {len(expected) - _LISTED} more" if len(expected) > _LISTED else ""
        raise _broken(path, f"it lacks {first}{more}")


def _next_header(archive: tarfile.TarFile, headers: _HeaderLimiter) -> tarfile.TarInfo | None:
    headers.expect_header()
    info = archive.next()
    headers.expect_file()
    return info


def check_digest(path: Path, member: ArchiveMember, found: tuple[int, str]) -> None:
    if found != (member.size, member.hash):
        raise _broken(path, f"{_short(member.name)} is not what was backed up")


def _broken(path: Path, why: str) -> RefusedError:
    return RefusedError(f"{path} is not a whole backup: {why}", hint="Use another archive.")
