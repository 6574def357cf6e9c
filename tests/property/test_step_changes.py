"""The steps of a failed run compared with a good one: the first output that changed shape is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.json import JsonObject
from ductile.core.runs.graph import StepPayload, UseNode
from ductile.operations.diagnose.differences import (
    MissingReference,
    StepTrace,
    change_advice,
    changed_inputs,
    changed_outputs,
    describe_change,
    explained_references,
    first_change,
    missing_references,
    uncompared_steps,
)

names = st.text(alphabet="abcdef", min_size=1, max_size=4)
flat: st.SearchStrategy[JsonObject] = st.dictionaries(names, st.integers() | st.text(max_size=4), max_size=4)


def a_step(path: str, emitted: JsonObject | None, given_input: JsonObject | None = None) -> StepTrace:
    return StepTrace(
        path=path,
        job_id=f"job-{path}",
        plugin=f"plugin-{path}",
        command="handle",
        payload=given_input,
        emitted=None if emitted is None else {"made": (emitted,)},
    )


def a_sequence(outputs: list[JsonObject]) -> list[StepTrace]:
    return [a_step(str(number), output) for number, output in enumerate(outputs)]


@given(st.lists(flat, max_size=6))
def test_a_run_does_not_differ_from_itself(outputs: list[JsonObject]) -> None:
    steps = a_sequence(outputs)
    assert changed_outputs(steps, steps) == ()
    assert changed_inputs(steps, steps) == ()
    assert list(uncompared_steps(steps, steps, failed_step=None)) == []


@given(st.lists(flat, min_size=1, max_size=6), st.data())
def test_the_first_step_that_lost_a_needed_field_is_found(
    outputs: list[JsonObject], data: st.DataObject
) -> None:
    """The step renames a field, later steps pass the new name on, and the last step refers to the old one."""
    index = data.draw(st.integers(0, len(outputs) - 1))
    before: list[JsonObject] = [{**output, "wanted": 1} for output in outputs]
    after: list[JsonObject] = [
        {**output, ("renamed" if number >= index else "wanted"): 1} for number, output in enumerate(outputs)
    ]
    # A new field of an earlier step explains nothing.
    after[0] = {**after[0], "unrelated": True}
    need = MissingReference(step="last", place="with.x", reference="payload.wanted")
    changes = changed_outputs(a_sequence(before), a_sequence(after))
    change = first_change(changes, (need,))
    assert change is not None
    assert change.step.path == str(index)
    assert explained_references(change, (need,)) == (need,)
    sentence = describe_change(change, (need,))
    assert "payload.wanted is gone" in sentence
    assert "Step last needs payload.wanted (with.x)." in sentence
    advice = change_advice(change, (need,))
    assert advice is not None
    assert f"plugin-{index}" in advice


@given(st.lists(flat, min_size=1, max_size=4), flat)
def test_a_step_that_ran_several_times_is_compared_with_its_like(
    many: list[JsonObject], other: JsonObject
) -> None:
    good_steps = [a_step("each", output) for output in (*many, other)]
    assert changed_outputs(good_steps, [a_step("each", output) for output in many]) == ()


@given(flat, flat)
def test_an_answer_that_is_not_kept_is_no_change(output: JsonObject, other: JsonObject) -> None:
    assert changed_outputs([a_step("a", None)], [a_step("a", output)]) == ()
    assert changed_outputs([a_step("a", output)], [a_step("a", None)]) == ()
    assert changed_outputs([a_step("a", output)], [a_step("b", other)]) == ()
    gaps = list(uncompared_steps([a_step("a", output)], [a_step("b", other)], failed_step=None))
    assert gaps == ["steps that the good run did not run: b"]
    lost_outputs = list(uncompared_steps([a_step("a", output)], [a_step("a", None)], failed_step=None))
    assert lost_outputs == ["the output of steps whose response is no longer stored: a"]
    assert list(uncompared_steps([a_step("a", output)], [a_step("a", None)], failed_step="a")) == []


def test_another_event_is_a_change() -> None:
    good_step = StepTrace(path="a", job_id="1", plugin="p", command="handle", emitted={"found": ({"x": 1},)})
    changed_step = StepTrace(
        path="a", job_id="2", plugin="p", command="handle", emitted={"": ({"result": 1},)}
    )
    (change,) = changed_outputs([good_step], [changed_step])
    assert {(field.name, field.kind.value) for field in change.changes} == {
        ("event found", "gone"),
        ("the result without an event", "new"),
    }


def test_references_that_lead_nowhere_are_the_unmet_needs() -> None:
    template_source: JsonObject = {
        "to": "{payload.email}",
        "all": ["{context.user.name}", "Dear {payload.name}"],
    }
    template_source["run"] = ["{run.payload.id}", "{run.payload.no}", "{run.id}"]
    step = UseNode(
        path="send",
        position=1,
        next=None,
        condition=None,
        plugin="mail",
        command="handle",
        payload=StepPayload(template_source),
    )
    assert missing_references(step, {"name": "x"}, {"user": {}}, {"id": "r", "payload": {"id": 1}}) == (
        MissingReference(step="send", place="with.to", reference="payload.email"),
        MissingReference(step="send", place="with.all[0]", reference="context.user.name"),
        MissingReference(step="send", place="with.run[1]", reference="run.payload.no"),
    )
