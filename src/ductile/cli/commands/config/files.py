"""`ductile config check`, `lock`, `show`, `get`, `set`, `unset`, `schema` and `init`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, NO_DAEMON, Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.admin.config import ConfigCheck, SettingChange
    from ductile.admin.seal import SealResult
    from ductile.core.json import JsonObject, JsonValue
    from ductile.errors import ConfigError

_FILE_MEANINGS = {
    "config.yaml": "what runs, and when",
    "pipelines.yaml": "what happens when a plugin emits an event",
    "tokens.yaml": "who may use the API",
    "scopes/admin.json": "what the admin token may do",
    ".env": "the secret itself, readable by you only",
    "plugins/echo/": "an example plugin",
    ".checksums": "the seal over all of it",
}
APPLY = Option("--apply", "put the change in force as well, as `ductile apply` does")
LOCK = Option("--lock", "renew the seal of the changed file, if it was intact")
_SEAL_CHANGES = {"same": "as before", "gone": "no longer part of it"}


@action(
    "check",
    "report everything that is wrong with the configuration",
    about="Reads what the daemon would read, verifies the seal and looks at every plugin. "
    "Exit status 78 when something has to be corrected before all of it can run.",
    local_reason=CONFIG_FILES,
)
def check(invocation: Invocation) -> CommandResult:
    """A bad configuration is a result of this command, and not an error."""
    from dataclasses import asdict

    from ductile.admin.config import check_configuration
    from ductile.cli.console.errors import error_as_json, error_as_text
    from ductile.errors import ConfigError

    check: ConfigCheck | None = None
    try:
        check = check_configuration(invocation.config, invocation.environ)
        error = _refused_error(check)
        problems = check.seal_error.problems if check.seal_error else ()
    except ConfigError as invalid:
        error, problems = invalid, invalid.problems
    data: JsonObject = {
        "valid": error is None,
        "path": str(check.loaded.path) if check else None,
        "files": [file.name for file in check.loaded.files] if check else [],
        "problems": [asdict(problem) for problem in problems],
        "warnings": [asdict(warning) for warning in check.warnings] if check else [],
        "refused": [],
    }
    if check is not None:
        data["refused"] = [
            {
                "name": plugin.name,
                "code": plugin.refused.code if plugin.refused else None,
                "reason": problem.message,
                **{name: getattr(problem, name) for name in ("file", "line", "column", "key", "hint")},
            }
            for plugin in check.snapshot.refused
            for problem in (check.refusal_of(plugin),)
        ]
    if error is not None:
        data |= error_as_json(error)

    def text(console: Console) -> str:
        if check is not None:
            return _check_text(check, error, console, verbose=invocation.verbose)
        return "" if error is None else error_as_text(error, console)

    return CommandResult(data, text, exit_status=0 if error is None else error.exit_status)


@action(
    "lock",
    "seal the configuration: authorise the files as they are now",
    arguments=(
        Argument(
            "NAME", "only these files and plugins; everything else stays as it is", False, variadic=True
        ),
    ),
    options=(DRY_RUN,),
    about="Writes the hashes of all files that were loaded to .checksums. A file with tokens, "
    "webhooks or API access that differs from its hash keeps the daemon from starting.",
    examples=(
        Example("ductile config lock tokens.yaml", "authorise one file, and no other change"),
        Example("ductile config lock --dry-run", "what has changed since it was sealed?"),
    ),
    local_reason=CONFIG_FILES,
)
def lock(invocation: Invocation) -> CommandResult:
    from ductile.admin.seal import seal_configuration

    return seal_result(
        seal_configuration(
            invocation.config,
            invocation.environ,
            invocation.words("NAME"),
            dry_run=invocation.switch("dry_run"),
        )
    )


@action(
    "show",
    "show the effective configuration, without secrets",
    "system.config",
    arguments=(Argument("SECTION", "only this part, for example plugins.echo", required=False),),
    about="Read from the files of this machine; with --url, the configuration in force there.",
)
def show(invocation: Invocation) -> CommandResult:
    from ductile.admin.config import show_configuration
    from ductile.errors import NotFoundError

    value: JsonValue
    if invocation.remote is not None:
        from ductile.cli.client import request_daemon

        value = request_daemon(invocation)["config"]
    else:
        value = show_configuration(invocation.config, invocation.environ)
    section = invocation.optional("SECTION")
    for name in section.split(".") if section is not None else ():
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(value) if isinstance(value, dict) else ""
            hint = f"there are {names}" if names else None
            raise NotFoundError(f"there is no section {section!r}", hint=hint)
        value = value[name]
    data: JsonObject = value if isinstance(value, dict) else {"value": value}
    return CommandResult(data, lambda _: fmt.to_yaml(value))


@action(
    "get",
    "show one setting",
    arguments=(Argument("KEY", "where it is, for example service.log_level"),),
    local_reason=CONFIG_FILES,
)
def get(invocation: Invocation) -> CommandResult:
    from ductile.admin.config import read_setting

    setting = read_setting(invocation.config, invocation.environ, invocation.text("KEY"))
    data: JsonObject = {
        "key": setting.key,
        "value": setting.value,
        "default": setting.location is None,
        "file": setting.location.file if setting.location else None,
        "line": setting.location.line if setting.location else None,
    }
    # A text is printed unchanged, so that a script can use it; any other value as YAML.
    text = "" if setting.value is None else fmt.to_yaml(setting.value)
    return CommandResult(data, escape_controls(setting.value) if isinstance(setting.value, str) else text)


@action(
    "set",
    "change one setting in its file, keeping comments and order",
    arguments=(
        Argument("KEY", "where it is, such as service.log_level; routes[+] adds an entry"),
        Argument("VALUE", "the new value, read as YAML"),
    ),
    options=(DRY_RUN, APPLY, LOCK),
    about="The result is checked before it is written, and refused if other files would keep it "
    "from having an effect. An entry of a list is changed in the file that has it. With --apply a running "
    "daemon checks it first, and uses it at once. Without --apply and --lock the seal is not renewed: "
    "`ductile apply` seals the change, with all others, and puts it in force.",
    examples=(
        Example("ductile config set service.max_workers 8 --apply", "check, write, seal and reload"),
        Example("ductile config set service.log_level debug --lock", "and seal it, to be reloaded later"),
        Example("ductile config set plugins.echo.enabled false --dry-run", "what would be changed?"),
        Example("ductile config set 'artifacts.roots[+]' ./out --lock", "one more entry in a list"),
    ),
    local_reason=CONFIG_FILES,
)
def set_setting(invocation: Invocation) -> CommandResult:
    return _change_setting(invocation, invocation.text("VALUE"))


@action(
    "unset",
    "remove one setting from its file, keeping comments and order",
    local_reason=CONFIG_FILES,
    arguments=(Argument("KEY", "where it is, such as service.log_level or routes[0]"),),
    options=(DRY_RUN, APPLY, LOCK),
    about="Its default applies again. Checked, written, sealed and applied as by `config set`.",
    examples=(Example("ductile config unset service.log_level --dry-run", "what would be removed?"),),
)
def unset(invocation: Invocation) -> CommandResult:
    return _change_setting(invocation, None)


def _change_setting(invocation: Invocation, value: str | None) -> CommandResult:
    from ductile.admin.config import change_setting

    applies = wants_apply(invocation)
    change = change_setting(
        invocation.config,
        invocation.environ,
        invocation.text("KEY"),
        value,
        dry_run=applies or invocation.switch("dry_run"),
        lock=invocation.switch("lock"),
    )
    if applies:
        return apply_change(invocation, change)
    hint = apply_hint(invocation, sealed=change.sealed)
    return CommandResult(change_as_json(change), lambda console: change_text(change, console, hint=hint))


def wants_apply(invocation: Invocation) -> bool:
    """Return whether --apply is given. Raises UsageError if --lock is given too."""
    from ductile.errors import UsageError

    if invocation.switch("apply") and invocation.switch("lock"):
        raise UsageError("--apply and --lock exclude each other", hint="--apply renews the seal as well.")
    return invocation.switch("apply")


def apply_change(invocation: Invocation, change: SettingChange) -> CommandResult:
    """Write a planned change, seal the configuration and have a running daemon load it."""
    from ductile.cli.commands.config.apply import apply_files

    return apply_files(invocation, "apply", change.contents, plan_hint=False)


def apply_hint(invocation: Invocation, *, sealed: bool) -> str:
    """Return how a written change takes effect."""
    import shlex

    config = f" --config {shlex.quote(invocation.config)}" if invocation.config else ""
    if sealed:
        return f"A running daemon uses it after `ductile reload{config}`."
    return f"Its seal is not renewed. If the change is what you want, run `ductile apply{config}`."


@action("schema", "print the JSON Schema of the configuration", local_reason=NO_DAEMON)
def schema(_invocation: Invocation) -> CommandResult:
    from ductile.config.schema.jsonschema import config_schema

    document = config_schema()
    return CommandResult(document, lambda _: fmt.to_json(document, indent=2))


@action(
    "init",
    "write a working, sealed starter configuration",
    arguments=(Argument("DIR", "directory to create"),),
    options=(DRY_RUN,),
    about="With an example plugin, pipeline, schedule and token. Overwrites nothing.",
    local_reason=NO_DAEMON,
)
def init(invocation: Invocation) -> CommandResult:
    from ductile.admin.init_config import TOKEN_VARIABLE, create_starter_config
    from ductile.config.secrets import generate_token

    directory = invocation.text("DIR")
    token, dry_run = generate_token(), invocation.switch("dry_run")
    starter = create_starter_config(directory, invocation.environ, token=token, dry_run=dry_run)

    def text(console: Console) -> str:
        import shlex

        paths = (name.split("/") for name in starter.files)
        # A plugin is shown as its directory.
        names = list(
            dict.fromkeys("/".join([*path[:2], ""] if path[0] == "plugins" else path) for path in paths)
        )
        width = max(len(name) for name in names)
        files = [f"  {name.ljust(width)}  {_FILE_MEANINGS.get(name, '')}".rstrip() for name in names]
        if not starter.written:
            begin = f"Would write a starter configuration to {directory}:"
            return "\n".join([begin, "", *files, "", "Nothing was written."])
        quoted = shlex.quote(directory)
        return "\n".join(
            [
                f"Wrote a working, sealed configuration to {directory}:",
                "",
                *files,
                "",
                f"Your API token, shown only now. It is kept in {directory}/.env as {TOKEN_VARIABLE}:",
                "",
                f"  {console.style('bold', starter.token or '')}",
                "",
                "Next:",
                "",
                f"  ductile run echo --config {quoted}",
                f"""  ductile pipeline run hello --payload '{{"name": "Ada"}}' --config {quoted}""",
                f"  ductile system start --config {quoted}",
            ]
        )

    return CommandResult(
        {
            "directory": str(starter.directory),
            "files": list(starter.files),
            "written": starter.written,
            "token_variable": TOKEN_VARIABLE,
            "token": starter.token,
        },
        text,
    )


def _refused_error(check: ConfigCheck) -> ConfigError | None:
    """Return the error of a configuration that cannot be used as a whole; None if all of it can run.

    Configured plugins that cannot run are an error here, although the daemon starts without them.
    """
    from ductile.errors import ConfigError, IntegrityError

    if not check.snapshot.refused:
        return check.seal_error
    names = ", ".join(plugin.name for plugin in check.snapshot.refused)
    count = len(check.snapshot.refused)
    problem = "a configured plugin cannot run" if count == 1 else f"{count} configured plugins cannot run"
    if check.seal_error is None:
        return ConfigError(f"{problem}: {names}")
    broken = check.seal_error
    return IntegrityError(f"{broken.message}, and {problem}: {names}", problems=broken.problems)


def _check_text(check: ConfigCheck, error: ConfigError | None, console: Console, *, verbose: bool) -> str:
    from ductile.cli.console.errors import error_as_text, problems_as_text

    parts = []
    if check.warnings:
        title = console.style("yellow", f"{fmt.count(len(check.warnings), 'warning')}:")
        parts += [title, problems_as_text(check.warnings, console)]
    if error is not None:
        parts.append(error_as_text(error, console))
        if check.snapshot.refused:
            refused = [check.refusal_of(plugin) for plugin in check.snapshot.refused]
            parts.append(problems_as_text(refused, console))
        return "\n\n".join(parts)
    snapshot = check.snapshot
    counts = {
        "file": len(check.loaded.files),
        "plugin": len(snapshot.plugins),
        "schedule": sum(len(plugin.schedules) for plugin in snapshot.plugins.values()),
        "pipeline": len(snapshot.pipelines),
        "route": len(snapshot.routes),
    }
    counted = ", ".join(fmt.count(number, name) for name, number in counts.items())
    files = [f"  {file.name}" for file in check.loaded.files] if verbose else []
    ok = f"{console.style('green', 'ok:')} {console.path(str(check.loaded.path))} ({counted})"
    return "\n\n".join([*parts, "\n".join([ok, *files])])


def seal_result(seal: SealResult) -> CommandResult:
    """Return the result of `config lock` and `plugin lock`."""
    entries: list[JsonValue] = [
        {
            "name": entry.name,
            "kind": "plugin" if entry.is_plugin else "file",
            "tier": entry.tier,
            "change": entry.change,
        }
        for entry in seal.entries
    ]

    def text(console: Console) -> str:
        rows = [
            (
                f"plugin {entry.name}" if entry.is_plugin else entry.name,
                entry.tier or "",
                _SEAL_CHANGES.get(entry.change, entry.change),
            )
            for entry in seal.entries
        ]
        count = sum(entry.change != "gone" for entry in seal.entries)
        title = f"{'Sealed' if seal.written else 'Would seal'} {fmt.count(count, 'entry', 'entries')}"
        table = console.table(("NAME", "TIER", "CHANGE"), rows)
        return f"{title} in {console.path(str(seal.path))}:\n\n{table}"

    return CommandResult({"path": str(seal.path), "written": seal.written, "sealed": entries}, text)


def change_as_json(change: SettingChange) -> JsonObject:
    return {
        "key": change.key,
        "file": str(change.path),
        "diff": change.diff,
        "written": change.written,
        "sealed": change.sealed,
    }


def change_text(change: SettingChange, console: Console, *, hint: str = "") -> str:
    """Return the diff, and whether it was written. `hint` says how a change takes effect."""
    if not change.diff:
        return f"{change.key} has this value already; nothing was written."
    file = console.path(str(change.path))
    diff = "".join(
        console.style("green" if line.startswith("+") else "red" if line.startswith("-") else "dim", line)
        for line in escape_controls(change.diff)
        .replace(f" {change.path}\n", f" {file}\n")
        .splitlines(keepends=True)
    )
    if not change.written:
        return f"{diff}\nNothing was written."
    wrote = f"Wrote {file} and renewed its seal." if change.sealed else f"Wrote {file}."
    return f"{diff}\n{wrote}\n{hint}".rstrip()
