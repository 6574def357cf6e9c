"""Views of a graph: the tree of its steps as written, and drawings as SVG and as a Mermaid flowchart.

In SVG, every element is a box that is entered at the middle of its top and left at the middle of its bottom,
so boxes stack into sequences and stand side by side as branches, at any depth. Colours follow the light or
dark mode of the viewer.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TypeAlias

from ductile.core.expressions.conditions import (
    MASK,
    AllOf,
    AnyOf,
    Condition,
    Not,
    PathComparison,
    is_secret_path,
    quote_redacted,
)
from ductile.core.expressions.operators import Operator
from ductile.core.runs.graph import Graph, Node, SequenceKind, Shape
from ductile.struct import Value

_CHARACTER = 7.4  # width of a character of the 12 px monospaced font, rounded up
_LINE = 17
_PAD = 12
_GAP = 30  # between boxes of a sequence: room for an arrow
_FAN = 44  # between a box and the columns below it: room for their names
_SIDE = 28  # between columns
_MARGIN = 20
_ROUND = 6
_DOT = 6
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

_STYLE = """
  svg { --paper: #ffffff; --ink: #1c2128; --soft: #59636e; --line: #848d97; --box: #f3f5f8; --mark: #8a4b00;
        --fork: #e6ecff; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #15191f; --ink: #e6e9ee; --soft: #a2abb6; --line: #76808c; --box: #222933; --mark: #f0b060;
          --fork: #27325a; }
  }
  .paper { fill: var(--paper); }
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
         fill: var(--ink); }
  .id { font-weight: 700; } .soft { fill: var(--soft); } .if { fill: var(--mark); }
  .middle { text-anchor: middle; }
  .box { fill: var(--box); stroke: var(--line); } .maybe { stroke: var(--mark); stroke-dasharray: 5 3; }
  .fork { fill: var(--fork); stroke: var(--line); }
  .frame { fill: none; stroke: var(--line); } .call { stroke-dasharray: 2 3; }
  .way { fill: none; stroke: var(--line); stroke-width: 1.3; } .tip { fill: var(--line); }
"""


def to_svg(steps: Sequence[TreeStep], name: str, trigger: str) -> str:
    """Return the drawing of a pipeline, from its trigger to its end."""
    start = _Label(lines=((trigger, "soft"),), style="fork", rounded=_LINE)
    whole = _stack([start, *(_step_box(step) for step in steps), _Dot()])
    width, height = whole.width + 2 * _MARGIN, whole.height + 2 * _MARGIN
    drawn = "\n".join(whole.draw(_MARGIN, _MARGIN))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n'
        f"<title>pipeline {_safe(name)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{drawn}\n</svg>\n'
    )


class _Box(ABC):
    """A drawn element, entered at the middle of its top and left at the middle of its bottom."""

    width: float
    height: float

    @abstractmethod
    def draw(self, x: float, y: float) -> list[str]: ...


class _Dot(_Box):
    """The end of the pipeline."""

    width = height = 2.0 * _DOT

    def draw(self, x: float, y: float) -> list[str]:
        return [f'<circle class="tip" cx="{x + _DOT:.1f}" cy="{y + _DOT:.1f}" r="{_DOT}"/>']


class _Passage(_Box):
    """An empty element: only the line that passes through."""

    width = 2.0 * _PAD
    height = 0.0

    def draw(self, x: float, y: float) -> list[str]:  # noqa: ARG002 - the lines of the neighbours meet
        return []


class _Label(_Box):
    """A rectangle with lines of text, each with its class."""

    def __init__(
        self, *, lines: Sequence[tuple[str, str]], style: str = "box", rounded: int = _ROUND
    ) -> None:
        self._lines, self._style, self._rounded = lines, style, rounded
        self.width = max(len(text) for text, _ in lines) * _CHARACTER + 2 * _PAD
        self.height = len(lines) * _LINE + _PAD

    def draw(self, x: float, y: float) -> list[str]:
        frame = (
            f'<rect class="{self._style}" x="{x:.1f}" y="{y:.1f}" width="{self.width:.1f}" '
            f'height="{self.height:.1f}" rx="{self._rounded}"/>'
        )
        middle = x + self.width / 2
        texts = [
            f'<text class="{kind} middle" x="{middle:.1f}" y="{y + _PAD / 2 + _LINE * (number + 0.75):.1f}">'
            f"{_safe(text)}</text>"
            for number, (text, kind) in enumerate(self._lines)
        ]
        return [frame, *texts]


class _Stack(_Box):
    """Boxes below each other, with arrows between them."""

    def __init__(self, boxes: Sequence[_Box]) -> None:
        self._boxes = boxes
        self.width = max(box.width for box in boxes)
        self.height = sum(box.height for box in boxes) + _GAP * (len(boxes) - 1)

    def draw(self, x: float, y: float) -> list[str]:
        drawn: list[str] = []
        middle = x + self.width / 2
        for number, box in enumerate(self._boxes):
            if number:
                drawn.append(_arrow([(middle, y), (middle, y + _GAP)]))
                y += _GAP
            drawn += box.draw(middle - box.width / 2, y)
            y += box.height
        return drawn


class _Column(Value, kw_only=False):
    """One of the boxes side by side, with the name at the line that leads to it."""

    name: str
    box: _Box

    @property
    def width(self) -> float:
        # The name is drawn right of the line in the middle.
        return max(self.box.width, 2 * (len(self.name) * _CHARACTER + _PAD))


class _Fan(_Box):
    """A box, columns side by side below it, and the box where the columns meet."""

    def __init__(self, head: _Box, columns: Sequence[_Column], foot: _Box) -> None:
        self._head, self._columns, self._foot = head, columns, foot
        self._across = sum(column.width for column in columns) + _SIDE * (len(columns) - 1)
        self._tallest = max(column.box.height for column in columns)
        self.width = max(head.width, self._across, foot.width)
        self.height = head.height + _FAN + self._tallest + _GAP + foot.height

    def draw(self, x: float, y: float) -> list[str]:
        middle = x + self.width / 2
        drawn = self._head.draw(middle - self._head.width / 2, y)
        below, end = y + self._head.height, y + self.height - self._foot.height
        top, bend, meeting = below + _FAN, below + _GAP / 2, end - _GAP / 2
        left = middle - self._across / 2
        for column in self._columns:
            box, centre = column.box, left + column.width / 2
            left += column.width + _SIDE
            into = [(middle, below), (middle, bend), (centre, bend), (centre, top)]
            drawn.append(_arrow(into) if box.height else _line(into))
            if column.name:
                drawn.append(
                    f'<text class="soft" x="{centre + 5:.1f}" y="{top - 13:.1f}">{_safe(column.name)}</text>'
                )
            drawn += box.draw(centre - box.width / 2, top)
            drawn.append(
                _line([(centre, top + box.height), (centre, meeting), (middle, meeting), (middle, end)])
            )
        return drawn + self._foot.draw(middle - self._foot.width / 2, end)


class _FrameBox(_Box):
    """A border around steps, with a title."""

    def __init__(self, title: _Label, inside: _Box, style: str) -> None:
        self._title, self._inside, self._style = title, inside, style
        self.width = max(title.width, inside.width + 2 * _PAD)
        self.height = title.height + inside.height + _GAP + _PAD

    def draw(self, x: float, y: float) -> list[str]:
        middle = x + self.width / 2
        first = y + self._title.height + _GAP
        frame = (
            f'<rect class="frame {self._style}" x="{x:.1f}" y="{y + self._title.height / 2:.1f}" '
            f'width="{self.width:.1f}" height="{self.height - self._title.height / 2:.1f}" rx="{_ROUND}"/>'
        )
        title = self._title.draw(middle - self._title.width / 2, y)
        into = _arrow([(middle, y + self._title.height), (middle, first)])
        out = _line([(middle, first + self._inside.height), (middle, y + self.height)])
        return [frame, *title, into, *self._inside.draw(middle - self._inside.width / 2, first), out]


def _stack(boxes: Sequence[_Box]) -> _Box:
    return boxes[0] if len(boxes) == 1 else _Stack(boxes)


def _step_box(step: TreeStep) -> _Box:
    """Return the box of a step, with the boxes of the steps inside it."""
    title = step.node.label.title
    lines = [(title, "id")] if step.id.isdigit() else [(step.id, "id"), (title, "soft")]
    conditional = ""
    if step.condition is not None:
        lines.append((f"if {step.condition}", "if"))
        conditional = " maybe"
    groups = step.groups
    inner = [_stack([_step_box(child) for child in group.steps]) for group in groups]
    match step.node.shape:
        case Shape.FRAME:
            style = "call" if step.node.label.keyword == "call" else ""
            return _FrameBox(_Label(lines=lines, style=f"box{conditional}"), _stack(inner), style)
        case Shape.FORK:
            fork = _Label(lines=lines, style=f"fork{conditional}", rounded=_LINE)
            join = _Label(lines=(("join", "soft"),), style="fork", rounded=_LINE)
            # The box of a branch with an id already shows the id.
            names = [group.name if group.name.isdigit() else "" for group in groups]
            return _Fan(fork, list(map(_Column, names, inner)), join)
        case Shape.BOX:
            box = _Label(lines=lines, style=f"box{conditional}")
            if not groups:
                return box
            columns = map(_Column, [group.name for group in groups], inner)
            return _Fan(box, [_Column("other events", _Passage()), *columns], _Passage())


def _line(points: Sequence[tuple[float, float]]) -> str:
    path = " L ".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="way" d="M {path}"/>'


def _arrow(points: Sequence[tuple[float, float]]) -> str:
    x, y = points[-1]
    tip = f'<path class="tip" d="M {x:.1f} {y:.1f} l -4 -8 l 8 0 z"/>'
    return f"{_line(points)}{tip}"


def _safe(text: str) -> str:
    """Escape text. XML forbids control characters and lone surrogates even as entities."""
    return escape(_CONTROL.sub("\ufffd", text), quote=True)


#: An edge without a target yet: the name of the node that it leaves, and its label.
_OpenEdge: TypeAlias = tuple[str, str]
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
    """A Mermaid flowchart as it is written."""

    lines: list[str] = field(default_factory=list)
    #: Written last: an edge inside a subgraph would draw its ends into the subgraph.
    edges: list[str] = field(default_factory=list)
    _depth: int = 1

    def add(self, line: str) -> None:
        """Add a line, indented by the depth of subgraphs."""
        self.lines.append("  " * self._depth + line)

    def connect(self, ends: Sequence[_OpenEdge], target: str) -> None:
        """Draw the edges of these ends to a node."""
        for source, label in ends:
            arrow = f'-- "{_escaped(label)}" -->' if label else "-->"
            self.edges.append(f"  {source} {arrow} {target}")

    def sequence(self, steps: Sequence[TreeStep], ends: list[_OpenEdge]) -> list[_OpenEdge]:
        """Draw steps one after the other, from these ends. Returns the open edges after the last step."""
        for step in steps:
            name, title = f"s{step.node.position}", step.node.label.title
            lines = [title if step.id.isdigit() else f"{step.id}: {title}"]
            if step.condition is not None:
                lines.append(f"if {step.condition}")
            label = "<br/>".join(_escaped(line) for line in lines)
            if step.node.shape is Shape.FRAME:
                self.add(f'subgraph {name}["{label}"]')
                self._depth += 1
                for group in step.groups:
                    ends = self.sequence(group.steps, ends)
                self._depth -= 1
                self.add("end")
                continue
            is_fork = step.node.shape is Shape.FORK
            self.add(f'{name}{{{{"{label}"}}}}' if is_fork else f'{name}["{label}"]')
            self.connect(ends, name)
            inner = [end for group in step.groups for end in self.sequence(group.steps, [(name, group.name)])]
            if is_fork:
                self.add(f'{name}_join(["join"])')
                self.connect(inner, f"{name}_join")
                ends = [(f"{name}_join", "")]
            else:
                ends = [(name, "other events" if step.groups else ""), *inner]
        return ends


def _escaped(text: str) -> str:
    """Return text without the characters that Mermaid interprets, as its own kind of entities."""
    return "".join(_ENTITIES.get(character, character) for character in " ".join(text.split()))


#: A longer condition is cut.
MAX_CONDITION_LENGTH = 60


class StepGroup(Value):
    """The steps of one sequence inside a step. `name` is a branch id or an event type."""

    kind: SequenceKind
    steps: tuple[TreeStep, ...]
    name: str = ""


class TreeStep(Value):
    """A step of a pipeline, with the steps inside it."""

    node: Node
    #: The `if` of the step, shortened.
    condition: str | None = None
    groups: tuple[StepGroup, ...] = ()

    @property
    def id(self) -> str:
        """The last part of the path: the step's id, or its number."""
        return self.node.path.rpartition("/")[2]


def build_tree(graph: Graph, is_secret: Callable[[str], bool]) -> tuple[TreeStep, ...]:
    """Return the steps of a pipeline in the order in which they are written.

    `is_secret` decides by the name of a key whether a condition's value is masked.
    """

    def sequence(first: str, end: str | None) -> tuple[TreeStep, ...]:
        steps: list[TreeStep] = []
        path: str | None = first
        while path is not None and path != end:
            node = graph.nodes[path]
            groups = tuple(
                StepGroup(kind=inner.kind, name=inner.name, steps=sequence(inner.first, inner.end))
                for inner in node.sequences
            )
            condition = None if node.condition is None else summarise_condition(node.condition, is_secret)
            steps.append(TreeStep(node=node, condition=condition, groups=groups))
            path = node.next
        return tuple(steps)

    return sequence(graph.first, None)


def summarise_condition(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    """Return a condition as one short line: `payload.total gte 100 and not payload.test exists`."""
    text = _describe(condition, is_secret)
    return text if len(text) <= MAX_CONDITION_LENGTH else f"{text[: MAX_CONDITION_LENGTH - 1]}…"


def _describe(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    """Return a condition in words, with masks in place of secrets."""
    match condition:
        case PathComparison(path=path, op=op, value=True) if op is Operator.EXISTS:
            return f"{path} {op}"
        case PathComparison(path=path, op=op, value=value):
            hidden = op is not Operator.EXISTS and is_secret_path(path, is_secret)
            return f"{path} {op} {MASK if hidden else quote_redacted(value, is_secret)}"
        case AllOf(parts):
            return " and ".join(_grouped(part, is_secret) for part in parts)
        case AnyOf(parts):
            return " or ".join(_grouped(part, is_secret) for part in parts)
        case Not(part):
            return f"not {_grouped(part, is_secret)}"


def _grouped(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    """Return a part of a condition, in parentheses if it has parts itself."""
    text = _describe(condition, is_secret)
    return text if isinstance(condition, PathComparison | Not) else f"({text})"
