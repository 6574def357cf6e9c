"""YAML is read with types, locations and refusals."""

from __future__ import annotations

import pytest
import yaml

from ductile.errors import ConfigError, Problem
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import ListNode, MapNode, ScalarNode, to_plain


def read_plain(text: str) -> object:
    return to_plain(parse_yaml(text, file="f.yaml"))


def problems(data: bytes | str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as excinfo:
        to_plain(parse_yaml(data, file="f.yaml"))
    return excinfo.value.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on: yes", {"on": "yes"}),
        ("off: NO", {"off": "NO"}),
        ("a: 22:00", {"a": "22:00"}),
        ("a: 12:30:45", {"a": "12:30:45"}),
        ("a: 2026-01-02", {"a": "2026-01-02"}),
        ("a: 0o17", {"a": 15}),
        ("a: 017", {"a": 17}),
        ("a: 0x1F", {"a": 31}),
        ("a: 1_000", {"a": "1_000"}),
        ("a: 9007199254740993", {"a": 9007199254740993}),
        ("a: 1e3", {"a": 1000.0}),
        ("a: .5", {"a": 0.5}),
        ("a: True", {"a": True}),
        ("a: '5'", {"a": "5"}),
        ('a: "null"', {"a": "null"}),
        ("a: ~\nb:\nc: Null", {"a": None, "b": None, "c": None}),
        ("a: |\n  5\n", {"a": "5\n"}),
        ("1: x", {"1": "x"}),
        ("- 1\n- [a, {b: c}]", [1, ["a", {"b": "c"}]]),
    ],
)
def test_scalars_have_their_yaml_1_2_meaning(text: str, value: object) -> None:
    """`on` and `22:00` stay text; only the core schema gives a type, and only to a plain scalar."""
    assert read_plain(text) == value


def test_an_empty_file_is_none() -> None:
    assert parse_yaml("", file="f") is None
    assert parse_yaml("# only a comment\n", file="f") is None


def test_every_node_has_its_location() -> None:
    """Line and column count from 1."""
    root = parse_yaml("a: 1\nb:\n  - x\n  -  y\n", file="f.yaml")
    assert isinstance(root, MapNode)
    node = root.get("b")
    assert isinstance(node, ListNode)
    assert (
        node.items[1].location.file,
        node.items[1].location.line,
        node.items[1].location.column,
    ) == (
        "f.yaml",
        4,
        6,
    )
    assert root.entries[1][0].location.line == 2


def test_all_duplicate_keys_are_reported_with_both_lines() -> None:
    first, second = problems("a: 1\nb: [{d: {c: 1, c: 2}}]\na: 3\n")
    assert (first.line, first.key) == (2, "b[0].d.c")
    assert (second.line, second.key) == (3, "a")
    assert "first on line 1" in second.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("a:\n\tb: 1\n", "tab"),
        ("a: !!python/object:os.system x", "tag"),
        ("a: !secret x", "!secret"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("a: &x [*x]", "is not defined before"),
        ("a: *nowhere", "is not defined before"),
        ("a: .inf", "number"),
        ("a: -.INF", "number"),
        ("a: .nan", "number"),
        ("a: 1e999", "number"),
        (f"a: {'9' * 5000}", "number"),
        ("{a: b}: c", "cannot be a key"),
        ("a: <<\n<<: 5", "merged"),
        ("[" * 200, "nested deeper"),
        (b"a: \xff\xfe", "UTF-8"),
        (b"a: x\x00y", "NUL"),
        ("a: x\x07y", "U+0007"),
        ("a: 'open", "not closed"),
    ],
)
def test_invalid_yaml_is_a_problem(data: bytes | str, words: str) -> None:
    """Syntax, tags, several documents, cycles and numbers without a JSON form are problems, never
    tracebacks.
    """
    (problem, *_) = problems(data)
    assert words in problem.message
    assert problem.file == "f.yaml"
    assert problem.line is not None


@pytest.mark.parametrize(
    ("text", "position", "message", "hint"),
    [
        ('a: 1\nb: "hello\nc: 2\nd: 3\n', (2, 4), 'the quote " is not closed', 'end the value with "'),
        ("a: 'open\nb: 1\n", (1, 4), "the quote ' is not closed", "end the value with '"),
        ("env:\n  include: [.env\nservice:\n  x: 1\n", (2, 12), "the [ is not closed", "close it with ]"),
        ("a: {b: 1\nc: 2\n", (1, 4), "the { is not closed", "close it with }"),
        ("a: [1, 2\n", (1, 4), "the [ is not closed", "close it with ]"),
        ("a: [1, 2", (1, 4), "the [ is not closed", "close it with ]"),
        ("b:\n  x: 1\nservice\nc: 3\n", (3, 1), 'there is no ":" after service', "service:"),
        ("a: {b: x, c: ${X}}\n", (1, 15), "did not find expected ',' or '}'", "quote a value"),
        ("a:\n  b: 1\n c: 2\n", (3, 2), "value that begins on line 1", "indentation"),
    ],
)
@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_a_mistake_is_reported_at_its_cause(
    monkeypatch: pytest.MonkeyPatch,
    loader: str,
    text: str,
    position: tuple[int, int],
    message: str,
    hint: str,
) -> None:
    """The parser may stop later, even at the end of the file."""
    if loader == "SafeLoader":
        monkeypatch.delattr(yaml, "CSafeLoader")
        message = message.replace("did not find expected", "expected")
    (problem,) = problems(text)
    assert (problem.line, problem.column) == position
    assert message in problem.message
    assert hint in (problem.hint or "")


def test_an_invalid_byte_is_reported_with_its_line() -> None:
    (problem,) = problems(b"a: 1\nb: 2\nc: \xff\n")
    assert problem.line == 3


def test_aliases_cannot_expand_without_bound() -> None:
    """A few lines of nested aliases must not become a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    assert "expand" in problems("\n".join(lines))[0].message


def test_aliases_cannot_nest_without_bound() -> None:
    """The depth of the aliased content counts; otherwise a later recursion would overflow."""
    deep = "a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60
    assert "nested deeper" in problems(deep)[0].message


def test_merge_keys_add_missing_entries() -> None:
    """`<<` takes one mapping or several: written keys win, then the first mapping that has the key."""
    text = "d: &d {a: 1, b: 2}\ne: &e {b: 3, c: 4}\nf: {<<: [*d, *e], a: 9}\n"
    assert read_plain(text) == {"d": {"a": 1, "b": 2}, "e": {"b": 3, "c": 4}, "f": {"a": 9, "b": 2, "c": 4}}
    assert read_plain('"<<": 5') == {"<<": 5}


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert plain_bytes(b"\xef\xbb\xbfa: 1") == {"a": 1}


def plain_bytes(data: bytes) -> object:
    return to_plain(parse_yaml(data, file="f"))


def test_the_tree_is_the_same_without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML may have been built without libyaml."""
    text = "on: yes\na: [1, 'x', {b: 22:00}]\nc: |\n  text\nd: &d {e: 1}\nf: *d\n"
    with_libyaml = parse_yaml(text, file="f")
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert parse_yaml(text, file="f") == with_libyaml
    assert isinstance(with_libyaml, MapNode)


def test_quoted_scalars_are_marked() -> None:
    root = parse_yaml("a: 5\nb: '5'\n", file="f")
    assert isinstance(root, MapNode)
    first, second = root.get("a"), root.get("b")
    assert isinstance(first, ScalarNode)
    assert isinstance(second, ScalarNode)
    assert (first.plain, second.plain) == (True, False)
