"""Prepare the process that is started for a claimed job: its request, environment and limits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from ductile.config.snapshot import InstalledPlugin, PluginInstance, Snapshot
from ductile.core.jobs.admission import bare_key
from ductile.core.jobs.model import EndedEarly, Failed, Job, JobReason, Outcome, OutputFormat
from ductile.core.json import JsonObject
from ductile.core.scripts import EXEC_PLUGIN, ExecCommand, Script, script_environment
from ductile.protocol.plugin_messages import (
    PluginRequest,
    RequestEvent,
    carries_event,
    encode_payload,
    encode_request,
)
from ductile.runner.port import (
    Launch,
    OutputCallback,
    OutputStream,
    ResourceLimits,
    WarmStart,
    job_variables,
    plugin_environment,
)
from ductile.store.model.jobs import ClaimedJob
from ductile.struct import Value, hide_in_repr, replace

#: The directory in which each plugin may have a directory for its files: beside the store file, or in the
#: directory that this machine has for a store on a server.
DATA_DIRECTORY = "plugin-data"


def _no_output(_job: Job) -> OutputCallback | None:
    return None


@hide_in_repr("environ")
class LaunchHost(Value):
    """The settings that the processes of all jobs share."""

    store_id: str
    environ: Mapping[str, str]
    #: The working directory of plugins.
    directory: str
    now: Callable[[], datetime]
    #: The directory in which a plugin may keep files; None for its directory beside the store.
    data_directory: str | None = None
    #: Returns the function that takes the output of a job while it runs; None to take no output.
    output_callback: Callable[[Job], OutputCallback | None] = _no_output


class PreparedLaunch(Value):
    """A process to start, and the script that it runs; None for a plugin with the protocol."""

    launch: Launch
    script: Script | None = None


def prepare_launch(claim: ClaimedJob, snapshot: Snapshot, host: LaunchHost) -> PreparedLaunch | Outcome:
    """Return the launch of the job's process, or the outcome of a job that cannot run."""
    job = claim.job
    if job.cancel_requested_at is not None:
        # The pipeline run of this step was cancelled while the step was queued.
        return EndedEarly(reason=JobReason.CANCELLED, error="cancelled while it was queued")
    if job.plugin == EXEC_PLUGIN:
        return _prepare_exec(claim, snapshot, host)
    runnable = find_runnable(snapshot, job.plugin, job.command)
    if not isinstance(runnable, RunnablePlugin):
        return runnable
    plugin, installed = runnable.plugin, runnable.installed
    timeout = claim.timeout or plugin.timeout_for(job.command)
    request = build_request(claim, plugin.config.reveal(), host.now() + timeout)
    launch = Launch(
        entrypoint=str(installed.entrypoint),
        request=encode_request(request),
        environment=_environment(claim, snapshot, host, plugin.env.reveal()),
        directory=host.directory,
        timeout=timeout,
        limits=ResourceLimits(
            memory=plugin.limits.memory,
            cpu_seconds=plugin.limits.cpu_seconds,
            open_files=plugin.limits.open_files,
            processes=plugin.limits.processes,
        ),
        warm=None if plugin.warm is False else WarmStart(preload=plugin.preload),
        on_output=host.output_callback(job),
    )
    if installed.script is None:
        return PreparedLaunch(launch=launch)
    variables = _job_variables(claim, snapshot, host)
    return prepare_script(installed.script, launch, request.payload or {}, variables)


class RunnablePlugin(Value):
    plugin: PluginInstance
    installed: InstalledPlugin


def find_runnable(snapshot: Snapshot, name: str, command: str) -> RunnablePlugin | EndedEarly | Failed:
    """Return the plugin, or the outcome of a job of a plugin or command that cannot run."""
    plugin = snapshot.plugins.get(name)
    if plugin is None or not plugin.enabled:
        return EndedEarly(reason=JobReason.PLUGIN_REMOVED, error=f"the plugin {name} is not active")
    if plugin.installed is None:
        reason = plugin.refused.reason if plugin.refused else "it was not found"
        return _plugin_unavailable(f"the plugin {name} cannot run: {reason}")
    if command not in plugin.installed.manifest.commands:
        return _plugin_unavailable(f"{name} has no command {command}")
    return RunnablePlugin(plugin=plugin, installed=plugin.installed)


def build_request(claim: ClaimedJob, config: JsonObject, deadline_at: datetime) -> PluginRequest:
    """Return the request that the plugin reads on stdin."""
    job, event, payload = claim.job, claim.event, claim.job.payload
    if payload is None and event is not None:
        payload = event.payload
    job_context = {
        "ductile_plugin": job.plugin,
        "ductile_pipeline": claim.pipeline,
        "ductile_step_id": job.step_path,
        "ductile_upstream_plugin": event.source if event is not None and job.parent_job_id else None,
        "ductile_trace_id": job.trace_id,
    }
    return PluginRequest(
        job_id=job.id,
        command=job.command,
        instance=job.plugin,
        config=config,
        state=claim.state,
        context={
            **claim.baggage,
            **{name: value for name, value in job_context.items() if value is not None},
        },
        deadline_at=deadline_at,
        payload=payload,
        event=_request_event(claim, payload),
    )


def prepare_script(
    script: Script, launch: Launch, payload: JsonObject, job_variables: Mapping[str, str]
) -> PreparedLaunch | Failed:
    """Return the launch of a script, with the payload on its stdin and in its environment.

    `launch` is the launch of the plugin without its script. `job_variables` come last: by them recovery finds
    the processes of a job.
    """
    encoded = encode_payload(payload)
    environment = {**launch.environment, **script_environment(payload, encoded[:-1]), **job_variables}
    if script.output is not OutputFormat.PROTOCOL:
        launch = replace(launch, request=encoded)
    return _launch_script(script, replace(launch, environment=environment, warm=None))


def _prepare_exec(claim: ClaimedJob, snapshot: Snapshot, host: LaunchHost) -> PreparedLaunch | Outcome:
    """Return the launch of a command of `ductile exec`, in its caller's directory, with an empty stdin."""
    command = ExecCommand.from_payload(claim.job.payload)
    if command is None:
        return _plugin_unavailable("its payload is not a command of `ductile exec`")
    launch = Launch(
        entrypoint=command.argv[0],
        request=b"",
        environment=_environment(claim, snapshot, host, {}),
        directory=command.cwd,
        timeout=timedelta(seconds=command.timeout),
        on_output=host.output_callback(claim.job),
    )
    return _launch_script(Script(argv=command.argv, directory=command.cwd), launch)


def _launch_script(script: Script, launch: Launch) -> PreparedLaunch | Failed:
    """Return the launch of the script's program. A name without a slash is searched for in PATH."""
    program = script.argv[0]
    if "/" not in program:
        path = shutil.which(program, path=launch.environment.get("PATH"))
        if path is None:
            error = f"{program} could not be started: it was not found in PATH"
            return Failed(reason=JobReason.COULD_NOT_START, error=error, permanent=True)
        program = path
    launch = replace(launch, entrypoint=program, arguments=script.argv[1:], directory=script.directory)
    if script.output is not OutputFormat.PROTOCOL:
        launch = replace(launch, live_streams=frozenset(OutputStream))
    return PreparedLaunch(launch=launch, script=script)


def _environment(
    claim: ClaimedJob, snapshot: Snapshot, host: LaunchHost, plugin_env: Mapping[str, str]
) -> dict[str, str]:
    return plugin_environment(
        host.environ,
        passthrough=snapshot.service.plugin_env_passthrough,
        own=plugin_env,
        job=_job_variables(claim, snapshot, host),
    )


def _job_variables(claim: ClaimedJob, snapshot: Snapshot, host: LaunchHost) -> dict[str, str]:
    job = claim.job
    beside_store = snapshot.state.directory / DATA_DIRECTORY / job.plugin
    return job_variables(
        store_id=host.store_id,
        daemon=job.owner or "",  # As stored: recovery compares the two.
        job_id=job.id,
        plugin=job.plugin,
        command=job.command,
        attempt=job.attempt,
        # The plugin creates the directory if it needs it.
        data_dir=host.data_directory or os.path.abspath(beside_store),  # noqa: PTH100 - links stay
        trace_id=job.trace_id,
    )


def _request_event(claim: ClaimedJob, payload: JsonObject | None) -> RequestEvent | None:
    """Return the event that led to the job; for a job that was submitted directly, a `….trigger` event."""
    job, event = claim.job, claim.event
    if not carries_event(job.command, has_payload=payload is not None):
        return None
    if event is None:
        return RequestEvent(
            type=f"{job.submitted_by}.trigger",
            payload=payload or {},
            source=job.submitted_by,
            timestamp=job.created_at,
            event_id=job.id,
            dedupe_key=bare_key(job.dedupe_key),
        )
    return RequestEvent(
        type=event.type,
        payload=payload or {},  # The step's payload, if `with` has rewritten the event's.
        source=event.source,
        timestamp=event.created_at,
        event_id=event.id,
        dedupe_key=event.dedupe_key,
        headers=event.headers,
    )


def _plugin_unavailable(error: str) -> Failed:
    return Failed(reason=JobReason.PLUGIN_UNAVAILABLE, error=error, permanent=True)
