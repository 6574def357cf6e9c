"""The terminal screen. Calls operations through one function, so that tests need no socket.

Keys call operations; the screen is refreshed when the ledger grows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import ClassVar, TypeAlias

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, RichLog, Static
from textual.worker import get_current_worker

from ductile.core.terminal_text import escape_controls, escape_in_json
from ductile.errors import DaemonNotRunningError, DuctileError
from ductile.watch import rows
from ductile.watch.rows import JsonDocument, Row

Call: TypeAlias = Callable[[str, Mapping[str, object]], JsonDocument]
#: Title and columns of each table.
_TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "jobs": ("Running and queued", rows.JOB_COLUMNS),
    "runs": ("Pipelines", rows.RUN_COLUMNS),
    "failed": ("Ended badly", rows.FAILED_COLUMNS),
    "schedules": ("Schedules", rows.SCHEDULE_COLUMNS),
    "plugins": ("Plugins and breakers", rows.PLUGIN_COLUMNS),
}
_MAX_RUNS = 12
#: How long one call waits for ledger entries. Then ages are refreshed, and the screen can be left.
_FOLLOW_TIMEOUT = "2s"
_RETRY_SECONDS = 0.5


class Details(ModalScreen[None]):
    """The document of one job."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "app.pop_screen", "close")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="details"):
            yield Static(self._text, markup=False)


class WatchApp(App[None]):
    TITLE = "ductile"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; padding: 0 1; background: $primary; color: $text; }
    #left { width: 1fr; } #right { width: 1fr; }
    DataTable, RichLog { border: round $primary-lighten-1; border-title-color: $text; }
    DataTable:focus { border: round $accent; }
    DataTable { height: 1fr; }
    RichLog { height: 2fr; scrollbar-size-vertical: 1; }
    #details { margin: 2 6; padding: 1 2; background: $surface; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "cancel"),
        Binding("t", "retry", "retry"),
        Binding("r", "run", "run now"),
        Binding("p", "pause", "pause/resume"),
        Binding("enter", "details", "details", priority=True),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, call: Call, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__()
        self._call = call
        self._now = now
        self._paused: set[str] = set()

    def compose(self) -> ComposeResult:
        yield Static("", id="head", markup=False)
        with Horizontal():
            with Vertical(id="left"):
                yield from (self._table(name) for name in ("jobs", "runs", "failed"))
            with Vertical(id="right"):
                # Without a minimum width, long lines wrap.
                log = RichLog(id="events", max_lines=500, wrap=True, min_width=0, markup=False)
                log.border_title = "Events"
                yield log
                yield from (self._table(name) for name in ("schedules", "plugins"))
        yield Footer()

    @staticmethod
    def _table(name: str) -> DataTable[str]:
        title, columns = _TABLES[name]
        table: DataTable[str] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
        table.border_title = title
        table.add_columns(*columns)
        return table

    def on_mount(self) -> None:
        self.follow()

    # -- show

    @work(thread=True, exclusive=True, group="follow")
    def follow(self) -> None:
        """Refresh the screen, wait until the ledger has grown, and repeat."""
        worker = get_current_worker()
        after: int | None = None
        while not worker.is_cancelled:
            try:
                after = self._refresh(after)
            except DaemonNotRunningError as error:
                self.call_from_thread(self._set_headline, error.message)
                return
            except DuctileError as error:  # Such as a store that closes; the next call finds out more.
                self.call_from_thread(self._set_headline, error.message)
                time.sleep(_RETRY_SECONDS)

    def _refresh(self, after: int | None) -> int:
        if after is None:
            tail = self._call("ledger.tail", {"limit": 30})
        else:
            tail = self._call("ledger.follow", {"after": after, "timeout": _FOLLOW_TIMEOUT})
        queue = self._call("queue.list", {"limit": 100})
        runs = [job for status in ("running", "queued") for job in queue[status]]
        runs = [job for job in runs if job["plugin"] == rows.RUN_PLUGIN][:_MAX_RUNS]
        steps = [(run, self._call("job.list", {"run": run["job_id"], "limit": 200})["jobs"]) for run in runs]
        failed = [
            job
            for word in ("failed", "dead")
            for job in self._call("job.list", {"status": word, "limit": 20})["jobs"]
        ]
        status = self._call("system.status", {})
        schedules = self._call("schedule.list", {})
        now = self._now()
        tables = {
            "jobs": rows.job_rows(queue, now),
            "runs": rows.run_rows(steps, now),
            "failed": rows.failed_rows(failed, now),
            "schedules": rows.schedule_rows(schedules, now),
            "plugins": rows.plugin_rows(status, now),
        }
        self._paused = {
            f"{entry['plugin']}\t{entry['id']}" for entry in schedules["schedules"] if entry["paused_at"]
        }
        self.call_from_thread(self._show, rows.headline(status), tables, tail["events"])
        seen = [int(event["seq"]) for event in tail["events"]]
        return max(seen, default=after or 0)

    def _show(self, headline: str, tables: Mapping[str, list[Row]], new_events: list[JsonDocument]) -> None:
        self._set_headline(headline)
        for name, found in tables.items():
            table = self.query_one(f"#{name}", DataTable)
            # The cursor stays on its row, also if the row has moved.
            selected = _selected(table)
            table.clear()
            # Steps of one run share a key, and keys must be unique: only the first step is shown.
            cells_by_key = {row.key: row.cells for row in reversed(found)}
            keys = list(dict.fromkeys(row.key for row in found))
            for key in keys:
                table.add_row(*map(escape_controls, cells_by_key[key]), key=key)
            if selected in keys:
                table.move_cursor(row=keys.index(selected))
        events = self.query_one("#events", RichLog)
        for event in new_events:
            line = rows.event_line(event, events.scrollable_content_region.width)
            events.write(escape_controls(line).replace("\n", " "))

    def _set_headline(self, text: str) -> None:
        self.query_one("#head", Static).update(f"ductile · {escape_controls(text)}")

    # -- act

    def action_cancel(self) -> None:
        self._act("job.cancel", ("jobs", "runs"), lambda key: {"job_id": key})

    def action_retry(self) -> None:
        self._act("job.retry", ("failed",), lambda key: {"job_id": key})

    def action_run(self) -> None:
        if self.focused is not None and self.focused.id == "plugins":
            self._act("plugin.run", ("plugins",), lambda key: {"plugin": key})
        else:
            self._act("schedule.run", ("schedules",), _schedule)

    def action_pause(self) -> None:
        if (key := self._key(("schedules",))) is not None:
            self._do("schedule.resume" if key in self._paused else "schedule.pause", _schedule(key))

    def action_details(self) -> None:
        if isinstance(self.screen, Details):
            self.pop_screen()
        elif (key := self._key(("jobs", "runs", "failed"))) is not None:
            self.inspect_job(key)

    @work(thread=True)
    def inspect_job(self, job_id: str) -> None:
        try:
            shown = self._call("job.show", {"job_id": job_id})
            text = escape_in_json(json.dumps(shown, indent=2, ensure_ascii=False))
        except DuctileError as error:
            self.call_from_thread(self.notify, error.message, severity="error")
            return
        self.call_from_thread(self.push_screen, Details(text))

    def _act(
        self, operation: str, tables: tuple[str, ...], given: Callable[[str], Mapping[str, object]]
    ) -> None:
        key = self._key(tables)
        if key is None:
            self.notify(f"select a row of {' or '.join(_TABLES[name][0] for name in tables)} first")
        else:
            self._do(operation, given(key))

    @work(thread=True)
    def _do(self, operation: str, given: Mapping[str, object]) -> None:
        """Call an operation in a thread, so that the screen does not block."""
        try:
            self._call(operation, given)
        except DuctileError as error:
            self.call_from_thread(self.notify, error.message, severity="error")
        else:
            self.call_from_thread(self.notify, operation.replace(".", " "))

    def _key(self, tables: tuple[str, ...]) -> str | None:
        """Return the key of the selected row, if the focused table is one of these."""
        focused = self.focused
        return _selected(focused) if isinstance(focused, DataTable) and focused.id in tables else None


def _schedule(key: str) -> Mapping[str, object]:
    plugin, _, schedule = key.partition("\t")
    return {"plugin": plugin, "schedule": schedule}


def _selected(table: DataTable[str]) -> str | None:
    if not table.row_count or table.cursor_row >= table.row_count:
        return None
    return table.ordered_rows[table.cursor_row].key.value
