"""What the step after a split is told of its branches."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from random import Random

from ductile.core.events.model import NewContext, NewEvent, visible_event
from ductile.core.expressions.baggage import BaggageError, apply_claims
from ductile.core.expressions.conditions import (
    ConditionError,
    ConditionResult,
    condition_result_to_json,
    evaluate_condition,
    explain_condition,
)
from ductile.core.expressions.paths import EvalContext as Sight
from ductile.core.expressions.templates import TemplateError, fill
from ductile.core.ids import make_id
from ductile.core.jobs.ledger import LedgerEntry, LedgerKind
from ductile.core.jobs.model import JobReason, NewJob, Origin, SubmittedBy
from ductile.core.jobs.outcomes import StepNotCreated
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue, encoded_size, nests_too_deep
from ductile.core.policy import Policy
from ductile.core.runs.graph import BlockNode, JoinPolicy, Node, SplitNode, UseNode
from ductile.core.runs.state import (
    MAX_RUN_JOBS,
    BranchResult,
    JoinScope,
    JoinScopeState,
    JoinScopeView,
    NewStep,
    RunInfo,
    RunProgress,
    TokenPosition,
    TokenResult,
    TokenStatus,
)
from ductile.struct import Value, replace


def branch_summary(name: str, ends: list[BranchResult]) -> JsonObject:
    """A branch as the step after the join sees it."""
    statuses = {end.status for end in ends}
    payloads: list[JsonValue] = [end.payload for end in ends if end.payload is not None]
    status = TokenStatus.SUCCEEDED
    if TokenStatus.FAILED in statuses:
        status = TokenStatus.FAILED
    elif statuses == {TokenStatus.SKIPPED}:
        status = TokenStatus.SKIPPED
    shown: JsonObject = {
        "id": name,
        "status": status.value,
        "payload": payloads[-1] if payloads else None,
        "payloads": payloads,
    }
    if status is TokenStatus.FAILED:
        shown["error"] = next((end.error for end in ends if end.status is TokenStatus.FAILED), None)
    return shown


#: The event that a line carries on from a split.
SPLIT_JOINED = "ductile.split.joined"
CORE_SOURCE = "ductile"
RUN_CANCELLED_ERROR = "the run was cancelled"
#: What a step after a split is given is not larger than what a plugin may answer.
MAX_JOINED_BYTES = 10 * 1024 * 1024


class Token(Value):
    place: TokenPosition
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


class RunAdvancer:
    """One settlement's way through the graph. Lines wait in a list, not on the stack: it may be long."""

    def __init__(
        self,
        facts: RunInfo,
        rules: Policy,
        now: datetime,
        rng: Random,
        *,
        origin: tuple[str, int],
        after: str | None,
        cancelled: bool = False,
    ) -> None:
        self._facts, self._rules, self._now, self._rng = facts, rules, now, rng
        self._origin, self._after, self._cancelled = origin, after, cancelled
        self._scopes: dict[str, JoinScopeView] = {}
        self._live: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._ends: dict[str, list[BranchResult]] = {}
        self._closed: dict[str, JoinScopeState] = {}
        self._steps: list[NewStep] = []
        self._events: list[NewEvent] = []
        self._contexts: list[NewContext] = []
        self._leaves: list[TokenResult] = []
        self._ledger: list[LedgerEntry] = []
        self._pending: deque[tuple[str, Token]] = deque()
        self._ended = False
        #: So many steps may be started; None if whoever asks counts them.
        self.room: int | None = None

    # -- what is known

    def know(self, view: JoinScopeView) -> None:
        """A scope that was there before."""
        self._before[view.scope.id] = view.scope.live
        self.open(view)

    def open(self, view: JoinScopeView) -> None:
        self._scopes[view.scope.id] = view
        self._live[view.scope.id] = view.scope.live
        self._ends[view.scope.id] = list(view.ends)

    def multiply(self, scope_id: str, lines: int) -> None:
        """One line has become so many."""
        self._live[scope_id] += lines - 1

    def progress(self) -> RunProgress:
        """Take every line as far as it goes, and tell what came of it."""
        while self._pending:
            path, line = self._pending.popleft()
            self._enter(self._facts.graph.nodes[path], line)
        return RunProgress(
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

    def follow(self, path: str | None, line: Token, *, after: Node | None = None) -> None:
        """Send a line on its way; `after` is the step that it comes from."""
        if path is None:
            self.end(line, after.path if after else "", TokenStatus.SUCCEEDED, None)
        else:
            self._pending.append((path, line))

    def _enter(self, node: Node, line: Token) -> None:
        if isinstance(node, UseNode) and self.room is not None and len(self._steps) >= self.room:
            self._turn_away(node, line, f"the run has {MAX_RUN_JOBS} steps, as many as are allowed")
            return
        eval_context = self._sight(node, line)
        try:
            verdict = self._judge(node, eval_context)
        except ConditionError as error:
            self._refuse(node, line, JobReason.BAD_CONDITION, str(error))
            return
        if verdict is not None and not verdict.holds:
            self._bypass(node, line, verdict)
            return
        match node:
            case UseNode():
                self._start(node, line, eval_context)
            case BlockNode():
                self._pending.append((node.first, line))
            case SplitNode():
                self._open_split(node, line)

    def _judge(self, node: Node, eval_context: Sight) -> ConditionResult | None:
        if node.condition is None:
            return None
        return evaluate_condition(
            node.condition, eval_context, is_secret=self._rules.is_secret, budget=self._rules.budget
        )

    def _sight(self, node: Node, line: Token) -> Sight:
        config = self._rules.plugin(node.plugin).config if isinstance(node, UseNode) else {}
        return build_eval_context(line.event, line.baggage, self._facts, config)

    def _bypass(self, node: Node, line: Token, verdict: ConditionResult) -> None:
        """The step is passed by, and its payload goes on; a bypass is an entry, not a job."""
        data: JsonObject = {
            "step": node.path,
            "explanation": explain_condition(verdict),
            "verdict": condition_result_to_json(verdict),
        }
        self._note(LedgerKind.SWITCH, data)
        if node.next is not None:
            self._pending.append((node.next, line))
            return
        skipped = self._is_branch(node, line)
        self.end(line, node.path, TokenStatus.SKIPPED if skipped else TokenStatus.SUCCEEDED, None)

    def _is_branch(self, node: Node, line: Token) -> bool:
        split = self._split_of(line.place.scope_id)
        return split is not None and split.branches[line.place.branch].first == node.path

    def _split_of(self, scope_id: str) -> SplitNode | None:
        path = self._scopes[scope_id].scope.split
        node = None if path is None else self._facts.graph.nodes[path]
        return node if isinstance(node, SplitNode) else None

    # -- starting

    def _start(self, node: UseNode, line: Token, eval_context: Sight) -> None:
        try:
            payload = None if node.payload is None else fill(node.payload.template, eval_context)
            context_id = self._claim_baggage(node, line, eval_context)
        except TemplateError as error:
            self._refuse(node, line, JobReason.BAD_TEMPLATE, str(error))
            return
        except BaggageError as error:
            self._refuse(node, line, JobReason.BAD_BAGGAGE, str(error))
            return
        self._keep_event(line)
        job = replace(self._job(node, line), payload=as_payload(payload), event_context_id=context_id)
        self._steps.append(NewStep(job=job, place=line.place))

    def _claim_baggage(self, node: UseNode, line: Token, eval_context: Sight) -> str | None:
        if not node.baggage:
            return line.context_id
        context = NewContext(
            id=make_id(self._now, self._rng),
            baggage=apply_claims(node.baggage, line.baggage, eval_context),
            parent_id=line.context_id,
            run_id=self._facts.id,
            pipeline=self._facts.graph.pipeline,
            step_path=node.path,
            hops=self._facts.hops,
        )
        self._contexts.append(context)
        return context.id

    def _job(self, node: UseNode, line: Token) -> NewJob:
        policy = node.retry or self._rules.plugin(node.plugin).retry
        job_id, execution = self._origin
        return NewJob(
            id=make_id(self._now, self._rng),
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

    def _refuse(self, node: Node, line: Token, reason: JobReason, error: str) -> None:
        """The step cannot be made. Where it would have been a job it is a failed one, and its line ends."""
        if isinstance(node, UseNode):
            self._keep_event(line)
            job = replace(self._job(node, line), after_job_id=None)
            self._steps.append(
                NewStep(job=job, place=line.place, fault=StepNotCreated(reason=reason, error=error))
            )
            self.end(replace(line, last_job=job.id), node.path, TokenStatus.FAILED, error)
        else:
            self._turn_away(node, line, error)

    def _turn_away(self, node: Node, line: Token, error: str) -> None:
        """A line ends at a step that is no job; the ledger says why."""
        self._note(LedgerKind.SWITCH, {"step": node.path, "error": error})
        self.end(line, node.path, TokenStatus.FAILED, error)

    def _open_split(self, node: SplitNode, line: Token) -> None:
        scope = JoinScope(
            id=make_id(self._now, self._rng),
            live=len(node.branches),
            split=node.path,
            place=line.place,
            entry_job_id=line.producer,
            context_id=line.context_id,
        )
        self.open(JoinScopeView(scope=scope, baggage=line.baggage))
        for number, branch in enumerate(node.branches):
            place = TokenPosition(scope_id=scope.id, branch=number, order=line.place.order)
            self._pending.append((branch.first, replace(line, place=place)))

    # -- ending

    def end(self, line: Token, path: str, status: TokenStatus, error: str | None) -> None:
        """A line has come to its end. The last of its scope closes that."""
        scope_id = line.place.scope_id
        scope = self._scopes[scope_id].scope
        has_event = bool(line.event.id) and status is not TokenStatus.FAILED
        if has_event and scope.split is not None:
            self._keep_event(line)
        node = self._facts.graph.nodes.get(path)
        self._leaves.append(
            TokenResult(
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
            BranchResult(
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
        if view.scope.state is JoinScopeState.JOINED:
            # The step after the split has run, or runs: it does not run again. The line that was live here
            # once more was counted in the scopes above, and now it is not.
            self._live[place.scope_id] -= 1
            if self._live[place.scope_id] == 0:
                self._close(place.scope_id, index)
            return
        ends = sorted(self._ends[scope_id], key=lambda end: (end.branch, end.order))
        failed = [end for end in ends if end.status is TokenStatus.FAILED]
        line = self._joined_line(view, split, ends, place=place, index=index)
        if error := self._why_broken(split, failed, line):
            self._closed[scope_id] = JoinScopeState.BROKEN
            self.end(line, split.path, TokenStatus.FAILED, error)
            return
        self._closed[scope_id] = JoinScopeState.JOINED
        if split.next is None:
            self.end(line, split.path, TokenStatus.SUCCEEDED, None)
        else:
            self._pending.append((split.next, line))

    def _why_broken(self, split: SplitNode, failed: list[BranchResult], line: Token) -> str | None:
        if self._cancelled:
            return RUN_CANCELLED_ERROR
        if failed and split.join is not JoinPolicy.ALWAYS:
            return failed[0].error or "a branch failed"
        if nests_too_deep(line.event.payload):
            return f"what the branches of {split.path} made is nested more than {MAX_DEPTH} levels deep"
        if encoded_size(line.event.payload) > MAX_JOINED_BYTES:
            return f"what the branches of {split.path} made is larger than {MAX_JOINED_BYTES} bytes"
        return None

    def _joined_line(
        self,
        view: JoinScopeView,
        split: SplitNode,
        ends: list[BranchResult],
        *,
        place: TokenPosition,
        index: int,
    ) -> Token:
        branches: list[JsonValue] = [
            branch_summary(branch.id, [end for end in ends if end.branch == number])
            for number, branch in enumerate(split.branches)
        ]
        event = NewEvent(
            id=make_id(self._now, self._rng),
            type=SPLIT_JOINED,
            source=CORE_SOURCE,
            payload={"branches": branches},
        )
        ran = [end.job_id for end in ends if end.job_id is not None]
        return Token(
            place=place,
            event=event,
            stored=False,
            context_id=view.scope.context_id,
            baggage=view.baggage or {},
            producer=view.scope.entry_job_id or self._facts.id,
            last_job=ran[-1] if ran else None,
            index=index,
        )

    def _keep_event(self, line: Token) -> None:
        if not line.stored and all(event.id != line.event.id for event in self._events):
            self._events.append(line.event)

    def _note(self, kind: LedgerKind, data: JsonObject) -> None:
        data = {"pipeline": self._facts.graph.pipeline, **data}
        self._ledger.append(LedgerEntry(kind=kind, job_id=self._facts.id, run_id=self._facts.id, data=data))


def build_eval_context(event: NewEvent, baggage: JsonObject, facts: RunInfo, config: JsonObject) -> Sight:
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
