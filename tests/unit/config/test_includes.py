"""Includes and the merge of several files."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.configs import a_config, a_config_of, loaded, problems_of
from ductile.config.file_io import MAX_FILE_SIZE


def test_maps_merge_lists_append_scalars_are_replaced(tmp_path: Path) -> None:
    """The including file comes first, then its includes in order; maps merge at every depth."""
    config = a_config(
        tmp_path,
        """
        include: [a.yaml, b.yaml]
        service: {name: main, log_level: warn}
        plugins: {echo: {config: {deep: {x: 1, y: 1}, list: [1]}}}
        artifacts: {roots: [one]}
        """,
        a_yaml="""
        service: {name: a}
        plugins: {echo: {config: {deep: {y: 2}, list: [2]}}}
        artifacts: {roots: [two]}
        """,
        b_yaml="""
        service: {name: b}
        artifacts: {roots: [three]}
        """,
    )
    model = loaded(config).model
    assert (model.service.name, model.service.log_level) == ("b", "warn")
    assert model.plugins["echo"].config.reveal() == {"deep": {"x": 1, "y": 2}, "list": [1, 2]}
    assert model.artifacts.roots == ("one", "two", "three")


def test_includes_nest_depth_first_relative_to_the_including_file(tmp_path: Path) -> None:
    config = a_config(
        tmp_path,
        "include: [sub/a.yaml, z.yaml]\nartifacts: {roots: [main]}\n",
        sub__a_yaml="include: [deeper/b.yaml]\nartifacts: {roots: [a]}\n",
        sub__deeper__b_yaml="artifacts: {roots: [b]}\n",
        z_yaml="artifacts: {roots: [z]}\n",
    )
    assert loaded(config).model.artifacts.roots == ("main", "a", "b", "z")


def test_a_directory_includes_its_yaml_files_in_alphabetical_order(tmp_path: Path) -> None:
    """The files are `*.yaml` and `*.yml`; subdirectories are not read."""
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": "include: [conf.d]\n",
            "conf.d/20-b.yml": "artifacts: {roots: [b]}\n",
            "conf.d/10-a.yaml": "artifacts: {roots: [a]}\n",
            "conf.d/30-c.yaml": "artifacts: {roots: [c]}\n",
            "conf.d/readme.txt": "not: [yaml",
            "conf.d/.hidden.yaml": "artifacts: {roots: [hidden]}\n",
            "conf.d/below/d.yaml": "artifacts: {roots: [d]}\n",
        },
    )
    assert loaded(config).model.artifacts.roots == ("a", "b", "c")


def test_a_file_reached_twice_is_loaded_once(tmp_path: Path) -> None:
    """This holds for different names of the same file too."""
    config = a_config(
        tmp_path,
        "include: [a.yaml, b.yaml, ./a.yaml, sub/../b.yaml]\n",
        a_yaml="include: [b.yaml]\nartifacts: {roots: [a]}\n",
        b_yaml="artifacts: {roots: [b]}\n",
        sub__x_yaml="",
    )
    assert loaded(config).model.artifacts.roots == ("a", "b")


def test_a_cycle_is_an_error_that_shows_the_files(tmp_path: Path) -> None:
    config = a_config(tmp_path, "include: [a.yaml]", a_yaml="include: [b.yaml]", b_yaml="include: [a.yaml]")
    (problem,) = problems_of(config)
    assert "a.yaml → b.yaml → a.yaml" in problem.message
    assert (problem.file, problem.line) == (str(tmp_path / "b.yaml"), 1)


def test_all_bad_includes_are_reported_together(tmp_path: Path) -> None:
    """A missing include, an interpolated one and a URL are errors, each with its line."""
    config = a_config(
        tmp_path,
        'include:\n  - gone.yaml\n  - "${WHERE}.yaml"\n  - https://example.org/a.yaml\n  - broken.yaml\n',
        broken_yaml="a: [",
    )
    problems = problems_of(config, {"WHERE": "gone"})
    assert [problem.line for problem in problems[:3]] == [2, 3, 4]
    for problem, words in zip(problems, ("does not exist", "variables", "URL", "did not find"), strict=True):
        assert words in problem.message
    assert problems[3].file == str(tmp_path / "broken.yaml")


def test_an_unreadable_included_directory_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied")

    config = a_config(tmp_path, "include: [more]")
    (tmp_path / "more").mkdir()
    monkeypatch.setattr(Path, "iterdir", refuse)
    (problem,) = problems_of(config)
    assert problem.message == f"the included {tmp_path / 'more'} cannot be read: Permission denied"
    assert (problem.file, problem.line) == (str(config), 1)


@pytest.mark.parametrize("content", ["- a\n- b\n", "just text\n"])
def test_a_file_that_is_not_a_map_is_refused(tmp_path: Path, content: str) -> None:
    (problem,) = problems_of(a_config(tmp_path, content))
    assert "map" in problem.message


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "plugins:\n", "~\n"])
def test_an_empty_file_is_a_configuration(tmp_path: Path, content: str) -> None:
    assert loaded(a_config(tmp_path, content)).model.service.name == "ductile"


def test_an_empty_heading_in_a_later_file_replaces_nothing(tmp_path: Path) -> None:
    config = a_config(tmp_path, "include: [a.yaml]\nplugins: {echo: {}}\n", a_yaml="plugins:\n")
    assert list(loaded(config).model.plugins) == ["echo"]


def test_a_duplicate_name_is_reported_with_both_locations(tmp_path: Path) -> None:
    """Names of pipelines, ids of schedules, paths of webhooks and routes must be unique."""
    pipeline = "pipelines: [{name: p, steps: [{uses: echo}]}]\n"
    schedule = "plugins: {echo: {schedules: [{every: 1h}]}}\n"
    webhook = 'webhooks: {endpoints: [{path: /h, plugin: echo, secret: "${S}"}]}\n'
    route = "routes: [{from: echo, event_type: t, to: echo}]\n"
    config = a_config(
        tmp_path,
        "include: [other.yaml]\n" + pipeline + schedule + webhook + route,
        other_yaml="# a comment to move the lines\n" + pipeline + schedule + webhook + route,
    )
    problems = problems_of(config, {"S": "x"})
    assert [problem.line for problem in problems] == [3, 5, 2, 4]
    for problem, first_line in zip(problems, (3, 5, 2, 4), strict=True):
        assert problem.file == str(tmp_path / "other.yaml")
        assert f"{config}:{first_line}" in problem.message


def test_a_symlink_is_an_error_or_with_allow_symlinks_a_warning(tmp_path: Path) -> None:
    config = a_config(tmp_path / "c", "include: [linked.yaml]\n")
    (tmp_path / "real.yaml").write_text("service: {name: linked}\n")
    (tmp_path / "c" / "linked.yaml").symlink_to(tmp_path / "real.yaml")
    (problem,) = problems_of(config)
    assert "symbolic link" in problem.message
    assert problem.file == str(tmp_path / "c" / "linked.yaml")
    config.write_text("include: [linked.yaml]\nservice: {allow_symlinks: true}\n")
    result = loaded(config)
    assert result.model.service.name == "linked"
    assert ["symbolic link" in warning.message for warning in result.warnings] == [True]


def test_a_symlinked_parent_directory_counts_too(tmp_path: Path) -> None:
    config = a_config(tmp_path / "c", "include: [conf.d/a.yaml]\n")
    a_config_of(tmp_path / "elsewhere", {"a.yaml": ""})
    (tmp_path / "c" / "conf.d").symlink_to(tmp_path / "elsewhere")
    (problem,) = problems_of(config)
    assert problem.file == str(tmp_path / "c" / "conf.d")


def test_paths_are_relative_to_the_config_directory(tmp_path: Path) -> None:
    """Neither the working directory nor the directory of the included file counts."""
    config = a_config(tmp_path, "include: [sub/a.yaml]", sub__a_yaml="plugin_roots: [mine, /opt/plugins]\n")
    roots = loaded(config).plugin_roots
    assert [str(root) for root in roots] == [str(tmp_path / "mine"), "/opt/plugins"]
    (tmp_path / "config.yaml").write_text("plugins_dir: old\n")
    assert loaded(config).plugin_roots == (tmp_path / "old",)
    (tmp_path / "config.yaml").write_text("")
    assert loaded(config).plugin_roots == (tmp_path / "plugins",)


#: A configuration that names a file, and the beginning of the error about that file.
NAMING = {
    "include": ("include: [{file}]\n", "{file} cannot be read: "),
    "variables": (
        "environment_vars: {{include: [{file}]}}\n",
        "the environment file {file} cannot be read: ",
    ),
    "scopes": ("tokens: [{{name: t, key: k, scopes_file: {file}}}]\n", "{file} cannot be read: "),
}


@pytest.mark.parametrize("naming", NAMING)
@pytest.mark.parametrize("kind", ["device", "pipe", "socket"])
def test_only_regular_files_are_read(tmp_path: Path, naming: str, kind: str) -> None:
    """A device may never end, and a pipe may never start."""
    file = Path("/dev/zero") if kind == "device" else tmp_path / "special"
    if kind == "pipe":
        os.mkfifo(file)
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(file))
    text, words = NAMING[naming]
    problems = problems_of(a_config(tmp_path, text.format(file=file)))
    reason = "it is a " + {"pipe": "named pipe"}.get(kind, kind) + ", not a file"
    assert words.format(file=file) + reason in [problem.message for problem in problems]


def test_reading_stops_at_the_maximum_file_size(tmp_path: Path) -> None:
    config = a_config(tmp_path, "include: [large.yaml]\n")
    with (tmp_path / "large.yaml").open("wb") as large:
        large.truncate(MAX_FILE_SIZE + 1)
    (problem,) = problems_of(config)
    assert problem.message == f"{tmp_path / 'large.yaml'} cannot be read: it is larger than 16 MiB"
