"""Advance a pipeline run: each token moves until it waits for a job or has ended.

Used by `ductile.core.runs.progress`. One `RunAdvancer` handles one settlement: it takes the join scopes
that the settlement can change, then tokens that continue or end, and returns all changes as a `RunProgress`.
A token that reaches

- a `uses` step waits there: a job is created for it;
- a block continues at the first step of the block;
- a split opens a join scope, and one token starts in each branch;
- a step whose `if` is false continues after the step;
- the end of its branch or of the pipeline has ended. The last token of a scope closes the scope.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime
from random import Random

from ductile.core.events.model import NewContext, NewEvent, visible_event
from ductile.core.expressions.baggage import BaggageError, add_baggage
from ductile.core.expressions.conditions import (
    ConditionError,
    ConditionResult,
    condition_result_to_json,
    evaluate_condition,
    explain_condition,
)
from ductile.core.expressions.paths import EvalContext
from ductile.core.expressions.templates import TemplateError, fill
from ductile.core.ids import make_id
from ductile.core.jobs.model import (
    JobReason,
    LedgerEntry,
    LedgerKind,
    NewJob,
    Origin,
    StepNotStarted,
    SubmittedBy,
)
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue, encoded_size, nests_too_deep
from ductile.core.policy import Policy
from ductile.core.runs.graph import BlockNode, JoinPolicy, Node, SplitNode, UseNode
from ductile.core.runs.state import (
    MAX_RUN_JOBS,
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

#: The type of the event that continues after a split.
SPLIT_JOINED = "ductile.split.joined"
CORE_SOURCE = "ductile"
#: The names that Ductile adds to the context in which steps are evaluated.
CONTEXT_NAMES = ("ductile_pipeline", "ductile_trace_id")
RUN_CANCELLED_ERROR = "the run was cancelled"
#: The payload of a joined event is limited as the output of a plugin is.
MAX_JOINED_BYTES = 10 * 1024 * 1024


class Token(Value):
    """One event travelling through the graph."""

    position: TokenPosition
    event: NewEvent
    #: Whether the event is in the store. An event made here is stored only if a job or a result needs it.
    stored: bool
    context_id: str | None
    baggage: JsonObject
    #: The parent of the jobs that the token starts.
    producer_job_id: str
    #: The last job that ran for the token.
    last_job_id: str | None
    #: Index of the settled job's event that the token comes from: part of the identity of the jobs it starts.
    event_index: int


@dataclass(slots=True)
class _TrackedScope:
    """A join scope with the changes of this settlement."""

    scope: JoinScope
    baggage: JsonObject
    results: list[TokenResult]
    live: int
    #: None for a scope that this settlement opens.
    stored_live: int | None
    closed_as: JoinScopeState | None = None


class RunAdvancer:
    """Moves the tokens of one settlement. Pending tokens wait in a queue: a recursion could get too deep."""

    def __init__(
        self,
        info: RunInfo,
        policy: Policy,
        now: datetime,
        rng: Random,
        *,
        origin: tuple[str, int],
        after_job_id: str | None = None,
        cancelled: bool = False,
        max_new_steps: int | None = None,
    ) -> None:
        """`origin` is the job and execution that new jobs come from; they wait for `after_job_id` to end.

        A token that would start more than `max_new_steps` fails; without it the caller checks the number.
        """
        self._info, self._policy, self._now, self._rng = info, policy, now, rng
        self._origin, self._after_job_id, self._cancelled = origin, after_job_id, cancelled
        self._max_new_steps = max_new_steps
        self._pending: deque[tuple[str, Token]] = deque()
        self._scopes: dict[str, _TrackedScope] = {}
        self._steps: list[NewStep] = []
        self._events: list[NewEvent] = []
        self._contexts: list[NewContext] = []
        self._results: list[TokenResult] = []
        self._ledger: list[LedgerEntry] = []
        self._ended = False

    def add_scope(self, view: JoinScopeView, *, is_new: bool) -> None:
        """Add a join scope that tokens are in: a new or a stored one."""
        self._scopes[view.scope.id] = _TrackedScope(
            scope=view.scope,
            baggage=view.baggage or {},
            results=list(view.results),
            live=view.scope.live,
            stored_live=None if is_new else view.scope.live,
        )

    def fork_token(self, scope_id: str, count: int) -> None:
        """Replace one live token of the scope by `count`."""
        self._scopes[scope_id].live += count - 1

    def move_to(self, token: Token, path: str | None, *, after: Node | None = None) -> None:
        """Move a token to the step at `path`; without a path it ends after the step `after`."""
        if path is None:
            self.end(token, after.path if after else "", TokenStatus.SUCCEEDED)
        else:
            self._pending.append((path, token))

    def advance(self) -> RunProgress:
        """Move all tokens until each waits for a job or has ended. Returns every change."""
        while self._pending:
            path, token = self._pending.popleft()
            self._enter(self._info.graph.nodes[path], token)
        scopes = self._scopes.items()
        return RunProgress(
            steps=tuple(self._steps),
            events=tuple(self._events),
            contexts=tuple(self._contexts),
            opened_scopes=tuple(
                replace(tracked.scope, live=tracked.live)
                for _, tracked in scopes
                if tracked.stored_live is None
            ),
            live_counts=tuple(
                (scope_id, tracked.live)
                for scope_id, tracked in scopes
                if tracked.stored_live is not None and tracked.stored_live != tracked.live
            ),
            closed_scopes=tuple(
                (scope_id, tracked.closed_as) for scope_id, tracked in scopes if tracked.closed_as is not None
            ),
            results=tuple(self._results),
            ledger=tuple(self._ledger),
            ended=self._ended,
        )

    # -- entering a step

    def _enter(self, node: Node, token: Token) -> None:
        is_full = self._max_new_steps is not None and len(self._steps) >= self._max_new_steps
        if is_full and isinstance(node, UseNode):
            self._fail_without_job(node, token, f"the run has {MAX_RUN_JOBS} steps, as many as are allowed")
            return
        config = self._policy.plugin(node.plugin).config if isinstance(node, UseNode) else {}
        context = build_eval_context(token.event, token.baggage, self._info, config)
        if node.condition is not None:
            try:
                result = evaluate_condition(
                    node.condition, context, is_secret=self._policy.is_secret, budget=self._policy.budget
                )
            except ConditionError as error:
                self._fail_step(node, token, JobReason.BAD_CONDITION, str(error))
                return
            if not result.is_true:
                self._bypass(node, token, result)
                return
        if isinstance(node, UseNode):
            self._start_job(node, token, context)
            return
        try:
            token = self._add_baggage(node, token, context)
        except BaggageError as error:
            self._fail_without_job(node, token, str(error))
            return
        match node:
            case BlockNode():
                self._pending.append((node.first, token))
            case SplitNode():
                self._enter_split(node, token)

    def _bypass(self, node: Node, token: Token, result: ConditionResult) -> None:
        """Continue after a step whose condition is false. The ledger has an entry; there is no job."""
        self._add_ledger_entry(
            {
                "step": node.path,
                "explanation": explain_condition(result),
                "verdict": condition_result_to_json(result),
            }
        )
        if node.next is not None:
            self._pending.append((node.next, token))
            return
        split = self._split_of(self._scopes[token.position.scope_id].scope)
        is_whole_branch = split is not None and split.branches[token.position.branch].first == node.path
        # A branch whose only step was bypassed is skipped as a whole.
        self.end(token, node.path, TokenStatus.SKIPPED if is_whole_branch else TokenStatus.SUCCEEDED)

    def _start_job(self, node: UseNode, token: Token, context: EvalContext) -> None:
        try:
            payload = None if node.payload is None else fill(node.payload.template, context)
            token_in_step = self._add_baggage(node, token, context)
        except TemplateError as error:
            self._fail_step(node, token, JobReason.BAD_TEMPLATE, str(error))
            return
        except BaggageError as error:
            self._fail_step(node, token, JobReason.BAD_BAGGAGE, str(error))
            return
        self._store_event(token)
        job = replace(
            self._new_job(node, token),
            payload=payload if isinstance(payload, dict) else None,
            event_context_id=token_in_step.context_id,
        )
        self._steps.append(NewStep(job=job, position=token.position))

    def _add_baggage(self, node: Node, token: Token, context: EvalContext) -> Token:
        """Return the token as it is inside the step: with a new context if the step adds baggage."""
        if not node.baggage:
            return token
        new = NewContext(
            id=make_id(self._now, self._rng),
            baggage=add_baggage(node.baggage, token.baggage, context),
            parent_id=token.context_id,
            run_id=self._info.id,
            pipeline=self._info.graph.pipeline,
            step_path=node.path,
            hops=self._info.hops,
        )
        self._contexts.append(new)
        return replace(token, context_id=new.id, baggage=new.baggage)

    def _new_job(self, node: UseNode, token: Token) -> NewJob:
        retry = node.retry or self._policy.plugin(node.plugin).retry
        job_id, execution = self._origin
        return NewJob(
            id=make_id(self._now, self._rng),
            plugin=node.plugin,
            command=node.command,
            submitted_by=SubmittedBy.ROUTE,
            submitted_detail=f"pipeline:{self._info.graph.pipeline}",
            max_attempts=retry.max_attempts,
            parent_job_id=token.producer_job_id,
            source_event_id=token.event.id,
            event_context_id=token.context_id,
            run_id=self._info.id,
            step_path=node.path,
            hops=self._info.hops,
            trace_id=self._info.trace_id,
            token=self._info.token,
            origin=Origin(
                job_id=job_id,
                execution=execution,
                event_index=token.event_index,
                target=f"{self._info.id}/{node.path}",
            ),
            after_job_id=self._after_job_id,
        )

    def _fail_step(self, node: Node, token: Token, reason: JobReason, error: str) -> None:
        """End a token at a step whose expressions cannot be evaluated; a `uses` step gets a failed job."""
        if not isinstance(node, UseNode):
            self._fail_without_job(node, token, error)
            return
        self._store_event(token)
        job = replace(self._new_job(node, token), after_job_id=None)
        fault = StepNotStarted(reason=reason, error=error)
        self._steps.append(NewStep(job=job, position=token.position, fault=fault))
        self.end(replace(token, last_job_id=job.id), node.path, TokenStatus.FAILED, error)

    def _fail_without_job(self, node: Node, token: Token, error: str) -> None:
        """End a token at a step without a job. The ledger has the error."""
        self._add_ledger_entry({"step": node.path, "error": error})
        self.end(token, node.path, TokenStatus.FAILED, error)

    def _enter_split(self, node: SplitNode, token: Token) -> None:
        scope = JoinScope(
            id=make_id(self._now, self._rng),
            live=len(node.branches),
            split=node.path,
            parent=token.position,
            entry_job_id=token.producer_job_id,
            context_id=token.context_id,
        )
        self.add_scope(JoinScopeView(scope=scope, baggage=token.baggage), is_new=True)
        for number, branch in enumerate(node.branches):
            position = TokenPosition(scope_id=scope.id, branch=number, sort_key=token.position.sort_key)
            self._pending.append((branch.first, replace(token, position=position)))

    # -- ending a token

    def end(self, token: Token, path: str, status: TokenStatus, error: str | None = None) -> None:
        """End a token at the step `path`. The last token of a scope closes the scope."""
        tracked = self._scopes[token.position.scope_id]
        in_split = tracked.scope.split is not None
        has_event = bool(token.event.id) and status is not TokenStatus.FAILED
        if has_event and in_split:
            self._store_event(token)
        node = self._info.graph.nodes.get(path)
        result = TokenResult(
            position=token.position,
            step_position=node.position if node is not None else 0,
            step_path=path,
            status=status,
            job_id=token.last_job_id,
            event_id=token.event.id if has_event and (token.stored or in_split) else None,
            error=error,
            payload=token.event.payload if has_event else None,
        )
        self._results.append(result)
        tracked.results.append(result)
        self._leave(tracked, token.event_index)

    def _leave(self, tracked: _TrackedScope, event_index: int) -> None:
        """Count one token less in a scope. The last one ends the run, or joins the branches of the split."""
        tracked.live -= 1
        if tracked.live != 0:
            return
        split, parent = self._split_of(tracked.scope), tracked.scope.parent
        if split is None or parent is None:
            self._ended = True
            return
        if tracked.scope.state is JoinScopeState.JOINED:
            # A retried branch ended in a scope that was joined before: the step after the split does not run
            # again. The retry had counted its token in the parent scope too.
            self._leave(self._scopes[parent.scope_id], event_index)
            return
        results = sorted(
            tracked.results, key=lambda result: (result.position.branch, result.position.sort_key)
        )
        token = self._joined_token(tracked, split, results, parent, event_index)
        if error := self._join_error(split, results, token.event.payload):
            tracked.closed_as = JoinScopeState.BROKEN
            self.end(token, split.path, TokenStatus.FAILED, error)
        else:
            tracked.closed_as = JoinScopeState.JOINED
            self.move_to(token, split.next, after=split)

    def _join_error(self, split: SplitNode, results: list[TokenResult], payload: JsonObject) -> str | None:
        """Return why the token cannot continue after a split; None if it can."""
        if self._cancelled:
            return RUN_CANCELLED_ERROR
        failed = [result for result in results if result.status is TokenStatus.FAILED]
        if failed and split.join is not JoinPolicy.ALWAYS:
            return failed[0].error or "a branch failed"
        if nests_too_deep(payload):
            return f"the joined result of {split.path} is nested more than {MAX_DEPTH} levels deep"
        if encoded_size(payload) > MAX_JOINED_BYTES:
            return f"the joined result of {split.path} is larger than {MAX_JOINED_BYTES} bytes"
        return None

    def _joined_token(
        self,
        tracked: _TrackedScope,
        split: SplitNode,
        results: list[TokenResult],
        position: TokenPosition,
        event_index: int,
    ) -> Token:
        """Return the token that continues after a split. Its event has a summary of each branch."""
        branches: list[JsonValue] = [
            _branch_summary(branch.id, [result for result in results if result.position.branch == number])
            for number, branch in enumerate(split.branches)
        ]
        event = NewEvent(
            id=make_id(self._now, self._rng),
            type=SPLIT_JOINED,
            source=CORE_SOURCE,
            payload={"branches": branches},
        )
        job_ids = [result.job_id for result in results if result.job_id is not None]
        return Token(
            position=position,
            event=event,
            stored=False,
            context_id=tracked.scope.context_id,
            baggage=tracked.baggage,
            producer_job_id=tracked.scope.entry_job_id or self._info.id,
            last_job_id=job_ids[-1] if job_ids else None,
            event_index=event_index,
        )

    def _split_of(self, scope: JoinScope) -> SplitNode | None:
        node = None if scope.split is None else self._info.graph.nodes[scope.split]
        return node if isinstance(node, SplitNode) else None

    def _store_event(self, token: Token) -> None:
        if not token.stored and all(event.id != token.event.id for event in self._events):
            self._events.append(token.event)

    def _add_ledger_entry(self, data: JsonObject) -> None:
        self._ledger.append(
            LedgerEntry(
                kind=LedgerKind.CONDITION_FALSE,
                job_id=self._info.id,
                run_id=self._info.id,
                data={"pipeline": self._info.graph.pipeline, **data},
            )
        )


def _branch_summary(branch_id: str, results: list[TokenResult]) -> JsonObject:
    """Return a branch as the step after the join sees it."""
    statuses = {result.status for result in results}
    payloads: list[JsonValue] = [result.payload for result in results if result.payload is not None]
    status = TokenStatus.SUCCEEDED
    if TokenStatus.FAILED in statuses:
        status = TokenStatus.FAILED
    elif statuses == {TokenStatus.SKIPPED}:
        status = TokenStatus.SKIPPED
    summary: JsonObject = {
        "id": branch_id,
        "status": status.value,
        "payload": payloads[-1] if payloads else None,
        "payloads": payloads,
    }
    if status is TokenStatus.FAILED:
        failed = (result.error for result in results if result.status is TokenStatus.FAILED)
        summary["error"] = next(failed, None)
    return summary


def build_eval_context(
    event: NewEvent, baggage: JsonObject, info: RunInfo, config: JsonObject
) -> EvalContext:
    """Return what the `if`, `with` and `baggage` of a step can refer to."""
    context: JsonObject = {**baggage, "ductile_pipeline": info.graph.pipeline}
    if info.trace_id is not None:
        context["ductile_trace_id"] = info.trace_id
    visible = visible_event(event)
    if event.dedupe_key is not None:
        visible["dedupe_key"] = event.dedupe_key
    run: JsonObject = {"id": info.id, "pipeline": info.graph.pipeline, "payload": info.payload}
    return EvalContext(payload=event.payload, context=context, config=config, event=visible, run=run)
