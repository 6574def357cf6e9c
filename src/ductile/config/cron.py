"""Cron expressions as they are accepted: five fields, or one of the usual aliases (SPEC 5.1)."""

from __future__ import annotations

from datetime import UTC, datetime

CRON_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
CRON_EXPECTED = "five fields such as `*/15 8-18 * * mon-fri`, or @hourly, @daily, @weekly, @monthly, @yearly"
_FIELDS = 5


def parse_cron(text: str) -> str:
    """The five fields of an expression; ValueError says what is wrong with it."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - 12 ms that only a cron schedule has to pay

    expression = CRON_ALIASES.get(text.strip().lower(), text.strip())
    if expression.startswith("@"):
        raise ValueError("this alias is not known")
    count = len(expression.split())
    if count != _FIELDS:  # cronsim takes a sixth field for seconds, others take it for years
        raise ValueError(f"it has {count} fields")
    try:
        CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(str(error)) from None
    return " ".join(expression.split())
