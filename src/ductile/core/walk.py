"""One settlement's way through the graph of a run: each line followed until it waits for a job or has ended.

Pure, and used by `runs` alone: nothing of a run is ever half done, because nobody else moves a line.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from random import Random

from ductile.core.baggage import BaggageError, claim
from ductile.core.conditions import ConditionError, Verdict, evaluate, explain, verdict_to_json
from ductile.core.ids import make_id
from ductile.core.jobs import NewJob, Origin, Reason, SubmittedBy
from ductile.core.joins import shown_branch
from ductile.core.json_values import MAX_DEPTH, JsonObject, JsonValue, encoded_size, nests_too_deep
from ductile.core.ledger import LedgerEntry, LedgerKind
from ductile.core.lineage import NewContext, NewEvent, visible_event
from ductile.core.outcomes import NotMade
from ductile.core.pipelines import Block, Join, Node, Split, Use
from ductile.core.references import Scope as Sight
from ductile.core.rules import Rules
from ductile.core.run_values import (
    MAX_RUN_JOBS,
    BranchEnd,
    Leaf,
    LeafStatus,
    NewStep,
    Place,
    Progress,
    RunFacts,
    Scope,
    ScopeState,
    ScopeView,
)
from ductile.core.templates import TemplateError, fill
from ductile.value import Value, replace

#: The event that a line carries on from a split.
SPLIT_JOINED = "ductile.split.joined"
CORE_SOURCE = "ductile"
CANCELLED = "the run was cancelled"
#: What a step after a split is given is not larger than what a plugin may answer.
MAX_JOINED_BYTES = 10 * 1024 * 1024


class Line(Value):
    place: Place
    event: NewEvent
    #: Whether the event is in the store; the ones we make are written only if somebody refers to them.
    stored: bool
    context_id: str | None
    baggage: JsonObject
    #: Becomes the parent of the jobs that the line starts.
    producer: str
    #: The last job that ran on the line.
    last_job: str | None
    #: Which event of the settled job this came from: part of the identity of what it starts.
    index: int


class Walk:
    """One settlement's way through the graph. Lines wait in a list, not on the stack: it may be long."""

    def __init__(
        self,
        facts: RunFacts,
        rules: Rules,
        now: datetime,
        dice: Random,
        *,
        origin: tuple[str, int],
        after: str | None,
        cancelled: bool = False,
    ) -> None:
        self._facts, self._rules, self._now, self._dice = facts, rules, now, dice
        self._origin, self._after, self._cancelled = origin, after, cancelled
        self._scopes: dict[str, ScopeView] = {}
        self._live: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._ends: dict[str, list[BranchEnd]] = {}
        self._closed: dict[str, ScopeState] = {}
        self._steps: list[NewStep] = []
        self._events: list[NewEvent] = []
        self._contexts: list[NewContext] = []
        self._leaves: list[Leaf] = []
        self._ledger: list[LedgerEntry] = []
        self._pending: deque[tuple[str, Line]] = deque()
        self._ended = False
        #: So many steps may be started; None if whoever asks counts them.
        self.room: int | None = None

    # -- what is known

    def know(self, view: ScopeView) -> None:
        """A scope that was there before."""
        self._before[view.scope.id] = view.scope.live
        self.open(view)

    def open(self, view: ScopeView) -> None:
        self._scopes[view.scope.id] = view
        self._live[view.scope.id] = view.scope.live
        self._ends[view.scope.id] = list(view.ends)

    def multiply(self, scope_id: str, lines: int) -> None:
        """One line has become so many."""
        self._live[scope_id] += lines - 1

    def progress(self) -> Progress:
        """Take every line as far as it goes, and tell what came of it."""
        while self._pending:
            path, line = self._pending.popleft()
            self._enter(self._facts.graph.nodes[path], line)
        return Progress(
            steps=tuple(self._steps),
            events=tuple(self._events),
            contexts=tuple(self._contexts),
            opened=tuple(
                replace(view.scope, live=self._live[name])
                for name, view in self._scopes.items()
                if name not in self._before
            ),
            live=tuple(
                (name, self._live[name]) for name, live in self._before.items() if live != self._live[name]
            ),
            closed=tuple(self._closed.items()),
            leaves=tuple(self._leaves),
            ledger=tuple(self._ledger),
            ended=self._ended,
        )

    # -- following lines

    def follow(self, path: str | None, line: Line, *, after: Node | None = None) -> None:
        """Send a line on its way; `after` is the step that it comes from."""
        if path is None:
            self.end(line, after.path if after else "", LeafStatus.SUCCEEDED, None)
        else:
            self._pending.append((path, line))

    def _enter(self, node: Node, line: Line) -> None:
        if isinstance(node, Use) and self.room is not None and len(self._steps) >= self.room:
            self._turn_away(node, line, f"the run has {MAX_RUN_JOBS} steps, as many as are allowed")
            return
        sight = self._sight(node, line)
        try:
            verdict = self._judge(node, sight)
        except ConditionError as error:
            self._refuse(node, line, Reason.BAD_CONDITION, str(error))
            return
        if verdict is not None and not verdict.holds:
            self._bypass(node, line, verdict)
            return
        match node:
            case Use():
                self._start(node, line, sight)
            case Block():
                self._pending.append((node.first, line))
            case Split():
                self._open_split(node, line)

    def _judge(self, node: Node, sight: Sight) -> Verdict | None:
        if node.condition is None:
            return None
        return evaluate(node.condition, sight, is_secret=self._rules.is_secret, budget=self._rules.budget)

    def _sight(self, node: Node, line: Line) -> Sight:
        config = self._rules.plugin(node.plugin).config if isinstance(node, Use) else {}
        return sight_of(line.event, line.baggage, self._facts, config)

    def _bypass(self, node: Node, line: Line, verdict: Verdict) -> None:
        """The step is passed by, and its payload goes on; a bypass is an entry, not a job."""
        data: JsonObject = {
            "step": node.path,
            "explanation": explain(verdict),
            "verdict": verdict_to_json(verdict),
        }
        self._note(LedgerKind.SWITCH, data)
        if node.next is not None:
            self._pending.append((node.next, line))
            return
        skipped = self._is_branch(node, line)
        self.end(line, node.path, LeafStatus.SKIPPED if skipped else LeafStatus.SUCCEEDED, None)

    def _is_branch(self, node: Node, line: Line) -> bool:
        split = self._split_of(line.place.scope_id)
        return split is not None and split.branches[line.place.branch].first == node.path

    def _split_of(self, scope_id: str) -> Split | None:
        path = self._scopes[scope_id].scope.split
        node = None if path is None else self._facts.graph.nodes[path]
        return node if isinstance(node, Split) else None

    # -- starting

    def _start(self, node: Use, line: Line, sight: Sight) -> None:
        try:
            payload = None if node.payload is None else fill(node.payload.template, sight)
            context_id = self._claim_baggage(node, line, sight)
        except TemplateError as error:
            self._refuse(node, line, Reason.BAD_TEMPLATE, str(error))
            return
        except BaggageError as error:
            self._refuse(node, line, Reason.BAD_BAGGAGE, str(error))
            return
        self._keep_event(line)
        job = replace(self._job(node, line), payload=as_payload(payload), event_context_id=context_id)
        self._steps.append(NewStep(job=job, place=line.place))

    def _claim_baggage(self, node: Use, line: Line, sight: Sight) -> str | None:
        if not node.baggage:
            return line.context_id
        context = NewContext(
            id=make_id(self._now, self._dice),
            baggage=claim(node.baggage, line.baggage, sight),
            parent_id=line.context_id,
            run_id=self._facts.id,
            pipeline=self._facts.graph.pipeline,
            step_path=node.path,
            hops=self._facts.hops,
        )
        self._contexts.append(context)
        return context.id

    def _job(self, node: Use, line: Line) -> NewJob:
        policy = node.retry or self._rules.plugin(node.plugin).retry
        job_id, execution = self._origin
        return NewJob(
            id=make_id(self._now, self._dice),
            plugin=node.plugin,
            command=node.command,
            submitted_by=SubmittedBy.ROUTE,
            submitted_detail=f"pipeline:{self._facts.graph.pipeline}",
            max_attempts=policy.max_attempts,
            parent_job_id=line.producer,
            source_event_id=line.event.id,
            event_context_id=line.context_id,
            run_id=self._facts.id,
            step_path=node.path,
            hops=self._facts.hops,
            trace_id=self._facts.trace_id,
            origin=Origin(
                job_id=job_id,
                execution=execution,
                event_index=line.index,
                target=f"{self._facts.id}/{node.path}",
            ),
            after_job_id=self._after,
        )

    def _refuse(self, node: Node, line: Line, reason: Reason, error: str) -> None:
        """The step cannot be made. Where it would have been a job it is a failed one, and its line ends."""
        if isinstance(node, Use):
            self._keep_event(line)
            job = replace(self._job(node, line), after_job_id=None)
            self._steps.append(NewStep(job=job, place=line.place, fault=NotMade(reason=reason, error=error)))
            self.end(replace(line, last_job=job.id), node.path, LeafStatus.FAILED, error)
        else:
            self._turn_away(node, line, error)

    def _turn_away(self, node: Node, line: Line, error: str) -> None:
        """A line ends at a step that is no job; the ledger says why."""
        self._note(LedgerKind.SWITCH, {"step": node.path, "error": error})
        self.end(line, node.path, LeafStatus.FAILED, error)

    def _open_split(self, node: Split, line: Line) -> None:
        scope = Scope(
            id=make_id(self._now, self._dice),
            live=len(node.branches),
            split=node.path,
            place=line.place,
            entry_job_id=line.producer,
            context_id=line.context_id,
        )
        self.open(ScopeView(scope=scope, baggage=line.baggage))
        for number, branch in enumerate(node.branches):
            place = Place(scope_id=scope.id, branch=number, order=line.place.order)
            self._pending.append((branch.first, replace(line, place=place)))

    # -- ending

    def end(self, line: Line, path: str, status: LeafStatus, error: str | None) -> None:
        """A line has come to its end. The last of its scope closes that."""
        scope_id = line.place.scope_id
        scope = self._scopes[scope_id].scope
        has_event = bool(line.event.id) and status is not LeafStatus.FAILED
        if has_event and scope.split is not None:
            self._keep_event(line)
        node = self._facts.graph.nodes.get(path)
        self._leaves.append(
            Leaf(
                place=line.place,
                position=node.position if node is not None else 0,
                step_path=path,
                status=status,
                job_id=line.last_job,
                event_id=line.event.id if has_event and (line.stored or scope.split is not None) else None,
                error=error,
            )
        )
        self._ends[scope_id].append(
            BranchEnd(
                branch=line.place.branch,
                order=line.place.order,
                status=status,
                payload=line.event.payload if has_event else None,
                error=error,
                job_id=line.last_job,
            )
        )
        self._live[scope_id] -= 1
        if self._live[scope_id] == 0:
            self._close(scope_id, line.index)

    def _close(self, scope_id: str, index: int) -> None:
        view = self._scopes[scope_id]
        split, place = self._split_of(scope_id), view.scope.place
        if split is None or place is None:
            self._ended = True
            return
        if view.scope.state is ScopeState.JOINED:
            # The step after the split has run, or runs: it does not run again. The line that was live here
            # once more was counted in the scopes above, and now it is not.
            self._live[place.scope_id] -= 1
            if self._live[place.scope_id] == 0:
                self._close(place.scope_id, index)
            return
        ends = sorted(self._ends[scope_id], key=lambda end: (end.branch, end.order))
        failed = [end for end in ends if end.status is LeafStatus.FAILED]
        line = self._joined_line(view, split, ends, place=place, index=index)
        if error := self._why_broken(split, failed, line):
            self._closed[scope_id] = ScopeState.BROKEN
            self.end(line, split.path, LeafStatus.FAILED, error)
            return
        self._closed[scope_id] = ScopeState.JOINED
        if split.next is None:
            self.end(line, split.path, LeafStatus.SUCCEEDED, None)
        else:
            self._pending.append((split.next, line))

    def _why_broken(self, split: Split, failed: list[BranchEnd], line: Line) -> str | None:
        if self._cancelled:
            return CANCELLED
        if failed and split.join is not Join.ALWAYS:
            return failed[0].error or "a branch failed"
        if nests_too_deep(line.event.payload):
            return f"what the branches of {split.path} made is nested more than {MAX_DEPTH} levels deep"
        if encoded_size(line.event.payload) > MAX_JOINED_BYTES:
            return f"what the branches of {split.path} made is larger than {MAX_JOINED_BYTES} bytes"
        return None

    def _joined_line(
        self, view: ScopeView, split: Split, ends: list[BranchEnd], *, place: Place, index: int
    ) -> Line:
        branches: list[JsonValue] = [
            shown_branch(branch.id, [end for end in ends if end.branch == number])
            for number, branch in enumerate(split.branches)
        ]
        event = NewEvent(
            id=make_id(self._now, self._dice),
            type=SPLIT_JOINED,
            source=CORE_SOURCE,
            payload={"branches": branches},
        )
        ran = [end.job_id for end in ends if end.job_id is not None]
        return Line(
            place=place,
            event=event,
            stored=False,
            context_id=view.scope.context_id,
            baggage=view.baggage or {},
            producer=view.scope.entry_job_id or self._facts.id,
            last_job=ran[-1] if ran else None,
            index=index,
        )

    def _keep_event(self, line: Line) -> None:
        if not line.stored and all(event.id != line.event.id for event in self._events):
            self._events.append(line.event)

    def _note(self, kind: LedgerKind, data: JsonObject) -> None:
        data = {"pipeline": self._facts.graph.pipeline, **data}
        self._ledger.append(LedgerEntry(kind=kind, job_id=self._facts.id, run_id=self._facts.id, data=data))


def sight_of(event: NewEvent, baggage: JsonObject, facts: RunFacts, config: JsonObject) -> Sight:
    """What the `if`, `with` and `baggage` of a step can refer to."""
    context: JsonObject = {**baggage, "ductile_pipeline": facts.graph.pipeline}
    if facts.trace_id is not None:
        context["ductile_trace_id"] = facts.trace_id
    told = visible_event(event)
    if event.dedupe_key is not None:
        told["dedupe_key"] = event.dedupe_key
    return Sight(payload=event.payload, context=context, config=config, event=told)


def as_payload(filled: JsonValue) -> JsonObject | None:
    return filled if isinstance(filled, dict) else None
