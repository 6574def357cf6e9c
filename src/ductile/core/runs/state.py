"""The values of a pipeline run: tokens, the join scopes they belong to, and what one advance changes.

A *token* is one event travelling through the graph of a run. A token that enters a split opens a *join
scope* with one token per branch. When the last token of a scope has ended, the scope is joined, and one token
continues after the split, or it is broken, and the token that entered the split fails.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ductile.core.events.model import NewContext, NewEvent
from ductile.core.jobs.model import LedgerEntry, NewJob, StepNotStarted
from ductile.core.json import JsonObject
from ductile.core.runs.graph import Graph
from ductile.struct import Value

#: The most steps of one run; a step whose events would start more fails.
MAX_RUN_JOBS = 10_000


class TokenStatus(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class JoinScopeState(StrEnum):
    OPEN = "open"
    JOINED = "joined"  # the step after the split was reached
    BROKEN = "broken"  # a branch failed, and the token that had entered the split failed with it


class TokenPosition(Value):
    """The position of a token: its join scope, its branch there, and its place among that branch's tokens."""

    scope_id: str
    branch: int
    #: The indices of the events that led here, as text.
    sort_key: str


class JoinScope(Value):
    """The tokens of one entry into a split, or of the whole run."""

    id: str
    #: Tokens that have not ended.
    live: int
    #: The split's path; None for the scope of the run.
    split: str | None = None
    #: The position of the token that entered the split, where the joined token continues.
    parent: TokenPosition | None = None
    #: The job that produced the entering token: the parent of the jobs after the join.
    entry_job_id: str | None = None
    context_id: str | None = None
    #: A joined scope is live again if a failed branch is retried after the join continued (`join: always`).
    state: JoinScopeState = JoinScopeState.OPEN


class TokenResult(Value):
    """The end of a token: its status, and its last step."""

    position: TokenPosition
    #: The `position` of the step in its pipeline.
    step_position: int
    step_path: str
    status: TokenStatus
    #: The last job that ran for the token.
    job_id: str | None
    event_id: str | None = None
    error: str | None = None
    #: The payload of the event, which the join summarises.
    payload: JsonObject | None = None


class JoinScopeView(Value):
    """A stored scope. Results and baggage are read only if this settlement can close the scope."""

    scope: JoinScope
    results: tuple[TokenResult, ...] = ()
    baggage: JsonObject | None = None


class RunInfo(Value):
    """The part of a run that never changes."""

    id: str
    graph: Graph
    hops: int
    trace_id: str | None
    #: The payload that the run began with. Read only if an expression of the graph refers to it.
    payload: JsonObject
    #: The first steps wait for this job: an earlier run with the same key.
    after_job_id: str | None = None
    #: The access token that the run was started with.
    token: str | None = None


class RunView(Value):
    """A run as seen from one of its steps, read in the transaction that ends the step."""

    info: RunInfo
    jobs: int
    cancelled: bool
    position: TokenPosition
    baggage: JsonObject
    #: The step's scope, then its parents as long as each can be closed by the one before.
    scopes: tuple[JoinScopeView, ...]


class NewRun(Value):
    """A run to create: the job that represents it on the queue, its graph and its first event."""

    job: NewJob
    graph: Graph
    event: NewEvent
    #: Whether the event is still to be stored.
    event_is_new: bool = False
    #: When the run is cancelled if it has not ended (`on_timeout: cancel`).
    deadline_at: datetime | None = None

    def info(self, after_job_id: str | None = None) -> RunInfo:
        """Return the part of the run that never changes. Its first steps wait for `after_job_id`."""
        return RunInfo(
            id=self.job.id,
            graph=self.graph,
            hops=self.job.hops,
            trace_id=self.job.trace_id,
            payload=self.event.payload,
            after_job_id=after_job_id,
            token=self.job.token,
        )


class NewStep(Value):
    """A step to enqueue. One with a fault is recorded and ends at once."""

    job: NewJob
    position: TokenPosition
    fault: StepNotStarted | None = None


class RunProgress(Value):
    """Everything that one advance of a run changes, written in the transaction that decided it."""

    steps: tuple[NewStep, ...] = ()
    events: tuple[NewEvent, ...] = ()
    contexts: tuple[NewContext, ...] = ()
    opened_scopes: tuple[JoinScope, ...] = ()
    #: (scope id, live tokens) of each stored scope whose count changed.
    live_counts: tuple[tuple[str, int], ...] = ()
    closed_scopes: tuple[tuple[str, JoinScopeState], ...] = ()
    results: tuple[TokenResult, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    #: Whether no token of the run is live any more.
    ended: bool = False


class FinalTokenResult(Value):
    """One token result of a run that is over."""

    status: TokenStatus
    #: Whether it is part of the run's result. False if its join continued after it.
    decides_result: bool
    job_id: str | None
    step_path: str
    error: str | None


class TokenStart(Value):
    """A token that starts at a step: the first of a run, or one of a rerun from that step."""

    path: str
    position: TokenPosition
    event: NewEvent
    context_id: str | None
    baggage: JsonObject
