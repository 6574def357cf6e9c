"""The part of the configuration that the pure core decides by. `config.compile` builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from ductile.core.breaker import BreakerPolicy
from ductile.core.json_values import JsonObject
from ductile.core.patterns import MatchBudget
from ductile.core.pipelines import PipelineTable
from ductile.core.retry import RetryPolicy
from ductile.core.routing import RouteTable
from ductile.core.schedule import ScheduleRule
from ductile.value import Value, field, hides


class FactRule(Value):
    """State updates of this command are kept as facts of this type (SPEC 3.6)."""

    command: str
    fact_type: str
    #: Whether the fact also replaces the plugin's state row.
    mirror: bool = True


@hides("config")
class PluginRules(Value):
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


DEFAULT_PLUGIN_RULES = PluginRules()


class Rules(Value):
    plugins: Mapping[str, PluginRules] = field(default_factory=dict)
    routes: RouteTable = RouteTable()
    pipelines: PipelineTable = field(default_factory=PipelineTable)
    dedupe_ttl: timedelta = timedelta(hours=24)
    max_hops: int = 20
    max_workers: int = 1
    #: Tells by the name of a key whether its value must not be shown.
    is_secret: Callable[[str], bool] = lambda _key: False
    #: The computing time for the conditions of one transaction. None: each match has a limit of its own.
    budget: MatchBudget | None = None

    def plugin(self, name: str) -> PluginRules:
        """The rules of a plugin; the defaults for one that is no longer configured."""
        return self.plugins.get(name, DEFAULT_PLUGIN_RULES)


NO_RULES = Rules()
