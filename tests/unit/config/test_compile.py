"""A snapshot has all defaults and references resolved."""

from __future__ import annotations

import gc
from datetime import timedelta
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config, a_config_of, a_discovery, a_manifest, loaded
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.cron import CronTable
from ductile.config.secrets import Secret, digest_of
from ductile.config.snapshot import (
    PipelineTarget,
    PluginTarget,
    PostgresLocation,
    PublishTarget,
    Snapshot,
    SqliteLocation,
)
from ductile.core.durations import CalendarStep
from ductile.core.jobs.failures import BreakerPolicy, RetryPolicy
from ductile.core.policy import FactRule
from ductile.core.schedules.rule import Cron, Every
from ductile.errors import ConfigError
from ductile.protocol.manifest.model import FactOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.protocol.manifest.model import Manifest


def a_snapshot(tmp_path: Path, yaml: str, *manifests: Manifest, refused: tuple[str, ...] = ()) -> Snapshot:
    config = a_config(tmp_path, yaml)
    discovery = a_discovery(tmp_path, *(manifests or (a_manifest("echo"),)), refused=refused)
    return compile_snapshot(loaded(config, {"T": "t", "U": "u"}), discovery)


def test_defaults_that_depend_on_the_machine(tmp_path: Path) -> None:
    """`max_workers` is one less than the number of processors, and the time zone is that of the system."""
    snapshot = a_snapshot(tmp_path, "plugins: {echo: {schedule: {every: daily}}}")
    assert (snapshot.max_workers, snapshot.timezone) == (3, "Europe/Vienna")
    assert snapshot.plugins["echo"].schedules[0].rule.timezone == "Europe/Vienna"
    assert snapshot.plugins["echo"].schedules[0].rule.trigger == Every(interval=CalendarStep.DAILY)
    assert snapshot.state == SqliteLocation(path=tmp_path / "data/state.db")
    explicit = a_snapshot(tmp_path, "service: {max_workers: 9, timezone: UTC}\nstate: {path: /x/y.db}")
    assert (explicit.max_workers, explicit.timezone) == (9, "UTC")
    assert str(explicit.state.path if isinstance(explicit.state, SqliteLocation) else "") == "/x/y.db"


def test_a_database_url(tmp_path: Path) -> None:
    snapshot = a_snapshot(tmp_path, "state: {url: 'postgresql://u@h/d'}")
    assert isinstance(snapshot.state, PostgresLocation)
    assert snapshot.state.url.reveal() == "postgresql://u@h/d"
    assert snapshot.state.directory == tmp_path / "data"
    elsewhere = a_snapshot(tmp_path, "state: {url: 'postgresql://u@h/d', directory: /var/lib/ductile}")
    assert str(elsewhere.state.directory) == "/var/lib/ductile"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://u:hidden@h/d", "postgresql://h/d"),
        ("postgresql://u:hidden@h:5433,i/d?password=hidden", "postgresql://h:5433,i/d"),
        ("postgresql://u:[hidden@[::1]:5432/d", "postgresql://[::1]:5432/d"),
        ("postgres:///d?host=/run/hidden", "postgresql:///d"),
        ("postgresql://?password=hidden", "postgresql://"),
    ],
)
def test_a_server_is_named_without_user_and_password(url: str, name: str) -> None:
    assert PostgresLocation(url=Secret(url), directory=Path()).name == name


@pytest.mark.parametrize(
    ("settings", "attempts"),
    [
        ("", 4),
        ("max_attempts: 7", 7),
        ("retry: {max_attempts: 2}", 2),
        ("max_attempts: 7, retry: {max_attempts: 2}", 2),
    ],
)
def test_retry_max_attempts_wins_over_max_attempts(tmp_path: Path, settings: str, attempts: int) -> None:
    snapshot = a_snapshot(tmp_path, f"plugins: {{echo: {{{settings}}}}}")
    assert snapshot.plugins["echo"].retry == RetryPolicy(max_attempts=attempts)
    assert snapshot.policy.plugin("echo").retry.max_attempts == attempts


def test_policies_of_a_plugin(tmp_path: Path) -> None:
    yaml = "plugins: {echo: {retry: {backoff_base: 1s, backoff_max: 1m}, circuit_breaker: {threshold: 9}}}"
    plugin = a_snapshot(tmp_path, yaml).plugins["echo"]
    assert plugin.retry == RetryPolicy(backoff_base=timedelta(seconds=1), backoff_max=timedelta(minutes=1))
    assert plugin.breaker == BreakerPolicy(threshold=9)


def test_timeouts_by_command_then_by_plugin_then_the_default(tmp_path: Path) -> None:
    plugin = a_snapshot(tmp_path, "plugins: {echo: {}}").plugins["echo"]
    timeouts = [
        plugin.timeout_for(name).total_seconds() for name in ("poll", "handle", "health", "init", "sync")
    ]
    assert timeouts == [60, 120, 10, 30, 60]
    plugin = a_snapshot(tmp_path, "plugins: {echo: {timeout: 7s, timeouts: {poll: 5m}}}").plugins["echo"]
    assert [plugin.timeout_for(name).total_seconds() for name in ("poll", "handle")] == [300, 7]


@pytest.mark.parametrize(
    ("settings", "safe", "parallelism", "warned"),
    [
        ("", True, 3, False),
        ("", False, 1, False),
        ("parallelism: 8", False, 8, True),
        ("parallelism: 8", True, 8, False),
    ],
)
def test_parallelism(tmp_path: Path, settings: str, *, safe: bool, parallelism: int, warned: bool) -> None:
    """The default is `max_workers`, or 1 if the plugin is not concurrency-safe; a larger setting counts
    and is a warning.
    """
    manifest = a_manifest("echo", concurrency_safe=safe)
    snapshot = a_snapshot(tmp_path, f"plugins: {{echo: {{{settings}}}}}", manifest)
    assert snapshot.plugins["echo"].parallelism == parallelism
    assert bool(snapshot.warnings) == warned


def test_uses_makes_an_instance_with_its_own_settings(tmp_path: Path) -> None:
    """`uses` makes an instance with its own config and schedules."""
    yaml = "plugins: {one: {uses: echo, config: {x: 1}}, echo: {config: {x: 2}, schedule: {cron: '@hourly'}}}"
    snapshot = a_snapshot(tmp_path, yaml, a_manifest("echo"), a_manifest("spare"))
    instance, echo = snapshot.plugins["one"], snapshot.plugins["echo"]
    assert instance.installed is echo.installed is not None
    assert (instance.uses, instance.config.reveal(), instance.schedules) == ("echo", {"x": 1}, ())
    assert echo.schedules[0].rule.trigger == Cron(
        times=CronTable(expression="0 * * * *", timezone=snapshot.timezone)
    )
    assert instance.config_hash != echo.config_hash
    assert list(snapshot.available) == ["spare"]


def test_a_plugin_that_cannot_run_carries_the_reason(tmp_path: Path) -> None:
    """A missing or refused plugin is not a config error; the daemon starts and lists it as refused."""
    yaml = """
        plugins:
          gone: {schedule: {every: 1h, command: anything}}
          bad: {}
          needy: {config: {b: 1}}
          off: {enabled: false}
          echo: {}
        routes: [{from: echo, event_type: t, to: gone.whatever}]
        """
    needy = a_manifest("needy", required_config=("a", "b", "c"))
    snapshot = a_snapshot(tmp_path, yaml, needy, a_manifest("echo"), refused=("bad",))
    reasons = {name: plugin.refused.code for name, plugin in snapshot.plugins.items() if plugin.refused}
    assert reasons == {
        "gone": "not_installed",
        "bad": "world_writable",
        "needy": "missing_config",
        "off": "not_installed",
    }
    assert [plugin.name for plugin in snapshot.refused] == ["gone", "bad", "needy"]
    assert [plugin.name for plugin in snapshot.plugins.values() if plugin.runnable] == ["echo"]
    assert "a, c" in str(snapshot.plugins["needy"].refused)


@pytest.mark.parametrize(
    ("yaml", "key"),
    [
        ("routes: [{from: echo, event_type: t, to: echo.nope}]", "routes[0].to"),
        (
            "pipelines: [{name: p, steps: [{split: [{uses: echo.nope}]}]}]",
            "pipelines[0].steps[0].split[0].uses",
        ),
        (
            "webhooks: {endpoints: [{path: /a, plugin: echo, command: nope, secret: '${T}'}]}",
            "webhooks.endpoints[0].plugin",
        ),
    ],
)
def test_an_unknown_command_is_an_error(tmp_path: Path, yaml: str, key: str) -> None:
    """An unknown command is found when the configuration is compiled."""
    with pytest.raises(ConfigError) as excinfo:
        a_snapshot(tmp_path, f"plugins: {{echo: {{}}}}\n{yaml}")
    (problem,) = excinfo.value.problems
    assert (problem.key, problem.expected) == (key, "one of poll, handle")
    assert problem.line == 2


@pytest.mark.parametrize(
    ("yaml", "hint"),
    [
        ("plugins: {echo: {schedule: {every: 1h, command: pol}}}", "did you mean poll?"),
        (
            "plugins: {echo: {}}\nroutes: [{from: echo, event_type: t, to: echo.hand}]",
            "did you mean handle?",
        ),
        ("plugins: {echo: {}}\npipelines: [{name: p, steps: [{uses: echo.zzz}]}]", None),
    ],
)
def test_a_misspelt_command_suggests_the_closest(tmp_path: Path, yaml: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as excinfo:
        a_snapshot(tmp_path, yaml)
    assert [problem.hint for problem in excinfo.value.problems] == [hint]


def test_a_misspelt_plugin_suggests_the_closest(tmp_path: Path) -> None:
    """A refused plugin can be suggested too."""
    yaml = "plugins: {announce: {uses: ecko}, fetsh: {}, other: {}}"
    plugins = a_snapshot(tmp_path, yaml, a_manifest("echo"), refused=("fetch",)).plugins
    hints = [(plugins[name].refused or pytest.fail(name)).hint or "" for name in plugins]
    assert [hint.partition("?")[0] for hint in hints[:2]] == ["did you mean echo", "did you mean fetch"]
    assert "did you mean" not in hints[2]
    assert all("plugin_roots" in hint for hint in hints)


def test_a_key_that_a_manifest_does_not_name_is_a_warning(tmp_path: Path) -> None:
    """The key is passed on to the plugin."""
    yaml = "plugins: {echo: {config: {mesage: hunter2, model: m}}, loud: {uses: echo, config: {zzz: 1}}}"
    snapshot = a_snapshot(tmp_path, yaml, a_manifest("echo", optional_config=("message", "tone")))
    warnings = [(warning.key, warning.message, warning.hint) for warning in snapshot.warnings]
    assert warnings == [
        ("plugins.echo.config.mesage", "echo does not name the key mesage", "did you mean message?"),
        ("plugins.loud.config.zzz", "echo does not name the key zzz", "it names message, tone"),
    ]
    assert "mesage" in snapshot.plugins["echo"].config.reveal()


def test_a_misspelt_required_key_is_a_warning_too(tmp_path: Path) -> None:
    needy = a_manifest("needy", required_config=("city",))
    snapshot = a_snapshot(tmp_path, "plugins: {needy: {config: {ciyt: Graz}}}", needy)
    assert [warning.hint for warning in snapshot.warnings] == ["did you mean city?"]


def test_a_manifest_that_names_no_keys_takes_any(tmp_path: Path) -> None:
    """Published plugins need not list the keys they read."""
    assert a_snapshot(tmp_path, "plugins: {echo: {config: {mesage: hi}}}").warnings == ()


def test_a_schedule_for_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as excinfo:
        a_snapshot(tmp_path, "plugins: {echo: {schedule: {every: 1h}}}", a_manifest("echo", "handle"))
    assert "no command poll" in excinfo.value.problems[0].message


def test_routes_tokens_webhooks_and_secrets(tmp_path: Path) -> None:
    """Routes have their command, tokens their scopes, and secrets are resolved by reference."""
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": """
            plugins: {echo: {}}
            routes: [{from: echo, event_type: a, to: echo}, {from: api, event_type: b, to: echo.poll}]
            pipelines: [{name: p, steps: [{uses: echo}]}]
            api: {auth: {tokens: [{token: "${T}", scopes: ["*"]}, {token: "${V}"}]}}
            tokens:
              - {name: cli, key: "${U}", scopes_file: cli.json}
              - {name: shared, key: "${W}"}
            webhooks:
              endpoints:
                - {path: /hook/github, plugin: echo, command: poll, secret_ref: shared}
                - {path: /b/, name: bee, pipeline: p, secret: "${T}", preset: github}
                - {path: /c, event: x, secret: "${T}", signature_header: X-Sig}
            state_webhooks: {secret_ref: shared}
            artifacts: {roots: [out]}
            """,
            "cli.json": '{"scopes": ["jobs:ro"]}',
        },
    )
    environ = {"T": "t", "U": "u", "V": "v", "W": "w"}
    snapshot = compile_snapshot(loaded(config, environ), a_discovery(tmp_path, a_manifest("echo")))
    assert [route.target for route in snapshot.routes] == ["echo.handle", "echo.poll"]
    assert snapshot.policy.routes.matching("api", "b") == snapshot.routes[1:]
    assert [(token.name, token.scopes) for token in snapshot.tokens] == [
        (f"api-token-{digest_of(b't').hex()[:8]}", ("*",)),
        ("cli", ("jobs:ro",)),
    ]
    assert [(hook.name, hook.target) for hook in snapshot.webhooks] == [
        ("github", PluginTarget(plugin="echo", command="poll")),
        ("bee", PipelineTarget(pipeline="p")),
        ("c", PublishTarget(event_type="x")),
    ]
    assert [(hook.scheme.header, hook.scheme.delivery_header) for hook in snapshot.webhooks] == [
        ("x-hub-signature-256", None),
        ("x-hub-signature-256", "x-github-delivery"),
        ("x-sig", None),
    ]
    assert snapshot.webhooks[0].secret.reveal() == "w"
    assert list(snapshot.secrets) == ["shared"]
    assert snapshot.state_webhook_secret == snapshot.secrets["shared"]
    assert snapshot.artifact_roots == (tmp_path / "out",)


@pytest.mark.parametrize("token_setting", ["${T}", "secret-t"])
def test_a_snapshot_holds_only_digests_of_tokens(tmp_path: Path, token_setting: str) -> None:
    """No token is reachable from a snapshot or printed with it."""
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": """
            plugins: {echo: {}}
            api: {auth: {tokens: [{token: "WRITTEN", scopes: ["*"]}, {token: "${V}"}]}}
            tokens: [{name: cli, key: "${U}", scopes_file: cli.json}, {name: signs, key: "${W}"}]
            """.replace("WRITTEN", token_setting),
            "cli.json": '{"scopes": ["jobs:ro"]}',
        },
    )
    environ = {"T": "secret-t", "U": "secret-u", "V": "secret-v", "W": "signing-w"}
    snapshot = compile_snapshot(loaded(config, environ), a_discovery(tmp_path, a_manifest("echo")))
    texts = [value for value in reachable(snapshot) if isinstance(value, (str, bytes))]
    assert "signing-w" in texts  # a secret that signs is kept, so the search finds secrets
    assert [text for text in texts if "secret-" in str(text)] == []
    assert [token.digest for token in snapshot.tokens] == [digest_of(b"secret-t"), digest_of(b"secret-u")]
    assert "digest" not in repr(snapshot.tokens)


def reachable(start: object) -> Iterator[object]:
    """Return every object a value holds, except code: from code the whole program is reachable."""
    visited: dict[int, object] = {}
    pending = [start]
    while pending:
        value = pending.pop()
        if id(value) in visited or isinstance(value, (type, ModuleType, FunctionType)):
            continue
        visited[id(value)] = value
        pending += gc.get_referents(value)
    yield from visited.values()


def test_the_name_of_an_unnamed_token_is_stable(tmp_path: Path) -> None:
    """Idempotency keys belong to the name of a token, so other tokens must not change it."""

    def token_names(*tokens: str) -> list[str]:
        entries = ", ".join(f"{{token: '{token}', scopes: ['*']}}" for token in tokens)
        snapshot = a_snapshot(tmp_path, f"api: {{auth: {{tokens: [{entries}]}}}}")
        return [token.name for token in snapshot.tokens]

    first_name, second_name = token_names("${T}", "${U}")
    assert token_names("${U}") == [second_name]
    assert token_names("${U}", "${T}") == [second_name, first_name]
    assert first_name != second_name


def test_the_policy_for_the_core(tmp_path: Path) -> None:
    facts = (FactOutput(command="poll", fact_type="weight"),)
    yaml = "service: {max_hops: 5, dedupe_ttl: 1h}\nplugins: {echo: {config: {model: m}}}"
    snapshot = a_snapshot(tmp_path, yaml, a_manifest("echo", fact_outputs=facts))
    policy = snapshot.policy
    assert (policy.max_hops, policy.dedupe_ttl, snapshot.max_workers) == (5, timedelta(hours=1), 3)
    assert policy.plugin("echo").facts == (FactRule(command="poll", fact_type="weight", replaces_state=True),)
    assert policy.plugin("echo").config == {"model": "m"}


def test_the_fingerprint_changes_with_files_plugins_and_effective_plugin_configuration(
    tmp_path: Path,
) -> None:
    config = a_config(tmp_path, "plugins: {echo: {config: {x: '${T}'}}}\n")
    discovery = a_discovery(tmp_path, a_manifest("echo"))

    def fingerprint(value: str) -> str:
        return compile_snapshot(loaded(config, {"T": value}), discovery).fingerprint

    first = fingerprint("t")
    assert first == fingerprint("t")
    assert first != fingerprint("other")
    config.write_text(config.read_text() + "# a comment\n")
    assert first != fingerprint("t")


def test_the_fingerprint_changes_with_a_token(tmp_path: Path) -> None:
    """The value of the token is not in the snapshot, but changes its fingerprint."""
    yaml = "environment_vars: {include: [.env]}\napi: {auth: {tokens: [{token: '${X}', scopes: ['*']}]}}\n"

    def fingerprint(value: str) -> str:
        config = a_config_of(tmp_path, {"config.yaml": yaml, ".env": f"X={value}\n"})
        return compile_snapshot(loaded(config), a_discovery(tmp_path)).fingerprint

    assert fingerprint("one") == fingerprint("one") != fingerprint("two")


def test_a_snapshot_cannot_be_changed(tmp_path: Path) -> None:
    snapshot = a_snapshot(tmp_path, "plugins: {echo: {}}")
    with pytest.raises(AttributeError):
        snapshot.timezone = "UTC"  # type: ignore[misc]  # the test proves that this is wrong
    with pytest.raises(TypeError):
        snapshot.plugins["x"] = snapshot.plugins["echo"]  # type: ignore[index]  # as above
    with pytest.raises(AttributeError):
        snapshot.service.name = "x"  # type: ignore[misc]  # as above
