"""Rules between keys, sections and files, and the order in which all rules are applied.

Pure over the decoded model; locations come from the tree it was decoded from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.find_config import is_url
from ductile.config.names import VARIABLE, parse_target
from ductile.config.validate.access import (
    validate_access,
    validate_access_references,
    validate_literal_secrets,
)
from ductile.config.validate.pipelines import refuse_wildcard, validate_pipelines, validate_references
from ductile.config.validate.plugins import validate_plugins, validate_timezone
from ductile.core.durations import format_duration

if TYPE_CHECKING:
    from ductile.config.schema.model import Config
    from ductile.config.validate.report import ValidationReport
    from ductile.protocol.yaml_tree import KeyPath


def validate_config(config: Config, report: ValidationReport, *, complete: bool) -> None:
    """Add every broken rule to the report.

    `complete` is false if some values could not be read. Names are then not looked up: they may refer to one
    of those values.
    """
    service, state = config.service, config.state
    if service.job_queue_retention < service.dedupe_ttl:
        report.error(
            ("service", "job_queue_retention"),
            "jobs would leave the queue before their dedupe key expires",
            expected=f"at least dedupe_ttl, {format_duration(service.dedupe_ttl)}",
            found=format_duration(service.job_queue_retention),
        )
    for index, variable in enumerate(service.plugin_env_passthrough):
        if not VARIABLE.fullmatch(variable):
            path = ("service", "plugin_env_passthrough", index)
            report.error(path, f"{report.quote(path)} cannot be the name of a variable")
    if state.path is not None and state.url is not None:
        report.error(("state",), "there is one store", expected="`path` or `url`", found="both")
    if state.url is not None and not state.url.reveal().startswith(("postgresql://", "postgres://")):
        report.error(("state", "url"), "this is not a PostgreSQL URL", expected="postgresql://…")
    if config.plugins_dir is not None and config.plugin_roots:
        hint = "move it into `plugin_roots`"
        report.error(("plugins_dir",), "`plugins_dir` and `plugin_roots` are both set", hint=hint)
    _check_paths(config, report)
    validate_timezone(config.service.timezone, ("service", "timezone"), report)
    validate_plugins(config, report)
    _check_routes(config, report)
    validate_pipelines(config, report)
    validate_access(config, report)
    validate_literal_secrets(config, report)
    if complete:
        validate_references(config, report)
        validate_access_references(config, report)


def _check_paths(config: Config, report: ValidationReport) -> None:
    paths: list[tuple[KeyPath, str | None]] = [
        (("state", "path"), config.state.path),
        (("plugins_dir",), config.plugins_dir),
        *((("plugin_roots", index), root) for index, root in enumerate(config.plugin_roots)),
        *((("artifacts", "roots", index), root) for index, root in enumerate(config.artifacts.roots)),
        *((("tokens", index, "scopes_file"), token.scopes_file) for index, token in enumerate(config.tokens)),
    ]
    for key, text in paths:
        if text is None:
            continue
        if is_url(text):
            report.error(key, "this has to be a local path, not a URL")
        elif not text.strip() or "\0" in text:
            report.error(key, "this is not a path")


def _check_routes(config: Config, report: ValidationReport) -> None:
    """A route that is written twice would create the same child job twice; the second would be refused."""
    first: dict[tuple[str, str, str, str], KeyPath] = {}
    for index, route in enumerate(config.routes):
        path = ("routes", index)
        refuse_wildcard(route.event_type, (*path, "event_type"), "routes match", report)
        same = first.setdefault((route.source, route.event_type, *parse_target(route.to)), path)
        if same is not path:
            message = f"this route is written already, at {report.where(same)}"
            report.error(path, message, hint="remove one of them; a route without a command means `handle`")
