"""The rows of the table that are about pipelines and events."""

from __future__ import annotations

from ductile.cli.spec import DRY_RUN, Action, Argument, Example, Noun, Option

_NAME = Argument("NAME", "name of the pipeline")
_PAYLOAD = Option(("--payload",), "what it is given: a JSON object, @FILE, or - for standard input", "JSON")
_DEDUPE_KEY = Option(("--dedupe-key",), "do not start again what succeeded under this key", "KEY")

PIPELINE = Noun(
    "pipeline",
    "see, run, check, draw and explain pipelines",
    (
        Action("list", "list the pipelines, each with its latest run", "pipeline:list_all"),
        Action(
            "show",
            "show a pipeline: what starts it, and its steps",
            "pipeline:show",
            arguments=(_NAME,),
            about="Read from the configuration on disk. With --json, the compiled graph as well.",
        ),
        Action(
            "run",
            "run a pipeline and show its result",
            "pipeline:run",
            arguments=(_NAME,),
            options=(
                _PAYLOAD,
                Option(
                    ("--timeout",),
                    "wait no longer than this, such as 30s; without a daemon, end it then",
                    "DURATION",
                ),
                _DEDUPE_KEY,
                Option(("--state-webhook-url",), "tell this URL whenever the run changes its state", "URL"),
                Option(("--state-webhook-events",), "only these states, such as done,failed", "STATES"),
                Option(("--no-wait",), "print the id of the run and do not wait for it; needs the daemon"),
                DRY_RUN,
            ),
            about="Works with and without a daemon: without one its steps are run here, one after the other, "
            "and what has to be tried again is left to the daemon. On a terminal each step is shown as it "
            "ends. Exit status 0 if the run succeeded, 1 if it did not, 75 if it has not ended in time.",
            examples=(
                Example(
                    'ductile pipeline run hello --payload \'{"name": "Ada"}\'', "and wait for its result"
                ),
            ),
        ),
        Action(
            "check",
            "check the pipelines; with a payload, show what it would start",
            "pipeline:check",
            arguments=(Argument("NAME", "only this pipeline", required=False),),
            options=(
                Option(("--payload",), "try this: a JSON object, @FILE, or - for standard input", "JSON"),
            ),
            about="Reads the configuration on disk and runs nothing. With --payload, which needs NAME, the "
            "first steps are shown, and why they would run or not; later ones depend on what those answer. "
            "Exit status 78 if something has to be corrected.",
            examples=(
                Example("ductile pipeline check", "all of them, before a reload"),
                Example(
                    'ductile pipeline check hello --payload \'{"name": "Ada"}\'',
                    "what would run with this payload, and why",
                ),
            ),
        ),
        Action(
            "graph",
            "draw a pipeline",
            "pipeline:graph",
            arguments=(_NAME,),
            options=(
                Option(("--format",), "mermaid (default) or svg", "FORMAT"),
                Option(("-o", "--output"), "write it to this file instead of standard output", "FILE"),
            ),
            about="Drawn here, from the configuration on disk: neither a browser nor the network is needed.",
        ),
        Action(
            "explain",
            "show what became of every step of a run, and why",
            "pipeline:explain",
            arguments=(Argument("RUN", "id of the run, or of one of its steps; its beginning is enough"),),
        ),
    ),
)

EVENT = Noun(
    "event",
    "publish events, and follow what happens",
    (
        Action(
            "send",
            "publish an event: start the routes and pipelines that wait for it",
            "event:send",
            arguments=(Argument("TYPE", "type of the event, such as order.placed"),),
            options=(
                Option(("--payload",), "what it carries: JSON, @FILE, or - for standard input", "JSON"),
                _DEDUPE_KEY,
                DRY_RUN,
            ),
            about="Its source is `cli`. Everything that it starts is put on the queue together, or nothing; "
            "without a daemon it waits there for one.",
            examples=(
                Example(
                    'ductile event send echo.said --payload \'{"message": "hello"}\'',
                    "to whoever waits for it",
                ),
                Example("ductile event send echo.said --dry-run", "who would that be?"),
            ),
        ),
        Action(
            "tail",
            "show what happened last, from the ledger",
            "event:tail",
            options=(
                Option(("-f", "--follow"), "keep showing what happens, until Ctrl-C"),
                Option(("-n", "--limit"), "how many of the latest, from 1 to 1000 (default 50)", "NUMBER"),
            ),
            about="With --follow and --json together, each line is a JSON object.",
            examples=(Example("ductile event tail --follow", "everything that happens from now on"),),
        ),
    ),
)
