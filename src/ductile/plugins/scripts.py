"""Scripts of a configuration: finds their programs and checks them like the entrypoint of a plugin.

A program that is named by a path is checked and sealed. A program that is found by PATH is not: it belongs to
the system, and its updates are not a change of the configuration.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from blake3 import blake3

from ductile.config.file_io import find_symlinks
from ductile.config.find_config import resolve_path
from ductile.config.schema.plugins import PluginSettings
from ductile.config.snapshot import Discovery, InstalledPlugin, RefusedPlugin
from ductile.core.jobs.model import OutputFormat
from ductile.core.scripts import CommandLine, RetryRule, Script, done_event, read_command
from ductile.errors import Problem
from ductile.plugins.trust import (
    NotTrustedError,
    RefusalCode,
    TrustPolicy,
    check_path_permissions,
    check_program,
)
from ductile.protocol.manifest.model import Command, DeclaredEvent, Manifest
from ductile.struct import Value, replace

#: All commands of a script do the same. Schedules run `poll`; routes and pipelines run `handle`.
COMMANDS = ("run", "handle", "poll")
#: Part of the hashed bytes, so that no other hash of this program can equal a fingerprint.
_DOMAIN = b"ductile script 1\n"


class _Program(Value):
    """The arguments of a process, and the file that is sealed; None for a program that is found by PATH."""

    argv: tuple[str, ...]
    file: Path | None


def add_scripts(
    discovery: Discovery,
    plugins: Mapping[str, PluginSettings],
    directory: Path,
    *,
    search_path: str | None,
    allow_symlinks: bool,
) -> Discovery:
    """Return the discovery with the scripts of a configuration in `directory`.

    Programs without a slash in their name are searched for in `search_path`, or in the PATH that the script's
    own `env` sets.
    """
    policy = TrustPolicy(roots=(directory,), allow_symlinks=allow_symlinks)
    scripts: dict[str, InstalledPlugin | RefusedPlugin] = {}
    warnings: list[Problem] = []
    for name, settings in plugins.items():
        if settings.run is None:
            continue
        path = settings.env.reveal().get("PATH", search_path)
        scripts[name] = load_script(name, settings, directory, search_path=path, policy=policy)
        cwd = _working_directory(settings, directory)
        if not cwd.is_dir():
            message = f"the working directory {cwd} does not exist, so {name} cannot start"
            warnings.append(Problem(message=message, key=f"plugins.{name}.cwd", hint="create it"))
    return replace(discovery, scripts=MappingProxyType(scripts), warnings=(*discovery.warnings, *warnings))


def load_script(
    name: str, settings: PluginSettings, directory: Path, *, search_path: str | None, policy: TrustPolicy
) -> InstalledPlugin | RefusedPlugin:
    """Find and check the program of one script."""
    cwd = _working_directory(settings, directory)
    try:
        program = _find_program(read_command(settings.run or ""), cwd, directory, search_path)
        if program.file is not None:
            _check_file(program.file, name, directory, policy)
        fingerprint = script_fingerprint(program.argv, program.file)
    except NotTrustedError as refused:
        hint = refused.hint
        if refused.refusal is RefusalCode.ENTRYPOINT_MISSING and name not in hint:
            hint = f"{hint} (plugins.{name}.run)"
        return RefusedPlugin(
            name=name, directory=cwd, code=refused.refusal.value, reason=refused.reason, hint=hint
        )
    except OSError as error:
        return RefusedPlugin(
            name=name,
            directory=cwd,
            code=RefusalCode.UNREADABLE.value,
            reason=f"{error.filename} cannot be read: {error.strerror}",
            hint="make it a file that the user running Ductile can read",
        )
    retry = RetryRule()
    if settings.retry_on is not None:
        retry = RetryRule(statuses=frozenset(() if settings.retry_on == "never" else settings.retry_on))
    output = settings.output or OutputFormat.TEXT
    speaks_protocol = output is OutputFormat.PROTOCOL
    return InstalledPlugin(
        name=name,
        version="",
        root=directory,
        directory=cwd,
        entrypoint=Path(program.argv[0]),
        manifest=_manifest(name, program, emits=not speaks_protocol),
        fingerprint=fingerprint,
        script=Script(
            argv=program.argv,
            directory=str(cwd),
            output=output,
            retry=retry,
            done_event=None if speaks_protocol else done_event(name),
        ),
        program=program.file,
    )


def _working_directory(settings: PluginSettings, directory: Path) -> Path:
    """Return the directory in which a script runs."""
    return directory if settings.cwd is None else resolve_path(settings.cwd, directory)


def _find_program(line: CommandLine, cwd: Path, directory: Path, search_path: str | None) -> _Program:
    """Return the command line, with an absolute path if it names its program by a path."""
    if line.needs_shell:
        # A shell looks for a relative path in its working directory only.
        return _Program(argv=line.argv, file=None if line.program is None else cwd / line.program)
    word = line.argv[0]
    if "/" in word:
        file, beside_config = cwd / word, directory / word
        if not file.exists() and beside_config.exists():
            file = beside_config
        file = Path(os.path.normpath(file))
        return _Program(argv=(str(file), *line.argv[1:]), file=file)
    if shutil.which(word, path=search_path) is None:
        hint = "install it, or write its path"
        if local := next((file for file in (cwd / word, directory / word) if file.is_file()), None):
            hint = f"for {local}, write ./{word}"
        reason = f"no program {word} was found in PATH"
        raise NotTrustedError(RefusalCode.ENTRYPOINT_MISSING, reason, hint)
    return _Program(argv=line.argv, file=None)


def _check_file(file: Path, name: str, directory: Path, policy: TrustPolicy) -> None:
    """Raise NotTrustedError unless this user may execute it, and only this user and root can change it."""
    if not policy.allow_symlinks and file.is_relative_to(directory):
        for link in find_symlinks(file, directory)[:1]:
            hint = "replace it by what it points to, or set service.allow_symlinks: true"
            raise NotTrustedError(RefusalCode.SYMLINK, f"{link} is a symbolic link", hint)
    check_program(file, f"the program {file}", f"put it there, or correct plugins.{name}.run")
    check_path_permissions(file, policy.owners)


def script_fingerprint(argv: Sequence[str], program: Path | None) -> str:
    """Return `blake3:<hex>` of the program's file; of the command line, if its program is not sealed."""
    if program is None:
        content = blake3(json.dumps(argv).encode()).digest()
    else:
        content = blake3().update_mmap(program).digest()
    return f"blake3:{blake3(_DOMAIN + content).hexdigest()}"


def _manifest(name: str, program: _Program, *, emits: bool) -> Manifest:
    """Return the manifest that stands for a script, which has none of its own."""
    shown: Path | str = program.argv[0] if program.file is None else program.file
    if program.file is None and program.argv[1:2] == ("-c",):
        shown = "a shell command"
    event = DeclaredEvent(type=done_event(name), values=("payload.result", "payload.exit_code"))
    return Manifest(
        name=name,
        entrypoint=program.argv[0],
        description=f"A script: {shown}",
        commands={
            command: Command(
                name=command,
                description="Runs the script.",
                emits=(event,) if emits else (),
                declares_events=emits,
            )
            for command in COMMANDS
        },
    )
