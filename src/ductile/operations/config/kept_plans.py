"""Plans of changes that are not on disk yet, kept until they are applied."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.struct import Value, hide_in_repr

_MAX_PLANS = 32


@hide_in_repr("contents")
class KeptPlan(Value):
    """What to write before the files are sealed and loaded."""

    #: `apply` or `rollback`, as it is recorded.
    command: str
    contents: Mapping[str, bytes | None]
    #: The configuration that it restores.
    to: str | None = None
    restores_tokens: bool = False
    #: Whether it sets or removes keys, for which a token needs more rights.
    edits_keys: bool = False


class KeptPlans:
    """The latest plans by their ids, in memory: after a restart a plan is made again."""

    def __init__(self) -> None:
        self._plans: dict[str, KeptPlan] = {}

    def keep(self, plan_id: str, plan: KeptPlan) -> None:
        """Keep a plan. The oldest is dropped if there are too many."""
        self._plans.pop(plan_id, None)
        while len(self._plans) >= _MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[plan_id] = plan

    def find(self, plan_id: str | None) -> KeptPlan | None:
        return None if plan_id is None else self._plans.get(plan_id)
