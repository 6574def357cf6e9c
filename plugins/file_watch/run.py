#!/usr/bin/env python3
"""The file_watch plugin: what became of a few files since the last poll.

Size and time of change are looked at first, and only a file where they differ is read. One that was written
again with the same content is not reported. What was seen is kept in the state.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import Failure, Plugin, Request

CHUNK = 1024 * 1024
LARGEST_HASHED = 64 * 1024 * 1024

plugin = Plugin()


@plugin.command
def poll(request: Request) -> str:
    known = request.state.get("files") or {}
    limit = request.config.get("max_hash_bytes", LARGEST_HASHED)
    seen: dict[str, Any] = {}
    told = 0
    for path in read_paths(request.config):
        # A path that was never looked at is different from a file that was not there.
        before = known.get(path, None if request.config.get("initial") is True else "unknown")
        now = look(path, before, limit)
        seen[path] = now
        told += tell(request, path, before, now)
    request.remember(files=seen)
    return f"{told} of {len(seen)} files changed"


@plugin.command
def health(request: Request) -> str:
    return f"healthy, {len(read_paths(request.config))} files"


def read_paths(config: dict[str, Any]) -> list[str]:
    paths = config.get("paths")
    listed = [paths] if isinstance(paths, str) else paths
    if not isinstance(listed, list) or not all(isinstance(path, str) and path for path in listed):
        raise Failure("`paths` in the plugin's config has to be a list of paths", retry=False)
    relative = [path for path in listed if not Path(path).expanduser().is_absolute()]
    if relative:
        raise Failure(
            f"`paths` in the plugin's config have to be absolute: {', '.join(relative)}", retry=False
        )
    return list(dict.fromkeys(os.path.normpath(Path(path).expanduser()) for path in listed))


def look(path: str, before: Any, limit: int) -> dict[str, Any] | None:
    """What the file is now; None if there is none."""
    try:
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):
            raise Failure(f"{path} is not a file", retry=False)
        now = {"mtime_ns": found.st_mtime_ns, "size": found.st_size}
        if isinstance(before, dict) and now.items() <= before.items():
            return before
        return {**now, "sha256": digest(path) if found.st_size <= limit else None}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from None


def digest(path: str) -> str:
    sha256 = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
    return sha256.hexdigest()


def tell(request: Request, path: str, before: Any, now: dict[str, Any] | None) -> int:
    """Emit what happened to the file; how many events that were."""
    if before in ("unknown", now):
        return 0
    if now is None:
        request.emit("file.deleted", {"path": path})
        return 1
    if before is not None and now["sha256"] is not None and now["sha256"] == before["sha256"]:
        return 0
    modified = datetime.fromtimestamp(now["mtime_ns"] / 1e9, timezone.utc)  # noqa: UP017 - older Pythons
    payload = {
        "path": path,
        "name": os.path.basename(path),  # noqa: PTH119 - it is a text already
        "size": now["size"],
        "modified_at": modified.isoformat().replace("+00:00", "Z"),
        "sha256": now["sha256"],
    }
    kind = "file.created" if before is None else "file.changed"
    request.emit(kind, payload)
    return 1


plugin.run()
