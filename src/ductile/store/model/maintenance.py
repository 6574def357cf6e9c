"""Recorded configurations, retention, and the state of the store itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from ductile.core.json import JsonObject
from ductile.struct import DescribedEnum, Value, field


class ConfigOrigin(StrEnum):
    START = "start"
    RELOAD = "reload"
    RUN = "run"


class LoadCause(Value):
    """The cause for which a configuration was loaded."""

    #: The command: `apply`, `rollback`, `reload`, `token` or `signal`. None at a start.
    command: str | None = None
    #: The caller: `cli`, or `token NAME` for a caller of the HTTP API.
    author: str | None = None
    #: The id of the plan that was applied.
    plan: str | None = None
    #: The id of the files; see `ductile.config.history.seal_log`.
    files: str | None = None


#: The cause of a load that is explained by its origin alone.
NO_CAUSE = LoadCause()


class PluginVersion(Value):
    """A plugin under a configuration. `config` is the hash of its settings, secrets included."""

    version: str | None
    fingerprint: str | None
    config: str


class ConfigRecord(Value):
    seq: int
    hash: str
    origin: ConfigOrigin
    content: JsonObject
    loaded_at: datetime
    #: None if they were not recorded.
    plugins: Mapping[str, PluginVersion] | None = None
    #: As in `LoadCause`; None if they were not recorded.
    command: str | None = None
    author: str | None = None
    files: str | None = None


class Retention(Value):
    """The time for which rows of each kind are kept."""

    succeeded_jobs: timedelta = timedelta(hours=24)
    job_log: timedelta = timedelta(days=30)
    breaker_transitions: timedelta = timedelta(days=90)
    occurrences: timedelta = timedelta(days=30)
    deliveries: timedelta = timedelta(days=7)
    ledger: timedelta = timedelta(days=7)
    ledger_rows: int = 1_000_000
    #: None: facts are kept for ever.
    facts: timedelta | None = None


class PruneResult(Value):
    rows: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


class PluginWork(Value):
    """Accepted work that still needs a plugin."""

    plugin: str
    #: Queued jobs, ready or held.
    queued: int = 0
    running: int = 0
    #: Live pipeline runs with a step of the plugin.
    runs: int = 0


class StoreStats(Value):
    """The store's files."""

    path: str
    size: int
    #: Size of the write-ahead log.
    wal_size: int
    schema_version: int
    #: The newest version that this program knows.
    newest_schema: int
    filesystem: str | None
    #: Damage that the database finds in its files.
    damage: tuple[str, ...]
    #: Damage of the full-text index, which can be rebuilt.
    search_damage: tuple[str, ...] = ()
    #: Copies of damaged write-ahead logs, made when the store was opened.
    damaged_wals: tuple[str, ...] = ()


class PluginFailures(Value):
    """Jobs of one command that failed for good."""

    plugin: str
    command: str
    jobs: int
    latest_job_id: str


class FailingReceiver(Value):
    """A receiver of state webhooks that refuses them or does not respond."""

    receiver: str
    #: Deliveries that failed and will be tried again.
    waiting: int
    dropped: int
    last_error: str | None


class RecentFailures(Value):
    """Failures since an instant."""

    #: When the newest entry of the ledger was written.
    newest_at: datetime | None
    endings: tuple[PluginFailures, ...]
    #: Jobs that ended because their plugin was removed or disabled.
    removed: tuple[PluginFailures, ...]
    receivers: tuple[FailingReceiver, ...]


class Invariant(DescribedEnum):
    """A rule about the rows of a store at rest, whatever happened to the processes that wrote them.

    Each has a query `check_<name>` that returns the ids of rows that break it. They hold during retention
    too: rows that are kept for different times are compared only where both must exist. A check reads whole
    tables, so it runs only on request.
    """

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
