"""One job from its claim to its settlement: prepare, run, judge, settle, tell.

What a plugin does wrong ends up as an outcome; what is wrong with us is raised and stops the daemon.
Whatever happens in between, a claimed job is settled, or found running by the next start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.jobs.dedupe import bare_key
from ductile.core.jobs.model import Job, JobReason
from ductile.core.jobs.outcomes import Completed, EndedEarly, Failed, Interrupted, Outcome
from ductile.core.json import JsonObject
from ductile.engine.artifact_files import describe_artifacts
from ductile.engine.clock import Clock
from ductile.engine.notifications import JobNotifications
from ductile.engine.reload.plan import rules_at_end
from ductile.errors import RefusedError, StoreBusyError, StoreFullError
from ductile.protocol.plugin_messages import PluginRequest, RequestEvent, carries_event, encode_request
from ductile.runner.environment import describe_job, plugin_environment
from ductile.runner.interpret import Interpretation, interpret
from ductile.runner.port import CouldNotStart, Launch, Process, ResourceLimits, Runner, RunnerLost, WarmStart
from ductile.store.model.jobs import ClaimedJob, SettleResult
from ductile.store.port import Store
from ductile.struct import Value, hide_in_repr, replace

#: How long a result waits before it is offered again to a store that is full or locked.
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=30)


class ProcessDefaults(Value):
    """What a plugin's process is made of besides its job."""

    environ: Mapping[str, str]
    directory: str


@hide_in_repr("config", "environment")
class _LaunchSettings(Value):
    """What is the same for every job of a plugin under one configuration, and dear to work out."""

    config: JsonObject
    environment: dict[str, str]
    limits: ResourceLimits
    warm: WarmStart | None


class ResultNotStoredError(Exception):
    """The store could not take a result and we may not wait: the next start finds the job running.

    Its cause is what the store said.
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
        reporter: JobNotifications,
        surroundings: ProcessDefaults,
        *,
        offers: int | None = None,
    ) -> None:
        """`offers` is how often a result is offered to a store that cannot take it; None for no end."""
        self._store = store
        self._runner = runner
        self._snapshot = snapshot
        self._clock = clock
        self._report = reporter
        self._surroundings = surroundings
        self._offers = offers
        self._processes: dict[tuple[str, int], Process] = {}
        #: Executions that are to be stopped: the job's id and the number of its execution.
        self._stop_wanted: set[tuple[str, int]] = set()
        self._stopping = False
        self._give_up = asyncio.Event()
        self._lasting_under: Snapshot | None = None
        self._lasting: dict[str, _LaunchSettings] = {}

    async def execute(
        self,
        claim: ClaimedJob,
        under: Snapshot | None = None,
        makes_room: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a claimed job and settle it, to its end under one configuration: this, or the one in force.

        `makes_room` is called whenever its result is about to be handed to the store.
        """
        snapshot = under or self._snapshot()
        self._report.claimed(claim.job)
        try:
            prepared = self._prepare(claim, snapshot)
            if isinstance(prepared, Launch):
                judgement = await self._run(claim, prepared)
            else:
                judgement = Interpretation(outcome=prepared)
            self._report.exited(claim.job, judgement)
            outcome = await self._with_file_facts(judgement.outcome, snapshot)
            # The store writes a result that it was handed, whatever becomes of us meanwhile.
            answer = await self._settle(claim.job, outcome, snapshot, makes_room)
        finally:
            self._stop_wanted.discard(_execution_of(claim.job))
        self._report.settled(claim.job, answer)

    def stop(self, job: Job) -> None:
        """End the processes of this execution of a job, if they run here; it ends when they have.

        A later execution of the same job is left alone.
        """
        self._stop_wanted.add(_execution_of(job))
        if (process := self._processes.get(_execution_of(job))) is not None:
            process.stop()

    def forget(self, job: Job) -> None:
        """The execution that was to be stopped has ended."""
        self._stop_wanted.discard(_execution_of(job))

    def stop_all(self, *, at_once: bool) -> None:
        """The daemon stops and has no more patience: end everything; nothing new is started."""
        self._stopping = True
        if at_once:
            self._give_up.set()
        for process in self._processes.values():
            process.stop(at_once=at_once)

    # -- prepare

    def _prepare(self, claim: ClaimedJob, snapshot: Snapshot) -> Launch | Outcome:
        """The process to start, or how the job ends without one."""
        job = claim.job
        if job.cancel_requested_at is not None:
            # Its run was cancelled while it was still queued, and ending it had not come to it yet.
            return EndedEarly(reason=JobReason.CANCELLED, error="cancelled while it was queued")
        plugin = snapshot.plugins.get(job.plugin)
        if plugin is None or not plugin.enabled:
            return EndedEarly(reason=JobReason.PLUGIN_REMOVED, error=f"the plugin {job.plugin} is not active")
        if plugin.installed is None:
            why = plugin.refused.reason if plugin.refused else "it was not found"
            return _unavailable(f"the plugin {job.plugin} cannot run: {why}")
        if job.command not in plugin.installed.manifest.commands:
            return _unavailable(f"{job.plugin} has no command {job.command}")
        timeout = claim.timeout or plugin.timeout_for(job.command)
        lasting = self._lasting_of(plugin, snapshot)
        return Launch(
            entrypoint=str(plugin.installed.entrypoint),
            request=encode_request(self._request(claim, lasting.config, timeout)),
            # The job's come last: a plugin's configuration must not replace what recovery finds processes by.
            environment=lasting.environment | self._describe(job),
            directory=self._surroundings.directory,
            timeout=timeout,
            limits=lasting.limits,
            warm=lasting.warm,
        )

    def _request(self, claim: ClaimedJob, config: JsonObject, timeout: timedelta) -> PluginRequest:
        job, payload = claim.job, claim.job.payload
        if payload is None and claim.event is not None:
            payload = claim.event.payload
        return PluginRequest(
            job_id=job.id,
            command=job.command,
            instance=job.plugin,
            config=config,
            state=claim.state,
            context=_context(claim),
            deadline_at=self._clock.now() + timeout,
            payload=payload,
            event=self._event(claim, payload),
        )

    def _event(self, claim: ClaimedJob, payload: JsonObject | None) -> RequestEvent | None:
        """The event that led here; for a job that was submitted directly, one that says so."""
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
            # A step's own payload, where `with` has rewritten what the event carried.
            payload=payload or {},
            source=event.source,
            timestamp=event.created_at,
            event_id=event.id,
            dedupe_key=event.dedupe_key,
            headers=event.header_texts,
        )

    def _describe(self, job: Job) -> dict[str, str]:
        return describe_job(
            store_id=self._store.store_id,
            # As the store has it: recovery compares the two.
            daemon=job.owner or "",
            job_id=job.id,
            plugin=job.plugin,
            command=job.command,
            attempt=job.attempt,
            trace_id=job.trace_id,
        )

    def _lasting_of(self, plugin: PluginInstance, snapshot: Snapshot) -> _LaunchSettings:
        if self._lasting_under is not snapshot:
            self._lasting_under, self._lasting = snapshot, {}
        known = self._lasting.get(plugin.name)
        if known is None:
            known = self._lasting[plugin.name] = _LaunchSettings(
                config=plugin.config.reveal(),
                environment=plugin_environment(
                    self._surroundings.environ,
                    passthrough=snapshot.service.plugin_env_passthrough,
                    own=plugin.env.reveal(),
                    job={},
                ),
                limits=ResourceLimits(
                    memory=plugin.limits.memory,
                    cpu_seconds=plugin.limits.cpu_seconds,
                    open_files=plugin.limits.open_files,
                    processes=plugin.limits.processes,
                ),
                warm=None if plugin.warm is False else WarmStart(preload=plugin.preload),
            )
        return known

    # -- run

    async def _run(self, claim: ClaimedJob, run: Launch) -> Interpretation:
        job = claim.job
        if self._is_unwanted(job):
            return judge_unstarted()
        process = await self._runner.start(run)
        if isinstance(process, CouldNotStart | RunnerLost):
            if isinstance(process, CouldNotStart) and process.shortage:
                # Before the result is handed in: the next claim shares its commit.
                self._report.short_of_resources(job)
            return interpret(process)
        self._processes[_execution_of(job)] = process
        try:
            self._report.started(job, process.age)
            marking = self._mark_working(job) if claim.is_followed else None
            if self._is_unwanted(job):  # it became so while the process was being started
                process.stop(at_once=self._give_up.is_set())
            ended = await process.wait()
            if marking is not None:  # the result of a quick process must not overtake the state before it
                await asyncio.wait({marking})
            return interpret(ended)
        finally:
            self._processes.pop(_execution_of(job), None)

    def _is_unwanted(self, job: Job) -> bool:
        return self._stopping or _execution_of(job) in self._stop_wanted

    def _mark_working(self, job: Job) -> asyncio.Task[None]:
        """Record that the plugin has its request, while the plugin works."""

        async def mark() -> None:
            # A store that cannot take it now loses one state webhook; the next state writes its own.
            with suppress(StoreFullError, StoreBusyError):
                await self._store.mark_working(job.id, job.execution)

        task = asyncio.create_task(mark())
        self._report.keep(task)
        return task

    async def _with_file_facts(self, outcome: Outcome, snapshot: Snapshot) -> Outcome:
        """The outcome with size and hash of the files that the plugin named, where it did not say them."""
        if not isinstance(outcome, Completed) or not outcome.response.artifacts:
            return outcome
        artifacts = await describe_artifacts(outcome.response.artifacts, snapshot.artifact_roots, self._clock)
        return replace(outcome, response=replace(outcome.response, artifacts=artifacts))

    # -- settle

    async def _settle(
        self, job: Job, outcome: Outcome, snapshot: Snapshot, makes_room: Callable[[], None]
    ) -> SettleResult:
        """Write the outcome. A full or locked store is asked again; the result is held meanwhile."""
        pause = FIRST_PAUSE
        offered = 0
        while True:
            makes_room()
            offered += 1
            rules = rules_at_end(snapshot, self._snapshot(), job.plugin)
            try:
                return await self._store.settle(job, outcome, rules)
            except (StoreFullError, StoreBusyError) as error:
                self._report.held(job, error)
                if self._give_up.is_set() or offered == self._offers:
                    raise ResultNotStoredError(job.id) from error
                await self._clock.wait(self._clock.now() + pause, self._give_up)
                pause = min(pause * 2, LONGEST_PAUSE)
            except RefusedError as error:
                # What the plugin answered cannot be stored. That is the plugin's failure, and must be one:
                # a job that cannot be settled would run for ever.
                outcome = Failed(
                    reason=JobReason.PROTOCOL_ERROR,
                    error=f"the answer cannot be stored: {error.message}",
                    permanent=True,
                    evidence=outcome.evidence,
                )


def _execution_of(job: Job) -> tuple[str, int]:
    return job.id, job.execution


def judge_unstarted() -> Interpretation:
    """The daemon stopped, or somebody cancelled the job, before there was a process."""
    return Interpretation(outcome=Interrupted())


def _unavailable(error: str) -> Failed:
    return Failed(reason=JobReason.PLUGIN_UNAVAILABLE, error=error, permanent=True)


def _context(claim: ClaimedJob) -> JsonObject:
    job, event = claim.job, claim.event
    described = {
        "ductile_plugin": job.plugin,
        "ductile_pipeline": claim.pipeline,
        "ductile_step_id": job.step_path,
        "ductile_upstream_plugin": event.source if event is not None and job.parent_job_id else None,
        "ductile_trace_id": job.trace_id,
    }
    return {**claim.baggage, **{name: value for name, value in described.items() if value is not None}}
