"""`ductile skill export`: an agent skill, made from the tables of commands, tools and endpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ductile.cli.console.console import Console
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DRY_RUN, Argument, Example, action

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ductile.cli.client import Document
    from ductile.core.json import JsonObject

_LINK = re.compile(r"!?\[(?P<text>[^]]*)]\((?P<target>[^)\s]+)\)")
#: Tasks of an agent, and a command for each that can be typed as it is.
_TASKS = (
    ("See what runs, waits and failed", "ductile status"),
    ("Review what happened since yesterday evening", "ductile system digest"),
    ("Find out what is wrong with the installation", "ductile doctor"),
    ("List failed jobs", "ductile job list --status failed"),
    ("Find out why a job failed, and what to do", "ductile job explain last"),
    ("Read what a job printed", "ductile job logs last"),
    ("Run a plugin or pipeline and see its result", "ductile run echo"),
    ("See what is scheduled, and when it is next due", "ductile schedule list"),
    ("See what an event would start", "ductile event explain echo.said --from echo"),
    ("See what a change of the configuration would do", "ductile apply --dry-run"),
    ("Begin a plugin, in its own directory", "ductile plugin new greet --lang sh"),
    ("Check that it keeps the protocol", "ductile plugin test ./greet"),
    ("Put it in use", "ductile plugin add ./greet"),
    ("Run one of its commands", "ductile run greet handle"),
    ("Check a change of a plugin against its past jobs", "ductile plugin replay greet --candidate ./greet"),
)
_RULES = """\
- Add `--json` to any command for one JSON object; errors have `code`, `message` and `hint`. Do what the hint
  says.
- Exit status: 0 done, 1 failed, 2 wrong command line, 69 no daemon, 75 not now, 77 not allowed, 78 the
  configuration has to be corrected.
- An accepted job is on disk and runs, also after a restart. Never submit it again because it takes long:
  `ductile job wait ID`.
- Commands that change something have `--dry-run`. Look at its answer before you change anything.
- Configuration is edited in files. `ductile apply --dry-run` shows the plan, `ductile apply --plan ID` does
  exactly that, and `ductile config rollback` takes it back.
- Secrets belong into the environment or `.env`, never on a command line or into a payload.
"""


@action(
    "export",
    "write a skill for AI agents: how to operate, diagnose and extend this gateway",
    arguments=(Argument("DIR", "directory to write; it must not exist, or be an earlier export"),),
    options=(DRY_RUN,),
    local_reason=CONFIG_FILES,
    about="A directory with SKILL.md and the pages that it refers to, as agents load skills. It is made from "
    "the commands, tools and endpoints of this version and from the plugins and pipelines that are "
    "configured, and holds neither secrets nor settings.",
    examples=(Example("ductile skill export skills/ductile", "for agents that read skills from files"),),
)
def export(invocation: Invocation) -> CommandResult:
    from pathlib import Path

    from ductile.admin.config import open_configuration
    from ductile.admin.docs_pages import docs_pages
    from ductile.api.skills import all_skills, front_matter, skill_page
    from ductile.config.load import SealMode
    from ductile.errors import UsageError, file_error

    directory = Path(invocation.text("DIR"))
    snapshot = open_configuration(invocation.config, invocation.environ, seal=SealMode.IGNORE).snapshot
    service, skills = snapshot.service.name, [*all_skills(snapshot)]
    pages = docs_pages()
    first_page = [*front_matter(service, skills), *_first_page(service, [page.name for page in pages])]
    files = {
        "SKILL.md": "\n".join(first_page),
        "commands.md": "\n".join(_command_page()),
        "tools.md": "\n".join(_tool_page()),
        "http.md": skill_page(service, "", skills),
    }
    files |= {f"docs/{page.name}.md": _without_lost_links(page.path) for page in pages}
    if directory.exists() and not (directory / "SKILL.md").is_file():
        raise UsageError(
            f"{directory} exists and is no exported skill", hint="name a directory that does not exist"
        )
    if not invocation.switch("dry_run"):
        try:
            for name, content in files.items():
                file = directory / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content, encoding="utf-8")
        except OSError as error:
            raise file_error(f"{error.filename or directory} cannot be written", error) from None
    title = "Would write" if invocation.switch("dry_run") else "Wrote"

    def text(console: Console) -> str:
        size = sum(map(len, files.values())) // 1000
        return (
            f"{title} {len(files)} files, {size} kB, to {console.path(str(directory))}; begin with SKILL.md."
        )

    data: JsonObject = {"directory": str(directory), "files": [*files]}
    return CommandResult(data | ({"dry_run": True} if invocation.switch("dry_run") else {}), text)


def _without_lost_links(page: Path) -> str:
    """Return the text of a page, with plain text in place of links to files that the skill does not have."""
    from ductile.admin.docs_pages import docs_pages

    exported = {exported_page.path for exported_page in docs_pages()}

    def replace(link: re.Match[str]) -> str:
        target = link["target"].partition("#")[0]
        is_reachable = not target or "://" in target or (page.parent / target).resolve() in exported
        return link[0] if is_reachable else link["text"]

    return _LINK.sub(replace, page.read_text(encoding="utf-8"))


def _first_page(service: str, pages: list[str]) -> Iterator[str]:
    title = " ".join(service.split())
    yield from (f"# {title}", "")
    yield (
        "Ductile runs plugins and pipelines as durable jobs: on request, on schedules, on events. "
        "This skill says how to operate it, find out what is wrong, and extend it."
    )
    yield from ("", "## Reach it", "")
    yield (
        "On its machine, `ductile` in the directory of the configuration (or with `--config DIR`). From "
        "elsewhere, `--url URL` with the token in the variable DUCTILE_TOKEN. Agents that speak MCP start "
        "`ductile mcp serve`; [tools.md](tools.md) lists its tools. [http.md](http.md) has the HTTP calls."
    )
    yield from ("", "## Do", "")
    for task, command in _TASKS:
        yield from (f"{task}:", "", "```sh", command, "```", "")
    yield from ("## Rules", "", _RULES, "## Read further", "")
    yield "- [commands.md](commands.md): every command with its arguments, options and examples"
    yield "- [tools.md](tools.md): every tool; [http.md](http.md): every plugin and pipeline, and its call"
    for part, about in (
        ("how-to", "step by step"),
        ("tutorials", "from nothing"),
        ("reference", "to look up"),
        ("explanation", "to understand"),
    ):
        links = [f"[{page.split('/')[1]}](docs/{page}.md)" for page in pages if page.startswith(f"{part}/")]
        yield f"- {about}: {', '.join(links)}"
    yield "- [glossary](docs/glossary.md)"
    yield ""


def _command_page() -> Iterator[str]:
    from ductile.cli.command_table import NOUNS, SHORT_FORMS

    yield from ("# Commands", "", "`--config`, `--url`, `--json` and `-v` go with every command.", "")
    for noun in NOUNS:
        yield from (f"## ductile {noun.name}", "")
        for declared in noun.actions:
            arguments = " ".join(a.name if a.required else f"[{a.name}]" for a in declared.arguments)
            yield from (f"### ductile {noun.name} {declared.name} {arguments}".rstrip(), "")
            yield from (
                f"{declared.summary[:1].upper()}{declared.summary[1:]}. {declared.about}".rstrip(),
                "",
            )
            yield from (f"- `{option.usage}`: {option.help}" for option in declared.options)
            if declared.examples:
                yield from ("", "```sh", *(example.line for example in declared.examples), "```")
            yield ""
    yield from ("## Short forms", "")
    yield from (f"- `ductile {form.name}`: `ductile {form.noun} {form.action}`" for form in SHORT_FORMS)
    yield ""


def _tool_page() -> Iterator[str]:
    from ductile.operations.tools.schemas import input_schema
    from ductile.operations.tools.table import TOOLS, is_read_only, operation_of

    yield from ("# Tools", "")
    yield (
        "Over MCP (`ductile mcp serve`), or `GET /tools` and `POST /tools/{tool}`. Commands of plugins are "
        "`run__PLUGIN__COMMAND`, pipelines `start__PIPELINE`. A tool that starts a job waits for its end for "
        "the time in `wait`; an answer with `ended`: false is no failure, `job_wait` asks again."
    )
    yield ""
    for name, row in TOOLS.items():
        effect = "" if is_read_only(row) else " Changes something."
        yield from (f"## {name}", "", f"{row.summary or operation_of(row).summary}.{effect}", "")
        schema: Document = input_schema(row)
        required = schema.get("required") or ()
        for field, field_schema in schema["properties"].items():
            mark = " (required)" if field in required else ""
            yield f"- `{field}`{mark}: {field_schema.get('description', '')}"
        yield ""
