"""What a pipeline run is made of: lines that travel, scopes that wait for them, ends that are remembered.

Each event travelling through a run is a line. A line that enters a split opens a scope with one line for
each branch; a scope at which no line is live any more is joined, or breaks.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from ductile.core.events.model import NewContext, NewEvent
from ductile.core.jobs.ledger import LedgerEntry
from ductile.core.jobs.model import NewJob
from ductile.core.jobs.outcomes import StepNotCreated
from ductile.core.json import JsonObject
from ductile.core.runs.graph import Graph
from ductile.struct import Value

#: A run has no more steps than this; what would start more fails and says so.
MAX_RUN_JOBS = 10_000


class TokenStatus(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class JoinScopeState(StrEnum):
    OPEN = "open"
    JOINED = "joined"  # the step after the split was reached
    BROKEN = "broken"  # a branch failed, and the line that had entered the split failed with it


class TokenPosition(Value):
    """Where in a run a line is: in which scope and branch, and its place among the lines there."""

    scope_id: str
    branch: int
    #: The indices of the events that led here: as text, their order is the order of events.
    order: str


class JoinScope(Value):
    """The run itself, or one entry into a split."""

    id: str
    live: int
    #: The split's path; None for the run's own scope.
    split: str | None = None
    #: Where the line goes on that entered the split.
    place: TokenPosition | None = None
    #: The job that produced that line, which becomes the parent of what runs after the join.
    entry_job_id: str | None = None
    context_id: str | None = None
    #: Joined while a line is live: a branch that failed is tried again after its join went on without it.
    state: JoinScopeState = JoinScopeState.OPEN


class TokenResult(Value):
    """Where a line ended. `job_id` is the last job that ran on it."""

    place: TokenPosition
    position: int
    step_path: str
    status: TokenStatus
    job_id: str | None
    event_id: str | None = None
    error: str | None = None


class BranchResult(Value):
    """A leaf as its join is told of it."""

    branch: int
    order: str
    status: TokenStatus
    payload: JsonObject | None
    error: str | None
    job_id: str | None


class JoinScopeView(Value):
    """A scope as it stands; its ends and its baggage only where this settlement can close it."""

    scope: JoinScope
    ends: tuple[BranchResult, ...] = ()
    baggage: JsonObject | None = None


class RunInfo(Value):
    """What stays the same while a run lasts."""

    id: str
    graph: Graph
    hops: int
    trace_id: str | None
    #: The entry steps wait for this job: an earlier run with the same key.
    after_job_id: str | None = None


class RunView(Value):
    """A run around one of its steps, read in the transaction that ends the step."""

    facts: RunInfo
    jobs: int
    cancelled: bool
    place: TokenPosition
    baggage: JsonObject
    #: The step's scope, then its parents as long as each can be closed by the one before.
    scopes: tuple[JoinScopeView, ...]


class NewRun(Value):
    """A run that is to begin; `job` stands for it on the queue, and `event` is what it begins with."""

    job: NewJob
    graph: Graph
    event: NewEvent
    #: Whether the event is still to be stored.
    event_is_new: bool = False
    #: When it is cancelled if it has not ended (`on_timeout: cancel`).
    deadline_at: datetime | None = None


class NewStep(Value):
    """A step to enqueue; one with a fault is recorded and ends at once."""

    job: NewJob
    place: TokenPosition
    fault: StepNotCreated | None = None


class RunProgress(Value):
    """How far a run got by one event or one end; written in the transaction that decided it."""

    steps: tuple[NewStep, ...] = ()
    events: tuple[NewEvent, ...] = ()
    contexts: tuple[NewContext, ...] = ()
    opened: tuple[JoinScope, ...] = ()
    #: What is live now, for every scope that changed and was there before.
    live: tuple[tuple[str, int], ...] = ()
    closed: tuple[tuple[str, JoinScopeState], ...] = ()
    leaves: tuple[TokenResult, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    #: No line is live any more.
    ended: bool = False


class FinalTokenResult(Value):
    """One end of a run that is over. It counts unless its line went on from a join."""

    status: TokenStatus
    counts: bool
    job_id: str | None
    step_path: str
    error: str | None


class TokenStart(Value):
    """A line that sets out from a step: the first one of a run, or one that a run is taken up from again."""

    path: str
    place: TokenPosition
    event: NewEvent
    context_id: str | None
    baggage: JsonObject
