"""Drafts: the files that plans would write, kept in memory until a plan is applied by its id."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.struct import Value, hide_in_repr

_MAX_PLANS = 32


@hide_in_repr("contents")
class PlanDraft(Value):
    """The files that a plan writes before it seals and loads; none for a plan of the files on disk."""

    #: `apply` or `rollback`, as it is recorded.
    command: str
    contents: Mapping[str, bytes | None]
    #: The configuration that it restores.
    to: str | None = None
    restores_tokens: bool = False
    #: Whether it sets or removes keys, for which a token needs more rights.
    edits_keys: bool = False


class PlanDrafts:
    """The drafts of the latest plans by their ids. After a restart a plan has to be made again."""

    def __init__(self) -> None:
        self._drafts: dict[str, PlanDraft] = {}

    def add(self, plan_id: str, draft: PlanDraft) -> None:
        """Keep the draft of a plan until it is applied. The oldest is dropped if there are too many."""
        self._drafts.pop(plan_id, None)
        while len(self._drafts) >= _MAX_PLANS:
            del self._drafts[next(iter(self._drafts))]
        self._drafts[plan_id] = draft

    def find(self, plan_id: str | None) -> PlanDraft | None:
        """Return the draft of a plan; None without an id, and for a plan that is not kept."""
        return None if plan_id is None else self._drafts.get(plan_id)
