"""What the step after a split is told of its branches (ENGINE 2)."""

from __future__ import annotations

from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.run_values import BranchEnd, LeafStatus


def shown_branch(name: str, ends: list[BranchEnd]) -> JsonObject:
    """A branch as the step after the join sees it (ENGINE 2)."""
    statuses = {end.status for end in ends}
    payloads: list[JsonValue] = [end.payload for end in ends if end.payload is not None]
    status = LeafStatus.SUCCEEDED
    if LeafStatus.FAILED in statuses:
        status = LeafStatus.FAILED
    elif statuses == {LeafStatus.SKIPPED}:
        status = LeafStatus.SKIPPED
    shown: JsonObject = {
        "id": name,
        "status": status.value,
        "payload": payloads[-1] if payloads else None,
        "payloads": payloads,
    }
    if status is LeafStatus.FAILED:
        shown["error"] = next((end.error for end in ends if end.status is LeafStatus.FAILED), None)
    return shown
