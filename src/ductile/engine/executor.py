"""The executor: takes one claimed job to its settlement. Prepare, run, interpret, settle, report.

Faults of a plugin become an outcome of the job; faults of Ductile are raised and stop the daemon. A claimed
job is always settled, or the next start finds it running and recovers it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ductile.config.snapshot import Snapshot
from ductile.core.jobs.admission import bare_key
from ductile.core.jobs.model import (
    Completed,
    EndedEarly,
    Failed,
    Job,
    JobReason,
    Outcome,
    OutputFormat,
    Requeued,
)
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.core.scripts import EXEC_PLUGIN, ExecCommand, Script, script_environment
from ductile.engine.artifact_files import describe_artifacts
from ductile.engine.clock import STORE_UNAVAILABLE, Clock
from ductile.engine.job_signals import JobSignals
from ductile.engine.live_output import LiveOutput
from ductile.errors import RefusedError
from ductile.protocol.plugin_messages import (
    PluginRequest,
    RequestEvent,
    carries_event,
    encode_payload,
    encode_request,
)
from ductile.runner.interpret import Interpretation, interpret
from ductile.runner.port import (
    CouldNotStart,
    ForkServerLost,
    Launch,
    OutputStream,
    Process,
    ResourceLimits,
    Runner,
    WarmStart,
    describe_job,
    plugin_environment,
)
from ductile.store.model.jobs import ClaimedJob, SettleResult
from ductile.store.port import Store
from ductile.struct import Value, replace

#: The pause before a result is stored again, after the store was full or locked.
FIRST_RETRY_PAUSE = timedelta(seconds=1)
MAX_RETRY_PAUSE = timedelta(seconds=30)


class _Prepared(Value):
    """A process to start, and the script that it runs, if it is one."""

    launch: Launch
    script: Script | None = None


class ResultNotStoredError(Exception):
    """The store could not take a result, and it is not retried. The next start recovers the job.

    `__cause__` is the store's error.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class Executor:
    def __init__(
        self,
        store: Store,
        runner: Runner,
        snapshot: Callable[[], Snapshot],
        clock: Clock,
        job_signals: JobSignals,
        environ: Mapping[str, str],
        *,
        live: LiveOutput,
        settle_attempts: int | None = None,
    ) -> None:
        """Plugin processes start from `environ` and from the working directory that is current now. Their
        output goes to `live` as it comes.

        `settle_attempts` limits how often storing a result is tried; None: no limit.
        """
        self._store = store
        self._runner = runner
        self._snapshot = snapshot
        self._clock = clock
        self._job_signals = job_signals
        # A copy: os.environ decodes every variable each time it is read.
        self._environ = dict(environ)
        self._directory = str(Path.cwd())
        self._live = live
        self._settle_attempts = settle_attempts
        #: Processes by job and execution.
        self._processes: dict[tuple[str, int], Process] = {}
        #: Executions to stop, which may not have a process yet.
        self._stop_requested: set[tuple[str, int]] = set()
        self._stopping = False
        self._give_up = asyncio.Event()

    async def execute(
        self,
        claim: ClaimedJob,
        snapshot: Snapshot | None = None,
        on_result: Callable[[], None] = lambda: None,
        on_resources_exhausted: Callable[[], None] = lambda: None,
    ) -> SettleResult:
        """Run a claimed job and settle it, under `snapshot` or the active configuration.

        `on_result` is called each time before the result is handed to the store;
        `on_resources_exhausted`, before that, if the process could not be started for lack of resources.
        Raises `ResultNotStoredError`.
        """
        job = claim.job
        snapshot = snapshot or self._snapshot()
        self._job_signals.claimed(job)
        try:
            prepared = self._prepare(claim, snapshot)
            if isinstance(prepared, _Prepared):
                interpretation = await self._run(claim, prepared, on_resources_exhausted)
            else:
                interpretation = Interpretation(outcome=prepared)
            self._job_signals.exited(job, interpretation)
            outcome = interpretation.outcome
            if isinstance(outcome, Completed) and (artifacts := outcome.response.artifacts):
                artifacts = await describe_artifacts(artifacts, snapshot.artifact_roots, self._clock)
                outcome = replace(outcome, response=replace(outcome.response, artifacts=artifacts))
            result = await self._settle(job, outcome, snapshot, on_result)
        finally:
            self._stop_requested.discard(_execution_of(job))
        self._job_signals.settled(job, result)
        return result

    def stop(self, job: Job) -> None:
        """Stop the processes of this execution, if it runs here. Later executions are not stopped."""
        self._stop_requested.add(_execution_of(job))
        if (process := self._processes.get(_execution_of(job))) is not None:
            process.stop()

    def forget_stop(self, job: Job) -> None:
        """Withdraw `stop`: the execution has ended."""
        self._stop_requested.discard(_execution_of(job))

    def stop_all(self, *, at_once: bool) -> None:
        """Stop all processes and start no more. `at_once` also gives up on an unavailable store."""
        self._stopping = True
        if at_once:
            self._give_up.set()
        for process in self._processes.values():
            process.stop(at_once=at_once)

    # -- prepare

    def _prepare(self, claim: ClaimedJob, snapshot: Snapshot) -> _Prepared | Outcome:
        """Return the launch of the job's process, or the outcome of a job that cannot run."""
        job = claim.job
        if job.cancel_requested_at is not None:
            # Its run was cancelled while the job was still queued.
            return EndedEarly(reason=JobReason.CANCELLED, error="cancelled while it was queued")
        if job.plugin == EXEC_PLUGIN:
            return self._prepare_exec(claim, snapshot)
        plugin = snapshot.plugins.get(job.plugin)
        if plugin is None or not plugin.enabled:
            error = f"the plugin {job.plugin} is not active"
            return EndedEarly(reason=JobReason.PLUGIN_REMOVED, error=error)
        if plugin.installed is None:
            why = plugin.refused.reason if plugin.refused else "it was not found"
            return _unavailable(f"the plugin {job.plugin} cannot run: {why}")
        if job.command not in plugin.installed.manifest.commands:
            return _unavailable(f"{job.plugin} has no command {job.command}")
        timeout = claim.timeout or plugin.timeout_for(job.command)
        request = self._request(claim, plugin.config.reveal(), timeout)
        launch = Launch(
            entrypoint=str(plugin.installed.entrypoint),
            request=encode_request(request),
            environment=self._environment(claim, snapshot, plugin.env.reveal()),
            directory=self._directory,
            timeout=timeout,
            limits=ResourceLimits(
                memory=plugin.limits.memory,
                cpu_seconds=plugin.limits.cpu_seconds,
                open_files=plugin.limits.open_files,
                processes=plugin.limits.processes,
            ),
            warm=None if plugin.warm is False else WarmStart(preload=plugin.preload),
            on_output=self._live.callback_for(job),
        )
        if plugin.installed.script is None:
            return _Prepared(launch=launch)
        return self._prepare_script(claim, plugin.installed.script, launch, request.payload or {})

    def _prepare_script(
        self, claim: ClaimedJob, script: Script, launch: Launch, payload: JsonObject
    ) -> _Prepared | Outcome:
        """Start the program of a script, with the payload on its stdin and in its environment."""
        encoded = encode_payload(payload)
        # The variables of the job come last: recovery finds its processes by them.
        environment = {**launch.environment, **script_environment(payload, encoded[:-1])}
        environment |= self._job_variables(claim)
        if script.output is not OutputFormat.PROTOCOL:
            launch = replace(launch, request=encoded)
        return _start_script(script, replace(launch, environment=environment, warm=None))

    def _prepare_exec(self, claim: ClaimedJob, snapshot: Snapshot) -> _Prepared | Outcome:
        """Start a command of `ductile exec` where its caller was, with an empty stdin."""
        command = ExecCommand.from_payload(claim.job.payload)
        if command is None:
            return _unavailable("its payload is not a command of `ductile exec`")
        launch = Launch(
            entrypoint=command.argv[0],
            request=b"",
            environment=self._environment(claim, snapshot, {}),
            directory=command.cwd,
            timeout=timedelta(seconds=command.timeout),
            on_output=self._live.callback_for(claim.job),
        )
        return _start_script(Script(argv=command.argv, directory=command.cwd), launch)

    def _environment(self, claim: ClaimedJob, snapshot: Snapshot, own: Mapping[str, str]) -> dict[str, str]:
        return plugin_environment(
            self._environ,
            passthrough=snapshot.service.plugin_env_passthrough,
            own=own,
            job=self._job_variables(claim),
        )

    def _job_variables(self, claim: ClaimedJob) -> dict[str, str]:
        job = claim.job
        return describe_job(
            store_id=self._store.store_id,
            daemon=job.owner or "",  # As stored: recovery compares the two.
            job_id=job.id,
            plugin=job.plugin,
            command=job.command,
            attempt=job.attempt,
            trace_id=job.trace_id,
        )

    def _request(self, claim: ClaimedJob, config: JsonObject, timeout: timedelta) -> PluginRequest:
        job, event, payload = claim.job, claim.event, claim.job.payload
        if payload is None and event is not None:
            payload = event.payload
        described = {
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
                **{name: value for name, value in described.items() if value is not None},
            },
            deadline_at=self._clock.now() + timeout,
            payload=payload,
            event=_request_event(claim, payload),
        )

    # -- run

    async def _run(
        self, claim: ClaimedJob, prepared: _Prepared, on_resources_exhausted: Callable[[], None]
    ) -> Interpretation:
        job, script = claim.job, prepared.script
        if self._is_stopping(job):
            return Interpretation(outcome=Requeued())
        process = await self._runner.start(prepared.launch)
        if isinstance(process, CouldNotStart | ForkServerLost):
            if isinstance(process, CouldNotStart) and process.resources_exhausted:
                on_resources_exhausted()
            return interpret(process, script)
        self._processes[_execution_of(job)] = process
        try:
            self._job_signals.started(job, process.age)
            marking = asyncio.create_task(self._mark_working(job)) if claim.has_subscribers else None
            if self._is_stopping(job):  # The stop came while the process was being started.
                process.stop(at_once=self._give_up.is_set())
            ended = await process.wait()
            if marking is not None:
                # State webhooks are numbered in order: `working` must be stored before the result.
                await asyncio.wait({marking})
            return interpret(ended, script)
        finally:
            self._processes.pop(_execution_of(job), None)
            self._live.end(job)

    def _is_stopping(self, job: Job) -> bool:
        return self._stopping or _execution_of(job) in self._stop_requested

    async def _mark_working(self, job: Job) -> None:
        """Store, while the plugin works, that it has its request, for the state webhook `working`."""
        # A store that is unavailable now loses this state webhook; the next state has its own.
        with suppress(*STORE_UNAVAILABLE):
            await self._store.mark_working(job.id, job.execution)

    # -- settle

    async def _settle(
        self, job: Job, outcome: Outcome, snapshot: Snapshot, on_result: Callable[[], None]
    ) -> SettleResult:
        """Store the outcome. While the store is unavailable, this is retried."""
        pause = FIRST_RETRY_PAUSE
        attempts = 0
        while True:
            on_result()
            attempts += 1
            policy = policy_at_end(snapshot, self._snapshot(), job.plugin)
            try:
                # The store commits a result that it was handed, even if this task is cancelled meanwhile.
                return await self._store.settle(job, outcome, policy)
            except STORE_UNAVAILABLE as error:
                self._job_signals.result_not_stored(job, error)
                if self._give_up.is_set() or attempts == self._settle_attempts:
                    raise ResultNotStoredError(job.id) from error
                await self._clock.wait(self._clock.now() + pause, self._give_up)
                pause = min(pause * 2, MAX_RETRY_PAUSE)
            except RefusedError as error:
                # The response can never be stored. The job must still end, so this is its failure.
                outcome = Failed(
                    reason=JobReason.PROTOCOL_ERROR,
                    error=f"the answer cannot be stored: {error.message}",
                    permanent=True,
                    evidence=outcome.evidence,
                )


def policy_at_end(at_start: Snapshot, active: Snapshot, plugin: str) -> Policy:
    """Return the policy that settles a job: of the configuration it started with, except its schedules.

    The next occurrence of a schedule follows from the active configuration.
    """
    if at_start is active:
        return at_start.policy
    own = replace(at_start.policy.plugin(plugin), schedules=active.policy.plugin(plugin).schedules)
    return replace(at_start.policy, plugins={**at_start.policy.plugins, plugin: own})


def _request_event(claim: ClaimedJob, payload: JsonObject | None) -> RequestEvent | None:
    """Return the event that led to the job; for a job that was submitted directly, one that says so."""
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


def _execution_of(job: Job) -> tuple[str, int]:
    return job.id, job.execution


def _start_script(script: Script, launch: Launch) -> _Prepared | Failed:
    """Return the launch of the script's program. One without a slash in its name is looked for in PATH."""
    program = script.argv[0]
    if "/" not in program:
        found = shutil.which(program, path=launch.environment.get("PATH"))
        if found is None:
            error = f"{program} could not be started: it was not found in PATH"
            return Failed(reason=JobReason.COULD_NOT_START, error=error, permanent=True)
        program = found
    launch = replace(launch, entrypoint=program, arguments=script.argv[1:], directory=script.directory)
    if script.output is not OutputFormat.PROTOCOL:
        launch = replace(launch, live_streams=frozenset(OutputStream))
    return _Prepared(launch=launch, script=script)


def _unavailable(error: str) -> Failed:
    return Failed(reason=JobReason.PLUGIN_UNAVAILABLE, error=error, permanent=True)
