"""The steps of a failed run against those of a good one: the first output that changed shape is found."""

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


def a_line(outputs: list[JsonObject]) -> list[StepTrace]:
    return [a_step(str(number), output) for number, output in enumerate(outputs)]


@given(st.lists(flat, max_size=6))
def test_a_run_does_not_differ_from_itself(outputs: list[JsonObject]) -> None:
    line = a_line(outputs)
    assert changed_outputs(line, line) == ()
    assert changed_inputs(line, line) == ()
    assert list(uncompared_steps(line, line, failed_step=None)) == []


@given(st.lists(flat, min_size=1, max_size=6), st.data())
def test_the_first_step_that_lost_a_needed_field_is_found(
    outputs: list[JsonObject], data: st.DataObject
) -> None:
    """It renames a field, every step after it passes that on, and the last one refers to it."""
    at = data.draw(st.integers(0, len(outputs) - 1))
    before: list[JsonObject] = [{**one, "wanted": 1} for one in outputs]
    after: list[JsonObject] = [
        {**one, ("renamed" if number >= at else "wanted"): 1} for number, one in enumerate(outputs)
    ]
    # Something new further up is no reason for anything.
    after[0] = {**after[0], "unrelated": True}
    need = MissingReference(step="last", place="with.x", reference="payload.wanted")
    changes = changed_outputs(a_line(before), a_line(after))
    found = first_change(changes, (need,))
    assert found is not None
    assert found.step.path == str(at)
    assert explained_references(found, (need,)) == (need,)
    sentence = describe_change(found, (need,))
    assert "payload.wanted is gone" in sentence
    assert "Step last needs payload.wanted (with.x)." in sentence
    advice = change_advice(found, (need,))
    assert advice is not None
    assert f"plugin-{at}" in advice


@given(st.lists(flat, min_size=1, max_size=4), flat)
def test_a_step_that_ran_several_times_is_compared_with_its_like(
    many: list[JsonObject], other: JsonObject
) -> None:
    good = [a_step("each", one) for one in (*many, other)]
    assert changed_outputs(good, [a_step("each", one) for one in many]) == ()


@given(flat, flat)
def test_an_answer_that_is_not_kept_is_no_change(output: JsonObject, other: JsonObject) -> None:
    assert changed_outputs([a_step("a", None)], [a_step("a", output)]) == ()
    assert changed_outputs([a_step("a", output)], [a_step("a", None)]) == ()
    assert changed_outputs([a_step("a", output)], [a_step("b", other)]) == ()
    gaps = list(uncompared_steps([a_step("a", output)], [a_step("b", other)], failed_step=None))
    assert gaps == ["steps that the good run did not run: b"]
    lost = list(uncompared_steps([a_step("a", output)], [a_step("a", None)], failed_step=None))
    assert lost == ["the output of steps whose response is no longer stored: a"]
    assert list(uncompared_steps([a_step("a", output)], [a_step("a", None)], failed_step="a")) == []


def test_another_event_is_a_change() -> None:
    good = StepTrace(path="a", job_id="1", plugin="p", command="handle", emitted={"found": ({"x": 1},)})
    now = StepTrace(path="a", job_id="2", plugin="p", command="handle", emitted={"": ({"result": 1},)})
    (change,) = changed_outputs([good], [now])
    assert {(field.name, field.kind.value) for field in change.changes} == {
        ("event found", "gone"),
        ("the result without an event", "new"),
    }


def test_references_that_lead_nowhere_are_the_unmet_needs() -> None:
    written: JsonObject = {"to": "{payload.email}", "all": ["{context.user.name}", "Dear {payload.name}"]}
    written["run"] = ["{run.payload.id}", "{run.payload.no}", "{run.id}"]
    step = UseNode(
        path="send",
        position=1,
        next=None,
        condition=None,
        plugin="mail",
        command="handle",
        payload=StepPayload(written),
    )
    assert missing_references(step, {"name": "x"}, {"user": {}}, {"id": "r", "payload": {"id": 1}}) == (
        MissingReference(step="send", place="with.to", reference="payload.email"),
        MissingReference(step="send", place="with.all[0]", reference="context.user.name"),
        MissingReference(step="send", place="with.run[1]", reference="run.payload.no"),
    )
