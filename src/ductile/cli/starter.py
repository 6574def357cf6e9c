"""`ductile init`"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ductile.admin.init_config import TOKEN_VARIABLE, StarterConfig, create_starter_config, generate_token
from ductile.cli.invocation import CommandResult, Invocation

if TYPE_CHECKING:
    from ductile.cli.console.console import Console

_MEANING = {
    "config.yaml": "what runs, and when",
    "pipelines.yaml": "what happens when a plugin emits something",
    "tokens.yaml": "who may use the API",
    "scopes/admin.json": "what the admin token may do",
    ".env": "the secret itself, readable by you only",
    "plugins/echo/": "an example plugin",
    ".checksums": "the seal over all of it",
}


def init(call: Invocation) -> CommandResult:
    named = call.text("DIR")
    starter = create_starter_config(
        named, call.environ, token=generate_token(), dry_run=call.switch("dry_run")
    )
    return CommandResult(
        data={
            "directory": str(starter.directory),
            "files": list(starter.files),
            "written": starter.written,
            "token_variable": TOKEN_VARIABLE,
            "token": starter.token,
        },
        text=lambda screen: _text(starter, named, screen),
    )


def _text(starter: StarterConfig, named: str, screen: Console) -> str:
    names = list(dict.fromkeys(_in_short(name) for name in starter.files))
    width = max(len(name) for name in names)
    files = [f"  {name.ljust(width)}  {_MEANING.get(name, '')}".rstrip() for name in names]
    if not starter.written:
        return "\n".join(
            [f"Would write a starter configuration to {named}:", "", *files, "", "Nothing was written."]
        )
    place = shlex.quote(named)
    return "\n".join(
        [
            f"Wrote a working, sealed configuration to {named}:",
            "",
            *files,
            "",
            f"Your API token, shown only now. It is kept in {named}/.env as {TOKEN_VARIABLE}:",
            "",
            f"  {screen.style('bold', starter.token or '')}",
            "",
            "Next:",
            "",
            f"  ductile run echo --config {place}",
            f"""  ductile pipeline run hello --payload '{{"name": "Ada"}}' --config {place}""",
            f"  ductile system start --config {place}",
        ]
    )


def _in_short(name: str) -> str:
    """A plugin is shown as its directory."""
    parts = name.split("/")
    return f"{parts[0]}/{parts[1]}/" if parts[0] == "plugins" else name
