"""The executor: prepares and runs a claimed job, interprets its output, settles it and emits its signals.

Faults of a plugin become an outcome of the job; faults of Ductile are raised and stop the daemon. A claimed
job is always settled, or the next start finds it running and recovers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import Completed, Failed, Job, JobReason, Outcome, Requeued
from ductile.core.policy import Policy
from ductile.engine.artifact_files import describe_artifacts
from ductile.engine.clock import STORE_UNAVAILABLE, Clock
from ductile.engine.job_signals import JobSignals
from ductile.engine.launches import LaunchHost, PreparedLaunch, prepare_launch
from ductile.engine.live_output import LiveOutput
from ductile.errors import RefusedError
from ductile.runner.interpret import Interpretation, interpret, mask_state_secrets
from ductile.runner.port import CouldNotStart, ForkServerLost, Process, Runner
from ductile.store.model.jobs import ClaimedJob, SettleResult
from ductile.store.port import Store
from ductile.struct import replace

#: The pause before a result is stored again, after the store was full or locked.
FIRST_RETRY_PAUSE = timedelta(seconds=1)
MAX_RETRY_PAUSE = timedelta(seconds=30)


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
        live_output: LiveOutput,
        settle_attempts: int | None = None,
        may_run: Callable[[], bool] = lambda: True,
    ) -> None:
        """Plugin processes start from `environ` and from the working directory that is current now. Their
        output goes to `live_output` as it comes.

        `settle_attempts` limits how often storing a result is tried; None: no limit. While `may_run` is
        false, no process is started: jobs go back to the queue.
        """
        self._store = store
        self._runner = runner
        self._snapshot = snapshot
        self._clock = clock
        self._job_signals = job_signals
        self._live_output = live_output
        self._host = LaunchHost(
            store_id=store.store_id,
            # A copy: os.environ decodes every variable each time it is read.
            environ=dict(environ),
            directory=str(Path.cwd()),
            now=clock.now,
            output_callback=live_output.callback_for,
        )
        self._settle_attempts = settle_attempts
        self._may_run = may_run
        #: Processes by job and execution.
        self._processes: dict[tuple[str, int], Process] = {}
        #: Executions to stop, which may not have a process yet.
        self._stop_requested: set[tuple[str, int]] = set()
        self._stopping = False
        #: Set when results are no longer kept for a store that is unavailable.
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
        self._job_signals.emit_claimed(job)
        try:
            prepared = prepare_launch(claim, snapshot, self._host)
            if isinstance(prepared, PreparedLaunch):
                interpretation = await self._run(claim, prepared, on_resources_exhausted)
            else:
                interpretation = Interpretation(outcome=prepared)
            self._job_signals.emit_exited(job, interpretation)
            outcome = interpretation.outcome
            if isinstance(outcome, Completed) and (artifacts := outcome.response.artifacts):
                artifacts = await describe_artifacts(artifacts, snapshot.artifact_roots, self._clock)
                outcome = replace(outcome, response=replace(outcome.response, artifacts=artifacts))
            outcome = mask_state_secrets(outcome)
            result = await self._settle(job, outcome, snapshot, on_result)
        finally:
            self._stop_requested.discard(_execution_of(job))
        self._job_signals.emit_settled(job, result)
        return result

    def stop(self, job: Job) -> None:
        """Stop the processes of this execution, if it runs here. Later executions are not stopped."""
        self._stop_requested.add(_execution_of(job))
        if (process := self._processes.get(_execution_of(job))) is not None:
            process.stop()

    def is_running(self, job_id: str) -> bool:
        """Return whether a process of the job runs on this node."""
        return any(running == job_id for running, _ in self._processes)

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

    def kill_all(self) -> None:
        """Kill all processes; their jobs go back to the queue. Called when `may_run` is false."""
        for process in self._processes.values():
            process.stop(at_once=True)

    # -- run

    async def _run(
        self, claim: ClaimedJob, prepared: PreparedLaunch, on_resources_exhausted: Callable[[], None]
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
            self._job_signals.emit_started(job, process.age)
            marking = asyncio.create_task(self._mark_working(job)) if claim.has_subscribers else None
            if self._is_stopping(job):  # The stop came while the process was being started.
                process.stop(at_once=self._give_up.is_set() or not self._may_run())
            ended = await process.wait()
            if marking is not None:
                # State webhooks are numbered in order: `working` must be stored before the result.
                await asyncio.wait({marking})
            return interpret(ended, script)
        finally:
            self._processes.pop(_execution_of(job), None)
            self._live_output.end(job)

    def _is_stopping(self, job: Job) -> bool:
        return self._stopping or not self._may_run() or _execution_of(job) in self._stop_requested

    async def _mark_working(self, job: Job) -> None:
        """Store that the plugin has its request, for the state webhook `working`, while the plugin works."""
        # While the store is unavailable, this state webhook is lost; the next state has its own.
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
                if attempts == 1:
                    self._job_signals.emit_result_not_stored(job, error)
                if self._give_up.is_set() or attempts == self._settle_attempts:
                    raise ResultNotStoredError(job.id) from error
                await self._clock.wait(self._clock.now() + pause, self._give_up)
                pause = min(pause * 2, MAX_RETRY_PAUSE)
            except RefusedError as error:
                # The response can never be stored. The job must still end, so this is its failure.
                outcome = Failed(
                    reason=JobReason.PROTOCOL_ERROR,
                    error=f"the response cannot be stored: {error.message}",
                    permanent=True,
                    evidence=outcome.evidence,
                )


def policy_at_end(at_start: Snapshot, active: Snapshot, plugin: str) -> Policy:
    """Return the policy that settles a job: of the configuration it started with, except its schedules.

    The next occurrence of a schedule follows from the active configuration.
    """
    if at_start is active:
        return at_start.policy
    plugin_policy = replace(at_start.policy.plugin(plugin), schedules=active.policy.plugin(plugin).schedules)
    return replace(at_start.policy, plugins={**at_start.policy.plugins, plugin: plugin_policy})


def _execution_of(job: Job) -> tuple[str, int]:
    return job.id, job.execution
