"""`plugin new`: a plugin to begin with, in one of several languages.

The files are templates in `plugin_templates`. All or nothing: what was written is taken away again if a later
file cannot be.
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from ductile.config.names import name_error
from ductile.errors import ConflictError, UsageError, file_error
from ductile.struct import Value

_TEMPLATES = Path(__file__).parent / "plugin_templates"
_SUFFIX = ".template"
_SDK = Path(__file__).parents[2] / "sdk" / "__init__.py"
#: Beside the entrypoint, so that the plugin runs wherever it is copied to.
_SDK_COPY = "ductile_sdk.py"
_FILE, _PROGRAM, _DIRECTORY = 0o644, 0o755, 0o755


class Language(StrEnum):
    PYTHON = "python"
    SH = "sh"
    NODE = "node"
    GO = "go"
    RUST = "rust"


#: How a plugin of a compiled language is made ready to run, in its directory.
BUILDS = {Language.GO: "go build -o run .", Language.RUST: "cargo build --release"}


class NewPlugin(Value):
    """What was written, or would be. `build` is what has to be run in the directory first, if anything."""

    name: str
    language: Language
    directory: Path
    files: tuple[str, ...]
    build: str | None
    written: bool


class _TemplateFile(Value):
    data: bytes
    mode: int


def create_plugin(name: str, language: str, *, parent: str | None = None, dry_run: bool = False) -> NewPlugin:
    """Write a plugin into a new directory of its name."""
    if (fault := name_error(name)) is not None:
        raise UsageError(f"the name {name!r} {fault}")
    chosen = _language(language)
    directory = Path(parent or ".").expanduser().absolute() / name
    if os.path.lexists(directory):
        raise ConflictError(f"{directory} exists already", hint="choose another name, or another --dir")
    files = _plan(name, chosen)
    if not dry_run:
        _write(directory, files)
    return NewPlugin(
        name=name,
        language=chosen,
        directory=directory,
        files=tuple(files),
        build=BUILDS.get(chosen),
        written=not dry_run,
    )


def _language(text: str) -> Language:
    try:
        return Language(text)
    except ValueError:
        raise UsageError(f"there is no template for {text!r}", hint=f"one of {', '.join(Language)}") from None


def _plan(name: str, language: Language) -> dict[str, _TemplateFile]:
    root = _TEMPLATES / language
    files = {
        path.relative_to(root).as_posix().removesuffix(_SUFFIX): _file(path.read_bytes(), name)
        for path in sorted(root.rglob(f"*{_SUFFIX}"))
    }
    if language is Language.PYTHON:
        files[_SDK_COPY] = _TemplateFile(data=_SDK.read_bytes(), mode=_FILE)
    return files


def _file(data: bytes, name: str) -> _TemplateFile:
    filled = data.replace(b"@NAME@", name.encode())
    return _TemplateFile(data=filled, mode=_PROGRAM if filled.startswith(b"#!") else _FILE)


def _write(directory: Path, files: dict[str, _TemplateFile]) -> None:
    made: list[Path] = []
    path = directory
    try:
        for name, file in files.items():
            path = directory / name
            _make_directories(path.parent, made)
            made.append(path)
            path.write_bytes(file.data)
            path.chmod(file.mode)
    except OSError as error:
        _take_away(made)
        raise file_error(f"cannot write {error.filename or path}", error) from error


def _make_directories(directory: Path, made: list[Path]) -> None:
    if not directory.is_dir():
        _make_directories(directory.parent, made)
        directory.mkdir()
        # Whatever the umask is: a directory that everybody may change is refused.
        directory.chmod(_DIRECTORY)
        made.append(directory)


def _take_away(made: list[Path]) -> None:
    for path in reversed(made):
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
