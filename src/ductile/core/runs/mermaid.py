"""A pipeline as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ductile.core.runs.graph import Shape
from ductile.core.runs.tree import TreeStep

#: A node whose outgoing edge is not drawn yet, and the text at that edge.
_LooseEnd: TypeAlias = tuple[str, str]
_ENTITIES = {'"': "#quot;", "#": "#35;", "&": "#amp;", "<": "#lt;", ">": "#gt;", "`": "#96;", "\\": "#92;"}


def to_mermaid(steps: Sequence[TreeStep], trigger: str) -> str:
    """Return the flowchart of a pipeline, from its trigger to its end."""
    chart = _Chart()
    chart.add(f'start(["{_escaped(trigger)}"])')
    ends = chart.sequence(steps, [("start", "")])
    chart.add("done((( )))")
    chart.connect(ends, "done")
    return "\n".join(["flowchart TD", *chart.lines, *chart.edges]) + "\n"


@dataclass(slots=True)
class _Chart:
    lines: list[str] = field(default_factory=list)
    #: Written last: an edge inside a subgraph would draw its ends into the subgraph.
    edges: list[str] = field(default_factory=list)
    _depth: int = 1

    def add(self, line: str) -> None:
        self.lines.append("  " * self._depth + line)

    def connect(self, ends: Sequence[_LooseEnd], target: str) -> None:
        for source, label in ends:
            arrow = f'-- "{_escaped(label)}" -->' if label else "-->"
            self.edges.append(f"  {source} {arrow} {target}")

    def sequence(self, steps: Sequence[TreeStep], ends: list[_LooseEnd]) -> list[_LooseEnd]:
        """Draw steps one after the other. Returns the loose ends after the last."""
        for step in steps:
            ends = self._step(step, ends)
        return ends

    def _step(self, step: TreeStep, ends: list[_LooseEnd]) -> list[_LooseEnd]:
        name, label = f"s{step.node.position}", _label(step)
        if step.node.shape is Shape.FRAME:
            self.add(f'subgraph {name}["{label}"]')
            self._depth += 1
            for group in step.groups:
                ends = self.sequence(group.steps, ends)
            self._depth -= 1
            self.add("end")
            return ends
        is_fork = step.node.shape is Shape.FORK
        self.add(f'{name}{{{{"{label}"}}}}' if is_fork else f'{name}["{label}"]')
        self.connect(ends, name)
        inner = [end for group in step.groups for end in self.sequence(group.steps, [(name, group.name)])]
        if not is_fork:
            return [(name, "other events" if step.groups else ""), *inner]
        self.add(f'{name}_join(["join"])')
        self.connect(inner, f"{name}_join")
        return [(f"{name}_join", "")]


def _label(step: TreeStep) -> str:
    title = step.node.label.title
    lines = [title if step.id.isdigit() else f"{step.id}: {title}"]
    if step.condition is not None:
        lines.append(f"if {step.condition}")
    return "<br/>".join(_escaped(line) for line in lines)


def _escaped(text: str) -> str:
    """Return text without the characters that Mermaid interprets, as its own kind of entities."""
    return "".join(_ENTITIES.get(character, character) for character in " ".join(text.split()))
