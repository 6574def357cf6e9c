"""The configuration in force as it may be shown: every setting with its default, secrets masked."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ductile.config.effective import fill_in_defaults
from ductile.config.schema.fields import SectionOf
from ductile.config.schema.model import Config
from ductile.errors import Problem
from ductile.operations.context import OperationContext
from ductile.operations.request import NoFields
from ductile.operations.response import Response, from_record
from ductile.struct import Value


class ConfigProblem(Value):
    message: str
    file: str | None
    line: int | None
    column: int | None
    key: str | None
    expected: str | None
    found: str | None
    hint: str | None


def config_problem(problem: Problem) -> ConfigProblem:
    return from_record(ConfigProblem, problem)


class ConfigView(Response):
    config: Annotated[dict[str, Any], Meta(description="As it is written, with defaults; secrets masked.")]
    fingerprint: str
    warnings: list[ConfigProblem]


async def view_configuration(context: OperationContext, _request: NoFields) -> ConfigView:
    snapshot = context.snapshot()
    config = fill_in_defaults(snapshot.redacted, SectionOf(section=Config))
    return ConfigView(
        config=config if isinstance(config, dict) else {},
        fingerprint=snapshot.fingerprint,
        warnings=[config_problem(problem) for problem in snapshot.warnings],
    )
