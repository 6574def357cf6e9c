"""`ductile init`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, Argument, action

if TYPE_CHECKING:
    from ductile.admin.init_config import StarterConfig
    from ductile.cli.console.console import Console

_MEANINGS = {
    "config.yaml": "what runs, and when",
    "pipelines.yaml": "what happens when a plugin emits an event",
    "tokens.yaml": "who may use the API",
    "scopes/admin.json": "what the admin token may do",
    ".env": "the secret itself, readable by you only",
    "plugins/echo/": "an example plugin",
    ".checksums": "the seal over all of it",
}


@action(
    "init",
    "write a working, sealed starter configuration",
    arguments=(Argument("DIR", "directory to create"),),
    options=(DRY_RUN,),
    about="With an example plugin, pipeline, schedule and token. Overwrites nothing.",
)
def init(call: Invocation) -> CommandResult:
    from ductile.admin.init_config import TOKEN_VARIABLE, create_starter_config, generate_token

    directory = call.text("DIR")
    token, dry_run = generate_token(), call.switch("dry_run")
    starter = create_starter_config(directory, call.environ, token=token, dry_run=dry_run)
    return CommandResult(
        {
            "directory": str(starter.directory),
            "files": list(starter.files),
            "written": starter.written,
            "token_variable": TOKEN_VARIABLE,
            "token": starter.token,
        },
        lambda console: _text(starter, directory, TOKEN_VARIABLE, console),
    )


def _text(starter: StarterConfig, directory: str, variable: str, console: Console) -> str:
    import shlex

    paths = (name.split("/") for name in starter.files)
    # A plugin is shown as its directory.
    names = list(dict.fromkeys("/".join([*path[:2], ""] if path[0] == "plugins" else path) for path in paths))
    width = max(len(name) for name in names)
    files = [f"  {name.ljust(width)}  {_MEANINGS.get(name, '')}".rstrip() for name in names]
    if not starter.written:
        return "\n".join(
            [f"Would write a starter configuration to {directory}:", "", *files, "", "Nothing was written."]
        )
    quoted = shlex.quote(directory)
    return "\n".join(
        [
            f"Wrote a working, sealed configuration to {directory}:",
            "",
            *files,
            "",
            f"Your API token, shown only now. It is kept in {directory}/.env as {variable}:",
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
