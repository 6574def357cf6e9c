"""What is answered about the daemon: its health, schedules, figures, configuration, and what is doubtful."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.jobs.breaker import BreakerState
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.operations.diagnose.findings import DoctorCheck, FindingLevel
from ductile.operations.shapes import (
    COUNT,
    DRY_RUN,
    FLAG,
    ID,
    INSTANT,
    NUMBER,
    OBJECT,
    TEXT,
    answer,
    by_name,
    listed,
    maybe,
    record,
    told,
    words,
)
from ductile.store.invariants import Invariant

_DEPTHS: Mapping[str, JsonObject] = {"ready": COUNT, "waiting": COUNT, "running": COUNT}
_SCHEDULE = record(
    {
        "plugin": TEXT,
        "id": TEXT,
        "command": maybe(TEXT),
        "rule": told(maybe(TEXT), "As it is written, such as `every 5m`; null if it is configured no more."),
        "timezone": maybe(TEXT),
        "next_at": maybe(INSTANT),
        "next_local": told(maybe(TEXT), "The same in the schedule's zone, where that is not UTC."),
        "nominal_at": maybe(INSTANT),
        "at_start": told(FLAG, "Whether it is due as soon as a daemon runs."),
        "last_fired_at": maybe(INSTANT),
        "last_job_id": maybe(ID),
        "paused_at": maybe(INSTANT),
        "waiting_since": told(
            maybe(INSTANT), "Since when an occurrence waits for other polls of the plugin to end."
        ),
        "breaker": words(BreakerState),
    }
)
_FINDING = record(
    {
        "check": words(DoctorCheck),
        "level": words(FindingLevel),
        "message": TEXT,
        "where": maybe(TEXT),
        "fix": told(maybe(TEXT), "A command to run, or a key to set."),
    }
)
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
_RULE = record(
    {"name": words(Invariant), "rule": TEXT, "holds": FLAG, "offenders": listed(TEXT), "more": FLAG}
)

SYSTEM_SHAPES: Mapping[str, JsonObject] = {
    "Health": answer(
        {
            "status": told(words(("ok", "full")), "`full`: the disk is, and new work is refused."),
            "uptime_seconds?": maybe(NUMBER),
            "queue_depth?": told(COUNT, "Queued and running."),
            "plugins_loaded?": COUNT,
            "plugins_circuit_open?": COUNT,
            "version?": TEXT,
        },
        "Callers that are not on this machine learn `status` only.",
    ),
    "Schedules": answer({"schedules": listed(_SCHEDULE)}),
    "ScheduleSwitched": answer(
        {"plugin": TEXT, "id": TEXT, "paused": FLAG, "would_be_paused?": FLAG, **DRY_RUN}
    ),
    "ScheduleRun": answer({"plugin": TEXT, "id": TEXT, "job_id": maybe(ID), **DRY_RUN}),
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
    "Doctor": answer(
        {
            "verdict": told(words(FindingLevel), "The gravest of the findings."),
            "counts": record({str(level): COUNT for level in FindingLevel}),
            "findings": listed(_FINDING),
        }
    ),
    "SelfCheck": answer(
        {"sound": FLAG, "checks": listed(_RULE), "damage": listed(TEXT), "search_rebuilt": FLAG}
    ),
    "Reloaded": answer(
        {
            "config": told(TEXT, "The fingerprint of the configuration that is in force now."),
            "added": told(listed(TEXT), "Plugins."),
            "changed": listed(TEXT),
            "removed": listed(TEXT),
            "settings": told(listed(TEXT), "Sections of the configuration, besides `plugins`, that changed."),
            "ends": told(
                listed(record({"plugin": TEXT, "jobs": COUNT, "runs": COUNT})),
                "For each plugin that is removed or disabled: its queued jobs that ended as dead "
                "(`plugin_removed`), and the runs that still use it. In a dry run, those that would.",
            ),
            "warnings": listed(_PROBLEM),
            **DRY_RUN,
        }
    ),
    "Swept": answer(
        {
            "removed": told(by_name(COUNT), "Rows of each kind; in a dry run, those that are due."),
            **DRY_RUN,
        }
    ),
    "BreakerReset": answer(
        {
            "plugin": TEXT,
            "reset": told(COUNT, "How many were not closed."),
            "would_reset?": told(listed(TEXT), "The commands whose breakers are not closed."),
            **DRY_RUN,
        }
    ),
}
