"""Invariants of the rows of a store at rest, whatever happened to the processes that wrote them.

Each has a query `check_<name>` that returns the ids of rows that break it. They hold during retention too:
rows that are kept for different times are compared only where both must exist. A check reads whole tables,
so it runs only on request.
"""

from __future__ import annotations

from ductile.struct import DescribedEnum


class Invariant(DescribedEnum):
    TRANSITIONS_CHAIN = "transitions_chain", "Every transition of a job begins where the one before it ended."
    STATUS_IS_LAST_TRANSITION = (
        "status_is_last_transition",
        "A job is in the state that its last transition led to.",
    )
    EDGES_ARE_KNOWN = "edges_are_known", "Every transition is an edge of the state machine."
    EXECUTIONS_ARE_CLAIMS = "executions_are_claims", "A job was executed as often as it was claimed."
    ENDED_EXECUTIONS_ARE_LOGGED = "ended_executions_are_logged", "Every execution that ended is in the log."
    LIVE_EXECUTIONS_ARE_NOT_LOGGED = (
        "live_executions_are_not_logged",
        "An execution that runs is not in the log yet.",
    )
    ATTEMPTS_WITHIN_LIMIT = "attempts_within_limit", "No job is in an attempt beyond its last."
    CHILDREN_ARE_UNIQUE = "children_are_unique", "No child exists twice."
    CHILDREN_FOLLOW_SUCCESS = (
        "children_follow_success",
        "A job's events have started jobs only if the job succeeded.",
    )
    EVENTS_EXIST = "events_exist", "The event that started a job exists."
    CONTEXTS_EXIST = "contexts_exist", "The context of a job exists."
    KEY_HAS_ONE_HOLDER = (
        "key_has_one_holder",
        "Of the jobs that share a dedupe key, at most one is ready or running.",
    )
    KEY_FOLLOWERS_HAVE_A_HOLDER = (
        "key_followers_have_a_holder",
        "No job waits for a dedupe key that no job holds.",
    )
    PREDECESSORS_ARE_LIVE = "predecessors_are_live", "No job waits for a job that has ended."
    ONE_SUSPECT_IS_ACTIVE = (
        "one_suspect_is_active",
        "At most one suspect of a crash is ready or running.",
    )
    HELD_SUSPECTS_HAVE_AN_ACTIVE_ONE = (
        "held_suspects_have_an_active_one",
        "If jobs are held as suspects of a crash, one suspect is ready or running.",
    )
    LIVE_RUNS_HAVE_LIVE_STEPS = (
        "live_runs_have_live_steps",
        "A pipeline run that has not ended has a step that has not.",
    )
    ENDED_RUNS_HAVE_NO_LIVE_STEPS = (
        "ended_runs_have_no_live_steps",
        "No step is live in a pipeline run that has ended.",
    )
    RUNS_ARE_WHOLE = "runs_are_whole", "Every pipeline run has its record, its scope and its graph."
    SCOPES_COUNT_LIVE_LINES = (
        "scopes_count_live_lines",
        "The live count of a join scope is the number of live tokens in it.",
    )
    RUN_SIZES_ARE_RIGHT = (
        "run_sizes_are_right",
        "A pipeline run's count of steps is right and within the limit.",
    )
    HALF_OPEN_BREAKERS_HAVE_A_PROBE = (
        "half_open_breakers_have_a_probe",
        "A half-open breaker has a probe that has not ended.",
    )
    DELIVERIES_ARE_COUNTED = (
        "deliveries_are_counted",
        "The number of a state webhook is not above the last number of its job.",
    )
    LEDGER_NEVER_GOES_BACK = "ledger_never_goes_back", "Instants in the ledger never go back."
    TRANSITIONS_ARE_IN_THE_LEDGER = "transitions_are_in_the_ledger", "Every transition is in the ledger."
