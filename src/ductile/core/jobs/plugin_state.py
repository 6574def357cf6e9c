"""Apply the `state_updates` of a response to the state and the facts of a plugin."""

from __future__ import annotations

from ductile.core.jobs.model import Job, LedgerEntry, LedgerKind
from ductile.core.json import JsonObject, encoded_size
from ductile.core.policy import Policy
from ductile.struct import Value

MAX_STATE_BYTES = 1024 * 1024
#: Commands that Ductile itself starts: their events are not routed and their state is not stored.
SYSTEM_COMMANDS = frozenset({"health", "init"})


class FactEntry(Value):
    fact_type: str
    body: JsonObject


class StateUpdate(Value):
    state: JsonObject | None = None
    fact: FactEntry | None = None
    #: The size of a state that exceeds the limit.
    too_large: int | None = None
    ledger: tuple[LedgerEntry, ...] = ()


NO_STATE_UPDATE = StateUpdate()


def apply_state_updates(
    job: Job, updates: JsonObject | None, state: JsonObject, state_claim_seq: int, policy: Policy
) -> StateUpdate:
    """Return the new state or fact. `state_claim_seq` is the claim number of the last writer."""
    if not updates or job.command in SYSTEM_COMMANDS:
        return NO_STATE_UPDATE
    rule = policy.plugin(job.plugin).fact_rule(job.command)
    new = {**state, **updates} if rule is None else updates
    if (size := encoded_size(new)) > MAX_STATE_BYTES:
        return StateUpdate(too_large=size)
    if rule is None:
        return StateUpdate(state=new)
    fact = FactEntry(fact_type=rule.fact_type, body=updates)
    if not rule.replaces_state:
        return StateUpdate(fact=fact)
    if state_claim_seq > job.claim_seq:
        stale: JsonObject = {"plugin": job.plugin, "fact_type": rule.fact_type}
        entry = LedgerEntry(kind=LedgerKind.STATE_STALE, job_id=job.id, run_id=job.run_id, data=stale)
        return StateUpdate(fact=fact, ledger=(entry,))
    return StateUpdate(fact=fact, state=new)
