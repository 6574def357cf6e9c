"""`plugin new`: a plugin to start from, in one of several languages. The files are in `plugin_templates`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from ductile.admin.new_files import NewFile, write_new_files
from ductile.config.names import name_error
from ductile.errors import ConflictError, UsageError
from ductile.struct import Value

_TEMPLATES = Path(__file__).parent / "plugin_templates"
_SUFFIX = ".template"
_SDK = Path(__file__).parents[2] / "sdk" / "__init__.py"
#: A copy beside the entrypoint, so that the plugin runs in any directory.
_SDK_COPY = "ductile_sdk.py"
#: Directories that other users can change are refused, so these modes hold whatever the umask is.
_FILE, _PROGRAM, _DIRECTORY = 0o644, 0o755, 0o755


class Language(StrEnum):
    PYTHON = "python"
    SH = "sh"
    NODE = "node"
    GO = "go"
    RUST = "rust"


#: The command that builds a plugin of a compiled language, in its directory.
BUILD_COMMANDS = {Language.GO: "go build -o run .", Language.RUST: "cargo build --release"}


class NewPlugin(Value):
    """The new plugin, or the one that would be written. `build` has to be run in its directory first."""

    name: str
    language: Language
    directory: Path
    files: tuple[str, ...]
    build: str | None
    written: bool


def create_plugin(name: str, language: str, *, parent: str | None = None, dry_run: bool = False) -> NewPlugin:
    """Write a plugin into a new directory of its name.

    Raises UsageError for an unusable name or language, ConflictError if the directory exists.
    """
    if (error := name_error(name)) is not None:
        raise UsageError(f"the name {name!r} {error}")
    if language not in tuple(Language):
        raise UsageError(f"there is no template for {language!r}", hint=f"one of {', '.join(Language)}")
    directory = Path(parent or ".").expanduser().absolute() / name
    if os.path.lexists(directory):
        raise ConflictError(f"{directory} exists already", hint="choose another name, or another --dir")
    templates = _TEMPLATES / language
    files = {}
    for path in sorted(templates.rglob(f"*{_SUFFIX}")):
        data = path.read_bytes().replace(b"@NAME@", name.encode())
        mode = _PROGRAM if data.startswith(b"#!") else _FILE
        files[path.relative_to(templates).as_posix().removesuffix(_SUFFIX)] = NewFile(data=data, mode=mode)
    if language == Language.PYTHON:
        files[_SDK_COPY] = NewFile(data=_SDK.read_bytes(), mode=_FILE)
    if not dry_run:
        with write_new_files(directory, files, directory_mode=_DIRECTORY):
            pass
    return NewPlugin(
        name=name,
        language=Language(language),
        directory=directory,
        files=tuple(files),
        build=BUILD_COMMANDS.get(Language(language)),
        written=not dry_run,
    )
