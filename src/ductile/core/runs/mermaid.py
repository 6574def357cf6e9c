"""A pipeline as a Mermaid flowchart: text that other programs draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ductile.core.runs.graph import BlockNode, SplitNode
from ductile.core.runs.tree import StepGroup, TreeStep

#: Where a line comes from, and what is written at it.
_LooseEnd = tuple[str, str]
_ENTITIES = {'"': "#quot;", "#": "#35;", "&": "#amp;", "<": "#lt;", ">": "#gt;", "`": "#96;", "\\": "#92;"}


def to_mermaid(items: Sequence[TreeStep], trigger: str) -> str:
    """The flowchart of a pipeline's outline, from what starts it to its end."""
    chart = _Chart()
    chart.say(f'start(["{_escaped(trigger)}"])')
    ends = chart.sequence(items, [("start", "")])
    chart.say("done((( )))")
    chart.join(ends, "done")
    return "\n".join(["flowchart TD", *chart.lines, *chart.edges]) + "\n"


@dataclass(slots=True)
class _Chart:
    lines: list[str] = field(default_factory=list)
    #: After all else: what an edge names inside a subgraph would be drawn into it.
    edges: list[str] = field(default_factory=list)
    _depth: int = 1

    def say(self, line: str) -> None:
        self.lines.append("  " * self._depth + line)

    def join(self, ends: Sequence[_LooseEnd], target: str) -> None:
        for source, label in ends:
            arrow = f'-- "{_escaped(label)}" -->' if label else "-->"
            self.edges.append(f"  {source} {arrow} {target}")

    def sequence(self, items: Sequence[TreeStep], entered: Sequence[_LooseEnd]) -> list[_LooseEnd]:
        """Draw the steps; where the lines come out of them."""
        ends = list(entered)
        for item in items:
            ends = self._item(item, ends)
        return ends

    def _item(self, item: TreeStep, entered: list[_LooseEnd]) -> list[_LooseEnd]:
        match item.node:
            case BlockNode():
                return self._block(item, entered)
            case SplitNode():
                return self._split(item, entered)
            case _:
                return self._use(item, entered)

    def _use(self, item: TreeStep, entered: list[_LooseEnd]) -> list[_LooseEnd]:
        name = _name(item)
        self.say(f'{name}["{_label(item)}"]')
        self.join(entered, name)
        ends: list[_LooseEnd] = [(name, "other events" if item.parts else "")]
        for part in item.parts:
            ends += self.sequence(part.items, [(name, part.name)])
        return ends

    def _block(self, item: TreeStep, entered: list[_LooseEnd]) -> list[_LooseEnd]:
        self.say(f'subgraph {_name(item)}["{_label(item)}"]')
        self._depth += 1
        (inside,) = item.parts
        ends = self.sequence(inside.items, entered)
        self._depth -= 1
        self.say("end")
        return ends

    def _split(self, item: TreeStep, entered: list[_LooseEnd]) -> list[_LooseEnd]:
        name = _name(item)
        self.say(f'{name}{{{{"{_label(item)}"}}}}')
        self.join(entered, name)
        ends = [end for part in item.parts for end in self._branch(part, name)]
        self.say(f'{name}_join(["join"])')
        self.join(ends, f"{name}_join")
        return [(f"{name}_join", "")]

    def _branch(self, part: StepGroup, split: str) -> list[_LooseEnd]:
        return self.sequence(part.items, [(split, part.name)])


def _name(item: TreeStep) -> str:
    return f"s{item.node.position}"


def _label(item: TreeStep) -> str:
    lines = [item.title if item.id.isdigit() else f"{item.id}: {item.title}"]
    if item.condition is not None:
        lines.append(f"if {item.condition}")
    return "<br/>".join(_escaped(line) for line in lines)


def _escaped(text: str) -> str:
    """Mermaid reads quotes, angle brackets and backticks; it knows entities by their own notation."""
    return "".join(_ENTITIES.get(character, character) for character in " ".join(text.split()))
