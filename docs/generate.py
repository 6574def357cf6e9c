#!/usr/bin/env python3
"""Writes the parts of docs/ that are made from the program itself; `make docs` runs it.

A generated part stands between two comments in a page that is otherwise written by hand:

    <!-- generated: NAME -->
    ...
    <!-- end of NAME -->
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ductile.api.endpoints import ENDPOINTS
from ductile.api.openapi_schemas import schemas
from ductile.cli.command_table import NOUNS, SHORT_FORMS, VERSION_COMMAND
from ductile.cli.help import signature
from ductile.cli.spec import GLOBAL_OPTIONS, VERSION, Action, Option
from ductile.config.schema.fields import (
    Choice,
    FieldType,
    ListOf,
    MapOf,
    OneOf,
    Scalar,
    Section,
    SectionOf,
    SettingKey,
    settings_under,
    written_default,
)
from ductile.config.schema.model import Config
from ductile.config.schema.pipeline_cases import CaseFile
from ductile.core.runs.expectations import RunStatus, StepEnd
from ductile.core.schedules.admission import ScheduleCause
from ductile.operations.diagnose.findings import DoctorCheck
from ductile.operations.request import FieldSource, RequestField, decode_duration
from ductile.operations.table import OPERATIONS
from ductile.store.model.maintenance import Invariant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ductile.api.endpoint import Endpoint

DOCS = Path(__file__).parent
ROUTES_MODULE = DOCS.parent / "src" / "ductile" / "cli" / "operation_routes.py"
OPTIONS_MODULE = DOCS.parent / "src" / "ductile" / "cli" / "operation_options.py"


def configuration_keys() -> str:
    return key_tables(Config)


def case_keys() -> str:
    return key_tables(CaseFile)


def key_tables(section: type[Section]) -> str:
    """A table for each section of the model: key, type, default, meaning."""
    tables: dict[tuple[str, ...], list[SettingKey]] = {}
    for path, key in settings_under(section):
        tables.setdefault(path[:-1], []).append(key)
    parts = []
    described: dict[tuple[str, ...], str] = {}
    for path, keys in tables.items():
        title = section_title(path)
        first_title = described.setdefault(tuple(key.description for key in keys), title)
        heading = f"### {title}\n"
        if first_title == title:
            rows = [
                f"| `{key.name}` | {_type(key.type)} | {_default(key)} | {key.description} |" for key in keys
            ]
            table = "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])
            parts.append(f"{heading}\n{table}")
        else:
            # The fragment that Markdown viewers make of a heading.
            anchor = re.sub(r"[^\w\- ]", "", first_title.lower()).replace(" ", "-")
            parts.append(f"{heading}\nThe same keys as [{first_title}](#{anchor}).")
    return "\n\n".join(parts)


def section_title(path: tuple[str, ...]) -> str:
    """`("plugins", "*", "schedules", "[]")` as `plugins.NAME.schedules[]`; the root has a name of its own."""
    return ".".join(path).replace(".[]", "[]").replace("*", "NAME") or "At the top"


def _type(field_type: FieldType) -> str:
    match field_type:
        case Scalar(type=setting_type):
            return str(setting_type)
        case Choice(words=words):
            return ", ".join(f"`{word}`" for word in words)
        case ListOf(item=item):
            return "list of sections" if isinstance(item, SectionOf) else f"list of {_type(item)}"
        case MapOf(value=value):
            return "sections by name" if isinstance(value, SectionOf) else f"map by name of {_type(value)}"
        case SectionOf():
            return "section"
        case OneOf(alternatives=alternatives):
            return " or ".join(_type(alternative) for alternative in alternatives)


def _default(key: SettingKey) -> str:
    if key.required:
        return "required"
    if key.default_text is not None:
        return key.default_text
    match written_default(key):
        case None | []:
            return "none"
        case bool() as truth:
            return f"`{str(truth).lower()}`"
        case value:
            return f"`{value}`"


def commands() -> str:
    """Every noun with its actions, arguments and options, from the table of commands."""
    parts = [f"### Options of every command\n\n{_options((*GLOBAL_OPTIONS, VERSION))}"]
    for noun in NOUNS:
        title = f"### ductile {noun.name}\n\n{noun.summary.capitalize()}."
        parts += [title, *(_action(f"ductile {noun.name}", action) for action in noun.actions)]
    forms = [
        f"| `ductile {form.name}` | `ductile {form.noun} {form.action}` | {form.summary} |"
        for form in SHORT_FORMS
    ]
    version = (
        f"| `ductile {VERSION_COMMAND.name}` | `ductile {VERSION.flags[0]}` | {VERSION_COMMAND.summary} |"
    )
    table = "\n".join(["| short | is | does |", "|---|---|---|", *forms, version])
    return "\n\n".join([*parts, f"### Short forms\n\n{table}"])


def _action(before: str, action: Action) -> str:
    parts = [f"#### {before} {action.name}", f"`{before} {signature(action.name, action)}`"]
    parts.append(" ".join((f"{action.summary[0].upper()}{action.summary[1:]}.", action.about)).strip())
    if action.arguments:
        rows = [
            f"| `{argument.name}` | {argument.help}{'' if argument.required else ' (optional)'} |"
            for argument in action.arguments
        ]
        parts.append("\n".join(["| argument | |", "|---|---|", *rows]).replace("|DIR", "\\|DIR"))
    if action.options:
        parts.append(_options(action.options))
    if action.examples:
        lines = [line for each in action.examples for line in (f"# {each.purpose}", each.line)]
        parts.append("\n".join(["```sh", *lines, "```"]))
    return "\n\n".join(parts)


def _options(options: tuple[Option, ...]) -> str:
    rows = [f"| `{flags}` | {meaning} |" for flags, meaning, *_ in options]
    return "\n".join(["| option | |", "|---|---|", *rows])


def endpoints() -> str:
    """Every endpoint with its scope, summary and response, from the table that routes requests."""
    rows = [
        f"| `{each.http.method} {each.http.path}` | {each.access.doc_text.replace('|', ' or ')} "
        f"| {each.summary} | {_answers(each)} |"
        for each in ENDPOINTS
    ]
    return "\n".join(["| endpoint | scope | | answer |", "|---|---|---|---|", *rows])


def _answers(endpoint: Endpoint) -> str:
    by_status = endpoint.responses
    shown = []
    for status, names in by_status.items():
        links = " or ".join(f"[{name}](#{name.lower()})" for name in names)
        shown.append(f"{int(status)}: {links}" if len(by_status) > 1 else links)
    return ", ".join([*shown, *(f"`{media_type}`" for media_type in endpoint.http.content_types)])


def shapes() -> str:
    """Every schema of a response, in the notation of `json.md`, from the schemas of the OpenAPI document."""
    parts = []
    for name, shape in schemas().items():
        about = f"{shape['description']}\n\n" if "description" in shape else ""
        parts.append(f"### {name}\n\n{about}```text\n{_described(shape)}\n```")
    return "\n\n".join(parts)


#: Longer enumerations are described on other pages.
_MAX_WORDS = 6


def _described(shape: Any, indent: str = "") -> str:
    """A JSON Schema of ours in a line, or an object in several."""
    kinds = shape.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "$ref" in shape:
        return str(shape["$ref"].rpartition("/")[2])
    if "anyOf" in shape:
        return " or ".join(_described(each, indent) for each in shape["anyOf"])
    if "enum" in shape:
        words = [word for word in shape["enum"] if word is not None]
        text = " | ".join(words) if len(words) <= _MAX_WORDS else "text"
        return f"{text} or null" if None in shape["enum"] else text
    return " or ".join(_kind(kind, shape, indent) for kind in kinds) or "any JSON"


def _kind(kind: str, shape: Any, indent: str) -> str:
    match kind:
        case "string":
            return {"uuid": "id", "date-time": "instant"}.get(shape.get("format", ""), "text")
        case "array":
            return f"[{_described(shape['items'], indent)}]"
        case "object" if "properties" in shape:
            required, deeper = shape.get("required", ()), f"{indent}  "
            lines = [
                f"{deeper}{name}{'' if name in required else '?'}: {_described(each, deeper)}"
                for name, each in shape["properties"].items()
            ]
            more = [f"{deeper}…"] if shape.get("additionalProperties") else []
            return "\n".join(["{", *lines, *more, f"{indent}}}"])
        case "object" if isinstance(shape.get("additionalProperties"), dict):
            return f"{{name: {_described(shape['additionalProperties'], indent)}}}"
        case "object":
            return "any JSON object"
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case _:
            return "number"


def words_explained(title: str, words: Mapping[Any, str]) -> Callable[[], str]:
    """A table of an enumeration's words and what they mean."""
    rows = [f"| `{word}` | {meaning} |" for word, meaning in words.items()]
    return lambda: "\n".join([f"| {title} | |", "|---|---|", *rows])


#: Page -> its generated parts by name.
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "reference/cli.md": {"commands": commands},
    "reference/http.md": {"endpoints": endpoints, "shapes": shapes},
    "reference/configuration.md": {"configuration keys": configuration_keys},
    "reference/pipeline-cases.md": {
        "case keys": case_keys,
        "run statuses": words_explained("status", {each: each.description for each in RunStatus}),
        "step outcomes": words_explained("outcome", {each: each.description for each in StepEnd}),
    },
    "reference/diagnosis.md": {
        "checks": words_explained("check", {check: check.description for check in DoctorCheck}),
        "rules": words_explained("rule", {rule: rule.description for rule in Invariant}),
        "causes": words_explained("cause", {cause: cause.description for cause in ScheduleCause}),
    },
}


def regenerate(page: str, text: str) -> str:
    """The page with its generated parts made anew."""
    for name, make in PARTS[page].items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            sys.exit(f"{page} has no part called {name}")
        text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return text


def operation_options() -> dict[str, tuple[Option, ...]]:
    """The options of commands, by operation: one for each field of a request that a caller may set."""
    names = {action.operation for noun in NOUNS for action in noun.actions if action.operation}
    return {
        name: tuple(_option(each) for each in OPERATIONS[name].fields.values() if each.source is None)
        for name in sorted(names)
    }


def _option(field: RequestField) -> Option:
    """A field as an option: `-n, --limit NUMBER`, at most this many, from 1 to 200 (default 50)."""
    kind, words = field.schema.get("type"), field.schema.get("enum")
    kind = kind[0] if isinstance(kind, list) else kind
    meaning = f"{field.description[:1].lower()}{field.description[1:].removesuffix('.')}"
    if isinstance(words, list) and len(words) > 1:
        *others, last = words
        meaning += f": {', '.join(map(str, others))} or {last}"
    elif kind == "object":
        meaning += ": a JSON object, @FILE, or - for standard input"
    elif kind == "array":
        meaning += " (separated by commas)"
    elif kind == "integer":
        default = "" if field.default is None else f" (default {field.default})"
        meaning += f", from {field.schema['minimum']} to {field.schema['maximum']}{default}"
    metavars = {"integer": " NUMBER", "object": " JSON", "boolean": ""}
    metavar = metavars.get(str(kind), f" {field.name.rpartition('_')[2].upper()}")
    if field.name in ("plugin", "command"):
        metavar = " NAME"
    elif field.decode is decode_duration:
        metavar = " DURATION"
    elif field.instant:
        metavar = " TIME"
    short = "-n, " if field.name in ("limit", "count") else ""
    types = {"integer": "integer", "object": "json", "array": "list"}
    usage = f"{short}--{field.name.replace('_', '-')}{metavar}"
    return Option(usage, meaning, field.name, "instant" if field.instant else types.get(str(kind), "text"))


def operation_options_module() -> str:
    """The text of the module that the command line reads its options from."""
    lines = [
        "# ruff: noqa: E501",
        "# fmt: off",
        '"""The options of commands by operation. Written by `make docs` from the requests: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "from ductile.cli.spec import Option",
        "",
        "OPTIONS = {",
    ]
    for name, options in operation_options().items():
        rows = [", ".join(json.dumps(each) for each in option[:4] if each != "text") for option in options]
        if len(rows) == 1:
            lines.append(f'    "{name}": (Option({rows[0]}),),')
        elif rows:
            lines += [f'    "{name}": (', *(f"        Option({row})," for row in rows), "    ),"]
    return "\n".join([*lines, "}", ""])


def operation_routes_module() -> str:
    """The text of the module that the command line finds the HTTP route of an operation in."""
    lines = [
        "# ruff: noqa: COM819, E501",
        "# fmt: off",
        '"""The HTTP routes of operations, for --url. Written by `make docs` from the table: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import NamedTuple",
        "",
        "",
        "class Route(NamedTuple):",
        "    method: str",
        "    #: The one with the most parameters first.",
        "    paths: tuple[str, ...]",
        "    #: The fields that a POST has in its query; the others are in the body.",
        "    query: tuple[str, ...] = ()",
        "    #: Whether `message` is part of the response. HTTP adds one to all others.",
        "    own_message: bool = False",
        "",
        "",
        "ROUTES = {",
    ]
    for name, operation in sorted(OPERATIONS.items()):
        http = operation.http
        if http is None:
            continue
        paths = sorted((http.path, *http.aliases), key=lambda path: -path.count("{"))
        texts = [json.dumps(http.method), f"({''.join(f'{json.dumps(path)}, ' for path in paths)})"]
        in_query = [field.name for field in operation.fields.values() if field.source is FieldSource.QUERY]
        if in_query and http.method != "GET":
            texts.append(f"query=({''.join(f'{json.dumps(each)}, ' for each in in_query)})")
        if any("message" in each.__struct_fields__ for each in operation.response_types):
            texts.append("own_message=True")
        lines.append(f'    "{name}": Route({", ".join(texts)}),')
    return "\n".join([*lines, "}", ""])


def main() -> None:
    routes = operation_routes_module()
    if not ROUTES_MODULE.exists() or routes != ROUTES_MODULE.read_text(encoding="utf-8"):
        ROUTES_MODULE.write_text(routes, encoding="utf-8")
    options = operation_options_module()
    if options != OPTIONS_MODULE.read_text(encoding="utf-8"):
        # The commands of this process have been declared with the old options.
        OPTIONS_MODULE.write_text(options, encoding="utf-8")
        os.execv(sys.executable, (sys.executable, __file__))  # noqa: S606 - this script again
    for page in PARTS:
        path = DOCS / page
        path.write_text(regenerate(page, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
