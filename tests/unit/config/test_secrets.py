"""Secrets appear in no output: the canary values must not be found in any."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config_of, a_discovery, a_manifest, loaded, problems_of
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.edit.change import get_setting, plan_edit
from ductile.config.schema.jsonschema import config_schema
from ductile.config.secrets import MASK, Secret, SecretMap, looks_secret, redact

if TYPE_CHECKING:
    from pathlib import Path

    from ductile.core.json import JsonValue

CANARY = "canary-5f2d"

#: Secrets in every form that the model knows: literal, by variable, by environment file, as a default.
CONFIG = f"""\
environment_vars: {{include: [.env]}}
plugins:
  echo:
    config:
      password: {CANARY}-1
      url: ${{HOOK_URL}}
      nested: {{api_key: "{CANARY}-2", list: [{{client_secret: {CANARY}-3}}]}}
      tokens: [{CANARY}-4]
      dsn_url: https://user:{CANARY}-5@example.org/
      hook: https://example.org/x?page=2&access_token={CANARY}-14&sort_key=b#token={CANARY}-15
      partly: https://me:{CANARY}-16@${{HOST:-h}}/?key={CANARY}-17&token=${{FROM_ENV}}
      greeting: hello
      fallback: ${{UNSET:-{CANARY}-6}}
    env: {{API_TOKEN: {CANARY}-7, PLAIN: "${{FROM_ENV}}"}}
    schedules: [{{every: 1h, payload: {{access_token: {CANARY}-8}}}}]
state: {{url: "postgresql://user:{CANARY}-9@host/db"}}
api:
  enabled: true
  auth: {{tokens: [{{token: {CANARY}-10, scopes: ["*"]}}]}}
tokens: [{{name: gh, key: "${{FROM_FILE}}"}}]
pipelines:
  - name: p
    steps: [{{uses: echo, with: {{token: "${{FROM_ENV}}", note: "${{FROM_ENV}}"}}}}]
webhooks:
  endpoints:
    - {{path: /a, plugin: echo, secret_ref: gh}}
    - {{path: /b, plugin: echo, secret: "${{FROM_ENV}}-2"}}
"""
ENVIRON = {"HOOK_URL": f"https://{CANARY}-11/", "FROM_ENV": f"{CANARY}-12"}


def a_config_with_secrets(directory: Path) -> Path:
    return a_config_of(directory, {"config.yaml": CONFIG, ".env": f"FROM_FILE={CANARY}-13\n"})


def test_no_secret_is_in_any_form_of_a_configuration(tmp_path: Path) -> None:
    """The outputs are repr, str, the redacted tree, warnings, the snapshot, `config get` and the schema."""
    result = loaded(a_config_with_secrets(tmp_path), ENVIRON)
    snapshot = compile_snapshot(result, a_discovery(tmp_path, a_manifest("echo")))
    outputs = [
        repr(result),
        str(result),
        repr(result.model),
        f"{result.model.tokens[0].key} {result.model.tokens[0].key!r} {result.model.state.url}",
        json.dumps(result.redacted()),
        repr(result.warnings),
        repr(snapshot),
        json.dumps(snapshot.redacted),
        repr(snapshot.plugins["echo"].config.redacted()),
        repr(get_setting(result, "plugins.echo.config")),
        repr(get_setting(result, "state.url")),
        json.dumps(config_schema()),
    ]
    for output in outputs:
        assert CANARY not in output


def test_reveal_returns_the_secrets(tmp_path: Path) -> None:
    """Without this test, the test above could pass for a configuration without secrets."""
    result = loaded(a_config_with_secrets(tmp_path), ENVIRON)
    snapshot = compile_snapshot(result, a_discovery(tmp_path, a_manifest("echo")))
    revealed = json.dumps(snapshot.plugins["echo"].config.reveal()) + json.dumps(
        snapshot.plugins["echo"].env.reveal()
    )
    revealed += " ".join(token.token.reveal() for token in result.model.api.auth.tokens)
    revealed += " ".join(endpoint.secret.reveal() for endpoint in snapshot.webhooks)
    for number in (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17):
        assert f"{CANARY}-{number}" in revealed


def test_the_redacted_form_names_variables_and_keeps_other_values(tmp_path: Path) -> None:
    redacted = loaded(a_config_with_secrets(tmp_path), ENVIRON).model.plugins["echo"].config.redacted()
    assert redacted == {
        "password": MASK,
        "url": "${HOOK_URL}",
        "nested": {"api_key": MASK, "list": [{"client_secret": MASK}]},
        "tokens": [MASK],
        "dsn_url": f"https://user:{MASK}@example.org/",
        "hook": f"https://example.org/x?page=2&access_token={MASK}&sort_key=b#token={MASK}",
        "partly": f"https://me:{MASK}@${{HOST}}/?key={MASK}&token=${{FROM_ENV}}",
        "greeting": "hello",
        "fallback": "${UNSET}",
    }


def test_no_secret_of_a_url_is_in_a_diff(tmp_path: Path) -> None:
    """A diff contains the lines around the change too."""
    text = f"plugins: {{e: {{config: {{a: 'https://h/?token={CANARY}'}}}}}}\nservice: {{log_level: info}}\n"
    diff = plan_edit(a_config_of(tmp_path, {"config.yaml": text}), "service.log_level", "debug", {}).diff
    assert f"?token={MASK}" in diff
    assert CANARY not in diff


def test_no_secret_is_in_an_error(tmp_path: Path) -> None:
    """An error names the variable of a value, and omits a value under a secret key."""
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": "service:\n"
            "  tick_interval: ${V}\n"
            "  log_level: ${V}\n"
            "  max_workers: ${V}\n"
            "  strict_mode: ${V}\n"
            "  timezone: ${V}\n"
            "  job_log_retention: ${UNSET:-canary-5f2d}\n"
            "plugins:\n"
            "  e:\n"
            "    uses: ${V}/\n"
            "    warm: ${V}\n"
            "    schedules:\n"
            "      - {every: '${V}', cron: '${V}', id: '${V} x', not_on: ['${V}'], only_between: '${V}'}\n"
            "api:\n"
            "  listen: ${V}\n"
            "  max_body_size: ${V}\n"
            "  auth: {tokens: [{token: [canary-5f2d], scopes: ['${V}']}]}\n"
            "routes: [{from: '${V}', event_type: x, to: '${V}'}]\n"
            "state: {url: 'mysql://u:canary-5f2d@h/d', path: x}\n"
            "state_webhooks: {allow: ['${V}/'], secret_ref: '${V}'}\n"
            "tokens: [{name: a, key: {b: canary-5f2d}}, {name: '', key: canary-5f2d}]\n"
            "pipelines: [{name: '${V}!', steps: [{call: '${V}', id: '${V} x'}]}]\n"
        },
    )
    problems = problems_of(config, {"V": f"{CANARY} secret"})
    assert len(problems) > 20
    assert CANARY not in repr(problems)


@pytest.mark.parametrize(
    "yaml", ["tokens: {canary}", "tokens: [{canary}]", "plugins: {{e: {{env: {{TOKEN: [{canary}]}}}}}}"]
)
def test_a_literal_in_the_place_of_a_secret_is_not_quoted(tmp_path: Path, yaml: str) -> None:
    """If the map around a token is missing, the error does not quote the token."""
    problems = problems_of(a_config_of(tmp_path, {"config.yaml": yaml.format(canary=CANARY)}))
    assert problems
    assert CANARY not in repr(problems)


def test_no_secret_is_in_an_error_about_names(tmp_path: Path) -> None:
    """Names are looked up only if there are no other errors."""
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": "plugins: {e: {}}\n"
            "routes: [{from: '${V}', event_type: x, to: '${V}'}]\n"
            "state_webhooks: {secret_ref: '${V}'}\n"
            "pipelines: [{name: p, from_plugin: '${V}', steps: [{call: '${V}'}, {uses: '${V}'}]}]\n"
        },
    )
    problems = problems_of(config, {"V": CANARY})
    assert len(problems) == 6
    assert CANARY not in repr(problems)


def test_no_secret_is_in_the_diff_of_a_change(tmp_path: Path) -> None:
    config = a_config_with_secrets(tmp_path)
    for key in ("plugins.echo.config.password", "api.auth.tokens[0].token", "plugins.echo.config.greeting"):
        edit = plan_edit(config, key, f"{CANARY}-new" if "greeting" not in key else "hi", ENVIRON)
        assert edit.diff
        assert CANARY not in edit.diff
        assert CANARY not in repr(edit)


def test_only_reveal_returns_a_secret() -> None:
    secret = Secret(CANARY)
    assert secret.reveal() == CANARY
    assert CANARY not in f"{secret} {secret!r} {secret!s} {secret:>20} {[secret]} {vars_of(secret)}"
    assert secret == Secret(CANARY)
    assert secret != CANARY
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def vars_of(secret: Secret) -> str:
    return str(getattr(secret, "__dict__", ""))


def test_changing_revealed_values_does_not_change_the_map() -> None:
    """A snapshot is immutable; a plugin's request is built from a copy."""
    secret_map: SecretMap[object] = SecretMap({"a": {"b": 1}}, {"a": "shown"})
    inner = secret_map.reveal()["a"]
    assert isinstance(inner, dict)
    inner["b"] = 2
    assert secret_map.reveal() == {"a": {"b": 1}}
    with pytest.raises(TypeError):
        pickle.dumps(secret_map)


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "PASSWORD",
        "db_password",
        "passwd",
        "secret",
        "client_secret",
        "clientSecret",
        "token",
        "access_token",
        "refreshToken",
        "tokens",
        "api_key",
        "apiKey",
        "API_KEY",
        "apikey",
        "private_key",
        "signing-key",
        "AWS_SECRET_ACCESS_KEY",
        "credentials",
        "key",
        "cookie",
        "Authorization",
        "passphrase",
        "api_keys",
        "pin",
        "pass",
        "smtp_pass",
        "smtpPass",
        "dbpass",
        "dbpassword",
        "PGPASSWORD",
        "clientsecret",
        "secretkey",
        "privatekey",
        "accesskey",
        "accesstoken",
        "refreshtoken",
        "authtoken",
        "AUTHTOKEN",
        "auth",
        "basic_auth",
        "basicauth",
        "secret_id",
        "sessionid",
        "JSESSIONID",
        "tls_key",
        "tlsKey",
        "github_pat",
        "webhook_url",
        "slack_webhook_url",
        "webhookUrl",
        "connection_string",
        "connectionString",
        "connectionstring",
        "secret_urls",
        "password_key",
    ],
)
def test_keys_that_look_secret(key: str) -> None:
    assert looks_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "url",
        "name",
        "max_tokens",
        "token_url",
        "secret_ref",
        "credentials_file",
        "sort_key",
        "keyboard",
        "monkey",
        "keys_count",
        "tokenizer",
        "password_file",
        "author",
        "client_id",
        "key_path",
        "primary_key",
        "spinner",
        "passive",
        "min_token_count",
        "authors",
        "authority",
        "auth_type",
        "auth_url",
        "authenticated",
        "passthrough",
        "pass_through",
        "plugin_env_passthrough",
        "pass_rate",
        "passed",
        "passes",
        "passenger",
        "passport",
        "high_pass",
        "compass",
        "bypass",
        "surpass",
        "encompass",
        "hotkey",
        "keyword",
        "turkey",
        "whiskey",
        "public_key_path",
        "foreign_key",
        "secretary",
        "secretariat",
        "maxtokens",
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "tokenize",
        "pattern",
        "path",
        "patch",
        "dispatch",
        "session_count",
        "connection",
        "connections",
        "string",
        "webhook",
        "base_url",
        "opinion",
        "spin",
        "cookiecutter_name",
        "passwordless",
        "bearing",
        "oath",
    ],
)
def test_keys_that_do_not_look_secret(key: str) -> None:
    """Masking too much makes `config show` useless."""
    assert not looks_secret(key)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("tgram://TOKEN/chat", f"tgram://{MASK}/{MASK}"),
        ("pover://USER@TOKEN", f"pover://{MASK}@{MASK}"),
        ("twilio://SID:AUTH@FROM/TO?format=text", f"twilio://{MASK}:{MASK}@{MASK}/{MASK}?format=text"),
        ("tgram://${TOKEN}/${CHAT}", "tgram://${TOKEN}/${CHAT}"),
        ("tgram://${TOKEN}/123", f"tgram://${{TOKEN}}/{MASK}"),
        ("https://TOKEN@git.example/x", f"https://{MASK}@git.example/x"),
        ("https://u:p@ss@h/", f"https://u:{MASK}@h/"),
        ("https://u:p'x@h/", f"https://u:{MASK}@h/"),
        ("redis://:PASSWORD@cache:6379/0", f"redis://:{MASK}@cache:6379/0"),
        ("see tgram://TOKEN/chat, or call", f"see tgram://{MASK}/{MASK} or call"),
        ("https://example.org/a/b?page=2#top", "https://example.org/a/b?page=2#top"),
        ("ssh://git@example.org/x.git", "ssh://git@example.org/x.git"),
        ("git+https://example.org/x.git", "git+https://example.org/x.git"),
        ("postgresql://db.example/main", "postgresql://db.example/main"),
        ("s3://bucket/key", "s3://bucket/key"),
        ("sqlite:///data/state.db", "sqlite:///data/state.db"),
    ],
)
def test_masking_of_urls(url: str, masked: str) -> None:
    assert redact(url) == masked


@pytest.mark.parametrize(
    ("url", "warned"),
    [("tgram://TOKEN/chat", True), ("tgram://${TOKEN}/chat", False), ("s3://bucket/key", False)],
)
def test_a_literal_token_in_a_url_is_a_warning(tmp_path: Path, url: str, *, warned: bool) -> None:
    config = a_config_of(tmp_path, {"config.yaml": f"plugins: {{e: {{config: {{urls: ['{url}']}}}}}}\n"})
    messages = [warning.message for warning in loaded(config, {"TOKEN": "x"}).warnings]
    assert any("secret" in message for message in messages) == warned


def test_masking_takes_linear_time() -> None:
    """Plugin state may have a megabyte; quadratic time would block the daemon for an hour."""
    assert str(redact("f" * 2**20 + " http://user:canary@host/")).endswith(" http://user:********@host/")


def test_redaction_of_a_plain_tree() -> None:
    """State shown by the command line is masked under secret-looking keys, at any depth."""
    tree: JsonValue = {
        "token": "x",
        "a": [{"password": {"deep": "x"}, "n": 1}],
        "ok": "https://u:x@h/?a=1&api_key=x",
        "secret": None,
    }
    assert redact(tree) == {
        "token": MASK,
        "a": [{"password": MASK, "n": 1}],
        "ok": f"https://u:{MASK}@h/?a=1&api_key={MASK}",
        "secret": None,
    }
