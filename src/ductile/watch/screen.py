"""The terminal screen: shows jobs, schedules and plugins, and changes them by keys.

All calls go through one function, so that tests need no socket. New entries of the ledger refresh the screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import ClassVar, ParamSpec, TypeAlias

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, RichLog, Static
from textual.worker import get_current_worker

from ductile.core.terminal_text import escape_controls
from ductile.errors import DaemonNotRunningError, DuctileError
from ductile.watch import rows
from ductile.watch.rows import JsonDocument, Row

P = ParamSpec("P")

Call: TypeAlias = Callable[[str, Mapping[str, object]], JsonDocument]
#: The document of a job as text in lines of at most this width.
ShowJob: TypeAlias = Callable[[JsonDocument, int], str]
#: Title and columns of each table.
_TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "jobs": ("Running and queued", rows.JOB_COLUMNS),
    "runs": ("Pipelines", rows.RUN_COLUMNS),
    "failed": ("Failed and dead", rows.FAILED_COLUMNS),
    "schedules": ("Schedules", rows.SCHEDULE_COLUMNS),
    "plugins": ("Plugins and breakers", rows.PLUGIN_COLUMNS),
}
_MAX_RUNS = 12
#: How long one call waits for ledger entries. Then ages are refreshed, and the screen can be left.
_FOLLOW_TIMEOUT = "2s"
_RETRY_SECONDS = 0.5
#: The latest output of a running job that is kept on the screen.
_MAX_OUTPUT = 50_000
_ENDED = ("succeeded", "failed", "dead")
#: Columns beside the text of a job: margin, border, padding and scroll bar.
_DETAILS_FRAME = 8


class Details(ModalScreen[None]):
    """Everything about one job, with its output while it runs."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "app.pop_screen", "close")]

    def __init__(self, job: JsonDocument, call: Call, show_job: ShowJob) -> None:
        super().__init__()
        self._job = job
        self._call = call
        self._show_job = show_job
        self._output = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="details") as scroll:
            scroll.border_subtitle = "Escape closes"
            yield Static("", id="document", markup=False)
            yield Static("", id="output", markup=False)

    def on_mount(self) -> None:
        self._update("")
        if self._job["status"] not in _ENDED:
            self.follow_output()

    def on_resize(self) -> None:
        self._update("")

    @work(thread=True)
    def follow_output(self) -> None:
        """Add new output of the job until it has ended, then show its result."""
        worker, job_id = get_current_worker(), self._job["job_id"]
        position, last_execution = None, 0
        while not worker.is_cancelled:
            fields = {
                "job_id": job_id,
                "after": position,
                "executions": last_execution,
                "timeout": _FOLLOW_TIMEOUT,
            }
            try:
                update = self._call("job.follow", fields)
                done = update["ended"] or update["stopping"]
                job = (
                    self._call("job.show", {"job_id": job_id}) if done or update["executions"] else self._job
                )
            except DuctileError as error:
                self.app.call_from_thread(self.notify, error.message, severity="error")
                return
            position = update["position"]
            last_execution = max([last_execution, *(int(row["execution"]) for row in update["executions"])])
            self._job = job
            self.app.call_from_thread(self._update, "".join(piece["text"] for piece in update["output"]))
            if done:
                return

    def _update(self, printed: str) -> None:
        if not self.is_attached:
            return
        document, output = self.query_one("#document", Static), self.query_one("#output", Static)
        document.update(self._show_job(self._job, max(self.app.size.width - _DETAILS_FRAME, 20)))
        self._output = (self._output + printed)[-_MAX_OUTPUT:]
        # The document of a job that has ended has its output.
        if self._job["status"] in _ENDED or not self._output:
            output.update("")
            return
        lines = self._output.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n")
        output.update("\n".join(("", "Output so far", *(f"  {escape_controls(line)}" for line in lines))))
        if printed:
            self.query_one("#details", VerticalScroll).scroll_end(animate=False)


class Confirm(ModalScreen[bool]):
    """A question that only the key `y` confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,enter,q", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(f"{self._question} [y/N]", id="question", markup=False)


class WatchApp(App[None]):
    """The screen with its tables and the latest events."""

    TITLE = "ductile"
    ENABLE_COMMAND_PALETTE = False
    #: Below 100 columns the tables are below each other.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - Textual declares it so
    CSS = """
    #head { height: 1; padding: 0 1; background: $primary; color: $text; }
    #left { width: 1fr; } #right { width: 1fr; }
    DataTable, RichLog { border: round $primary-lighten-1; border-title-color: $text; }
    DataTable:focus { border: round $accent; }
    DataTable { height: 1fr; }
    RichLog { height: 2fr; scrollbar-size-vertical: 1; }
    #details { margin: 1 1; padding: 0 1; background: $surface; border: round $primary; }
    Confirm { align: center middle; }
    #question { width: auto; max-width: 90%; height: auto; padding: 1 2; background: $surface;
                border: round $warning; }
    .-narrow #columns { layout: vertical; overflow-y: auto; }
    .-narrow #left, .-narrow #right { width: 100%; height: auto; }
    .-narrow DataTable { height: auto; min-height: 4; max-height: 9; }
    .-narrow RichLog { height: 9; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "cancel"),
        Binding("t", "retry", "retry"),
        Binding("r", "run", "run now"),
        Binding("p", "pause", "pause/resume"),
        Binding("enter", "details", "details", priority=True),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, call: Call, show_job: ShowJob, zone: tzinfo = UTC) -> None:
        super().__init__()
        self._call = call
        self._show_job = show_job
        self._zone = zone
        self._paused: set[str] = set()

    def compose(self) -> ComposeResult:
        yield Static("", id="head", markup=False)
        with Horizontal(id="columns"):
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
        # Lines of events depend on the width, which is known after the first layout.
        self.call_after_refresh(self.follow)

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
                self._update(self._set_headline, error.message)
                return
            except DuctileError as error:  # such as that of a store that is closing
                self._update(self._set_headline, error.message)
                time.sleep(_RETRY_SECONDS)

    def _refresh(self, after: int | None) -> int:
        """Wait for ledger entries after a number, then show everything anew. Returns the last number.

        With None it does not wait, and shows the latest entries.
        """
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
            for status in ("failed", "dead")
            for job in self._call("job.list", {"status": status, "limit": 20})["jobs"]
        ]
        status = self._call("system.status", {})
        schedules = self._call("schedule.list", {})
        now = datetime.now(UTC)
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
        self._update(self._show, rows.headline(status), tables, tail["events"])
        return max((int(event["seq"]) for event in tail["events"]), default=after or 0)

    def _update(self, show: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Change the screen from the thread of `follow`. While the program closes, there are no widgets."""
        with suppress(NoMatches):
            self.call_from_thread(show, *args, **kwargs)

    def _show(self, headline: str, tables: Mapping[str, list[Row]], new_events: list[JsonDocument]) -> None:
        """Replace the rows of all tables, and add the events."""
        self._set_headline(headline)
        for name, table_rows in tables.items():
            table = self.query_one(f"#{name}", DataTable)
            # The cursor stays on its row, also if the row has moved.
            selected = _selected(table)
            table.clear()
            # Steps of one run share a key, and keys must be unique: only the first step is shown.
            cells_by_key = {row.key: row.cells for row in reversed(table_rows)}
            keys = list(dict.fromkeys(row.key for row in table_rows))
            for key in keys:
                table.add_row(*map(escape_controls, cells_by_key[key]), key=key)
            if selected in keys:
                table.move_cursor(row=keys.index(selected))
        events = self.query_one("#events", RichLog)
        for event in new_events:
            line = rows.event_line(event, events.scrollable_content_region.width, self._zone)
            events.write(escape_controls(line).replace("\n", " "))

    def _set_headline(self, text: str) -> None:
        self.query_one("#head", Static).update(f"ductile · {escape_controls(text)}")

    # -- act

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:  # noqa: ARG002 - of Textual
        """Keys of the tables have no effect while another screen is above them."""
        return len(self.screen_stack) == 1 or action in ("pop_screen", "dismiss")

    def action_cancel(self) -> None:
        """Cancel the selected job or run after a question, because a running process is ended."""
        key = self._selected_key(("jobs", "runs"))
        if key is None:
            return
        table = self.focused
        name = " ".join(table.get_row(key)[1::-1]) if isinstance(table, DataTable) else key

        def on_answer(confirmed: bool | None) -> None:
            if confirmed:
                self._call_operation("job.cancel", {"job_id": key})

        self.push_screen(Confirm(f"Cancel {name}? A running process is ended."), on_answer)

    def action_retry(self) -> None:
        self._call_for_selected("job.retry", ("failed",), lambda key: {"job_id": key})

    def action_run(self) -> None:
        if self.focused is not None and self.focused.id == "plugins":
            self._call_for_selected("plugin.run", ("plugins",), lambda key: {"plugin": key})
        else:
            self._call_for_selected("schedule.run", ("schedules",), _schedule)

    def action_pause(self) -> None:
        if (key := self._key(("schedules",))) is not None:
            self._call_operation(
                "schedule.resume" if key in self._paused else "schedule.pause", _schedule(key)
            )

    def action_details(self) -> None:
        if (key := self._key(("jobs", "runs", "failed"))) is not None:
            self.inspect_job(key)

    @work(thread=True)
    def inspect_job(self, job_id: str) -> None:
        try:
            job = self._call("job.show", {"job_id": job_id})
        except DuctileError as error:
            self.call_from_thread(self.notify, error.message, severity="error")
            return
        self.call_from_thread(self.push_screen, Details(job, self._call, self._show_job))

    def _call_for_selected(
        self, operation: str, tables: tuple[str, ...], fields_of: Callable[[str], Mapping[str, object]]
    ) -> None:
        if (key := self._selected_key(tables)) is not None:
            self._call_operation(operation, fields_of(key))

    def _selected_key(self, tables: tuple[str, ...]) -> str | None:
        """Return the key of the selected row; None, with a note on the screen, if no row is selected."""
        key = self._key(tables)
        if key is None:
            self.notify(f"select a row of {' or '.join(_TABLES[name][0] for name in tables)} first")
        return key

    @work(thread=True)
    def _call_operation(self, operation: str, fields: Mapping[str, object]) -> None:
        """Call an operation in a thread, so that the screen does not block."""
        try:
            self._call(operation, fields)
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
