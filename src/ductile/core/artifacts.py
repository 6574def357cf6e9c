"""The artifacts of a pipeline run: those of all its steps, each under a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count

from ductile.core.json_values import JsonObject, JsonValue


def combine_artifacts(steps: Iterable[tuple[str, Sequence[JsonValue]]]) -> tuple[JsonValue, ...]:
    """Return the artifacts of these steps, given as (step path, artifacts), in their order.

    A name that several of them have is given the step's path: `report.csv` of the step `daily` becomes
    `daily/report.csv`. If the step ran several times, the second one becomes `daily/2/report.csv`. A step
    that names what an earlier step has named, with the same name and place, adds nothing.
    """
    found: dict[tuple[JsonValue, ...], tuple[str, JsonObject]] = {}
    for path, artifacts in steps:
        for artifact in artifacts:
            if isinstance(artifact, dict):
                place = (artifact.get("name"), artifact.get("path"), artifact.get("url"))
                found[place] = (path, artifact)
    names = Counter(str(artifact.get("name")) for _path, artifact in found.values())
    taken = {name for name, times in names.items() if times == 1}
    combined: list[JsonValue] = []
    for path, artifact in found.values():
        name = str(artifact.get("name"))
        if names[name] == 1:
            combined.append(artifact)
            continue
        own = _free_name(path, name, taken)
        taken.add(own)
        combined.append({**artifact, "name": own})
    return tuple(combined)


def _free_name(path: str, name: str, taken: set[str]) -> str:
    numbered = (f"{path}/{number}/{name}" for number in count(2))
    own = f"{path}/{name}"
    while own in taken:
        own = next(numbered)
    return own
