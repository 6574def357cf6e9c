"""Rules between keys, sections and names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config, a_config_of, loaded, problems_of
from ductile.config.file_io import hash_bytes
from ductile.config.redaction import redacted_config
from ductile.config.secrets import digest_of
from ductile.webhooks.server import UNVERIFIED_BYTES

if TYPE_CHECKING:
    from pathlib import Path

STEP = "steps: [{uses: e}]"


@pytest.mark.parametrize(
    ("yaml", "key", "words"),
    [
        ("service: {job_queue_retention: 1h}", "service.job_queue_retention", "dedupe key"),
        ("service: {timezone: Mars/Olympus}", "service.timezone", "time zone"),
        ("service: {timezone: Europe}", "service.timezone", "time zone"),
        ("service: {plugin_env_passthrough: [A-B]}", "service.plugin_env_passthrough[0]", "variable"),
        ("state: {path: a.db, url: 'postgresql://h/d'}", "state", "one store"),
        ("state: {path: 'postgresql://h/d'}", "state.path", "URL"),
        ("state: {url: 'mysql://h/d'}", "state.url", "PostgreSQL"),
        ("state: {url: 'postgresql:h/d'}", "state.url", "PostgreSQL"),
        ("state: {url: 'postgresql://u:a@b@h/d'}", "state.url", "percent-encoded"),
        ("state: {url: 'postgresql://u:a/b@h/d'}", "state.url", "percent-encoded"),
        ("state: {url: 'postgresql://u:a#b@h/d'}", "state.url", "percent-encoded"),
        ("state: {url: 'postgresql://u:a b@h/d'}", "state.url", "percent-encoded"),
        ("state: {url: 'postgresql://u:a%b@h/d'}", "state.url", "hexadecimal"),
        ("state: {url: 'postgresql://u@h:port/d'}", "state.url", "port"),
        ("state: {directory: here}", "state.directory", "state.url"),
        ("state: {directory: 'https://x/y', url: 'postgresql://h/d'}", "state.directory", "URL"),
        ("plugin_roots: ['https://x/y']", "plugin_roots[0]", "URL"),
        ("plugin_roots: [a]\nplugins_dir: b", "plugins_dir", "both"),
        ("artifacts: {roots: ['']}", "artifacts.roots[0]", "path"),
        ("plugins: {api: {}}", "plugins.api", "reserved"),
        ("plugins: {1st: {}}", "plugins.1st", "begin with a letter"),
        ("plugins: {a.b: {}}", "plugins.a.b", "begin with a letter"),
        ("plugins: {e: {uses: ../x}}", "plugins.e.uses", "name of a plugin"),
        ("plugins: {e: {env: {A-B: x}}}", "plugins.e.env.A-B", "variable"),
        ("plugins: {e: {schedule: {}}}", "plugins.e.schedule", "exactly one trigger"),
        ("plugins: {e: {schedule: {every: 1h, after: 1h}}}", "plugins.e.schedule", "exactly one trigger"),
        ("plugins: {e: {schedule: {every: 1h, command: handle}}}", "plugins.e.schedule.command", "handle"),
        ("plugins: {e: {schedule: {cron: '* * * * * *'}}}", "plugins.e.schedule.cron", "6 fields"),
        ("plugins: {e: {schedule: {cron: '0 0 30 2 *'}}}", "plugins.e.schedule.cron", "cron"),
        ("plugins: {e: {schedule: {cron: '@never'}}}", "plugins.e.schedule.cron", "alias"),
        ("plugins: {e: {schedule: {every: 1h, timezone: X/Y}}}", "plugins.e.schedule.timezone", "time zone"),
        ("plugins: {e: {schedule: {every: 1h, id: a b}}}", "plugins.e.schedule.id", "id of a schedule"),
        ("routes: [{from: x, event_type: t, to: e}]", "routes[0].from", "not configured"),
        ("routes: [{from: e, event_type: t, to: x.y}]", "routes[0].to", "not configured"),
        (
            "routes: [{from: e, event_type: t, to: e}, {from: e, event_type: t, to: e.handle}]",
            "routes[1]",
            "written already, at ",
        ),
        (f"pipelines: [{{name: core, {STEP}}}]", "pipelines[0].name", "reserved"),
        (
            f"pipelines: [{{name: p, on: a, on-hook: job.failed, {STEP}}}]",
            "pipelines[0]",
            "event or on a hook",
        ),
        (f"pipelines: [{{name: p, from_plugin: x, {STEP}}}]", "pipelines[0].from_plugin", "not configured"),
        ("pipelines: [{name: p, steps: []}]", "pipelines[0].steps", "at least one step"),
        ("pipelines: [{name: p, steps: [{id: a}]}]", "pipelines[0].steps[0]", "one kind of work"),
        (
            "pipelines: [{name: p, steps: [{uses: e, split: [{uses: e}]}]}]",
            "pipelines[0].steps[0]",
            "one kind of work",
        ),
        ("pipelines: [{name: p, steps: [{uses: x}]}]", "pipelines[0].steps[0].uses", "not configured"),
        ("pipelines: [{name: p, steps: [{call: q}]}]", "pipelines[0].steps[0].call", "no pipeline"),
        ("pipelines: [{name: p, steps: [{call: p}]}]", "pipelines[0].steps[0].call", "circle"),
        ("pipelines: [{name: p, steps: [{steps: []}]}]", "pipelines[0].steps[0].steps", "at least one"),
        (
            "pipelines: [{name: p, steps: [{split: [{uses: x}]}]}]",
            "pipelines[0].steps[0].split[0].uses",
            "not configured",
        ),
        (
            "pipelines: [{name: p, steps: [{uses: e, on_events: {t: [{uses: x}]}}]}]",
            "pipelines[0].steps[0].on_events.t[0].uses",
            "not configured",
        ),
        (
            "pipelines: [{name: p, steps: [{id: a, uses: e}, {steps: [{id: a, uses: e}]}]}]",
            "pipelines[0].steps[1].steps[0].id",
            "twice",
        ),
        (
            "pipelines: [{name: p, steps: [{steps: [{uses: e}], with: {a: b}}]}]",
            "pipelines[0].steps[0].with",
            "`uses` only",
        ),
        (
            "pipelines: [{name: p, steps: [{uses: e, join: always}]}]",
            "pipelines[0].steps[0].join",
            "`split` only",
        ),
        (
            "pipelines: [{name: p, steps: [{uses: e, if: {path: payload.x, op: eq}}]}]",
            "pipelines[0].steps[0].if",
            "needs a `value`",
        ),
        (
            "pipelines: [{name: p, steps: [{uses: e, if: {path: payload.x, op: in, value: 5}}]}]",
            "pipelines[0].steps[0].if.value",
            "list",
        ),
        (
            "pipelines: [{name: p, steps: [{uses: e, if: {path: payload.x, op: regex, value: '('}}]}]",
            "pipelines[0].steps[0].if.value",
            "regular expression",
        ),
        (
            "pipelines: [{name: p, steps: [{uses: e, if: {all: [{not: {any: [{path: x, op: exists}]}}]}}]}]",
            "pipelines[0].steps[0].if.all[0].not.any[0].path",
            "invalid path",
        ),
        ("pipelines: [{name: p, steps: [{uses: e, if: {}}]}]", "pipelines[0].steps[0].if", "not a condition"),
        ("api: {enabled: true}", "api.enabled", "no token"),
        ("api: {listen: '8080'}", "api.listen", "listen"),
        ("api: {listen: 'localhost:99999'}", "api.listen", "listen"),
        ("api: {auth: {tokens: [{token: '${T}', scopes: [jobs]}]}}", "api.auth.tokens[0].scopes[0]", "scope"),
        (
            "api: {auth: {tokens: [{token: '${T}', scopes: ['job:r']}]}}",
            "api.auth.tokens[0].scopes[0]",
            "scope",
        ),
        (
            "api: {auth: {tokens: [{token: '${T}', scopes: ['api:ro']}]}}",
            "api.auth.tokens[0].scopes[0]",
            "scope",
        ),
        (
            "api: {auth: {tokens: [{token: '${T}', scopes: ['*']}, {token: '${T}', scopes: ['*']}]}}",
            "api.auth.tokens[1].token",
            "same key",
        ),
        ("tokens: [{name: a, key: '${T}'}, {name: a, key: '${U}'}]", "tokens[1].name", "twice"),
        (
            "tokens: [{name: a, key: '${T}', scopes_hash: 'blake3:00'}]",
            "tokens[0].scopes_hash",
            "needs a `scopes_file`",
        ),
        (
            "tokens: [{name: a, key: '${T}', scopes_file: gone.json}]",
            "tokens[0].scopes_file",
            "cannot be read",
        ),
        ("tokens: [{name: a, key: '${EMPTY}'}]", "tokens[0].key", "empty"),
        ("webhooks: {endpoints: [{path: /a, plugin: e}]}", "webhooks.endpoints[0]", "not complete"),
        (
            (
                "api: {enabled: true, listen: '[::1]:81', auth: {tokens: [{token: '${T}', scopes: ['*']}]}}\n"
                "webhooks: {listen: '[::1]:81', endpoints: [{path: /a, plugin: e, secret: '${T}'}]}"
            ),
            "webhooks.listen",
            "same address",
        ),
        (
            "webhooks: {endpoints: [{path: /a, plugin: e, event: t, secret: '${T}'}]}",
            "webhooks.endpoints[0]",
            "not complete",
        ),
        (
            "webhooks: {endpoints: [{path: a, plugin: e, secret: '${T}'}]}",
            "webhooks.endpoints[0].path",
            "path",
        ),
        (
            "webhooks: {endpoints: [{path: /healthz, plugin: e, secret: '${T}'}]}",
            "webhooks.endpoints[0].path",
            "path",
        ),
        (
            "webhooks: {endpoints: [{path: /a, plugin: x, secret: '${T}'}]}",
            "webhooks.endpoints[0].plugin",
            "not configured",
        ),
        (
            "webhooks: {endpoints: [{path: /a, pipeline: x, secret: '${T}'}]}",
            "webhooks.endpoints[0].pipeline",
            "no pipeline",
        ),
        (
            "webhooks: {endpoints: [{path: /a, event: ductile.x, secret: '${T}'}]}",
            "webhooks.endpoints[0].event",
            "reserved",
        ),
        (
            "webhooks: {endpoints: [{path: /a, event: x, command: poll, secret: '${T}'}]}",
            "webhooks.endpoints[0].command",
            "`plugin` only",
        ),
        (
            "webhooks: {endpoints: [{path: /a, plugin: e, secret_ref: x}]}",
            "webhooks.endpoints[0].secret_ref",
            "no entry",
        ),
        (
            "webhooks: {endpoints: [{path: /a, event: x, secret: '${T}', signature_header: X Sig}]}",
            "webhooks.endpoints[0].signature_header",
            "name of a header",
        ),
        (
            "webhooks: {endpoints: [{path: /a, event: x, secret: '${T}', delivery_header: 'X-Id:'}]}",
            "webhooks.endpoints[0].delivery_header",
            "name of a header",
        ),
        (
            'state_webhooks: {signature_header: "X-Sig\\r\\nEvil: 1"}',
            "state_webhooks.signature_header",
            "name of a header",
        ),
        ("state_webhooks: {signature_header: ''}", "state_webhooks.signature_header", "name of a header"),
        ("state_webhooks: {signature_header: Grüße}", "state_webhooks.signature_header", "name of a header"),
        ("state_webhooks: {signature_header: Host}", "state_webhooks.signature_header", "taken"),
        ("state_webhooks: {signature_header: Content-Type}", "state_webhooks.signature_header", "taken"),
        ("state_webhooks: {signature_header: webhook-signature}", "state_webhooks.signature_header", "taken"),
        (
            "state_webhooks: {signature_header: X-Ductile-Sequence}",
            "state_webhooks.signature_header",
            "taken",
        ),
        ("state_webhooks: {secret_ref: x}", "state_webhooks.secret_ref", "no entry"),
        ("state_webhooks: {allow: ['https://x/']}", "state_webhooks.allow[0]", "host"),
        ("state_webhooks: {allow: ['10.0.0.1:80']}", "state_webhooks.allow[0]", "host"),
        ("plugins: {e: {state_webhook_url: 'ftp://h.org/x'}}", "plugins.e.state_webhook_url", "http"),
        (
            "plugins: {e: {state_webhook_url: 'http://127.0.0.1/x'}}",
            "plugins.e.state_webhook_url",
            "not a public address",
        ),
        (
            "plugins: {e: {state_webhook_url: 'https://h.org/x'}}\nstate_webhooks: {allow: [i.org]}",
            "plugins.e.state_webhook_url",
            "state_webhooks.allow",
        ),
        (
            "pipelines: [{name: p, steps: [{uses: e}], state_webhook_url: 'http://10.0.0.1/'}]",
            "pipelines[0].state_webhook_url",
            "not a public address",
        ),
        ("plugins: {e: {state_webhook_events: [done]}}", "plugins.e.state_webhook_events", "needs"),
        (
            "plugins: {e: {state_webhook_url: 'https://h.org/', state_webhook_events: [ended]}}",
            "plugins.e.state_webhook_events[0]",
            "",
        ),
    ],
)
def test_a_broken_rule_is_an_error_at_its_key(tmp_path: Path, yaml: str, key: str, words: str) -> None:
    """Rules that no single value can break are reported at the key that breaks them."""
    text = yaml if yaml.startswith("plugins:") else f"plugins: {{e: {{}}}}\n{yaml}"
    problems = problems_of(a_config(tmp_path, text), {"T": "t", "U": "u", "EMPTY": ""})
    assert [problem.key for problem in problems] == [key]
    assert words in problems[0].message
    assert problems[0].line is not None


@pytest.mark.parametrize(
    "yaml",
    [
        "routes: [{from: api, event_type: t, to: e.poll}]",
        # External sources of events are allowed.
        "routes: [{from: cli, event_type: t, to: e}, {from: webhook, event_type: t, to: e}]",
        "pipelines: [{name: p, on: t, from_plugin: cli, steps: [{uses: e}]}]",
        "pipelines: [{name: p, steps: [{call: q}]}, {name: q, steps: [{uses: e}]}]",
        "pipelines: [{name: p, steps: [{uses: e, if: {path: event.type, op: startswith, value: x}}]}]",
        "pipelines: [{name: p, if: {path: event.headers.x-kind, op: eq, value: x}, steps: [{uses: e}]}]",
        "pipelines: [{name: p, on-hook: job.failed, steps: [{split: [{uses: e}, {uses: e}], join: always}]}]",
        "api: {enabled: true, auth: {tokens: [{token: '${T}', scopes: ['*', 'e:ro', 'read:jobs']}]}}",
        "api: {listen: '[::1]:8080'}",
        "webhooks: {endpoints: [{path: /a, event: x, secret_ref: s}]}\ntokens: [{name: s, key: '${T}'}]",
        # Both listeners may take any free port.
        (
            "api: {enabled: true, listen: 'localhost:0', auth: {tokens: [{token: '${T}', scopes: ['*']}]}}\n"
            "webhooks: {listen: 'localhost:0', endpoints: [{path: /a, event: x, secret: '${T}'}]}"
        ),
        "plugins: {e: {schedules: [{id: a, cron: '*/5 8-18 * * mon-fri'}, {id: b, cron: '@weekly'}]}}",
        "state: {url: 'postgresql://user@host/db'}",
        "state: {url: 'postgres://user@[::1]:5433,other:5432/db?sslmode=verify-full', directory: ./here}",
        "state: {url: 'postgresql:///db?host=/run/postgresql'}",
    ],
)
def test_valid_configurations_are_accepted(tmp_path: Path, yaml: str) -> None:
    text = yaml if yaml.startswith("plugins:") else f"plugins: {{e: {{}}}}\n{yaml}"
    assert loaded(a_config(tmp_path, text), {"T": "t"}).warnings == ()


@pytest.mark.parametrize(
    ("endpoints", "key"),
    [
        ("{path: /a/hook, event: x, secret: '${T}'}\n  - {path: /b/hook, event: y, secret: '${U}'}", "path"),
        ("{path: /a, name: b, event: x, secret: '${T}'}\n  - {path: /b, event: y, secret: '${U}'}", "path"),
        ("{path: /b, event: x, secret: '${T}'}\n  - {path: /a, name: b, event: y, secret: '${U}'}", "name"),
    ],
)
def test_two_endpoints_cannot_share_a_name(tmp_path: Path, endpoints: str, key: str) -> None:
    """The name is in the event type and in `webhook send`. A name derived from a path counts too."""
    config = a_config(tmp_path, f"webhooks:\n endpoints:\n  - {endpoints}\n")
    (problem,) = problems_of(config, {"T": "t", "U": "u"})
    assert (problem.key, problem.line) == (f"webhooks.endpoints[1].{key}", 4)
    assert "config.yaml:3" in problem.message
    assert "`name`" in (problem.hint or "")


def test_a_generated_token_name_counts_too(tmp_path: Path) -> None:
    """Idempotency keys belong to a token's name, so no two tokens may share one."""
    name = f"api-token-{digest_of(b't').hex()[:8]}"
    yaml = f"api: {{auth: {{tokens: [{{token: '${{T}}'}}]}}}}\ntokens: [{{name: {name}, key: '${{U}}'}}]\n"
    (problem,) = problems_of(a_config(tmp_path, yaml), {"T": "t", "U": "u"})
    assert problem.key == "api.auth.tokens[0]"
    assert f'"{name}" occurs twice' in problem.message


@pytest.mark.parametrize(
    ("yaml", "key"),
    [
        ("tokens: [{name: s, key: '${BYTES}'}]", "tokens[0].key"),
        ("webhooks: {endpoints: [{path: /a, event: x, secret: '${BYTES}'}]}", "webhooks.endpoints[0].secret"),
        ("api: {auth: {tokens: [{token: '${BYTES}', scopes: ['*']}]}}", "api.auth.tokens[0].token"),
    ],
)
def test_a_secret_that_is_not_utf8_is_refused(tmp_path: Path, yaml: str, key: str) -> None:
    """A secret that is not UTF-8 cannot sign a request."""
    environ = {"BYTES": os.fsdecode(b"canary\xff")}
    (problem,) = problems_of(a_config(tmp_path, yaml), environ)
    assert (problem.key, problem.message) == (key, "the secret is not UTF-8 text")
    assert "canary" not in repr(problem)


def test_a_very_large_webhook_body_size_is_a_warning(tmp_path: Path) -> None:
    """A body is in memory before its signature is checked."""
    endpoints = "webhooks: {endpoints: [{path: /a, event: x, secret: '${T}', max_body_size: %s}]}"
    (warning,) = loaded(a_config(tmp_path, endpoints % "10GB"), {"T": "t"}).warnings
    assert (warning.key, "64MiB" in warning.message) == ("webhooks.endpoints[0].max_body_size", True)
    assert UNVERIFIED_BYTES == 64 * 1024 * 1024
    assert loaded(a_config(tmp_path, endpoints % "64MiB"), {"T": "t"}).warnings == ()


def test_the_same_schedule_id_is_fine_for_two_plugins(tmp_path: Path) -> None:
    yaml = "plugins: {a: {schedule: {every: 1h}}, b: {schedule: {every: 1h}}}"
    assert len(loaded(a_config(tmp_path, yaml)).model.plugins) == 2


def config_with_scopes(tmp_path: Path, scopes: str, *, more: str = "", hashed: str | None = None) -> Path:
    digest = hashed if hashed is not None else hash_bytes(scopes.encode())
    return a_config_of(
        tmp_path,
        {
            "config.yaml": "plugins: {e: {}}\ntokens:\n  - name: admin\n    key: ${T}\n"
            f"    scopes_file: scopes/admin.json\n    scopes_hash: '{digest}'\n{more}",
            "scopes/admin.json": scopes,
        },
    )


def test_a_scope_file_is_read_and_its_hash_verified(tmp_path: Path) -> None:
    """`scopes_hash` is verified at load."""
    config = config_with_scopes(tmp_path, '{"scopes": ["jobs:ro", "e:rw"]}', more="api: {enabled: true}\n")
    assert loaded(config, {"T": "t"}).scope_files[0].scopes == ("jobs:ro", "e:rw")
    (tmp_path / "scopes/admin.json").write_text('{"scopes": ["*"]}')
    (problem,) = problems_of(config, {"T": "t"})
    assert problem.key == "tokens[0].scopes_hash"
    assert "another hash" in problem.message


def test_empty_scope_files_do_not_count_as_tokens(tmp_path: Path) -> None:
    """An enabled API without a usable token is an error."""
    enabled = "api: {enabled: true}\n"
    (problem,) = problems_of(config_with_scopes(tmp_path, '{"scopes": []}', more=enabled), {"T": "t"})
    assert (problem.key, problem.message) == ("api.enabled", "the API is enabled and no token has scopes")
    (warning,) = loaded(config_with_scopes(tmp_path, '{"scopes": []}'), {"T": "t"}).warnings[-1:]
    assert "cannot log in" in warning.message
    inline = "api: {enabled: true, auth: {tokens: [{token: '${U}', scopes: ['*']}]}}\n"
    loaded(config_with_scopes(tmp_path, '{"scopes": []}', more=inline), {"T": "t", "U": "u"})
    (problem,) = problems_of(config_with_scopes(tmp_path, "nonsense", more=enabled), {"T": "t"})
    assert "not a scope file" in problem.message  # no problem about its scopes is reported


@pytest.mark.parametrize(
    "content", ["", "[]", '{"scopes": "*"}', '{"scopes": [1]}', "nonsense", '{"scope": []}']
)
def test_a_scope_file_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (problem,) = problems_of(config_with_scopes(tmp_path, content), {"T": "t"})
    assert "not a scope file" in problem.message


def test_an_unknown_scope_is_an_error_and_an_unknown_plugin_a_warning(tmp_path: Path) -> None:
    (problem,) = problems_of(config_with_scopes(tmp_path, '{"scopes": ["jobs:admin"]}'), {"T": "t"})
    assert "unknown scope" in problem.message
    result = loaded(config_with_scopes(tmp_path, '{"scopes": ["gone:rw"]}'), {"T": "t"})
    assert ["not configured" in warning.message for warning in result.warnings] == [True]


def test_a_misspelt_timezone_or_scope_suggests_the_closest(tmp_path: Path) -> None:
    (problem,) = problems_of(a_config(tmp_path / "a", "service: {timezone: Europe/Berln}"), {})
    assert problem.hint == "did you mean Europe/Berlin?"
    (warning,) = loaded(config_with_scopes(tmp_path, '{"scopes": ["plugn:rw"]}'), {"T": "t"}).warnings
    assert warning.hint == "did you mean plugin?"


def test_a_token_with_scopes_cannot_be_a_shared_secret(tmp_path: Path) -> None:
    more = "state_webhooks: {secret_ref: admin}\n"
    (problem,) = problems_of(config_with_scopes(tmp_path, '{"scopes": ["*"]}', more=more), {"T": "t"})
    assert problem.key == "state_webhooks.secret_ref"
    assert "used as a secret as well" in problem.message


def test_a_state_webhook_url_is_secret_everywhere(tmp_path: Path) -> None:
    """A literal URL is allowed; neither an error nor the shown configuration repeats it."""
    body = "plugins: {e: {state_webhook_url: 'https://h.org/hook/canary-77'}}\n"
    config = loaded(a_config(tmp_path, body))
    assert config.warnings == ()
    assert "canary-77" not in repr(config.model)
    assert "canary-77" not in str(redacted_config(config.tree))
    (problem,) = problems_of(a_config(tmp_path, f"{body}state_webhooks: {{allow: [i.org]}}"))
    assert "canary-77" not in repr(problem)


def test_a_secret_in_the_clear_is_a_warning_and_an_error_in_strict_mode(tmp_path: Path) -> None:
    """The default of a variable is a literal too."""
    body = (
        "plugins:\n  e:\n    config: {api_key: abc, url: x, max_tokens: 5, password: '${P}',\n"
        "      a: 'https://u:abc@h/', b: 'https://h/?token=abc', c: 'https://u:${P}@h/?token=${P}&q=1',\n"
        "      d: 'https://h/?token=${P:-abc}'}\n"
        "    env: {TOKEN: '${T:-abc}'}\n"
        "tokens: [{name: s, key: abc}]\nstate: {url: 'postgresql://u:abc@h/d'}\n"
    )
    of_urls = ["plugins.e.config.a", "plugins.e.config.b", "plugins.e.config.d"]
    keys = ["plugins.e.config.api_key", *of_urls, "plugins.e.env.TOKEN", "tokens[0].key", "state.url"]
    config = a_config(tmp_path, body)
    assert [warning.key for warning in loaded(config, {"P": "p"}).warnings] == keys
    config.write_text(body + "service: {strict_mode: true}\n")
    assert [problem.key for problem in problems_of(config, {"P": "p"})] == keys
