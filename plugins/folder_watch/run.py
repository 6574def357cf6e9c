#!/usr/bin/env python3
"""The folder_watch plugin: what was added to a folder, changed in it or removed from it since the last poll.

A file counts once its size and time have stayed the same for `settle` seconds: one that is being written is
left for a later poll. What was seen is kept in the state; it is bounded, and so is what one poll tells.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import Failure, Plugin, Request

#: Below what an answer may hold; what is over is told by the next poll.
MOST_EVENTS = 500
#: Below what Ductile keeps for a plugin.
LARGEST_STATE = 900_000

plugin = Plugin()

#: Of a file: its time of change in nanoseconds, and its size.
Mark = list[int]


class Settings(NamedTuple):
    """The configuration, checked."""

    folder: str
    patterns: tuple[str, ...]
    ignore: tuple[str, ...]
    recursive: bool
    settle: float
    initial: bool
    max_files: int


class Change(NamedTuple):
    kind: str
    relative: str
    mark: Mark | None


@plugin.command
def poll(request: Request) -> str:
    settings = read_settings(request.config)
    present = look(settings)
    known = remembered(request, settings, present)
    if known is None:
        remember(request, settings, present, {})
        return f"{len(present)} files to begin with"
    settled, waiting = sort_out(present, known, request.state.get("settling") or {}, settings.settle)
    changes = list(compare(known, present, settled))
    files = dict(known)
    for change in changes[:MOST_EVENTS]:
        tell(request, settings.folder, change)
        apply(files, change)
    remember(request, settings, files, waiting)
    return summary(changes, len(waiting))


@plugin.command
def health(request: Request) -> str:
    settings = read_settings(request.config)
    return f"healthy, {len(look(settings))} files"


def read_settings(config: dict[str, Any]) -> Settings:
    folder = config.get("path")
    if not isinstance(folder, str) or not Path(folder).expanduser().is_absolute():
        raise Failure("`path` in the plugin's config has to be the absolute path of a folder", retry=False)
    try:
        return Settings(
            folder=os.path.normpath(Path(folder).expanduser()),
            patterns=tuple(map(str, config.get("patterns") or ("*",))),
            ignore=tuple(map(str, config.get("ignore") or (".*", "*.part", "*.tmp", "*~"))),
            recursive=config.get("recursive") is True,
            settle=float(config.get("settle", 2)),
            initial=config.get("initial") is True,
            max_files=int(config.get("max_files", 5000)),
        )
    except (TypeError, ValueError) as error:
        raise Failure(f"the plugin's config cannot be used: {error}", retry=False) from None


def look(settings: Settings) -> dict[str, Mark]:
    """The files that match, by their path inside the folder. Links are not followed."""
    found: dict[str, Mark] = {}
    for entry in walk(settings.folder, settings):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed while we were looking
        found[os.path.relpath(entry.path, settings.folder)] = [status.st_mtime_ns, status.st_size]
        if len(found) > settings.max_files:
            words = f"more than {settings.max_files} files match in {settings.folder}"
            raise Failure(f"{words}: narrow `patterns`, or raise `max_files`", retry=False)
    return found


def walk(folder: str, settings: Settings, inside: str = "") -> Iterator[os.DirEntry[str]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        if inside and isinstance(error, FileNotFoundError):
            return  # removed while we were looking
        # Not "everything was removed": a folder that cannot be read may be one that is not mounted.
        raise Failure(f"{folder} cannot be read: {error.strerror}") from None
    for entry in entries:
        relative = inside + entry.name
        if matches(relative, settings.ignore) or not is_text(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            if settings.recursive:
                yield from walk(entry.path, settings, relative + "/")
        elif entry.is_file(follow_symlinks=False) and matches(relative, settings.patterns):
            yield entry


def is_text(name: str) -> bool:
    """Names of files are bytes. One that is not UTF-8 cannot be told in JSON, so it is passed over."""
    try:
        name.encode()
    except UnicodeEncodeError:
        sys.stderr.write(f"passed over, since its name is not UTF-8: {name!r}\n")
        return False
    return True


def matches(relative: str, patterns: tuple[str, ...]) -> bool:
    """A pattern with a slash is for the path inside the folder, another one for the name."""
    name = relative.rpartition("/")[2]
    return any(fnmatchcase(relative if "/" in pattern else name, pattern) for pattern in patterns)


def remembered(request: Request, settings: Settings, present: dict[str, Mark]) -> dict[str, Mark] | None:
    """What was in the folder; None at the first look at it, when what is there is taken as given."""
    if request.state.get("folder") == settings.folder:
        return request.state.get("files") or {}
    return {} if settings.initial or not present else None


def sort_out(
    present: dict[str, Mark], known: dict[str, Mark], settling: dict[str, list[float]], settle: float
) -> tuple[set[str], dict[str, list[float]]]:
    """Which new or changed files have come to rest, and for the others since when they are as they are."""
    now = time.time()
    settled: set[str] = set()
    waiting: dict[str, list[float]] = {}
    for relative, mark in present.items():
        if known.get(relative) == mark:
            continue
        before = settling.get(relative)
        since = before[2] if before is not None and before[:2] == mark else now
        if now - since >= settle or now - mark[0] / 1e9 >= settle:
            settled.add(relative)
        else:
            waiting[relative] = [*mark, since]
    return settled, waiting


def compare(known: dict[str, Mark], present: dict[str, Mark], settled: set[str]) -> Iterator[Change]:
    for relative in sorted(known.keys() - present.keys()):
        yield Change("folder.removed", relative, None)
    for relative in sorted(settled):
        kind = "folder.changed" if relative in known else "folder.added"
        yield Change(kind, relative, present[relative])


def apply(files: dict[str, Mark], change: Change) -> None:
    if change.mark is None:
        del files[change.relative]
    else:
        files[change.relative] = change.mark


def tell(request: Request, folder: str, change: Change) -> None:
    path = os.path.join(folder, change.relative)  # noqa: PTH118 - it becomes a text again at once
    payload: dict[str, Any] = {
        "path": path,
        "name": change.relative.rpartition("/")[2],
        "relative": change.relative,
    }
    if change.mark is None:
        request.emit(change.kind, payload)
        return
    modified = datetime.fromtimestamp(change.mark[0] / 1e9, timezone.utc)  # noqa: UP017 - older Pythons
    payload |= {"size": change.mark[1], "modified_at": modified.isoformat().replace("+00:00", "Z")}
    request.emit(change.kind, payload)


def remember(
    request: Request, settings: Settings, files: dict[str, Mark], waiting: dict[str, list[float]]
) -> None:
    state = {"folder": settings.folder, "files": files, "settling": waiting}
    if len(json.dumps(state)) > LARGEST_STATE:
        words = f"the names of {len(files)} files in {settings.folder} are too much to remember"
        raise Failure(f"{words}: narrow `patterns`, or watch its folders one by one", retry=False)
    request.remember(**state)


def summary(changes: list[Change], waiting: int) -> str:
    kinds = ("added", "changed", "removed")
    told = changes[:MOST_EVENTS]
    parts = [f"{sum(change.kind.endswith(kind) for change in told)} {kind}" for kind in kinds]
    if waiting:
        parts.append(f"{waiting} still being written")
    if len(changes) > MOST_EVENTS:
        parts.append(f"{len(changes) - MOST_EVENTS} left for the next poll")
    return ", ".join(parts)


plugin.run()
