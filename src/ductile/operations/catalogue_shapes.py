"""What is answered about what there is: plugins, skills, and who listens to whom."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.events.routing import Hook
from ductile.core.json import JsonObject
from ductile.operations.shapes import (
    ANYTHING,
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    answer,
    by_name,
    either,
    listed,
    maybe,
    named,
    record,
    told,
    words,
)
from ductile.protocol.manifest.model import CommandType, ExecutionMode

_STANDING = words(("active", "disabled", "refused", "available"))
_TYPE = words(CommandType)
_SCHEMA = told(ANYTHING, "A JSON Schema, or null.")
_PLUGIN: Mapping[str, JsonObject] = {
    "name": TEXT,
    "uses": told(TEXT, "The plugin of which it is an instance."),
    "standing": told(_STANDING, "`available`: installed, and not named under `plugins`."),
    "refused": told(maybe(TEXT), "Why it cannot run."),
    "unhealthy": told(FLAG, "Whether its last init failed."),
    "version": maybe(TEXT),
    "description": maybe(TEXT),
}
_COMMAND = record(
    {
        "type": _TYPE,
        "description": TEXT,
        "timeout_ms": NUMBER,
        "input_schema": _SCHEMA,
        "output_schema": _SCHEMA,
        "idempotent": maybe(FLAG),
        "retry_safe": maybe(FLAG),
        "consumes": listed(TEXT),
        "emits": listed(record({"type": TEXT, "values": listed(TEXT)})),
        "call": TEXT,
        "scope": TEXT,
    }
)
_SKILL = record(
    {
        "name": TEXT,
        "kind": words(("command", "pipeline", "operation")),
        "description": TEXT,
        "read_only": FLAG,
        "call": record({"method": words(("GET", "POST")), "path": TEXT}),
        "scope": told(TEXT, "The least that a token needs for it."),
        "input_schema": told(ANYTHING, "The JSON Schema of the payload, or null."),
        "output_schema": told(ANYTHING, "The JSON Schema of the result, or null."),
        "answer": TEXT,
        "execution_mode?": words(ExecutionMode),
        "timeout_ms?": told(maybe(NUMBER), "How long the caller of a synchronous pipeline waits."),
        "query?": told(by_name(TEXT), "What may stand in the query of an operation."),
        "body?": told(by_name(TEXT), "What may stand in its body."),
    },
    "Something that can be done here, and the call that does it.",
)
_LISTENER = either(
    record({"route": TEXT, "from": TEXT, "standing": _STANDING}),
    record({"pipeline": TEXT, "from": told(maybe(TEXT), "Only from this source.")}),
)
_EDGES: Mapping[str, JsonObject] = {
    "emitted_by": listed(TEXT),
    "heard_by": listed(_LISTENER),
}

CATALOGUE_SHAPES: Mapping[str, JsonObject] = {
    "Plugins": answer({"plugins": listed(record({**_PLUGIN, "commands": by_name(_TYPE)}))}),
    "Plugin": answer(
        {
            **_PLUGIN,
            "init_error": told(maybe(TEXT), "How that init failed."),
            "parallelism": COUNT,
            "validate_input": FLAG,
            "schedules": listed(TEXT),
            "commands": by_name(_COMMAND),
            "config_keys": record({"required": listed(TEXT), "optional": listed(TEXT)}),
        }
    ),
    "Skill": _SKILL,
    "Skills": answer({"skills": listed(named("Skill")), "how": by_name(TEXT)}),
    "Topology": answer(
        {
            "plugins": listed(
                record(
                    {
                        "name": TEXT,
                        "standing": _STANDING,
                        "schedules": listed(record({"id": TEXT, "command": TEXT})),
                        "commands": by_name(record({"consumes": listed(TEXT), "emits": listed(TEXT)})),
                    }
                )
            ),
            "pipelines": listed(
                record(
                    {
                        "name": TEXT,
                        "on": maybe(TEXT),
                        "on_hook": maybe(words(Hook)),
                        "from_plugin": maybe(TEXT),
                        "uses": listed(TEXT),
                        "calls": listed(TEXT),
                        "cannot_run": listed(TEXT),
                    }
                )
            ),
            "webhooks": listed(
                record(
                    {
                        "name": TEXT,
                        "path": TEXT,
                        "plugin": maybe(TEXT),
                        "command": maybe(TEXT),
                        "standing": maybe(_STANDING),
                        "pipeline": maybe(TEXT),
                        "event": maybe(TEXT),
                    }
                )
            ),
            "events": listed(record({"type": TEXT, **_EDGES})),
            "hooks": listed(record({"hook": words(Hook), **_EDGES})),
        }
    ),
}
