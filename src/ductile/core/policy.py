"""The part of the configuration that the pure core decides by. `config.compile` builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from ductile.core.events.routing import EventRouteTable, PipelineTable
from ductile.core.expressions.regex import MatchBudget
from ductile.core.jobs.breaker import BreakerPolicy
from ductile.core.jobs.retry import RetryPolicy
from ductile.core.json import JsonObject
from ductile.core.schedules.rule import ScheduleRule
from ductile.struct import Value, field, hide_in_repr


class FactRule(Value):
    """State updates of this command are kept as facts of this type."""

    command: str
    fact_type: str
    #: Whether the fact also replaces the plugin's state row.
    mirror: bool = True


@hide_in_repr("config")
class PluginPolicy(Value):
    """What the core needs to know of one configured plugin instance."""

    retry: RetryPolicy = RetryPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    facts: tuple[FactRule, ...] = ()
    parallelism: int = 1
    #: By schedule id: the end of a scheduled run decides when the next one is.
    schedules: Mapping[str, ScheduleRule] = field(default_factory=dict)
    #: The `model` of its configuration, told in state webhooks.
    model: str | None = None
    #: Whether pipelines with `on-hook` are told of the end of its root jobs.
    notify_on_complete: bool = False
    #: What conditions see as `config`. It may hold secrets, so it is never shown.
    config: JsonObject = field(default_factory=dict)

    def fact_rule(self, command: str) -> FactRule | None:
        return next((rule for rule in self.facts if rule.command == command), None)


DEFAULT_PLUGIN_POLICY = PluginPolicy()


class Policy(Value):
    plugins: Mapping[str, PluginPolicy] = field(default_factory=dict)
    routes: EventRouteTable = EventRouteTable()
    pipelines: PipelineTable = field(default_factory=PipelineTable)
    dedupe_ttl: timedelta = timedelta(hours=24)
    max_hops: int = 20
    max_workers: int = 1
    #: Tells by the name of a key whether its value must not be shown.
    is_secret: Callable[[str], bool] = lambda _key: False
    #: The computing time for the conditions of one transaction. None: each match has a limit of its own.
    budget: MatchBudget | None = None

    def plugin(self, name: str) -> PluginPolicy:
        """The rules of a plugin; the defaults for one that is no longer configured."""
        return self.plugins.get(name, DEFAULT_PLUGIN_POLICY)


EMPTY_POLICY = Policy()
