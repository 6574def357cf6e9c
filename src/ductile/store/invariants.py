"""What must hold of the rows of a store at rest, whatever happened to the processes that wrote it.

Each has a query of the same name, with `check_` before it, that gives the ids of what breaks it. They
hold while retention is at work too: rows that are kept for different times are compared only where both
must still be there. They cost a walk through the tables, so they are asked for and never run by themselves.
"""

from __future__ import annotations

from enum import StrEnum


class Invariant(StrEnum):
    TRANSITIONS_CHAIN = "transitions_chain"
    STATUS_IS_LAST_TRANSITION = "status_is_last_transition"
    EDGES_ARE_KNOWN = "edges_are_known"
    EXECUTIONS_ARE_CLAIMS = "executions_are_claims"
    ENDED_EXECUTIONS_ARE_LOGGED = "ended_executions_are_logged"
    LIVE_EXECUTIONS_ARE_NOT_LOGGED = "live_executions_are_not_logged"
    ATTEMPTS_WITHIN_LIMIT = "attempts_within_limit"
    CHILDREN_ARE_UNIQUE = "children_are_unique"
    CHILDREN_FOLLOW_SUCCESS = "children_follow_success"
    EVENTS_EXIST = "events_exist"
    CONTEXTS_EXIST = "contexts_exist"
    KEY_HAS_ONE_HOLDER = "key_has_one_holder"
    KEY_FOLLOWERS_HAVE_A_HOLDER = "key_followers_have_a_holder"
    PREDECESSORS_ARE_LIVE = "predecessors_are_live"
    ONE_SUSPECT_IS_ACTIVE = "one_suspect_is_active"
    HELD_SUSPECTS_HAVE_AN_ACTIVE_ONE = "held_suspects_have_an_active_one"
    LIVE_RUNS_HAVE_LIVE_STEPS = "live_runs_have_live_steps"
    ENDED_RUNS_HAVE_NO_LIVE_STEPS = "ended_runs_have_no_live_steps"
    RUNS_ARE_WHOLE = "runs_are_whole"
    SCOPES_COUNT_LIVE_LINES = "scopes_count_live_lines"
    RUN_SIZES_ARE_RIGHT = "run_sizes_are_right"
    HALF_OPEN_BREAKERS_HAVE_A_PROBE = "half_open_breakers_have_a_probe"
    DELIVERIES_ARE_COUNTED = "deliveries_are_counted"
    LEDGER_NEVER_GOES_BACK = "ledger_never_goes_back"
    TRANSITIONS_ARE_IN_THE_LEDGER = "transitions_are_in_the_ledger"


INVARIANTS: dict[Invariant, str] = {
    Invariant.TRANSITIONS_CHAIN: "Every transition of a job begins where the one before it ended.",
    Invariant.STATUS_IS_LAST_TRANSITION: "A job is in the state that its last transition led to.",
    Invariant.EDGES_ARE_KNOWN: "Every transition is an edge of the state machine.",
    Invariant.EXECUTIONS_ARE_CLAIMS: "A job was executed as often as it was claimed.",
    Invariant.ENDED_EXECUTIONS_ARE_LOGGED: "Every execution that ended is in the log.",
    Invariant.LIVE_EXECUTIONS_ARE_NOT_LOGGED: "An execution that runs is not in the log yet.",
    Invariant.ATTEMPTS_WITHIN_LIMIT: "No job is in an attempt beyond its last.",
    Invariant.CHILDREN_ARE_UNIQUE: "No child exists twice.",
    Invariant.CHILDREN_FOLLOW_SUCCESS: "What a job's events started exists only if the job succeeded.",
    Invariant.EVENTS_EXIST: "The event that a job was started by is there.",
    Invariant.CONTEXTS_EXIST: "The context that a job carries is there.",
    Invariant.KEY_HAS_ONE_HOLDER: "Of the jobs that share a dedupe key, one at most is ready or running.",
    Invariant.KEY_FOLLOWERS_HAVE_A_HOLDER: "No job waits for a dedupe key that no job holds.",
    Invariant.PREDECESSORS_ARE_LIVE: "No job waits for a job that has ended.",
    Invariant.ONE_SUSPECT_IS_ACTIVE: "Of the suspects of a crash, one at most is ready or running.",
    Invariant.HELD_SUSPECTS_HAVE_AN_ACTIVE_ONE: "A suspect that is held back has an active one before it.",
    Invariant.LIVE_RUNS_HAVE_LIVE_STEPS: "A pipeline run that has not ended has a step that has not.",
    Invariant.ENDED_RUNS_HAVE_NO_LIVE_STEPS: "No step is live in a pipeline run that has ended.",
    Invariant.RUNS_ARE_WHOLE: "Every pipeline run has its record, its scope and its graph.",
    Invariant.SCOPES_COUNT_LIVE_LINES: "A scope counts as many live lines as there are in it.",
    Invariant.RUN_SIZES_ARE_RIGHT: "A pipeline run counts its steps, and has no more than it may.",
    Invariant.HALF_OPEN_BREAKERS_HAVE_A_PROBE: "A half-open breaker has a probe that has not ended.",
    Invariant.DELIVERIES_ARE_COUNTED: "No state webhook has a number that its job never gave out.",
    Invariant.LEDGER_NEVER_GOES_BACK: "Instants in the ledger never go back.",
    Invariant.TRANSITIONS_ARE_IN_THE_LEDGER: "Every transition is in the ledger.",
}
