"""The context of an operation: the store, the configuration in force, the engine if one runs, the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import allows, sees_only_own
from ductile.core.jobs.model import Job, JobStatus, NewJob, SubmittedBy
from ductile.core.runs.graph import Graph
from ductile.engine.reload.drain import draining_error
from ductile.errors import DaemonNotRunningError, DeniedError, TooBusyError
from ductile.operations.config.plan_drafts import PlanDrafts
from ductile.operations.tokens.sign_in_links import SignInLinks
from ductile.operations.webhooks.refusals import WebhookRefusals
from ductile.store.model.jobs import EnqueueResult, JobStatusChange, Submission, TokenCharge
from ductile.store.own_jobs import OwnJobs
from ductile.store.port import Store
from ductile.struct import Value, replace

if TYPE_CHECKING:
    from ductile.engine.engine import Engine


class Source(Value):
    """The source of a submission: a surface, and its token, endpoint or schedule."""

    submitted_by: SubmittedBy
    detail: str | None = None
    #: The namespace of the dedupe keys of this source, if that is not `detail`.
    key_owner: str | None = None
    #: Whether this surface can wait for the response of a synchronous pipeline.
    waits: bool = False
    #: The scopes of the caller's token; None for a local caller, who may do everything.
    scopes: tuple[str, ...] | None = None
    #: Whether the caller has signed in by a link instead of a token of the configuration, which may have the
    #: same name.
    signed_in_by_link: bool = False

    @property
    def token(self) -> str | None:
        """The name of the caller's access token; None for a local caller."""
        return None if self.scopes is None or self.signed_in_by_link else self.detail

    @property
    def author(self) -> str:
        """The author in the record of a change: `cli`, or `token NAME`."""
        if self.submitted_by is SubmittedBy.CLI:
            return str(SubmittedBy.CLI)
        return f"token {self.detail}" if self.detail else str(self.submitted_by)


class OperationContext(Value):
    """Everything that an operation works with."""

    store: Store
    snapshot: Callable[[], Snapshot]
    now: Callable[[], datetime]
    rng: Random
    #: None if a command works on the store while no daemon runs.
    engine: Engine | None = None
    #: The process that runs a job of this store without a daemon, if there is one.
    offline_runner_pid: int | None = None
    #: Reads and compiles the configuration on disk; blocking. Only where an engine runs.
    load_from_disk: Callable[[], Snapshot] | None = None
    #: The file that the daemon was started with. Only where an engine runs.
    config_file: Path | None = None
    #: The environment that processes of plugins start from.
    environ: Mapping[str, str] = MappingProxyType({})
    #: Links by which the user of this machine signs in to the dashboard. Only where a daemon runs.
    sign_in_links: SignInLinks | None = None
    #: Changes of the configuration that were planned and not applied yet. Only where a daemon runs.
    plan_drafts: PlanDrafts | None = None
    #: Requests that webhook endpoints have refused. Only where a daemon runs.
    webhook_refusals: WebhookRefusals | None = None
    source: Source = Source(submitted_by=SubmittedBy.CLI)

    def now_and_zone(self) -> tuple[datetime, tzinfo]:
        """Now, and the time zone of the service, which times such as `yesterday` are relative to."""
        return self.now(), ZoneInfo(self.snapshot().timezone)

    def is_orphaned(self, job: Job) -> bool:
        """Return whether the job counts as running although the process that ran it has died.

        The next start of the daemon settles it.
        """
        return job.status is JobStatus.RUNNING and self._no_process_runs_jobs

    async def count_orphaned(self) -> int:
        """Return how many jobs count as running although their process has died."""
        return (await self.store.queue_counts()).running if self._no_process_runs_jobs else 0

    @property
    def _no_process_runs_jobs(self) -> bool:
        """True if it is known that no process runs jobs. A store on a server may be used by other nodes."""
        return self.engine is None and self.offline_runner_pid is None and self.store.cluster is None

    def require_engine(self) -> Engine:
        """Return the running engine. Raises `DaemonNotRunningError` if there is none."""
        if self.engine is None:
            raise DaemonNotRunningError("no daemon is running", hint="Start it with `ductile system start`.")
        return self.engine

    def with_own_jobs(self) -> OperationContext:
        """Return the context in which only jobs exist that the caller's token has started."""
        token = self.source.token
        assert token is not None  # noqa: S101 - scopes are those of a token
        return replace(self, store=OwnJobs(self._whole_store, token))

    def with_all_jobs(self) -> OperationContext:
        """Return the context in which the jobs of all callers exist."""
        return replace(self, store=self._whole_store) if isinstance(self.store, OwnJobs) else self

    @property
    def sees_only_own(self) -> bool:
        """True if only the caller's own jobs exist in this context."""
        return isinstance(self.store, OwnJobs)

    @property
    def _whole_store(self) -> Store:
        return self.store.store if isinstance(self.store, OwnJobs) else self.store

    def for_started_jobs(self) -> OperationContext:
        """Return the context for reading a job that the caller has started.

        It has all jobs, or the caller's own only if its token may read no others.
        """
        scopes = self.source.scopes
        return self.with_all_jobs() if scopes is None or not sees_only_own(scopes) else self.with_own_jobs()

    def require_scope(self, *needed: str) -> None:
        """Raise `DeniedError` if the caller has none of these scopes. A local caller needs none."""
        scopes = self.source.scopes
        if scopes is not None and not allows(scopes, needed):
            raise DeniedError(
                "the token may not do this",
                hint=f"It needs the scope {' or '.join(needed)}.",
                details={"needed": list(needed)},
            )

    @property
    def charge(self) -> TokenCharge | None:
        """The limits that jobs of the caller count against; None if its token has no limits."""
        if (name := self.source.token) is None:
            return None
        limits = (token.limits for token in self.snapshot().tokens if token.name == name)
        limit = next(limits, None)
        return None if limit is None else TokenCharge(token=name, limits=limit)

    def refuse_with_limits(self, activity: str) -> None:
        """Raise `DeniedError` for a caller whose token has limits: this activity would bypass them."""
        if self.charge is not None:
            raise DeniedError(
                f"your token has limits, and may not {activity}",
                hint="Use a token without limits, or `ductile` on the machine of the daemon.",
            )

    def report_ended(self, jobs: Sequence[JobStatusChange]) -> None:
        """Emit the telemetry of jobs that this operation has ended."""
        if self.engine is not None:
            self.engine.job_signals.emit_ended(jobs)

    async def enqueue(self, submission: Submission) -> tuple[EnqueueResult, ...]:
        """Write the submission to the store. Cancelling the caller meanwhile does not undo it.

        Raises `TooBusyError` if the daemon is stopping, `ConflictError` for a plugin that is being drained,
        and `LimitReachedError` if the caller's token has used up one of its limits. The engine prepares a
        claim first, so that a job that can start at once is claimed in the same commit.
        """
        if (token := self.source.token) is not None:
            # All jobs that follow from these inherit the token.
            charge = self.charge

            def with_token(job: NewJob) -> NewJob:
                return replace(job, token=token, charged=charge is not None)

            submission = replace(
                submission,
                jobs=tuple([with_token(job) for job in submission.jobs]),
                runs=tuple([replace(run, job=with_token(run.job)) for run in submission.runs]),
                charge=charge,
            )
        if self.engine is None:
            return await self.store.enqueue(submission)
        self.refuse_when_stopping()
        if self.engine.draining:
            for job in submission.jobs:
                if job.plugin in self.engine.draining and job.submitted_by is not SubmittedBy.CORE:
                    raise draining_error(job.plugin)
            for run in submission.runs:
                self.refuse_draining(run.graph)
        self.engine.dispatcher.prepare_claim()
        return await self.store.enqueue(submission)

    def refuse_draining(self, graph: Graph) -> None:
        """Raise `ConflictError` if a step of the graph uses a plugin that is being drained."""
        draining = frozenset() if self.engine is None else self.engine.draining
        if used := sorted(graph.plugins & draining):
            raise draining_error(used[0], f"the pipeline {graph.pipeline}")

    def refuse_when_stopping(self) -> None:
        """Raise `TooBusyError` if the daemon is stopping."""
        if self.engine is not None and self.engine.stopping:
            raise TooBusyError("the daemon is stopping", hint="Try again when it has been started again.")
