"""For any pipeline, the drawings have every step once and can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from hypothesis import given, settings
from hypothesis import strategies as st

from builders.pictures import SVG, read_svg
from builders.pipelines import graph_of
from ductile.core.runs.graph import Graph, SplitNode, UseNode
from ductile.operations.runs.drawings import TreeStep, build_tree, to_mermaid, to_svg

CONDITION = {"path": "payload.name", "op": "eq", "value": '<b>"x" & `y`'}


def steps(depth: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(step(depth), min_size=1, max_size=3)


@st.composite
def step(draw: st.DrawFn, depth: int) -> dict[str, Any]:
    step_settings: dict[str, Any] = {"if": CONDITION} if draw(st.booleans()) else {}
    match draw(st.sampled_from(["uses", "uses", "split", "steps"] if depth else ["uses"])):
        case "split":
            return step_settings | {"split": draw(steps(depth - 1))}
        case "steps":
            return step_settings | {"steps": draw(steps(depth - 1))}
        case _:
            handlers = draw(st.dictionaries(st.sampled_from(["a", 'b"<'] if depth else ["a"]), steps(0)))
            return step_settings | {"uses": "p", "on_events": handlers}


GRAPHS = steps(2).map(lambda step_list: graph_of(*step_list))


def items_of(graph: Graph) -> tuple[TreeStep, ...]:
    return build_tree(graph, lambda _key: False)


def iter_steps(steps: Sequence[TreeStep]) -> Iterator[TreeStep]:
    """Yield every step at any depth, each before the steps inside it."""
    for step in steps:
        yield step
        for group in step.groups:
            yield from iter_steps(group.steps)


@given(GRAPHS)
@settings(max_examples=25)
def test_the_outline_has_every_step_once_in_the_order_of_the_text(graph: Graph) -> None:
    """The nesting is derived from the edges."""
    positions = [item.node.position for item in iter_steps(items_of(graph))]
    assert positions == sorted(range(len(graph.nodes)))


@given(GRAPHS)
@settings(max_examples=25)
def test_mermaid_s_lines_lead_from_the_start_through_every_step_to_the_end(graph: Graph) -> None:
    """Every drawn node is connected, and every edge ends at a drawn node."""
    text = to_mermaid(items_of(graph), "on go")
    edges = re.findall(r'^  (\w+) (?:-- "[^"]*" )?--> (\w+)$', text, re.MULTILINE)
    declared = set(re.findall(r"^ *(\w+)[\[({]", text, re.MULTILINE))
    assert {end for edge in edges for end in edge} <= declared
    reached, waiting = {"start"}, ["start"]
    while waiting:
        current = waiting.pop()
        new = {target for source, target in edges if source == current} - reached
        reached |= new
        waiting += new
    drawn = {f"s{node.position}" for node in graph.nodes.values() if isinstance(node, UseNode | SplitNode)}
    assert drawn | {"done"} <= reached
    assert all(line.count('"') in (0, 2) for line in text.splitlines())


@given(GRAPHS)
@settings(max_examples=25)
def test_no_box_of_the_picture_covers_another_or_its_text(graph: Graph) -> None:
    """Boxes do not overlap, text is inside its box, and everything is on the canvas."""
    root = read_svg(to_svg(items_of(graph), "flow", "on go"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [
        _area(box) for box in root.iter(f"{SVG}rect") if box.attrib["class"].split()[0] in ("box", "fork")
    ]
    assert all(
        left >= 0 and top >= 0 and right <= width and bottom <= height for left, top, right, bottom in boxes
    )
    for number, box in enumerate(boxes):
        assert not any(_overlap(box, other) for other in boxes[number + 1 :])
    texts = [text for text in root.iter(f"{SVG}text") if "middle" in text.attrib["class"]]
    assert len(texts) >= sum(isinstance(node, UseNode) for node in graph.nodes.values())
    for text in texts:
        half_width = len(text.text or "") * 7.3 / 2
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        assert any(
            left <= x - half_width and x + half_width <= right and top < y < bottom
            for left, top, right, bottom in boxes
        )


def _area(box: Element) -> tuple[float, float, float, float]:
    left, top = float(box.attrib["x"]), float(box.attrib["y"])
    return left, top, left + float(box.attrib["width"]), top + float(box.attrib["height"])


def _overlap(first: tuple[float, float, float, float], second: tuple[float, float, float, float]) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]
