"""`config set` changes only the given key, in any style of file."""

from __future__ import annotations

import json
from difflib import ndiff
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from builders.configs import a_config_of, loaded
from ductile.config.edit.change import apply_edit, get_setting, plan_edit
from ductile.errors import DuctileError
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import to_plain

COMMENTS = st.sampled_from(["", "  # why", "     # a longer reason: x"])
INDENTS = st.sampled_from([" ", "  ", "    "])
LINE_BREAKS = st.sampled_from(["\n", "\r\n"])
CHANGES = [
    ("service.log_level", "debug", True),
    ("service.timezone", "UTC", False),
    ("plugins.a.parallelism", "12", True),
    ("plugins.a.config.new", "'text'", False),
    ("plugins.b", "{}", False),
    ("state.path", "x.db", False),
]


@st.composite
def files(draw: st.DrawFn) -> str:
    """Return sections in any order, each in one of the common styles."""
    lines: list[str] = []
    for section in draw(st.permutations(["service", "plugins", "artifacts"])):
        lines += draw(st.sampled_from([[], [""], ["# about   this"], ["", "#odd"]]))
        if section == "service":
            lines += draw(services())
        elif section == "plugins":
            lines += draw(plugins())
        else:
            lines += draw(st.sampled_from([[], ["artifacts: {roots: [", "  a, b", " ]}"], ["artifacts: {}"]]))
    line_break = draw(LINE_BREAKS)
    # Without a line break at its end, a block of text would change with a line below it.
    ends = [line_break, line_break * 2] if lines[-1].endswith("two") else ["", line_break, line_break * 2]
    return line_break.join(lines) + draw(st.sampled_from(ends))


@st.composite
def services(draw: st.DrawFn) -> list[str]:
    if draw(st.booleans()):
        return ["service: {log_level: info,name:  'x'}" + draw(COMMENTS)]
    indent = draw(INDENTS)
    return ["service :" + draw(COMMENTS), f"{indent}log_level:   info" + draw(COMMENTS), f'{indent}name: "x"']


@st.composite
def plugins(draw: st.DrawFn) -> list[str]:
    outer, inner, dash = draw(INDENTS), draw(INDENTS), draw(st.sampled_from(["", "  "]))
    lines = ["plugins:" + draw(COMMENTS)]
    for name in draw(st.permutations(["a", "c"])):
        if draw(st.booleans()):
            flow = "{schedules: [{every: 3s}],  parallelism: 1}"
            lines.append(f"{outer}{name}: {flow}" + draw(COMMENTS))
            continue
        own = outer + inner
        lines += [f"{outer}{name}:" + draw(COMMENTS), f"{own}parallelism:  1" + draw(COMMENTS)]
        if draw(st.booleans()):
            lines += [f"{own}schedules:", f"{own}{dash}- {{id: y,every: 2h}}", f"{own}{dash}- id: x"]
            lines += [f"{own}{dash}  every: 1h" + draw(COMMENTS)]
        if draw(st.booleans()):
            lines += [f"{own}config:", f"{own}  text: |", f"{own}    one", f"{own}    two"]
    return lines


@given(files(), st.sampled_from(CHANGES))
def test_only_the_requested_line_changes(text: str, change: tuple[str, str, bool]) -> None:
    """A value is replaced within its line; a new key is a new line or goes into the braces of one."""
    key, value, exists = change
    with TemporaryDirectory() as directory:
        config = Path(directory) / "config.yaml"
        config.write_bytes(text.encode())
        after = plan_edit(config, key, value, {}).after.decode()
    differences = list(ndiff(text.splitlines(keepends=True), after.splitlines(keepends=True)))
    removed = [line for line in differences if line.startswith("-")]
    added = [line for line in differences if line.startswith("+")]
    assert len(removed) <= 1
    if exists:
        assert (len(removed), len(added)) == (1, 1)
    assert _value_at(after, key) == to_plain(parse_yaml(value, file="v"))


def _value_at(text: str, key: str) -> object:
    node: object = to_plain(parse_yaml(text, file="f"))
    for part in key.split("."):
        assert isinstance(node, dict)
        node = node[part]
    return node


NAMES = st.sampled_from(["a", "b", "c"])
TREES = st.dictionaries(
    NAMES,
    st.recursive(
        st.integers(0, 9) | st.sampled_from(["x", "y"]) | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
PATHS = st.lists(NAMES | st.integers(0, 2).map(lambda index: f"[{index}]"), min_size=1, max_size=3)


@given(first=TREES, second=TREES, path=PATHS, dotted=st.booleans(), append=st.booleans(), value=TREES)
def test_the_set_value_is_read_back_or_the_change_is_refused(
    first: object, second: object, path: list[str], value: object, *, dotted: bool, append: bool
) -> None:
    """Another file may define the same key."""
    parts = (f".{part.strip('[]')}" if dotted or part[0] != "[" else part for part in path)
    key = "".join(("plugins.e.config", *parts, "[+]" if append else ""))
    main = {"include": ["more.yaml"], "plugins": {"e": {"config": first}}}
    more = {"plugins": {"e": {"config": second}}}
    with TemporaryDirectory() as directory:
        config = a_config_of(
            Path(directory), {"config.yaml": json.dumps(main), "more.yaml": json.dumps(more)}
        )
        try:
            edit = plan_edit(config, key, json.dumps(value), {})
        except DuctileError:
            return
        apply_edit(edit)
        assert get_setting(loaded(config), edit.key).value == value
