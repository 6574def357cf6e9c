"""The rows of the table that look after an installation: doctor, selfcheck, explain, backup, restore."""

from __future__ import annotations

from ductile.cli.spec import DRY_RUN, Action, Argument, Example, Option

SYSTEM_CARE = (
    Action(
        "doctor",
        "check the whole installation: what is wrong, and how to fix it",
        "doctor:doctor",
        about="Configuration and seal, permissions, plugins and their health, listeners, clock, disk, "
        "store, breakers, schedules, failed jobs, receivers of state webhooks. Works without a daemon as "
        "well, and with a configuration that cannot be loaded. -v also shows what is in order. Exit "
        "status 1 if something is wrong; a warning is 0.",
    ),
    Action(
        "selfcheck",
        "check that the store keeps its own rules",
        "doctor:selfcheck",
        about="Reads every row, beside the running daemon or without one. -v shows every rule. "
        "Exit status 1 if one is broken: that is a defect of Ductile, or another program has written to the "
        "store.",
    ),
    Action(
        "sweep",
        "remove what has been kept long enough, now",
        "sweep:sweep",
        options=(DRY_RUN,),
        about="The daemon does the same at every service.tick_interval, a few rows at a time. How long rows "
        "are kept: service.job_queue_retention, job_log_retention and facts_retention. With --dry-run, "
        "rows that only these removals would free are not counted.",
    ),
    Action(
        "backup",
        "write configuration, store and plugins to one archive, also while the daemon runs",
        "backup:back_up",
        arguments=(Argument("FILE|DIR", "the archive to write, or the directory to put it into"),),
        options=(
            Option(
                ("--scope",), "only these parts, with commas: config, state, plugins (default all)", "PARTS"
            ),
            Option(("--secrets",), "include the files of environment variables, which hold the secrets"),
            Option(("--verify",), "check the archive instead: every hash, and that its store opens"),
            DRY_RUN,
        ),
        about="The store is copied as it is at one instant, whatever is written meanwhile. The archive is "
        "readable by its owner alone and never overwrites anything. Without --secrets the files of "
        "variables are left out and named: keep them elsewhere, or add --secrets.",
        examples=(
            Example("ductile system backup /var/backups", "into a directory, under a name with the date"),
            Example("ductile system backup ductile.tar.gz --scope config,plugins", "without the store"),
            Example("ductile system backup ductile.tar.gz --verify", "is this archive whole?"),
        ),
    ),
    Action(
        "restore",
        "put an archive back into a directory that is empty or not there",
        "backup:restore",
        arguments=(Argument("FILE", "the archive that `system backup` wrote"),),
        options=(
            Option(
                ("--to",),
                "where to; needed unless what was backed up is the present configuration's directory",
                "DIR",
            ),
            DRY_RUN,
        ),
        about="Every hash is checked first, and nothing is overwritten. Either all of it is there "
        "afterwards, or nothing. What was outside of the configuration's directory is put below "
        "`outside`, and its old place is shown; plugin roots that are written as relative paths keep their "
        "place beside the configuration. The restored store gets an id of its own.",
    ),
)


def job_explain(job: Argument) -> Action:
    return Action(
        "explain",
        "say why a job failed or does not run, and what to do",
        "explain:job",
        arguments=(job,),
        about="One sentence first; then where the job comes from, what happened, what it saw, and what "
        "differs from the last good run of the same command: configuration, exit status, stderr, "
        "duration, input.",
        examples=(
            Example("ductile job explain 8000a1b2c3d4", "as `job list` names it: by the end of its id"),
        ),
    )


def schedule_explain(plugin: Argument, schedule: Argument) -> Action:
    return Action(
        "explain",
        "say why a schedule does not run, and what to do",
        "explain:schedule",
        arguments=(plugin, schedule),
        about="The first obstacle that stands in its way: configuration, plugin, pause, daemon, breaker, "
        "the previous run, outstanding polls; else what became of its last occurrence.",
        examples=(
            Example("ductile schedule explain echo", "the only schedule of a plugin"),
            Example("ductile schedule explain echo greeting", "one of several"),
        ),
    )
