"""Rows: run plugins and pipelines, publish events."""

from __future__ import annotations

from typing import Any

from ductile.operations.operation import (
    EVENTS_RO,
    EVENTS_RW,
    JOBS_RO,
    OWN_JOBS_RO,
    PLUGIN_RO,
    RUN_BY_NAME,
    RUN_COMMAND,
    RUN_PIPELINE,
    RUN_TRIGGER,
    SYSTEM_RO,
    get,
    post,
)
from ductile.operations.table.row import LONG_POLL, ONE_JOB_STATUSES, exclusive, read

#: Of routes that may wait for a pipeline. The message of a row is that of a response without its end.
_SYNCHRONOUS: dict[str, Any] = {
    "tag": "run",
    "statuses": (200, 202, 404, 409, 422, 502, 503),
    "submits": True,
    "waits": True,
    "sends_status_header": True,
}
RUNS = (
    exclusive(
        "plugin.run",
        "submission:run_command",
        "Run a command of a plugin",
        RUN_COMMAND,
        post(
            "/plugin/{plugin}/{command}",
            aliases=("/plugin/{plugin}",),
            message="The job is on the queue.",
            tag="run",
            statuses=(202, 200, 404, 422, 503),
            submits=True,
        ),
    ),
    exclusive(
        "run.start",
        "runs.by_name:run_named",
        "Run a plugin or, if there is none of this name, a pipeline; does not wait for it",
        RUN_BY_NAME,
        post(
            "/run/{name}",
            message="The job is on the queue.",
            tag="run",
            statuses=(202, 200, 400, 404, 422, 503),
            submits=True,
        ),
    ),
    exclusive(
        "pipeline.run",
        "runs.start:run_pipeline",
        "Run a pipeline",
        RUN_PIPELINE,
        post("/pipeline/{pipeline}", message="The run is on the queue.", **_SYNCHRONOUS),
    ),
    exclusive(
        "pipeline.trigger",
        "runs.start:trigger_pipeline",
        "Run the pipeline that starts on the event `plugin.command`, or else this command",
        RUN_TRIGGER,
        post("/trigger/{plugin}/{command}", message="The job is on the queue.", **_SYNCHRONOUS),
    ),
    read(
        "pipeline.list",
        "runs.pipelines:list_pipelines",
        "Every pipeline, with its latest run",
        PLUGIN_RO,
        get("/pipelines", tag="catalogue"),
    ),
    read(
        "pipeline.show",
        "runs.pipelines:show_pipeline",
        "One pipeline: what starts it, its steps and its graph",
        PLUGIN_RO,
        get("/pipeline/{pipeline}", message="The pipeline.", tag="catalogue", statuses=(200, 404)),
    ),
    read(
        "pipeline.graph",
        "runs.pipelines:graph_of_pipeline",
        "A drawing of a pipeline",
        PLUGIN_RO,
        get("/pipeline/{pipeline}/graph", tag="catalogue", statuses=(200, 404)),
    ),
    read(
        "pipeline.test",
        "pipeline_test.run:run_pipeline_test",
        "What a pipeline would do, with the responses of a case or of past runs; nothing is run or stored",
        SYSTEM_RO,
        post(
            "/pipeline/{pipeline}/test",
            tag="run",
            message="Nothing was run or stored.",
            statuses=(200, 404, 409, 410, 422),
            waits=True,
        ),
    ),
    read(
        "pipeline.record",
        "pipeline_test.record:record_runs",
        "Past runs of a pipeline as test cases: what they began with and what their steps responded",
        JOBS_RO,
        get("/pipeline/{pipeline}/cases", tag="run", statuses=(200, 404, 409, 410, 422)),
    ),
    exclusive(
        "pipeline.follow",
        "runs.pipelines:follow_run",
        "Wait for steps of a run to end",
        OWN_JOBS_RO,
        get("/run/{job_id}/follow", statuses=ONE_JOB_STATUSES, **LONG_POLL),
        waits=True,
    ),
    exclusive(
        "event.send",
        "runs.publish:publish_event",
        "Publish an event: start every route and pipeline that takes it",
        EVENTS_RW,
        post("/event", tag="run", statuses=(202, 200, 422, 503), submits=True),
    ),
    read(
        "event.explain",
        "runs.explain_event:explain_event",
        "What an event would start and what not, and why; nothing is run or stored",
        EVENTS_RO,
        post(
            "/event/explain",
            tag="run",
            message="Nothing was run or stored.",
            statuses=(200, 404, 422),
        ),
    ),
)
