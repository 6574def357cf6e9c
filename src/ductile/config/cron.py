"""Cron expressions: their accepted forms and when they are due across clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

from ductile.struct import Value

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
_HOURS_OF_A_DAY = 24


def parse_cron(text: str) -> str:
    """Return the five fields of an expression. Raises ValueError with the fault."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - 12 ms that only a cron schedule costs

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


class CronTable(Value):
    """A parsed expression in its time zone.

    An expression that names hours follows local time: a time that does not exist runs once, right after the
    gap, and one that occurs twice runs the first time. One that takes every hour follows elapsed time, so
    that `*/5` keeps its pace while the clocks change.
    """

    expression: str
    timezone: str

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first time after the instant, in UTC; None if there is none within fifty years."""
        from cronsim import CronSim  # noqa: PLC0415 - as above

        # cronsim compares local times, in which the second pass of an hour equals the first.
        for due in CronSim(_normalised(self.expression), instant.astimezone(ZoneInfo(self.timezone))):
            if (following := due.astimezone(UTC)) > instant:
                return following
        return None


@cache
def _normalised(expression: str) -> str:
    """Rewrite an expression for cronsim, which treats every field that begins with a star as a wildcard."""
    from cronsim import CronSim  # noqa: PLC0415 - as above

    table = CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
    fields = expression.split()
    if len(table.hours) == _HOURS_OF_A_DAY:
        fields[1] = "*"
    else:
        fields[:2] = (",".join(map(str, sorted(values))) for values in (table.minutes, table.hours))
    return " ".join(fields)
