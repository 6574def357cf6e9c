"""`ductile system backup` and `ductile system restore`: both work on files, with or without a daemon."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ductile.cli.client import Document, connect_to_daemon, send_request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, progress_line
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, NO_DAEMON, Argument, Example, Option, action

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.admin.config import OpenedConfiguration

_MIB = 1024 * 1024
#: Seconds for the daemon to report the state of its store.
_STATUS_TIMEOUT = 5.0


@action(
    "backup",
    "write configuration, store and plugins to one archive, also while the daemon runs",
    arguments=(Argument("FILE|DIR", "the archive to write, or the directory to put it into"),),
    options=(
        Option("--scope PARTS", "only these parts, with commas: config, state, plugins (default all)"),
        Option("--secrets", "include the files of environment variables, which hold the secrets"),
        Option("--verify", "check the archive instead: every hash, and that its store opens"),
        DRY_RUN,
    ),
    about="The store is copied as it is at one instant, whatever is written meanwhile. The archive is "
    "readable by its owner alone and never overwrites anything. Without --secrets the files of "
    "variables are left out and named: keep them elsewhere, or add --secrets.",
    examples=(
        Example("ductile system backup /var/backups", "into a directory, under a name with the date"),
        Example("ductile system backup ductile.tar.gz --scope config,plugins", "without the store"),
        Example("ductile system backup ductile.tar.gz --verify", "is this archive whole?"),
    ),
    local_reason=CONFIG_FILES,
)
def backup(invocation: Invocation) -> CommandResult:
    from datetime import UTC, datetime

    from ductile.admin.backup.create import BackupPart, BackupRequest, back_up, parse_parts
    from ductile.admin.backup.restore import verify
    from ductile.admin.config import open_configuration
    from ductile.config.load import SealMode
    from ductile.offline import store_files
    from ductile.struct import replace

    path = _absolute(invocation.text("FILE|DIR"))
    if invocation.switch("verify"):
        archive: Document = verify(path, store_files(), progress_line(json=invocation.json))

        def verified_text(console: Console) -> str:
            store = (
                f", store of schema version {archive['schema_version']}" if archive["schema_version"] else ""
            )
            created = fmt.local_and_relative_time(archive["created_at"], console)
            return (
                f"{console.style('green', 'ok:')} {fmt.count(archive['files'], 'file')}{store}, "
                f"made {created} by Ductile {archive['ductile']} of {archive['directory']}."
            )

        return CommandResult(archive, verified_text)
    backup_request = BackupRequest(
        target=path,
        parts=parse_parts(invocation.optional("scope")),
        include_secrets=invocation.switch("secrets"),
        now=datetime.now(UTC),
        dry_run=invocation.switch("dry_run"),
    )
    # A configuration with a broken seal is worth a backup, too.
    opened = open_configuration(invocation.config, invocation.environ, seal=SealMode.IGNORE)
    if BackupPart.STATE in backup_request.parts:
        backup_request = replace(backup_request, store_in_use=_is_store_in_use(invocation, opened))
    response: Document = back_up(opened, backup_request, store_files(), progress_line(json=invocation.json))

    def text(console: Console) -> str:
        parts = ", ".join(
            f"{fmt.count(files, 'file')} of {scope}" for scope, files in response["files"].items()
        )
        begin = f"{'Would write' if response['dry_run'] else 'Wrote'} {console.path(response['path'])}"
        lines = [f"{begin}: {parts}; {response['bytes'] / _MIB:.1f} MiB before compression."]
        lines += [
            f"{console.style('yellow', 'left out:')} {console.path(path)}" for path in response["left_out"]
        ]
        if response["secrets_left_out"]:
            lines.append(
                "Files of variables hold secrets, and a restore needs them: add --secrets to include them."
            )
        elif response["secrets"]:
            warning = console.style("yellow", "warning:")
            lines.append(f"{warning} it holds secrets in the clear; keep it as safe as them.")
        return "\n".join(lines)

    return CommandResult(response, text)


@action(
    "restore",
    "put an archive back into a directory that is empty or not there",
    arguments=(Argument("FILE", "the archive that `system backup` wrote"),),
    options=(
        Option(
            "--to DIR", "where to; needed unless what was backed up is the present configuration's directory"
        ),
        DRY_RUN,
    ),
    about="Every hash is checked first, and nothing is overwritten. Either all of it is there "
    "afterwards, or nothing. What was outside of the configuration's directory is put below "
    "`outside`, and its old place is shown; plugin roots that are written as relative paths keep their "
    "place beside the configuration. The restored store gets an id of its own.",
    local_reason=NO_DAEMON,
)
def restore(invocation: Invocation) -> CommandResult:
    from ductile.admin.backup import restore
    from ductile.config.find_config import config_directories
    from ductile.offline import store_files

    target = invocation.optional("to")
    response: Document = restore.restore(
        _absolute(invocation.text("FILE")),
        None if target is None else _absolute(target),
        store_files(),
        progress_line(json=invocation.json),
        known_directories=config_directories(invocation.config, invocation.environ),
        dry_run=invocation.switch("dry_run"),
    )

    def text(console: Console) -> str:
        begin = (
            f"{'Would restore' if response['dry_run'] else 'Restored'} {fmt.count(response['files'], 'file')}"
        )
        lines = [f"{begin}, {response['bytes'] / _MIB:.1f} MiB, to {console.path(response['directory'])}."]
        outside_label = console.style("yellow", "was elsewhere:")
        missing_label = console.style("yellow", "not in the backup:")
        lines += [
            f"{outside_label} {row['from']} is now {console.path(row['to'])}" for row in response["outside"]
        ]
        directory = console.path(
            response["directory"] if response["config"] is None else str(_absolute(response["config"]).parent)
        )
        lines += [
            f"{missing_label} {path}; put it back at its place in {directory}"
            for path in response["left_out"]
        ]
        if response["config"] is not None:
            lines.append(f"Next: ductile config check --config {console.path(response['config'])}")
        if response["store"] is not None and response["server"] is not None:
            lines += _steps_for_server_store(response, console)
        return "\n".join(lines)

    return CommandResult(response, text)


def _steps_for_server_store(response: Document, console: Console) -> list[str]:
    """Return how to continue with the restored copy of a store that was on a database server."""
    import shlex

    config = "" if response["config"] is None else f" --config {shlex.quote(response['config'])}"
    store = shlex.quote(response["store"])
    setting = f"state: {{path: {response['store']}}}"
    return [
        f"The store was on {response['server']}; its copy is {console.path(response['store'])}.",
        "To put it into the database that state.url names, which must be empty:",
        f"  ductile system move-store --from {store}{config}",
        f"To go on with the file instead: write `{setting}` into the configuration.",
    ]


def _absolute(path: str) -> Path:
    from pathlib import Path

    return Path(path).expanduser().absolute()


def _is_store_in_use(invocation: Invocation, opened: OpenedConfiguration) -> bool:
    """Return whether a daemon uses the store, or has left its link. Raises an error that the daemon reports.

    Only the daemon knows whether the files at the paths of the store are still those that it writes to. A
    daemon that does not answer does not prevent a backup.
    """
    from ductile.control.socket_files import linked_socket
    from ductile.errors import ConfigError, DaemonNotRunningError, StoreBusyError

    with suppress(ConfigError):  # with a broken seal the daemon is not found, but its link may be
        try:
            connection = connect_to_daemon(invocation)
        except StoreBusyError:  # the daemon runs, but does not answer
            return True
        if connection is not None:
            with suppress(StoreBusyError, DaemonNotRunningError):
                send_request(invocation, connection, "system.status", {}, timeout=_STATUS_TIMEOUT)
            return True
    return linked_socket(opened.loaded.path) is not None
