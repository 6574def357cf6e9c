"""`ductile plugin add|update|remove`: install plugins and put them in force in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import Document, request_daemon, request_if_available
from ductile.cli.commands.config.files import change_as_json, change_text
from ductile.cli.commands.system.daemon import can_reload_daemon, reload_text
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls, show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, PLUGIN_FILES, Argument, Example, Option, action

if TYPE_CHECKING:
    from datetime import datetime

    from ductile.admin.plugin_install.add import AddPlan
    from ductile.admin.plugin_install.remove import RemovalPlan
    from ductile.admin.plugin_install.update import UpdatePlan
    from ductile.core.json import JsonObject

_NO_APPLY = Option("--no-apply", "do not reload a running daemon")
_DISCARD = Option("--discard-changes", "also if its files were changed here; the changes are lost")
#: Number of files that are listed.
_MAX_FILES = 30


@action(
    "add",
    "add a plugin: shipped, from a directory, an archive or a git repository",
    arguments=(
        Argument(
            "SOURCE",
            "a shipped plugin, a directory, a .tar.gz, .tgz or .zip, or git+URL@TAG[#path=DIRECTORY]",
        ),
    ),
    options=(
        Option("--as NAME", "the name in the configuration (default: the plugin's own)"),
        Option("--plugin NAME", "which one, if the source holds several"),
        Option("--settings JSON", "the plugin's `config`: JSON, @FILE or -"),
        DRY_RUN,
        _NO_APPLY,
    ),
    about="Shows what the plugin is and what it may do, copies it into your first plugin root, names it in "
    "the configuration, seals both and reloads a running daemon. A shipped plugin is not copied. Of a "
    "repository it takes the files of a tag or commit as they are stored: no hooks, filters or submodules. "
    "Plugins are not confined: add only code that you would run yourself.",
    examples=(
        Example("ductile plugin add fetch", "one that Ductile ships"),
        Example("ductile plugin add ./weather --dry-run", "what is it, and what would change?"),
        Example(
            "ductile plugin add git+https://example.org/x.git@v1.2#path=weather",
            "a tag of a repository",
        ),
    ),
    local_reason=PLUGIN_FILES,
)
def add(invocation: Invocation) -> CommandResult:
    from pathlib import Path

    from ductile.admin.plugin_install.add import add_plugin, plan_addition
    from ductile.admin.plugin_install.candidate import find_candidate, read_source
    from ductile.core.timestamps import format_timestamp

    source = read_source(invocation.text("SOURCE"), base=Path.cwd())
    with show_waiting(invocation, "the files of the plugin"):
        candidate = find_candidate(
            source, invocation.optional("plugin"), invocation.environ, now=format_timestamp(_now())
        )
    plan = plan_addition(
        invocation.config,
        invocation.environ,
        candidate,
        alias=invocation.optional("as"),
        settings=invocation.json_object("settings"),
    )
    dry_run, reloaded = invocation.switch("dry_run"), None
    has_daemon = not invocation.switch("no_apply") and can_reload_daemon(invocation)
    if not dry_run:
        plan = add_plugin(plan, invocation.config, invocation.environ)
        reloaded = _reload(invocation) if has_daemon else None
    data = _addition_as_json(plan, dry_run=dry_run) | {"reloaded": reloaded}

    def text(console: Console) -> str:
        parts = [_describe(plan, console), _addition_text(plan, console, dry_run=dry_run)]
        if not dry_run:
            parts.append(
                _effect_text(reloaded, has_daemon=has_daemon, console=console, invocation=invocation)
            )
        return "\n\n".join([*parts, _next_step(plan, console)])

    return CommandResult(data, text)


def _now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)


def _reload(invocation: Invocation) -> Document:
    from ductile.errors import DuctileError

    try:
        return request_daemon(invocation, "system.reload", {})
    except DuctileError as error:
        error.message = f"the change was written, but the daemon did not load it: {error.message}"
        raise


def _effect_text(
    reloaded: Document | None, *, has_daemon: bool, console: Console, invocation: Invocation
) -> str:
    if reloaded is not None:
        return reload_text(reloaded, console)
    if invocation.switch("no_apply"):
        return console.hint("A running daemon was not reloaded: `ductile reload`")
    return "" if has_daemon else "No daemon is running; the next start uses the change."


def _describe(plan: AddPlan, console: Console) -> str:
    """Return the description of the plugin, and its rights."""
    candidate, rights = plan.candidate, plan.rights
    manifest, record = candidate.manifest, candidate.record
    files: str | None = None
    if (tree := candidate.tree) is not None:
        sizes = [f"{name} ({len(file.data)})" for name, file in sorted(tree.files.items())]
        more = f" and {len(sizes) - _MAX_FILES} more" if len(sizes) > _MAX_FILES else ""
        total = sum(len(file.data) for file in tree.files.values())
        files = f"{fmt.count(len(sizes), 'file')}, {total} bytes: {', '.join(sizes[:_MAX_FILES])}{more}"
    fields = [
        ("about", manifest.description),
        ("version", manifest.version),
        ("source", "shipped with Ductile" if record is None else candidate.source),
        ("commit", record.commit if record else None),
        ("hash", record.hash if record else None),
        ("files", files),
        ("required config", ", ".join(manifest.required_config)),
        ("optional config", ", ".join(manifest.optional_config)),
        ("runs as", f"{rights.user}, not confined: {rights.files}"),
        ("network", rights.network),
        ("environment", ", ".join(rights.environment)),
        ("limits", rights.limits.replace("NAME", plan.name)),
    ]
    rows = [(command.name, str(command.type), command.description) for command in manifest.commands.values()]
    table = console.table(("COMMAND", "TYPE", "ABOUT"), rows, wrap_last=True)
    lines = [console.style("bold", escape_controls(candidate.name)), *fmt.fields(fields, console)]
    return "\n".join([*lines, "", table])


def _addition_text(plan: AddPlan, console: Console, *, dry_run: bool) -> str:
    lines = []
    if plan.candidate.shared_directory is not None:
        text = (
            f"{plan.candidate.shared_directory}/ beside it in the source is not added; "
            "copy it if the plugin needs it."
        )
        lines.append(console.style("yellow", escape_controls(text)))
    if plan.replaces_shipped:
        lines.append(
            console.style("yellow", f"It is used instead of the shipped plugin {plan.candidate.name}.")
        )
    if plan.plugin_directory is not None:
        path = console.path(str(plan.plugin_directory))
        copied = "Would copy it to" if dry_run else "Copied it to"
        lines.append(f"{'It is already in' if plan.is_present else copied} {path}.")
    if plan.change is None:
        lines.append(f"The configuration names {plan.name} already.")
    else:
        lines += ["", change_text(plan.change, console).replace("\n\nNothing was written.", "")]
    if not plan.has_seal:
        lines.append(console.hint("The configuration has never been sealed; seal it with `ductile apply`."))
    if dry_run:
        lines += ["", "Nothing was written."]
    return "\n".join(lines)


def _next_step(plan: AddPlan, console: Console) -> str:
    """Return the commands to type next."""
    title, commands = "Next:", [f"ductile run {plan.name}"]
    if plan.missing_config:
        title = f"It cannot run before {', '.join(plan.missing_config)} is set. Next:"
        setting, last = f"plugins.{plan.name}.config", plan.missing_config[-1]
        commands = [
            f"ductile config set {setting}.{key} VALUE{' --apply' if key == last else ''}"
            for key in plan.missing_config
        ]
    return "\n".join([title, "", *(f"  {console.hint(command)}" for command in commands)])


def _addition_as_json(plan: AddPlan, *, dry_run: bool) -> JsonObject:
    from ductile.struct import to_builtins

    candidate = plan.candidate
    manifest, record, tree = candidate.manifest, candidate.record, candidate.tree
    rights: JsonObject = to_builtins(plan.rights)
    return {
        "name": plan.name,
        "plugin": candidate.name,
        "version": manifest.version,
        "description": manifest.description,
        "source": "shipped" if record is None else candidate.source,
        "commit": record.commit if record else None,
        "hash": record.hash if record else None,
        "commands": {command.name: str(command.type) for command in manifest.commands.values()},
        "required_config": [*manifest.required_config],
        "optional_config": [*manifest.optional_config],
        "missing_config": [*plan.missing_config],
        "rights": rights,
        "directory": None if plan.plugin_directory is None else str(plan.plugin_directory),
        "files": {} if tree is None else {name: len(file.data) for name, file in tree.files.items()},
        "change": None if plan.change is None else change_as_json(plan.change),
        "written": not dry_run,
    }


@action(
    "update",
    "replace the files of an added plugin by newer ones",
    arguments=(
        Argument("NAME", "name of the plugin"),
        Argument("SOURCE", "where from (default: where it was added from)", required=False),
    ),
    options=(
        Option("--to TAG", "a tag or commit of the repository that it is from"),
        _DISCARD,
        DRY_RUN,
        _NO_APPLY,
    ),
    about="Shows the files, commands and configuration keys that change. The old files are kept until the "
    "daemon has loaded the new ones; if it refuses them, they are put back.",
    examples=(
        Example("ductile plugin update weather --to v1.3 --dry-run", "what would change?"),
        Example("ductile plugin update weather ./weather-1.3.tar.gz", "from an archive"),
    ),
    local_reason=PLUGIN_FILES,
)
def update(invocation: Invocation) -> CommandResult:
    from ductile.admin.plugin_install import update as updates
    from ductile.core.timestamps import format_timestamp
    from ductile.errors import DuctileError

    with show_waiting(invocation, "the files of the plugin"):
        plan = updates.plan_update(
            invocation.config,
            invocation.environ,
            invocation.text("NAME"),
            invocation.optional("SOURCE"),
            revision=invocation.optional("to"),
            discard_changes=invocation.switch("discard_changes"),
            now=format_timestamp(_now()),
        )
    dry_run, reloaded = invocation.switch("dry_run"), None
    has_daemon = not invocation.switch("no_apply") and can_reload_daemon(invocation)
    if not dry_run:
        updates.begin_update(plan, invocation.config, invocation.environ)
        try:
            reloaded = request_daemon(invocation, "system.reload", {}) if has_daemon else None
        except DuctileError as error:
            updates.undo_update(plan)
            error.message = f"the old files are back: the daemon did not load the new ones: {error.message}"
            raise
        updates.finish_update(plan)
    data = _update_as_json(plan, dry_run=dry_run) | {"reloaded": reloaded}

    def text(console: Console) -> str:
        parts = [_update_text(plan, console)]
        parts.append("Nothing was written." if dry_run else f"Updated {plan.plugin.name}.")
        if not dry_run:
            parts.append(
                _effect_text(reloaded, has_daemon=has_daemon, console=console, invocation=invocation)
            )
        return "\n\n".join(parts)

    return CommandResult(data, text)


def _update_text(plan: UpdatePlan, console: Console) -> str:
    before, after = plan.plugin.record, plan.candidate.record
    lines = [console.style("bold", plan.plugin.name)]
    if after is not None:
        lines += fmt.fields(
            [("from", _origin(before.source, before.commit)), ("to", _origin(after.source, after.commit))],
            console,
        )
    if plan.plugin.changed_files:
        warning = f"changes made here that are lost: {', '.join(plan.plugin.changed_files)}"
        lines.append(f"  {console.style('yellow', escape_controls(warning))}")
    lines += [f"  {escape_controls(line)}" for line in plan.interface_changes]
    lines += [
        f"  {console.style('yellow', f'cannot run until it is set: {key}')}" for key in plan.missing_config
    ]
    rows = [
        (
            file.name,
            file.change,
            "-" if file.added_lines is None else f"+{file.added_lines}",
            "-" if file.removed_lines is None else f"-{file.removed_lines}",
        )
        for file in plan.files
    ]
    table = console.table(("FILE", "CHANGE", "LINES", ""), rows) if rows else "No file differs."
    return "\n".join([*lines, "", table])


def _origin(source: str, commit: str | None) -> str:
    return escape_controls(source if commit is None else f"{source} ({commit[:12]})")


def _update_as_json(plan: UpdatePlan, *, dry_run: bool) -> JsonObject:
    from ductile.struct import to_builtins

    before, after = plan.plugin.record, plan.candidate.record
    return {
        "plugin": plan.plugin.name,
        "directory": str(plan.plugin.plugin_directory),
        "before": {
            "source": before.source,
            "commit": before.commit,
            "version": before.version,
            "hash": before.hash,
        },
        "after": None
        if after is None
        else {"source": after.source, "commit": after.commit, "version": after.version, "hash": after.hash},
        "files": [to_builtins(file) for file in plan.files],
        "interface": [*plan.interface_changes],
        "missing_config": [*plan.missing_config],
        "discarded": [*plan.plugin.changed_files],
        "written": not dry_run,
    }


@action(
    "remove",
    "remove a plugin from the configuration and, if it was added, its files",
    arguments=(Argument("NAME", "name of the plugin, as it is configured"),),
    options=(_DISCARD, DRY_RUN, _NO_APPLY),
    about="Refused while a route, pipeline, webhook or setting names it. Its schedules end; its queued jobs "
    "end as dead (plugin_removed); to run them first: `ductile plugin disable NAME --drain`. "
    "Its state, facts and past jobs stay in the store. Files that `plugin add` did not write are left alone.",
    examples=(Example("ductile plugin remove weather --dry-run", "is it in use, and which jobs would end?"),),
    local_reason=PLUGIN_FILES,
)
def remove(invocation: Invocation) -> CommandResult:
    from ductile.admin.plugin_install import remove as removal

    name, dry_run = invocation.text("NAME"), invocation.switch("dry_run")
    plan = removal.plan_plugin_removal(
        invocation.config, invocation.environ, name, discard_changes=invocation.switch("discard_changes")
    )
    pending = request_if_available(invocation, "plugin.pending", {"plugin": name}) if plan.change else None
    reloaded, has_daemon = None, not invocation.switch("no_apply") and can_reload_daemon(invocation)
    if not dry_run:
        plan = removal.remove_from_config(plan, invocation.config, invocation.environ)
        reloaded = _reload(invocation) if has_daemon else None
        removal.remove_files(plan)
    data: JsonObject = {
        "name": name,
        "change": None if plan.change is None else change_as_json(plan.change),
        "ended_schedules": [*plan.schedules],
        "pending": pending,
        "directory": None if plan.added is None else str(plan.added.plugin_directory),
        "kept": plan.reason_files_stay,
        "written": not dry_run,
        "reloaded": reloaded,
    }

    def text(console: Console) -> str:
        parts = [_removal_text(plan, pending, console, dry_run=dry_run)]
        if not dry_run:
            parts.append(
                _effect_text(reloaded, has_daemon=has_daemon, console=console, invocation=invocation)
            )
        return "\n\n".join(parts)

    return CommandResult(data, text)


def _removal_text(plan: RemovalPlan, pending: Document | None, console: Console, *, dry_run: bool) -> str:
    lines = []
    if plan.change is not None:
        lines += [change_text(plan.change, console).replace("\n\nNothing was written.", "").rstrip(), ""]
    if plan.schedules:
        lines.append(f"Its schedules end: {', '.join(plan.schedules)}.")
    if dry_run and pending is not None and (pending["queued"] or pending["runs"]):
        jobs, runs = fmt.count(pending["queued"], "queued job"), fmt.count(pending["runs"], "pipeline run")
        text = f"{jobs} would end as dead (plugin_removed); {runs} still to end would miss it."
        lines.append(console.style("yellow", text))
        lines.append(console.hint(f"To run them first: `ductile plugin disable {plan.name} --drain`"))
    if plan.added is not None:
        verb = "Would remove" if dry_run else "Removed"
        lines.append(f"{verb} {console.path(str(plan.added.plugin_directory))}.")
    elif plan.reason_files_stay is not None:
        lines.append(escape_controls(f"{plan.reason_files_stay[0].upper()}{plan.reason_files_stay[1:]}."))
    lines.append("Its state, facts and past jobs stay in the store.")
    return "\n".join([*lines, *(["", "Nothing was written."] if dry_run else [])])
