"""What is answered about the daemon: its health, schedules, figures, configuration, and what is doubtful."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.operations.shapes import (
    COUNT,
    INSTANT,
    NUMBER,
    OBJECT,
    TEXT,
    answer,
    listed,
    maybe,
    record,
    told,
)

_DEPTHS: Mapping[str, JsonObject] = {"ready": COUNT, "waiting": COUNT, "running": COUNT}
_PROBLEM = record(
    {
        "message": TEXT,
        "file": maybe(TEXT),
        "line": maybe(COUNT),
        "column": maybe(COUNT),
        "key": maybe(TEXT),
        "expected": maybe(TEXT),
        "found": maybe(TEXT),
        "hint": maybe(TEXT),
    }
)

SYSTEM_SHAPES: Mapping[str, JsonObject] = {
    "QueueFigures": answer(
        {
            "depth": COUNT,
            **_DEPTHS,
            "workers": COUNT,
            "plugins": listed(
                record(
                    {
                        "plugin": TEXT,
                        **_DEPTHS,
                        "oldest_ready_at": maybe(INSTANT),
                        "oldest_wait_ms": maybe(NUMBER),
                    }
                )
            ),
        }
    ),
    "RunFigures": answer(
        {
            "since": INSTANT,
            "executions": COUNT,
            "plugins": listed(
                record(
                    {
                        "plugin": TEXT,
                        "executions": COUNT,
                        "by_status": record({f"{status}?": COUNT for status in LogStatus}),
                        "success_ratio": NUMBER,
                        "mean_ms": NUMBER,
                        "longest_ms": NUMBER,
                    }
                )
            ),
        }
    ),
    "ConfigView": answer(
        {
            "config": told(OBJECT, "As it is written, with defaults; secrets masked."),
            "fingerprint": TEXT,
            "warnings": listed(_PROBLEM),
        }
    ),
}
