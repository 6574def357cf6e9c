"""Variables, escapes and environment files in a loaded configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config, a_config_of, loaded, problems_of
from ductile.config.read.environment import parse_environment

if TYPE_CHECKING:
    from pathlib import Path


def plugin_config(tmp_path: Path, yaml: str, environ: dict[str, str] | None = None) -> dict[str, object]:
    config = a_config(tmp_path, f"plugins:\n  echo:\n    config:\n      x: {yaml}\n")
    return loaded(config, environ).model.plugins["echo"].config.reveal()


@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        ("${V}", "v"),
        ("${V:-d}", "v"),
        ("${UNSET:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("'${EMPTY}'", ""),
        ("${UNSET:-}", None),
        ("a-${V}-${UNSET:-5}-b", "a-v-5-b"),
        ("${NUMBER}", 5),
        ("'${NUMBER}'", "5"),
        ('"$${V}"', "${V}"),
        ('"$${V} ${V}"', "${V} v"),
        ("$V", "$V"),
        ("$$V", "$$V"),
        ('"$V $1 $$ $"', "$V $1 $$ $"),
        ("${DUCTILE_JOB_ID}", "${DUCTILE_JOB_ID}"),
        ("${DUCTILE_JOB_ID:-none}", "${DUCTILE_JOB_ID:-none}"),
        ("/run/${DUCTILE_JOB_ID}/${V}", "/run/${DUCTILE_JOB_ID}/v"),
    ],
)
def test_references_and_escapes(tmp_path: Path, yaml: str, value: object) -> None:
    """`$${` is literal, `$X` stays as it is, and `${DUCTILE_…}` in a plugin's configuration is resolved at
    run time.
    """
    environ = {"V": "v", "EMPTY": "", "NUMBER": "5", "DUCTILE_JOB_ID": "not this"}
    assert plugin_config(tmp_path, yaml, environ) == {"x": value}


def test_ductile_variables_are_interpolated_outside_plugin_config(tmp_path: Path) -> None:
    config = a_config(
        tmp_path, "service: {name: '${DUCTILE_NAME}'}\nplugins: {e: {env: {A: '${DUCTILE_NAME}'}}}\n"
    )
    model = loaded(config, {"DUCTILE_NAME": "mine"}).model
    assert model.service.name == "mine"
    assert model.plugins["e"].env.reveal() == {"A": "${DUCTILE_NAME}"}


def test_all_unset_variables_are_reported_with_file_line_and_key(tmp_path: Path) -> None:
    config = a_config(
        tmp_path,
        "include: [a.yaml]\nservice:\n  name: ${ONE}\n  max_workers: ${TWO}\n",
        a_yaml="plugins:\n  echo:\n    config:\n      list:\n        - ${THREE}\n",
    )
    problems = problems_of(config)
    assert [(problem.file, problem.line, problem.key) for problem in problems] == [
        (str(config), 3, "service.name"),
        (str(config), 4, "service.max_workers"),
        (str(tmp_path / "a.yaml"), 5, "plugins.echo.config.list[0]"),
    ]
    assert [
        name in problem.message for name, problem in zip(("ONE", "TWO", "THREE"), problems, strict=True)
    ] == [True] * 3


@pytest.mark.parametrize("reference", ["${", "${}", "${1X}", "${V-default}", "${a b}", "${V:-x", "${V:?x}"])
def test_a_malformed_reference_is_an_error(tmp_path: Path, reference: str) -> None:
    """Otherwise it would reach a plugin unchanged."""
    (problem,) = problems_of(a_config(tmp_path, f"service:\n  name: '{reference}'\n"), {"V": "v"})
    assert problem.key == "service.name"
    assert problem.hint is not None
    assert "$${" in problem.hint


def test_keys_are_not_interpolated(tmp_path: Path) -> None:
    config = a_config(tmp_path, "plugins: {echo: {config: {'${V}': 1}}}\n")
    assert loaded(config, {"V": "v"}).model.plugins["echo"].config.reveal() == {"${V}": 1}


def test_a_number_from_a_variable_is_accepted_as_text(tmp_path: Path) -> None:
    """`token: ${TOKEN}` has to work for a token of digits."""
    config = a_config(
        tmp_path,
        "service: {name: '${N}'}\nplugins:\n  e:\n    uses: ${P}\ntokens:\n  - name: a\n    key: ${N}\n",
    )
    model = loaded(config, {"N": "123", "P": "p1"}).model
    assert (model.service.name, model.tokens[0].key.reveal()) == ("123", "123")
    config.write_text("service:\n  name: ${N}\n")
    assert loaded(config, {"N": "123"}).model.service.name == "123"


def test_the_real_environment_wins_over_environment_files(tmp_path: Path) -> None:
    """A later file wins over an earlier one."""
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": "environment_vars: {include: [.env, more.env]}\n"
            "plugins: {e: {config: {a: '${A}', b: '${B}', c: '${C}'}}}\n",
            ".env": "A=file\nB=file\nC=file\n",
            "more.env": "B=more\n",
        },
    )
    values = loaded(config, {"A": "real"}).model.plugins["e"].config.reveal()
    assert values == {"a": "real", "b": "more", "c": "file"}


def test_environment_files_of_an_include_are_relative_to_the_config_directory(
    tmp_path: Path,
) -> None:
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": "include: [sub/a.yaml]\nservice: {name: '${A}'}\n",
            "sub/a.yaml": "environment_vars: {include: [my.env]}\n",
            "my.env": "A=yes",
        },
    )
    assert loaded(config).model.service.name == "yes"


@pytest.mark.parametrize(
    ("entry", "words"), [("gone.env", "cannot be read"), ("'${X}'", "variables"), ("http://x/.env", "URL")]
)
def test_an_unreadable_environment_file_is_reported_with_its_location(
    tmp_path: Path, entry: str, words: str
) -> None:
    config = a_config(tmp_path, f"environment_vars:\n  include:\n    - {entry}\n")
    (problem, *_) = problems_of(config, {"X": "x"})
    assert words in problem.message
    assert (problem.line, problem.key) == (3, "environment_vars.include[0]")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("service: {name: '${V}'}", "set V, or give a default: ${V:-value}"),
        ("plugins: {e: {config: {password: '${V}'}}}", "environment_vars.include"),
        ("plugins: {e: {config: {text: '${API_TOKEN}'}}}", "environment_vars.include"),
        ("tokens: [{name: t, key: '${V}', scopes: ['*']}]", "environment_vars.include"),
    ],
)
def test_the_hint_never_advises_a_default_for_a_secret(tmp_path: Path, text: str, hint: str) -> None:
    """The default would be a literal secret in the configuration."""
    problems = problems_of(a_config(tmp_path, f"{text}\n"))
    (advice,) = [problem.hint for problem in problems if "is not set" in problem.message]
    assert advice is not None
    assert hint in advice
    assert ("default" in advice) is ("default" in hint)


def test_the_hint_names_a_missing_environment_file(tmp_path: Path) -> None:
    """After a restore without the file, the remedy is to put it back."""
    config = a_config(tmp_path, "environment_vars: {include: [.env]}\nservice: {name: '${V}'}\n")
    (advice,) = [
        problem.hint for problem in problems_of(config) if problem.message == "the variable V is not set"
    ]
    assert advice == f"put back {tmp_path / '.env'} if V is in it, or set V"


def test_the_lines_of_an_environment_file() -> None:
    text = (
        "# comment\n\nA=1\nexport B = two words # why\nC='single # kept'\n"
        'D="line\\nbreak \\"q\\" \\\\"\nE=\nF=a#b\nG="x" # c\n\ufeff'.replace("\ufeff", "")
    )
    values, problems = parse_environment(text.encode(), file=".env")
    assert not problems
    assert values == {
        "A": "1",
        "B": "two words",
        "C": "single # kept",
        "D": 'line\nbreak "q" \\',
        "E": "",
        "F": "a#b",
        "G": "x",
    }


def test_an_invalid_line_is_reported_by_number_and_never_quoted() -> None:
    """The line may hold a secret."""
    _, problems = parse_environment(b"A=1\ncanary without equals\nB='canary\n", file=".env")
    assert [problem.line for problem in problems] == [2, 3]
    assert "canary" not in repr(problems)
