"""Drawings of pipelines: their content, and what is left out."""

from __future__ import annotations

from builders.pictures import SVG, read_svg
from builders.pipelines import graph_of, policy_of, split, uses
from ductile.config.secrets import looks_secret
from ductile.operations.runs.drawings import MAX_CONDITION_LENGTH, build_tree, to_mermaid, to_svg

ORDER = graph_of(
    uses("fetch", on_events={"order.big": [uses("approve", "q")]}),
    split("both", uses("mail", "q"), uses("print", "r", if_={"path": "payload.paper", "op": "exists"})),
    {"id": "group", "steps": [uses("last")]},
)
FLOWCHART = """\
flowchart TD
  start(["on go"])
  s0["fetch: p"]
  s1["approve: q"]
  s2{{"both: split"}}
  s3["mail: q"]
  s4["print: r<br/>if payload.paper exists"]
  s2_join(["join"])
  subgraph s5["group: steps"]
    s6["last: p"]
  end
  done((( )))
  start --> s0
  s0 -- "order.big" --> s1
  s0 -- "other events" --> s2
  s1 --> s2
  s2 -- "mail" --> s3
  s2 -- "print" --> s4
  s3 --> s2_join
  s4 --> s2_join
  s2_join --> s6
  s6 --> done
"""


def test_a_flowchart() -> None:
    """The pipeline has sequences, a split with its join, `on_events` and conditions."""
    assert to_mermaid(build_tree(ORDER, looks_secret), "on go") == FLOWCHART


def test_a_drawing_shows_the_whole_pipeline() -> None:
    """The drawing has ids, plugins, branches, events, conditions, the join and the trigger."""
    root = read_svg(to_svg(build_tree(ORDER, looks_secret), "flow", "on go"))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for word in ("on go", "fetch", "order.big", "other events", "both", "mail", "print", "join", "group"):
        assert word in texts, texts
    assert "if payload.paper exists" in texts


def test_a_call_is_a_box_with_the_steps_of_the_other_pipeline() -> None:
    """The graph contains the steps of the called pipeline."""
    policy = policy_of(
        {"name": "inner", "steps": [uses("a")]}, {"name": "flow", "steps": [{"id": "sub", "call": "inner"}]}
    )
    (item,) = build_tree(policy.pipelines.by_name["flow"].graph, looks_secret)
    assert (item.node.label.title, [inner.node.path for inner in item.groups[0].steps]) == (
        "call inner",
        ["sub/a"],
    )


def test_the_operand_of_a_condition_may_be_secret() -> None:
    """The path decides whether the operand is secret."""
    condition = {
        "any": [
            {"path": "config.api_key", "op": "eq", "value": "canary"},
            {"path": "payload.a", "op": "exists"},
        ]
    }
    (item,) = build_tree(graph_of(uses("a", if_=condition)), looks_secret)
    assert item.condition == "config.api_key eq *** or payload.a exists"


def test_a_long_condition_is_cut() -> None:
    """The condition is shortened, so that the drawing stays readable."""
    condition = {"path": "payload.text", "op": "eq", "value": "x" * 200}
    (item,) = build_tree(graph_of(uses("a", if_=condition)), looks_secret)
    assert item.condition is not None
    assert len(item.condition) == MAX_CONDITION_LENGTH


def test_a_picture_is_xml_whatever_is_in_it() -> None:
    """Event types are free text."""
    graph = graph_of(uses("a", on_events={'<script>&"\u0001': [uses("b")]}))
    svg = to_svg(build_tree(graph, looks_secret), "flow", "on <go>\ud800")
    assert "<script>" not in svg
    read_svg(svg)
