"""`ductile plugin list|show|stats|check|lock|state|facts`: plugins, their seal and their records."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ductile.cli.client import Document, request_daemon, request_if_available
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, PLUGIN_FILES, Argument, Example, action, renders

if TYPE_CHECKING:
    from ductile.core.json import JsonObject, JsonValue
    from ductile.plugins.catalogue import PluginEntry
    from ductile.plugins.source_record import SourceRecord


@action("list", "list the plugins: active, disabled, refused, available", "plugin.list")
def list_plugins(invocation: Invocation) -> CommandResult:
    if invocation.remote is not None:
        response = request_daemon(invocation)
        return CommandResult(response, lambda console: _remote_list(response, console))
    from ductile.admin import plugins

    entries = plugins.list_plugins(invocation.config, invocation.environ)
    failed = _failed_inits(invocation)
    unused = plugins.unused_shipped(entries)

    def text(console: Console) -> str:
        shipped = f"Shipped with Ductile, not in use: {', '.join(unused)}." if unused else ""
        shipped = fmt.sentence(shipped, console)
        if not entries:
            return f"No plugins are configured.\n\n{shipped}"
        rows = []
        for entry in entries:
            status, note = str(entry.standing), ""
            if entry.name in failed:
                status = f"{status}, unhealthy"
                note = console.hint(f"init failed: {fmt.init_failure(failed[entry.name])}")
            elif entry.reason:  # one line: `plugin check` shows the whole reason
                note = entry.reason.partition("\n")[0].rstrip(":")
            elif entry.manifest:
                note = entry.manifest.description
            name = entry.name if entry.name == entry.uses else f"{entry.name} ({entry.uses})"
            version = (entry.manifest.version if entry.manifest else "") or "-"
            rows.append((name, status, version, console.path(_origin(entry) or "-"), note))
        table = console.table(("NAME", "STATUS", "VERSION", "FROM", "ABOUT"), rows, optional=("FROM",))
        return f"{table}\n\n{shipped}" if shipped else table

    rows: list[JsonValue] = [_summary(entry) | {"unhealthy": failed.get(entry.name)} for entry in entries]
    return CommandResult({"plugins": rows, "shipped": [*unused]}, text)


@action(
    "show",
    "show one plugin: its commands, configuration keys and trust",
    "plugin.show",
    arguments=(Argument("NAME", "name of the plugin, or of a configured instance", field="plugin"),),
    about="Read from the files of this machine; with --url, what the daemon has loaded.",
)
def show(invocation: Invocation) -> CommandResult:
    if invocation.remote is not None:
        response = request_daemon(invocation)
        return CommandResult(response, lambda console: _remote_details(response, console))
    from ductile.admin.plugins import show_plugin

    entry = show_plugin(invocation.config, invocation.environ, invocation.text("NAME"))
    failed = _failed_inits(invocation).get(entry.name)
    # The figures of the last day are in the store. There are none without a store, or if nothing has run.
    figures = request_if_available(invocation, "plugin.stats", {"plugin": entry.name})
    stats = figures["plugins"][0] if figures is not None and figures["plugins"] else None

    def text(console: Console) -> str:
        from ductile.core.durations import format_duration

        unhealthy = None if failed is None else console.hint(f"its init failed: {fmt.init_failure(failed)}")
        fields: list[tuple[str, str | None]] = [
            ("status", entry.standing.value),
            ("unhealthy", unhealthy),
            ("reason", (entry.reason or "").replace("\n", " ")),
            ("hint", entry.hint),
            ("uses", entry.uses if entry.uses != entry.name else None),
            ("used as", ", ".join(entry.instances)),
        ]
        manifest, instance, record = entry.manifest, entry.instance, _source_record(entry)
        if manifest is not None:
            fields += [
                ("about", manifest.description),
                ("version", manifest.version),
                ("required config", ", ".join(manifest.required_config)),
                ("optional config", ", ".join(manifest.optional_config)),
            ]
        if (script := entry.script) is not None:
            fields += [
                ("runs", shlex.join(script.argv)),
                ("output", script.output),
                ("emits", script.done_event),
                ("sealed", None if entry.sealed else "no: its program is found by PATH"),
            ]
        fields += [
            ("from", "shipped with Ductile" if entry.shipped else record.source if record else None),
            ("commit", record.commit if record else None),
            ("directory", console.path(str(entry.directory)) if entry.directory is not None else None),
            ("fingerprint", fmt.short_hash(entry.fingerprint, console)),
        ]
        if instance is not None and manifest is not None:
            fields += [
                ("schedules", ", ".join(schedule.id for schedule in instance.schedules)),
                ("parallelism", str(instance.parallelism)),
                ("attempts", str(instance.retry.max_attempts)),
            ]
        fields.append(("last 24h", None if stats is None else _stats_line(stats)))
        lines = [console.style("bold", entry.name), *fmt.fields(fields, console)]
        if manifest is not None:
            rows = []
            for command in manifest.commands.values():
                timeout = format_duration(instance.timeout_for(command.name)) if instance else "-"
                rows.append((command.name, command.type, timeout, command.description))
            lines += ["", console.table(("COMMAND", "TYPE", "TIMEOUT", "ABOUT"), rows, wrap_last=True)]
        return "\n".join(lines)

    return CommandResult(_details(entry) | {"unhealthy": failed, "stats": stats}, text)


@renders(
    "stats",
    "show how executions went: how many failed, how long they took and waited",
    "plugin.stats",
    arguments=(Argument("NAME", "name of the plugin, as it is configured", required=False, field="plugin"),),
    about="p50, p95 and p99 are percentiles: 50, 95 and 99 of a hundred executions took no longer. The "
    "wait is from the submission of a job to its first start.",
    examples=(
        Example("ductile plugin stats", "every plugin, the last 24 hours"),
        Example("ductile plugin stats echo --since 7d", "one plugin, a week"),
    ),
)
def stats(response: Document, console: Console) -> str:
    if not response["plugins"]:
        return f"Nothing has run since {fmt.local_and_relative_time(response['since'], console)}."
    rows = [
        (
            row["plugin"],
            *map(str, (row["executions"], row["failures"], row["timeouts"], row["retries"])),
            *_times(row["run_ms"]),
            *_times(row["wait_ms"]),
            str(row["stderr_bytes"]),
        )
        for row in response["plugins"]
    ]
    headers = (
        *("PLUGIN", "RUNS", "FAILED", "TIMED OUT", "RETRIES", "P50", "P95", "P99"),
        *("WAIT P50", "WAIT P95", "WAIT P99", "STDERR"),
    )
    table = console.table(headers, rows, optional=("STDERR", "WAIT P99", "WAIT P50", "TIMED OUT"))
    since = f"Since {fmt.local_and_relative_time(response['since'], console)}"
    return f"{table}\n\n{since}{'.' if response['complete'] else ', of these the latest 50,000 executions.'}"


def _times(percentiles: Document | None) -> tuple[str, str, str]:
    if percentiles is None:
        return "-", "-", "-"
    return (
        fmt.duration(percentiles["p50"]),
        fmt.duration(percentiles["p95"]),
        fmt.duration(percentiles["p99"]),
    )


def _stats_line(stats: Document) -> str:
    p50, p95, p99 = _times(stats["run_ms"])
    waited = _times(stats["wait_ms"])
    return (
        f"{fmt.count(stats['executions'], 'execution')}, {stats['failures']} failed; "
        f"run time p50 {p50}, p95 {p95}, p99 {p99}; wait p50 {waited[0]}, p95 {waited[1]}, p99 {waited[2]}"
    )


@action(
    "check",
    "check manifests, files and required configuration",
    arguments=(Argument("NAME|DIR", "one plugin by name, or a directory outside the roots", required=False),),
    local_reason=PLUGIN_FILES,
)
def check(invocation: Invocation) -> CommandResult:
    from dataclasses import asdict

    from ductile.admin.plugins import check_plugins
    from ductile.errors import Exit

    result = check_plugins(invocation.config, invocation.environ, invocation.optional("NAME|DIR"))

    def text(console: Console) -> str:
        from ductile.cli.console.errors import paragraph, problems_as_text

        ok = console.style("green", "ok:")
        accepted = [
            f"{ok} {entry.name} {entry.manifest.version if entry.manifest else ''}".rstrip()
            for entry in result.plugins
            if entry not in result.refused
        ]
        parts = ["\n".join(accepted)] if accepted else []
        for entry in result.refused:
            title = f"{console.style('red', 'refused:')} {console.style('bold', entry.name)}"
            parts.append(f"{title}\n{paragraph('', entry.reason or '', (('hint', entry.hint),), console)}")
        if result.warnings:
            parts += [console.style("yellow", "also:"), problems_as_text(result.warnings, console)]
        return "\n\n".join(parts) or "No plugins were found."

    return CommandResult(
        {
            "valid": not result.refused,
            "plugins": [_summary(entry) for entry in result.plugins],
            "warnings": [asdict(warning) for warning in result.warnings],
        },
        text,
        exit_status=Exit.CONFIG if result.refused else Exit.OK,
    )


def _remote_list(response: Document, console: Console) -> str:
    """Return the plugins that a daemon on another machine has loaded."""
    rows = []
    for row in response["plugins"]:
        name = row["name"] if row["name"] == row["uses"] else f"{row['name']} ({row['uses']})"
        status = f"{row['standing']}, unhealthy" if row["unhealthy"] else row["standing"]
        note = (row["refused"] or row["description"] or "").partition("\n")[0]
        rows.append((name, status, row["version"] or "-", note))
    if not rows:
        return "The daemon has no plugins."
    return console.table(("NAME", "STATUS", "VERSION", "ABOUT"), rows)


def _remote_details(response: Document, console: Console) -> str:
    fields = [
        ("status", response["standing"]),
        ("unhealthy", f"its init failed: {response['init_error']}" if response["unhealthy"] else None),
        ("reason", (response["refused"] or "").replace("\n", " ")),
        ("uses", response["uses"] if response["uses"] != response["name"] else None),
        ("about", response["description"]),
        ("version", response["version"]),
        ("required config", ", ".join(response["config_keys"]["required"])),
        ("optional config", ", ".join(response["config_keys"]["optional"])),
        ("schedules", ", ".join(response["schedules"])),
        ("parallelism", str(response["parallelism"])),
    ]
    rows = [
        (name, command["type"], fmt.duration(command["timeout_ms"]), command["description"])
        for name, command in response["commands"].items()
    ]
    lines = [console.style("bold", escape_controls(response["name"])), *fmt.fields(fields, console)]
    if rows:
        lines += ["", console.table(("COMMAND", "TYPE", "TIMEOUT", "ABOUT"), rows, wrap_last=True)]
    return "\n".join(lines)


def _failed_inits(invocation: Invocation) -> Document:
    """Return the failed inits by plugin. They are in the store: none are known without one."""
    response = request_if_available(invocation, "plugin.health", {})
    return {} if response is None else response["unhealthy"]


def _origin(entry: PluginEntry) -> str | None:
    """Return where a plugin is from: `shipped`, `script`, or its plugin root; None if it was not found."""
    if entry.shipped or entry.script is not None:
        return "shipped" if entry.shipped else "script"
    return None if entry.directory is None else str(entry.directory.parent)


def _source_record(entry: PluginEntry) -> SourceRecord | None:
    """Return the record of where an added plugin is from; None for any other plugin."""
    from ductile.plugins.source_record import read_record

    return None if entry.directory is None or entry.script or entry.shipped else read_record(entry.directory)


def _summary(entry: PluginEntry) -> JsonObject:
    manifest, record = entry.manifest, _source_record(entry)
    return {
        "name": entry.name,
        "status": entry.standing,
        "uses": entry.uses,
        "configured": entry.configured,
        "version": manifest.version if manifest else None,
        "description": manifest.description if manifest else None,
        "commands": list(manifest.commands) if manifest else [],
        "from": _origin(entry),
        "source": None if record is None else record.source,
        "commit": None if record is None else record.commit,
        "directory": str(entry.directory) if entry.directory else None,
        "code": entry.code,
        "reason": entry.reason,
        "hint": entry.hint,
    }


def _details(entry: PluginEntry) -> JsonObject:
    details: JsonObject = _summary(entry) | {"instances": [*entry.instances]}
    manifest, instance = entry.manifest, entry.instance
    fields = ("name", "type", "description", "input_schema", "output_schema", "idempotent", "retry_safe")
    if manifest is not None:
        details |= {
            "fingerprint": entry.fingerprint,
            "concurrency_safe": manifest.concurrency_safe,
            "required_config": list(manifest.required_config),
            "optional_config": list(manifest.optional_config),
            "commands": [
                {name: getattr(command, name) for name in fields} for command in manifest.commands.values()
            ],
        }
    if (script := entry.script) is not None:
        details |= {"run": [*script.argv], "cwd": script.directory, "output": script.output}
    if instance is not None:
        details |= {
            "config": instance.config.redacted(),
            "schedules": [schedule.id for schedule in instance.schedules],
            "parallelism": instance.parallelism,
            "max_attempts": instance.retry.max_attempts,
        }
    return details


_NAME = Argument("NAME", field="plugin")


@action(
    "lock",
    "renew the seal of plugins: authorise them as they are now",
    arguments=(Argument("NAME", "only this plugin", required=False),),
    options=(DRY_RUN,),
    about="The sealed hashes of files are not changed; `config lock` renews all of them.",
    local_reason=PLUGIN_FILES,
)
def lock(invocation: Invocation) -> CommandResult:
    from ductile.admin.seal import seal_plugins
    from ductile.cli.commands.config.files import seal_result

    name, dry_run = invocation.optional("NAME"), invocation.switch("dry_run")
    return seal_result(seal_plugins(invocation.config, invocation.environ, name, dry_run=dry_run))


@renders(
    "state",
    "show the state that a plugin keeps from run to run",
    "plugin.state",
    arguments=(_NAME,),
    about="Values under keys that look secret are masked.",
)
def state(response: Document, _: Console) -> str:
    if response["updated_at"] is None:
        return f"{response['plugin']} has no stored state."
    return fmt.text_or_json(response["state"])


@renders(
    "facts", "show the facts that a plugin has recorded, newest first", "plugin.facts", arguments=(_NAME,)
)
def facts(response: Document, console: Console) -> str:
    if not response["facts"]:
        return f"{response['plugin']} has no facts."
    parts = []
    for fact in response["facts"]:
        created, job = (
            fmt.local_and_relative_time(fact["created_at"], console),
            fmt.short_id(fact["job_id"], console),
        )
        text = fmt.inline(fact["fact"])
        if len(text) >= (console.width or 80) - 2:
            text = fmt.text_or_json(fact["fact"])
        parts.append(f"{fact['seq']}  {fact['fact_type']}  {created}  {job}\n{fmt.indent(text)}")
    if response["next_cursor"]:
        parts.append(console.style("dim", f"There are more: --cursor {response['next_cursor']}"))
    return "\n\n".join(parts)
