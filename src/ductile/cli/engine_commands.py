"""The rows of the table that are about the daemon and its jobs: system, job, queue, schedule, run."""

from __future__ import annotations

from ductile.cli.operating_commands import SYSTEM_CARE, job_explain, schedule_explain
from ductile.cli.plugin_commands import DRAIN, DRAIN_TIMEOUT
from ductile.cli.spec import DRY_RUN, Action, Argument, Example, Noun, Option

_LIMIT = Option(("-n", "--limit"), "at most this many, from 1 to 200 (default 50)", "NUMBER")
_CURSOR = Option(("--cursor",), "continue after the previous page: its `next_cursor`", "TEXT")
_OF_PLUGIN = Option(("--plugin",), "only those of this plugin", "NAME")
_OF_COMMAND = Option(("--command",), "only those of this command", "NAME")
_NO_WAIT = Option(("--no-wait",), "return at once instead of waiting for the end")
_JOB_ID = Argument("JOB", "id of the job; its beginning is enough if no other job begins like that")
_PLUGIN = Argument("PLUGIN", "name of the plugin, as it is configured")
_SCHEDULE_ID = Argument("SCHEDULE", "id of the schedule; the plugin's only one without it", required=False)

SYSTEM = Noun(
    "system",
    "start, stop and watch over the daemon",
    (
        Action(
            "start",
            "run the daemon in the foreground",
            "system:start",
            options=(DRY_RUN,),
            about="Logs go to standard output. SIGTERM and Ctrl-C stop it cleanly: running jobs get "
            "service.shutdown_grace to finish, then go back to the queue; a second one stops it at once. "
            "SIGHUP reloads. Exit status 78 if the configuration cannot be used, 1 if another daemon has the "
            "store.",
        ),
        Action(
            "stop",
            "stop the daemon cleanly and wait until it has stopped",
            "system:stop",
            options=(_NO_WAIT, DRY_RUN),
        ),
        Action(
            "status",
            "show the daemon, the queue and every plugin",
            "system:status",
            options=(
                Option(("--reveal",), "show the state of plugins in full, secrets too"),
                Option(("--health",), "ask every plugin that has a health command first; needs the daemon"),
            ),
            about="Works without a daemon as well. What runs now comes first, the longest on top; plugins in "
            "trouble come before the others. Values in a plugin's state that look "
            "like secrets are masked. Health is what the latest check said.",
        ),
        Action(
            "reload",
            "apply the changed configuration",
            "system:reload",
            options=(DRAIN, DRAIN_TIMEOUT, DRY_RUN),
            about="Checked as a whole first. If anything is wrong the old configuration stays in force and "
            "the problem is reported. Running jobs keep the configuration they were started with. Queued "
            "jobs of a plugin that is removed or disabled end as dead (plugin_removed): --dry-run counts "
            "them, --drain runs them first. Ctrl-C abandons a drain, and the old configuration stays in "
            "force.",
        ),
        Action(
            "reset",
            "close the circuit breakers of a plugin",
            "system:reset",
            arguments=(_PLUGIN,),
            options=(Option(("--command",), "only the breaker of this command", "NAME"), DRY_RUN),
        ),
        Action(
            "breaker",
            "show the circuit breakers of a plugin, and their history",
            "system:breaker",
            arguments=(_PLUGIN,),
        ),
        Action(
            "logs",
            "show what ran, from the ledger",
            "logs:show",
            arguments=(Argument("PLUGIN", "only this plugin", required=False),),
            options=(Option(("-f", "--follow"), "keep showing what ends, until Ctrl-C"), _LIMIT),
            about="One line for each execution, the latest at the end; with -v also what it wrote to stderr. "
            "With --follow and --json together, each line is a JSON object.",
            examples=(
                Example("ductile logs --follow", "everything that ends from now on"),
                Example(
                    "ductile logs echo -n 5 -v",
                    "the last five runs of one plugin, with what they wrote to stderr",
                ),
            ),
        ),
        *SYSTEM_CARE,
        Action(
            "watch",
            "watch what runs, waits and happens in the terminal, and step in",
            "watching:watch",
            about="Keys: Tab moves between the tables, Enter shows a job, c cancels it, t retries what ended "
            "badly, r runs a schedule or a plugin now, p pauses or resumes a schedule, q leaves. Needs the "
            "extra `tui`.",
        ),
        Action(
            "unit",
            "print a systemd unit for this configuration",
            "unit:print_unit",
            options=(Option(("--user",), "the user it runs as (default ductile)", "NAME"),),
            about="Put it under /etc/systemd/system. It says what to do before the first start, restarts "
            "after every crash but not for a configuration that cannot be used, and drops rights that a "
            "daemon does not need.",
        ),
        Action(
            "completion",
            "print a script that completes commands in your shell",
            "completion:print_script",
            arguments=(Argument("SHELL", "bash, zsh or fish"),),
        ),
    ),
)

JOB = Noun(
    "job",
    "find, inspect, wait for, cancel and retry jobs",
    (
        Action(
            "list",
            "list jobs, newest first",
            "job:list_all",
            options=(
                _OF_PLUGIN,
                _OF_COMMAND,
                Option(
                    ("--status",),
                    "queued (or pending), running, succeeded (or completed, ok), failed (or error), "
                    "timed_out or dead",
                    "STATUS",
                ),
                Option(
                    ("--by",),
                    "only those submitted by scheduler, webhook, route, cli, api, hook, mcp or core",
                    "SOURCE",
                ),
                Option(
                    ("--from",),
                    "created at or after this instant, such as 2026-02-08T10:00:00Z or 2026-02-08",
                    "TIME",
                ),
                Option(("--to",), "created before this instant", "TIME"),
                Option(
                    ("--query",), "only those whose result, error or stderr has all of these words", "WORDS"
                ),
                _LIMIT,
                _CURSOR,
            ),
            examples=(
                Example("ductile job list --status dead", "what is not tried any more"),
                Example(
                    "ductile job list --plugin echo --from 2026-02-08T06:00:00Z",
                    "of one plugin, since a morning",
                ),
            ),
        ),
        Action("show", "show everything about one job", "job:show", arguments=(_JOB_ID,)),
        job_explain(_JOB_ID),
        Action("tree", "show a job and all that it led to", "job:tree", arguments=(_JOB_ID,)),
        Action("logs", "show what each execution of a job printed", "job:logs", arguments=(_JOB_ID,)),
        Action(
            "wait",
            "wait for a job to end",
            "job:wait",
            arguments=(_JOB_ID,),
            options=(Option(("--timeout",), "wait no longer than this, such as 30s", "DURATION"),),
            about="Exit status 0 if the job succeeded, 1 if it did not, 75 if it has not ended in time.",
        ),
        Action(
            "cancel",
            "end a job; a running one is killed",
            "job:cancel",
            arguments=(_JOB_ID,),
            options=(DRY_RUN,),
        ),
        Action(
            "retry",
            "put a failed or dead job back on the queue, with fresh attempts",
            "job:retry",
            arguments=(_JOB_ID,),
            options=(
                Option(
                    ("--from-step",),
                    "of a pipeline run: begin a new run at this step instead, by the pipeline as it is now",
                    "PATH",
                ),
                DRY_RUN,
            ),
            about="A pipeline run is taken up where it failed, by the graph that it began with; its steps "
            "that succeeded are not run again. With --from-step the step gets what it was given then, and "
            "what branches beside it made is kept.",
            examples=(
                Example("ductile job retry 8000a1b2c3d4", "as `job list` names it: by the end of its id"),
                Example(
                    "ductile job retry 8000a1b2c3d4 --from-step greet",
                    "a run of a pipeline, once more from one of its steps",
                ),
            ),
        ),
    ),
)

QUEUE = Noun(
    "queue",
    "see what is running and waiting; empty the queue",
    (
        Action("status", "show how deep the queue is", "queue:status"),
        Action("list", "list running and waiting jobs", "queue:list_all", options=(_OF_PLUGIN, _LIMIT)),
        Action(
            "purge",
            "end queued jobs; they are kept as dead",
            "queue:purge",
            arguments=(Argument("PLUGIN", "end those of this plugin", required=False),),
            options=(Option(("--all",), "end those of every plugin"), DRY_RUN),
        ),
    ),
)

SCHEDULE = Noun(
    "schedule",
    "see, pause and run what is scheduled",
    (
        Action(
            "list",
            "list the schedules and where they stand",
            "schedule:list_all",
            arguments=(Argument("PLUGIN", "only those of this plugin", required=False),),
        ),
        Action(
            "next",
            "show the upcoming runs, across clock changes",
            "schedule:coming",
            arguments=(Argument("PLUGIN", "only this plugin", required=False), _SCHEDULE_ID),
            options=(Option(("-n", "--count"), "how many, from 1 to 1000 (default 10)", "NUMBER"),),
            examples=(
                Example("ductile schedule next -n 20", "of all plugins together"),
                Example("ductile schedule next echo", "of one plugin"),
            ),
        ),
        Action(
            "history",
            "show what became of every due run: ran, late or skipped",
            "schedule:history",
            arguments=(_PLUGIN, _SCHEDULE_ID),
            options=(_LIMIT, _CURSOR),
        ),
        schedule_explain(_PLUGIN, _SCHEDULE_ID),
        Action(
            "pause",
            "pause a schedule until it is resumed",
            "schedule:pause",
            arguments=(_PLUGIN, _SCHEDULE_ID),
            options=(DRY_RUN,),
        ),
        Action(
            "resume",
            "resume a paused schedule",
            "schedule:resume",
            arguments=(_PLUGIN, _SCHEDULE_ID),
            options=(DRY_RUN,),
        ),
        Action(
            "run",
            "start a scheduled run now",
            "schedule:run_now",
            arguments=(_PLUGIN, _SCHEDULE_ID),
            options=(DRY_RUN,),
        ),
    ),
)

PLUGIN_RUN = Action(
    "run",
    "run a plugin and show its result",
    "run:run",
    arguments=(
        _PLUGIN,
        Argument("COMMAND", "poll if not given, or else handle", required=False),
    ),
    options=(
        Option(("--payload",), "what it is given: a JSON object, @FILE, or - for standard input", "JSON"),
        Option(
            ("--timeout",), "wait no longer than this, such as 30s; without a daemon, end it then", "DURATION"
        ),
        Option(("--dedupe-key",), "do not run again what succeeded under this key", "KEY"),
        Option(("--state-webhook-url",), "tell this URL whenever the job changes its state", "URL"),
        Option(("--state-webhook-events",), "only these states, such as done,failed", "STATES"),
        Option(("--no-wait",), "print the id of the job and do not wait for it; needs the daemon"),
        Option(("--request",), "for authors: run it with exactly this request, outside any queue", "FILE"),
        DRY_RUN,
    ),
    about="Works with and without a daemon: without one the job, and what it leads to, is run here and now. "
    "Exit status 0 if the job succeeded, 1 if it did not, 75 if it has not ended in time. With --request, "
    "PLUGIN may be a directory.",
    examples=(
        Example("ductile run echo", "its poll, or else its handle"),
        Example(
            'ductile run echo handle --payload \'{"message": "hello"}\'',
            "one command, with what it is given",
        ),
        Example(
            "ductile run echo handle --payload @request.json --no-wait", "leave it to the daemon, and go on"
        ),
    ),
)
