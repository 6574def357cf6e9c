"""The part of the configuration that decisions of the core depend on. `ductile.config.compile` builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from ductile.core.events.model import EventRouteTable, PipelineTable
from ductile.core.expressions.regex import MatchBudget
from ductile.core.jobs.failures import BreakerPolicy, RetryPolicy
from ductile.core.jobs.model import StateSubscription
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.schedules.rule import ScheduleRule
from ductile.struct import Value, field, hide_in_repr


class FactRule(Value):
    """State updates of the command are recorded as facts of this type."""

    command: str
    fact_type: str
    #: Whether the fact also replaces the plugin's state row.
    replaces_state: bool = True


@hide_in_repr("config")
class PluginPolicy(Value):
    """The policy of one configured plugin."""

    retry: RetryPolicy = RetryPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    facts: tuple[FactRule, ...] = ()
    #: The rules of its schedules, by id: with them the end of a scheduled run decides the next occurrence.
    schedules: Mapping[str, ScheduleRule] = field(default_factory=dict)
    #: Whether the end of its root jobs fires hooks.
    notify_on_complete: bool = False
    #: The subscription to the states of its jobs that are not steps of a run.
    state_webhook: StateSubscription | None = None
    #: The `config` of conditions. Hidden in `repr`, because it can contain secrets.
    config: JsonObject = field(default_factory=dict)

    def fact_rule(self, command: str) -> FactRule | None:
        return next((rule for rule in self.facts if rule.command == command), None)


DEFAULT_PLUGIN_POLICY = PluginPolicy()


class FailureReceiver(Value):
    """The receiver of failure notices: a pipeline, or the command of a plugin."""

    pipeline: str | None = None
    plugin: str = ""
    command: str = "handle"
    #: Whether it accepts jobs now. Failures are kept until it does.
    accepts_jobs: bool = True


class Policy(Value):
    plugins: Mapping[str, PluginPolicy] = field(default_factory=dict)
    routes: EventRouteTable = EventRouteTable()
    pipelines: PipelineTable = field(default_factory=PipelineTable)
    dedupe_ttl: timedelta = timedelta(hours=24)
    max_hops: int = 20
    #: None: failures are not recorded for notices.
    on_failure: FailureReceiver | None = None
    #: Decides by the name of a key whether its value is masked.
    is_secret: Callable[[str], bool] = lambda _key: False
    #: The CPU time for all conditions of one transaction. None: each match has its own limit.
    budget: MatchBudget | None = None

    def plugin(self, name: str) -> PluginPolicy:
        """Return the policy of a plugin; the defaults if it is no longer configured."""
        return self.plugins.get(name, DEFAULT_PLUGIN_POLICY)

    def state_webhook(
        self, plugin: str, command: str, payload: JsonObject | None
    ) -> StateSubscription | None:
        """Return the configured state webhook of a job that is not a step of a run, or of a run."""
        if plugin == RUN_PLUGIN:
            pipeline = self.pipelines.by_name.get(command)
            subscription, config = None if pipeline is None else pipeline.state_webhook, {}
        else:
            subscription, config = self.plugin(plugin).state_webhook, self.plugin(plugin).config
        return None if subscription is None else subscription.with_model_of(payload, config)


EMPTY_POLICY = Policy()
