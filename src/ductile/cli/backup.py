"""`ductile system backup` and `ductile system restore`: on the files, beside a daemon or without one."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ductile.admin.backup import restore as restoring
from ductile.admin.backup.backup import BackupPart, BackupProgress, BackupRequest, parse_parts
from ductile.admin.backup.backup import back_up as write_backup
from ductile.admin.config import OpenedConfiguration, open_configuration
from ductile.cli.client import connect_to_daemon
from ductile.cli.console.format import format_count, format_time
from ductile.cli.invocation import CommandResult, Invocation
from ductile.config.find_config import config_directories
from ductile.config.load import SealCheck
from ductile.control.client import exchange
from ductile.control.socket_files import linked_socket
from ductile.errors import ConfigError, DaemonNotRunningError, StoreBusyError
from ductile.offline import store_files
from ductile.struct import replace

if TYPE_CHECKING:
    from ductile.cli.client import Document
    from ductile.cli.console.console import Console

_MIB = 1024 * 1024
#: Seconds for the daemon to tell how its store is.
_PATIENCE = 5.0


def back_up(call: Invocation) -> CommandResult:
    path = Path(call.text("FILE|DIR")).expanduser().absolute()
    if call.switch("verify"):
        found: Document = restoring.verify(path, store_files(), _progress(call))
        return CommandResult(data=found, text=lambda screen: _verified_text(found, screen))
    wanted = BackupRequest(
        target=path,
        scopes=parse_parts(call.optional("scope")),
        secrets=call.switch("secrets"),
        now=datetime.now(UTC),
        dry_run=call.switch("dry_run"),
    )
    # What is backed up need not be what was sealed: a broken seal is worth keeping as it is.
    opened = open_configuration(call.config, call.environ, seal=SealCheck.IGNORE)
    if BackupPart.STATE in wanted.scopes:
        wanted = replace(wanted, store_in_use=_is_store_in_use(call, opened))
    done: Document = write_backup(opened, wanted, store_files(), _progress(call))
    return CommandResult(data=done, text=lambda screen: _backup_text(done, screen))


def _is_store_in_use(call: Invocation, opened: OpenedConfiguration) -> bool:
    """Whether a daemon uses the store, or has left its link behind. Raises what the daemon says is wrong.

    Only the daemon can tell whether the files at their paths are still those that it writes to. One that
    does not answer does not keep anybody from a backup.
    """
    with suppress(ConfigError):  # a broken seal, which a backup may have; the link tells enough then
        try:
            connection = connect_to_daemon(call)
        except StoreBusyError:  # it is there, and does not answer
            return True
        if connection is not None:
            with suppress(StoreBusyError, DaemonNotRunningError):
                exchange(connection, "system.status", {}, timeout=_PATIENCE)
            return True
    return linked_socket(opened.loaded.path) is not None


def restore(call: Invocation) -> CommandResult:
    to = call.optional("to")
    done: Document = restoring.restore(
        Path(call.text("FILE")).expanduser().absolute(),
        None if to is None else Path(to).expanduser().absolute(),
        store_files(),
        _progress(call),
        known=config_directories(call.config, call.environ),
        dry_run=call.switch("dry_run"),
    )
    return CommandResult(data=done, text=lambda screen: _restore_text(done, screen))


def _progress(call: Invocation) -> BackupProgress:
    """On a terminal a line that changes, elsewhere nothing: it is not what was asked for."""
    if call.json or not sys.stderr.isatty():
        return _keep_quiet
    return _show_progress


def _keep_quiet(what: str, done: int, of: int) -> None:
    """A program that reads our output has no use for it."""


def _show_progress(what: str, done: int, of: int) -> None:
    share = 100 if of == 0 else 100 * done // of
    end = "\r\x1b[K" if done >= of else ""
    sys.stderr.write(f"\r\x1b[K{what}: {share}%{end}")
    sys.stderr.flush()


def _backup_text(done: Document, screen: Console) -> str:
    parts = ", ".join(f"{format_count(files, 'file')} of {scope}" for scope, files in done["files"].items())
    size = f"{done['bytes'] / _MIB:.1f} MiB"
    begin = "Would write" if done["dry_run"] else "Wrote"
    lines = [f"{begin} {screen.place(done['path'])}: {parts}; {size} before compression."]
    return "\n".join([*lines, *_left_out_lines(done, screen), *_secret_lines(done, screen)])


def _left_out_lines(done: Document, screen: Console) -> list[str]:
    return [f"{screen.style('yellow', 'left out:')} {screen.place(path)}" for path in done["left_out"]]


def _secret_lines(done: Document, screen: Console) -> list[str]:
    if done["secrets_left_out"]:
        return [
            "Files of variables hold secrets and are needed after a restore: add --secrets to include them."
        ]
    if not done["secrets"]:
        return []
    return [f"{screen.style('yellow', 'warning:')} it holds secrets in the clear; keep it as safe as them."]


def _verified_text(found: Document, screen: Console) -> str:
    store = f", store of schema version {found['schema_version']}" if found["schema_version"] else ""
    return (
        f"{screen.style('green', 'ok:')} {format_count(found['files'], 'file')}{store}, "
        f"made {format_time(found['created_at'])} by Ductile {found['ductile']} of {found['directory']}."
    )


def _restore_text(done: Document, screen: Console) -> str:
    begin = "Would restore" if done["dry_run"] else "Restored"
    size = f"{done['bytes'] / _MIB:.1f} MiB"
    lines = [f"{begin} {format_count(done['files'], 'file')}, {size}, to {screen.place(done['directory'])}."]
    lines += [
        f"{screen.style('yellow', 'was elsewhere:')} {row['from']} is now {screen.place(row['to'])}"
        for row in done["outside"]
    ]
    missing = screen.style("yellow", "not in the backup:")
    where = done["directory"] if done["config"] is None else str(Path(done["config"]).parent)
    lines += [
        f"{missing} {path}; put it back at its place in {screen.place(where)}" for path in done["left_out"]
    ]
    if done["config"] is not None:
        lines.append(f"Next: ductile config check --config {screen.place(done['config'])}")
    return "\n".join(lines)
