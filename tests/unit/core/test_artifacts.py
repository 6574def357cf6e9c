"""The artifacts of a run are those of all its steps, each with a unique name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.json import JsonValue
from ductile.core.runs.progress import combine_artifacts


def an_artifact(name: str, path: str = "/out/x") -> JsonValue:
    return {"name": name, "path": path}


def artifact_names(artifacts: tuple[JsonValue, ...]) -> list[str]:
    return [str(artifact["name"]) for artifact in artifacts if isinstance(artifact, dict)]


def test_names_that_do_not_meet_stay() -> None:
    assert combine_artifacts([("a", [an_artifact("x")]), ("b", [an_artifact("y")])]) == (
        an_artifact("x"),
        an_artifact("y"),
    )


def test_names_that_meet_get_the_path_of_their_step() -> None:
    steps = [("a", [an_artifact("x", "/1"), an_artifact("y")]), ("b/c", [an_artifact("x", "/2")])]
    assert combine_artifacts(steps) == (
        an_artifact("a/x", "/1"),
        an_artifact("y"),
        an_artifact("b/c/x", "/2"),
    )


def test_a_step_that_ran_several_times() -> None:
    steps = [("a", [an_artifact("x", f"/{number}")]) for number in range(3)]
    assert artifact_names(combine_artifacts(steps)) == ["a/x", "a/2/x", "a/3/x"]


def test_a_name_that_is_taken_is_not_given_again() -> None:
    steps = [
        ("a", [an_artifact("x", "/1")]),
        ("b", [an_artifact("x", "/2")]),
        ("c", [an_artifact("a/x", "/3")]),
    ]
    assert artifact_names(combine_artifacts(steps)) == ["a/2/x", "b/x", "a/x"]


def test_the_same_file_is_listed_once() -> None:
    assert combine_artifacts(
        [("a", [an_artifact("x")]), ("b", [{"name": "x", "path": "/out/x", "size": 3}])]
    ) == ({"name": "x", "path": "/out/x", "size": 3},)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "a/b", "2"]),
            st.lists(
                st.builds(an_artifact, st.sampled_from(["x", "a/x", "a/2/x"]), st.sampled_from("12345"))
            ),
        )
    )
)
def test_every_place_has_one_name_and_every_name_one_place(
    steps: list[tuple[str, list[JsonValue]]],
) -> None:
    combined = combine_artifacts(steps)
    assert len(set(artifact_names(combined))) == len(combined)
    locations = {
        (artifact["name"], artifact["path"])
        for _, artifacts in steps
        for artifact in artifacts
        if isinstance(artifact, dict)
    }
    assert len(combined) == len(locations)
