"""Rows: jobs, their log, and figures about jobs and the daemon."""

from __future__ import annotations

from ductile.operations.operation import (
    JOBS_RO,
    JOBS_RW,
    OWN_EVENTS_RO,
    OWN_JOBS_RO,
    OWN_JOBS_RW,
    SYSTEM_RO,
    SYSTEM_RW,
    get,
    post,
)
from ductile.operations.table.row import LONG_POLL, ONE_JOB_STATUSES, exclusive, read

JOBS = (
    read("job.list", "jobs.query:list_jobs", "Jobs, newest first", OWN_JOBS_RO, get("/jobs", tag="jobs")),
    read(
        "job.show",
        "jobs.query:show_job",
        "A job: its fields, payload, result and history",
        OWN_JOBS_RO,
        get(
            "/job/{job_id}",
            aliases=("/jobs/{job_id}",),
            tag="jobs",
            statuses=ONE_JOB_STATUSES,
            sends_status_header=True,
        ),
    ),
    read(
        "job.tree",
        "jobs.query:job_tree",
        "A job and all jobs that follow from it",
        OWN_JOBS_RO,
        get("/job/{job_id}/tree", tag="jobs", statuses=ONE_JOB_STATUSES),
    ),
    read(
        "job.export",
        "jobs.export:export_job",
        "A job, what led to it and what it led to, with all that is stored about them",
        OWN_JOBS_RO,
        get(
            "/job/{job_id}/export",
            message="The exported jobs.",
            tag="jobs",
            statuses=(*ONE_JOB_STATUSES, 413),
        ),
    ),
    read(
        "job.explain",
        "diagnose.explain_job:explain_job",
        "Why a job failed or does not run, and what to do",
        OWN_JOBS_RO,
        get(
            "/job/{job_id}/explain",
            message="The explanation of the job.",
            tag="jobs",
            statuses=ONE_JOB_STATUSES,
        ),
    ),
    read(
        "pipeline.explain",
        "diagnose.explain_run:explain_run",
        "What became of every step of a run",
        OWN_JOBS_RO,
        get("/run/{job_id}/explain", tag="jobs", statuses=ONE_JOB_STATUSES),
    ),
    read(
        "job.logs",
        "jobs.query:job_logs",
        "What each execution of a job printed",
        OWN_JOBS_RO,
        get("/job/{job_id}/log", message="The executions of the job.", tag="jobs", statuses=ONE_JOB_STATUSES),
    ),
    exclusive(
        "job.follow",
        "jobs.live:follow_job",
        "Wait for output of a running job, or for its end",
        OWN_JOBS_RO,
        get("/job/{job_id}/follow", statuses=ONE_JOB_STATUSES, **LONG_POLL),
        waits=True,
    ),
    read(
        "job.wait",
        "jobs.query:wait_for_job",
        "Wait until a job has ended",
        OWN_JOBS_RO,
        get("/job/{job_id}/wait", message="The job, as it is now.", statuses=ONE_JOB_STATUSES, **LONG_POLL),
        waits=True,
    ),
    exclusive(
        "job.cancel",
        "jobs.change:cancel_job",
        "End a job: a running one is killed",
        OWN_JOBS_RW,
        post(
            "/job/{job_id}/cancel",
            message="The job was cancelled.",
            tag="jobs",
            statuses=(*ONE_JOB_STATUSES, 410),
        ),
    ),
    exclusive(
        "job.retry",
        "jobs.change:retry_job",
        "Queue a failed or dead job again, with fresh attempts",
        OWN_JOBS_RW,
        post(
            "/job/{job_id}/retry",
            message="The job is on the queue again.",
            tag="jobs",
            statuses=(*ONE_JOB_STATUSES, 410),
        ),
    ),
    # Without a route over HTTP, where it would let every caller execute anything: see its module.
    exclusive("job.exec", "jobs.exec:execute_command", "Run any command once as a job", SYSTEM_RW),
    exclusive(
        "job.retry_many",
        "jobs.bulk:retry_jobs",
        "Queue again the failed and dead jobs that match a filter",
        OWN_JOBS_RW,
        post("/jobs/retry", tag="jobs", statuses=(200, 400, 404, 422)),
    ),
    exclusive(
        "job.cancel_many",
        "jobs.bulk:cancel_jobs",
        "End the queued and running jobs that match a filter",
        OWN_JOBS_RW,
        post("/jobs/cancel", tag="jobs", statuses=(200, 400, 404, 422)),
    ),
    exclusive(
        "job.rerun",
        "jobs.rerun:rerun_job",
        "Run a job again as a new one, with the same input or another payload",
        OWN_JOBS_RW,
        post(
            "/job/{job_id}/rerun",
            message="The new job is on the queue.",
            tag="jobs",
            statuses=(202, 200, 403, 404, 409, 410, 422, 503),
            submits=True,
        ),
    ),
    exclusive(
        "job.retry_from_step",
        "runs.start:retry_from_step",
        "Start a run again from one of its steps",
        OWN_JOBS_RW,
        post(
            "/run/{job_id}/retry",
            message="The new run is on the queue.",
            tag="jobs",
            statuses=(202, *ONE_JOB_STATUSES, 422),
        ),
    ),
    read(
        "log.list", "jobs.log:list_log", "Executions, newest first", OWN_JOBS_RO, get("/job-logs", tag="jobs")
    ),
    exclusive(
        "log.follow",
        "jobs.log:follow_log",
        "Wait for executions",
        OWN_JOBS_RO,
        get("/job-logs/follow", **LONG_POLL),
        waits=True,
    ),
    read(
        "ledger.tail",
        "jobs.log:tail_ledger",
        "The latest entries of the ledger",
        OWN_EVENTS_RO,
        get("/ledger", tag="events"),
    ),
    exclusive(
        "ledger.follow",
        "jobs.log:follow_ledger",
        "Wait for entries of the ledger",
        OWN_EVENTS_RO,
        get("/ledger/follow", tag="events", waits=True),
        waits=True,
    ),
    read(
        "queue.status",
        "jobs.queue:queue_status",
        "The depth of the queue",
        JOBS_RO,
        get("/queue/status", tag="queue"),
    ),
    read(
        "queue.list", "jobs.queue:queue_list", "Running and queued jobs", JOBS_RO, get("/queue", tag="queue")
    ),
    exclusive(
        "queue.purge",
        "jobs.queue:queue_purge",
        "End queued jobs",
        JOBS_RW,
        post("/queue/purge", message="The queued jobs were ended.", tag="queue", statuses=(200, 404)),
    ),
)

FIGURES = (
    read(
        "queue.figures",
        "jobs.queue:queue_figures",
        "The queue, plugin by plugin",
        JOBS_RO,
        get("/analytics/queue", tag="figures"),
    ),
    read(
        "log.figures",
        "jobs.queue:execution_figures",
        "How executions ended, plugin by plugin",
        JOBS_RO,
        get("/analytics/summary", tag="figures"),
    ),
    read(
        "log.series",
        "jobs.series:execution_series",
        "Executions, failures, run times and waits over time",
        JOBS_RO,
        get("/analytics/series", tag="figures", statuses=(200, 404)),
    ),
    read(
        "plugin.stats",
        "jobs.queue:plugin_figures",
        "Executions, failures, retries, run times, waits and stderr, plugin by plugin",
        JOBS_RO,
        get("/analytics/plugins", tag="figures", statuses=(200, 404)),
    ),
    read(
        "system.config",
        "system.lifecycle:view_configuration",
        "The configuration in force, secrets masked",
        SYSTEM_RO,
        get("/config/view"),
    ),
)
