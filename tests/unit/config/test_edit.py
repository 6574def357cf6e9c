"""`config get` and `config set`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config, loaded
from ductile.config.edit.change import apply_edit, get_setting, parse_key, plan_edit
from ductile.config.load import Machine, SealMode, load_config
from ductile.config.seal import build_checksums, read_checksums, write_checksums
from ductile.errors import ConfigError, DuctileError, IntegrityError, NotFoundError, UsageError
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import to_plain

if TYPE_CHECKING:
    from pathlib import Path

MAIN = """\
# The main file.
include: [more.yaml]   # and another one

service:
    name:   mine     # with odd spaces
    log_level: "info"

plugins:
    echo:
        schedules:
          - id: a     # the first
            every: 1h
          - {id: b, every: 2h}
        config: {version: 1.10, on: yes, time: 22:00}
"""
MORE = """\
plugins:
  echo:
    schedules:
    - id: c
      every: 3h   # in the other file
    parallelism: 2
"""


def test_a_key_is_split_into_parts() -> None:
    assert parse_key("plugins.echo.schedules[0].every") == ("plugins", "echo", "schedules", 0, "every")
    for wrong in ("", ".", "a..b", "a[", "a[x]", "a b[0]c", "a.", "[0"):
        with pytest.raises(UsageError):
            parse_key(wrong)


def test_get_returns_the_set_value_or_the_default(tmp_path: Path) -> None:
    result = loaded(a_config(tmp_path, MAIN, more_yaml=MORE))
    setting = get_setting(result, "plugins.echo.schedules[2].every")
    assert setting.value == "3h"
    assert setting.location is not None
    assert (setting.location.file, setting.location.line) == (str(tmp_path / "more.yaml"), 5)
    assert get_setting(result, "service.tick_interval").value == "1m"
    assert get_setting(result, "service.tick_interval").location is None
    assert get_setting(result, "plugins.echo.retry.max_attempts").value == 4
    assert get_setting(result, "plugins.echo.schedules.2.every").value == "3h"
    with pytest.raises(NotFoundError, match=r"no key service\.log_levle") as excinfo:
        get_setting(result, "service.log_levle")
    assert excinfo.value.hint == "did you mean log_level?"
    for missing_key in ("plugins.echo.config.none", "routes[0]", "service.name.x"):
        with pytest.raises(NotFoundError):
            get_setting(result, missing_key)


@pytest.mark.parametrize(
    ("key", "value", "file", "before", "after"),
    [
        ("service.log_level", "debug", "config.yaml", 'log_level: "info"', 'log_level: "debug"'),
        ("service.name", "other", "config.yaml", "name:   mine     #", "name:   other    # with odd"),
        ("plugins.echo.schedules[0].every", "5m", "config.yaml", "every: 1h", "every: 5m"),
        ("plugins.echo.schedules[1].every", "5m", "config.yaml", "{id: b, every: 2h}", "{id: b, every: 5m}"),
        ("plugins.echo.schedules[2].every", "5m", "more.yaml", "every: 3h ", "every: 5m "),
        ("plugins.echo.schedules[2].jitter", "5m", "more.yaml", None, "jitter: 5m"),
        ("plugins.echo.parallelism", "7", "more.yaml", "parallelism: 2", "parallelism: 7"),
        ("plugins.echo.config.version", '"1.10"', "config.yaml", "version: 1.10", "version: '1.10'"),
        ("api.max_sync_timeout", "1m", "config.yaml", None, "max_sync_timeout: 1m"),
        ("artifacts.roots", "[a, b]", "config.yaml", None, "roots:"),
    ],
)
def test_setting_changes_one_value_in_the_file_that_defines_it(
    tmp_path: Path, key: str, value: str, file: str, before: str | None, after: str
) -> None:
    """A key defined nowhere goes to `config.yaml`; comments, order and the rest stay."""
    config = a_config(tmp_path, MAIN, more_yaml=MORE)
    edit = plan_edit(config, key, value, {})
    assert edit.path == tmp_path / file
    assert edit.path.read_bytes() == edit.before
    apply_edit(edit)
    text = (tmp_path / file).read_text()
    assert after in text
    if before is not None:
        assert before not in text
    for comment in ("# The main file.", "# and another one", "# with odd spaces", "# the first"):
        assert comment in (tmp_path / "config.yaml").read_text()
    assert "# in the other file" in (tmp_path / "more.yaml").read_text()
    assert loaded(config).model.plugins["echo"].config.reveal()["on"] == "yes"


#: Every line has a form that no YAML emitter would write.
ODD = """\
# odd   but mine

service: { log_level:   info,name: "x" }   # c
plugins :
      fail: {retry: {max_attempts: 2}, schedules: [{every: 3s}], circuit_breaker: {threshold: 2}}
      more:
       schedules: [
         every: 1h ,
       ]
       config:   {a:  'b',
                  c: [1,2]}
       env:
          LONG: "one
            two"
tokens: []


"""


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("service.log_level", "debug", "log_level:   info,", "log_level:   debug,"),
        ("plugins.fail.circuit_breaker.threshold", "5", "threshold: 2}", "threshold: 5}"),
        ("plugins.fail.schedules[0].every", "10s", "{every: 3s}", "{every: 10s}"),
        ("plugins.more.schedules[0].every", "2h", "every: 1h ,", "every: 2h ,"),
        ("plugins.more.config.a", "it's", "'b'", "'it''s'"),
        ("plugins.more.config.c[1]", "3", "[1,2]", "[1,3]"),
    ],
)
def test_only_the_characters_of_the_value_change(
    tmp_path: Path, key: str, value: str, old: str, new: str, bom: str, line_break: str
) -> None:
    """All other bytes of the file stay as they are."""
    before = (bom + ODD.replace("\n", line_break)).encode()
    config = a_config(tmp_path, "")
    config.write_bytes(before)
    assert plan_edit(config, key, value, {}).after == before.replace(old.encode(), new.encode(), 1)


@pytest.mark.parametrize(
    ("key", "value", "added"),
    [
        ("service.timezone", "Europe/Berlin", 0),
        ("plugins.more.parallelism", "2", 1),
        ("plugins.new", "{}", 1),
        ("api.max_sync_timeout", "1m", 2),
    ],
)
def test_a_new_key_keeps_every_other_line(tmp_path: Path, key: str, value: str, added: int) -> None:
    """One line is added, or the one line that gets the key is rewritten."""
    config = a_config(tmp_path, ODD)
    after = plan_edit(config, key, value, {}).after.decode()
    lines = ODD.splitlines()
    unchanged = [line for line in after.splitlines() if line in lines]
    assert len(after.splitlines()) == len(lines) + added
    assert len(unchanged) == len(lines) - (0 if added else 1)


def test_an_empty_line_after_the_change_stays(tmp_path: Path) -> None:
    config = a_config(tmp_path, "")
    config.write_bytes(b"service: {log_level: info}\r\n\r\nplugins: {}")
    after = plan_edit(config, "service.timezone", "UTC", {}).after
    assert after == b"service: {log_level: info, timezone: UTC}\r\n\r\nplugins: {}"


def test_mixed_line_breaks_stay(tmp_path: Path) -> None:
    """A key can be added to a file that ends without a line break."""
    config = a_config(tmp_path, "")
    config.write_bytes(b"service:\r\n  name: a\n  log_level: info\r\nplugins: {}")
    assert plan_edit(config, "service.name", "b", {}).after == config.read_bytes().replace(b"a\n", b"b\n")
    added = plan_edit(config, "service.max_workers", "2", {}).after
    assert added == config.read_bytes().replace(b"info\r\n", b"info\r\n  max_workers: 2\r\n")
    after = plan_edit(config, "artifacts.roots", "[x]", {}).after
    assert after.startswith(config.read_bytes() + b"\r\nartifacts:\r\n")


def test_a_dry_run_has_the_diff_and_writes_nothing(tmp_path: Path) -> None:
    config = a_config(tmp_path, MAIN, more_yaml=MORE)
    edit = plan_edit(config, "plugins.echo.parallelism", "7", {})
    assert "-    parallelism: 2\n+    parallelism: 7\n" in edit.diff
    assert (tmp_path / "more.yaml").read_text() == MORE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("service.log_level", "loud"),
        ("service.nothing", "1"),
        ("service.max_workers", "0"),
        ("plugins.echo.schedules[0].cron", "'* * * * *'"),
        ("plugins.echo.schedules[9].every", "1h"),
        ("routes[0].to", "echo"),
        ("service.name", "[unclosed"),
        ("service.name.x", "1"),
        ("service.name.x.y", "1"),
        ("include.x", "1"),
        ("plugins.echo.schedules.9.every", "1h"),
        ("service.name[+]", "x"),
        ("service.name.x[+]", "x"),
        ("plugins.echo.config.version.x[+]", "x"),
        ("plugins.echo.schedules[0][+]", "x"),
        ("plugins.echo[+]", "x"),
        ("plugins.echo.schedules[+].every", "1h"),
        ("plugins.echo.schedules", "[{id: z, every: 9h}]"),
    ],
)
def test_a_change_that_would_break_the_configuration_is_not_made(
    tmp_path: Path, key: str, value: str
) -> None:
    """The whole configuration is loaded with the change before a file is written."""
    config = a_config(tmp_path, MAIN, more_yaml=MORE)
    with pytest.raises(DuctileError):
        plan_edit(config, key, value, {})
    assert (config.read_text(), (tmp_path / "more.yaml").read_text()) == (MAIN, MORE)


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    config = a_config(tmp_path, MAIN, more_yaml=MORE)
    edit = plan_edit(config, "service.log_level", "debug", {})
    config.write_text(MAIN + "# another hand\n")
    with pytest.raises(ConfigError, match="meanwhile"):
        apply_edit(edit)
    assert config.read_text() == MAIN + "# another hand\n"


def test_only_a_locking_change_renews_the_seal(tmp_path: Path) -> None:
    """Plain `config set` never renews the seal; `--lock` verifies the file first."""
    config = a_config(tmp_path, MAIN, more_yaml=MORE)
    write_checksums(tmp_path, build_checksums(loaded(config).files, {}, strict=False))
    apply_edit(plan_edit(config, "service.log_level", "debug", {}), renew=True)
    assert loaded(config, seal=SealMode.VERIFY).warnings == ()
    apply_edit(plan_edit(config, "service.log_level", "warn", {}))
    assert [warning.message for warning in loaded(config, seal=SealMode.VERIFY).warnings] == [
        "config.yaml has changed since it was sealed:\n  ~ service.log_level: debug → warn"
    ]
    with pytest.raises(IntegrityError):
        apply_edit(plan_edit(config, "service.log_level", "error", {}), renew=True)
    apply_edit(plan_edit(config, "plugins.echo.parallelism", "3", {}), renew=True)
    assert len(loaded(config, seal=SealMode.VERIFY).warnings) == 1


def test_strict_mode_is_sealed_with_the_change_that_sets_it(tmp_path: Path) -> None:
    config = a_config(tmp_path, MAIN, more_yaml=MORE)
    write_checksums(tmp_path, build_checksums(loaded(config).files, {}, strict=False))
    apply_edit(plan_edit(config, "service.strict_mode", "true", {}), renew=True)
    sealed = read_checksums(tmp_path)
    assert sealed is not None
    assert sealed.strict


@pytest.mark.parametrize("text", ["", "# mine\n\n", "# mine"])
def test_a_key_can_be_set_in_an_empty_file(tmp_path: Path, text: str) -> None:
    config = a_config(tmp_path, text)
    apply_edit(plan_edit(config, "service.name", "begun", {}))
    assert loaded(config).model.service.name == "begun"
    assert config.read_text().startswith(text)


def test_a_value_shared_by_an_anchor_is_not_changed(tmp_path: Path) -> None:
    yaml = "plugins:\n  a: {timeouts: &t {poll: 1m}}\n  b: {timeouts: *t}\n"
    config = a_config(tmp_path, yaml)
    with pytest.raises(ConfigError, match="without changing something else"):
        plan_edit(config, "plugins.b.timeouts.poll", "2m", {})


def test_an_invalid_value_can_be_corrected(tmp_path: Path) -> None:
    """`config set` must not need a valid configuration: it is the way to repair one."""
    path = tmp_path / "config.yaml"
    path.write_text("service:\n  tick_interval: often  # hm\n", encoding="utf-8")
    edit = plan_edit(path, "service.tick_interval", "30s", {})
    apply_edit(edit)
    assert path.read_text(encoding="utf-8") == "service:\n  tick_interval: 30s    # hm\n", (
        "the comment keeps its column"
    )


PIPELINES = """\
pipelines:
  - {name: first, on: a.b, steps: [{uses: echo}]}
  - name: second   # the other one
    on: a.c
    steps: [{uses: echo}]
"""


@pytest.mark.parametrize("key", ["pipelines.1.timeout", "pipelines[1].timeout"])
def test_a_list_entry_is_changed_in_its_own_file(tmp_path: Path, key: str) -> None:
    config = a_config(tmp_path, "include: [more.yaml]\nplugins: {echo: {}}\n", more_yaml=PIPELINES)
    apply_edit(plan_edit(config, key, "5s", {}))
    assert get_setting(loaded(config), key).value == "5s"
    assert config.read_text() == "include: [more.yaml]\nplugins: {echo: {}}\n"
    assert "second   # the other one" in (tmp_path / "more.yaml").read_text()


@pytest.mark.parametrize(
    ("key", "value", "index", "file"),
    [
        ("pipelines", "{name: third, on: a.d, steps: [{uses: echo}]}", 2, "more.yaml"),
        ("pipelines[1].steps", "{uses: echo, id: again}", 1, "more.yaml"),
        ("pipelines.1.steps", "{uses: echo, id: again}", 1, "more.yaml"),
        ("routes", "{from: echo, event_type: x, to: echo}", 0, "config.yaml"),
        ("plugins.echo.schedules", "{id: z, every: 1h}", 0, "config.yaml"),
        ("plugin_roots", "./more", 0, "config.yaml"),
    ],
)
def test_an_entry_is_added_at_the_end_of_a_list(
    tmp_path: Path, key: str, value: str, index: int, file: str
) -> None:
    config = a_config(tmp_path, "include: [more.yaml]\nplugins: {echo: {}}\n", more_yaml=PIPELINES)
    edit = plan_edit(config, f"{key}[+]", value, {})
    assert edit.path == tmp_path / file
    apply_edit(edit)
    assert edit.key.endswith(f"[{index}]")
    assert get_setting(loaded(config), edit.key).value == to_plain(parse_yaml(value, file="value"))


def test_a_change_without_effect_is_refused(tmp_path: Path) -> None:
    config = a_config(tmp_path, MAIN, more_yaml=MORE)
    with pytest.raises(ConfigError, match=r"schedules would not have this value") as excinfo:
        plan_edit(config, "plugins.echo.schedules", "[{id: z, every: 9h}]", {})
    assert excinfo.value.hint is not None
    assert excinfo.value.message.endswith("another file adds to it or replaces it")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("service.max_workers", 3),
        ("service.timezone", "Europe/Berlin"),
        ("plugin_roots", ["./plugins"]),
        ("state.path", "./data/state.db"),
        ("plugins.echo.uses", "echo"),
        ("plugins.echo.schedules[0].timezone", "Europe/Berlin"),
        ("plugins.echo.retry.max_attempts", 7),
        ("plugins.echo.retry.backoff_base", "30s"),
        ("webhooks.endpoints[0].name", "gh"),
        ("webhooks.endpoints[0].signature_header", "x-hub-signature-256"),
    ],
)
def test_get_returns_computed_defaults(tmp_path: Path, key: str, value: object) -> None:
    text = (
        "plugins: {echo: {max_attempts: 7, schedules: [{every: 1h}]}}\n"
        "webhooks: {endpoints: [{path: /hook/gh, plugin: echo, secret: s}]}\n"
    )
    machine = Machine(processors=4, timezone="Europe/Berlin")
    result = load_config(a_config(tmp_path, text), {}, seal=SealMode.IGNORE, machine=machine)
    setting = get_setting(result, key)
    assert setting.value == value
    assert setting.location is None
