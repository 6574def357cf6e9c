"""Operations that change, compare and list configurations."""

from __future__ import annotations

from ductile.operations.operation import SYSTEM_RO, SYSTEM_RW, get, post
from ductile.operations.table.row import exclusive, read

_CHANGES = (200, 403, 404, 409, 422, 503)
CONFIG = (
    # For the command line of the same machine, which writes the files itself.
    exclusive(
        "config.plan", "config.plan:plan", "What sealing and loading the files would change", SYSTEM_RW
    ),
    read(
        "config.value",
        "system.lifecycle:show_value",
        "A part of the configuration in force by its key, as it is written, secrets masked",
        SYSTEM_RO,
        get("/config/value", statuses=(200, 400, 404)),
    ),
    read(
        "config.history",
        "config.history:show_history",
        "The configurations that were loaded or sealed, newest first",
        SYSTEM_RO,
        get("/config/history"),
    ),
    exclusive(
        "config.diff",
        "config.differences:show_diff",
        "How the files on disk differ from what is in force and sealed, or two of the history",
        SYSTEM_RO,
        get("/config/diff", statuses=(200, 400, 404)),
    ),
    exclusive(
        "config.changes",
        "config.changes:show_changes",
        "What changed since an instant: configurations, files and plugins that are not sealed, schedules",
        SYSTEM_RO,
        get("/config/changes"),
    ),
    exclusive(
        "config.plan_change",
        "config.plan_change:plan_change",
        "Plan a change of keys or of scopes, or a rollback; config.apply does exactly this, or refuses",
        SYSTEM_RW,
        post("/config/plan", message="Nothing was changed.", statuses=_CHANGES),
    ),
    exclusive(
        "config.apply",
        "config.apply:apply",
        "Put the configuration on disk in force: check, seal, reload",
        SYSTEM_RW,
        post("/config/apply", message="The configuration is in force.", statuses=_CHANGES),
    ),
    exclusive(
        "config.rollback",
        "config.apply:rollback",
        "Restore the files of an earlier sealed configuration and put them in force",
        SYSTEM_RW,
        post("/config/rollback", message="The earlier configuration is in force.", statuses=_CHANGES),
    ),
)
