"""Rules over what reaches in and out: API, tokens, webhooks, state webhooks, secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ductile.config.key_paths import did_you_mean, node_at
from ductile.config.names import NAME, RESERVED, api_token_name, endpoint_name
from ductile.config.read.interpolate import literal_default
from ductile.config.redaction import literal_urls, secret_scalars
from ductile.config.validate.pipelines import validate_pipeline_name, validate_plugin_name
from ductile.core.durations import format_size
from ductile.core.expressions.templates import references_in
from ductile.core.webhooks.url_policy import parse_literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ductile.config.key_paths import KeyPath
    from ductile.config.schema.model import Config, WebhookEndpointSettings
    from ductile.config.secrets import Secret
    from ductile.config.validate.report import ValidationReport
    from ductile.protocol.yaml import MapNode, ScalarNode

_SCOPE = re.compile(r"(?P<subject>[A-Za-z_][A-Za-z0-9_-]*):(?P<right>ro|rw)", re.ASCII)
_SUBJECTS = ("plugin", "jobs", "events", "system")
_OLDER_SCOPES = frozenset(("read:jobs", "read:events"))
_EVERY_SUBJECT = frozenset((*_SUBJECTS, *_OLDER_SCOPES, "*"))
SCOPES_EXPECTED = "*, or one of plugin, jobs, events, system or a plugin's name with :ro or :rw"
_HOST_AND_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.%a-z]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})", re.ASCII)
_HIGHEST_PORT = 65535
#: As RFC 9110 has it.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: Headers that a state webhook has anyway, or that say how it is sent.
_TAKEN_HEADER = re.compile(
    r"host|connection|expect|te|trailer|transfer-encoding|upgrade|user-agent|content-.*|webhook-.*|x-ductile-.*",
    re.ASCII,
)
#: A body has to be held until its end, where its signature can be checked. This is what all of them get.
_MUCH_TO_HOLD = 64 * 1024 * 1024


def validate_access(config: Config, report: ValidationReport) -> None:
    _check_api(config, report)
    _check_tokens(config, report)
    _check_webhooks(config, report)
    _check_state_webhooks(config, report)


def _check_api(config: Config, report: ValidationReport) -> None:
    _check_listen(("api", "listen"), config.api.listen, report)
    for index, token in enumerate(config.api.auth.tokens):
        path = ("api", "auth", "tokens", index)
        validate_scopes(token.scopes, (*path, "scopes"), config, report)
        if not token.scopes:
            report.warn(path, "this token has no scopes, so it cannot log in", hint="give it scopes")


def validate_api_has_token(
    config: Config, granted: Mapping[str, tuple[str, ...]], report: ValidationReport
) -> None:
    """An API that nobody can use is a mistake. `granted` is what the scope files list, by token.

    One whose file could not be read may have scopes; what is wrong with the file was told.
    """
    inline = any(token.scopes for token in config.api.auth.tokens)
    filed = any(granted.get(token.name, True) for token in config.tokens if token.scopes_file is not None)
    if config.api.enabled and not inline and not filed:
        hint = "add one under `api.auth.tokens`, or run `ductile token create`"
        report.error(("api", "enabled"), "the API is enabled and no token has scopes", hint=hint)


def _check_tokens(config: Config, report: ValidationReport) -> None:
    report.refuse_duplicates("token", _token_names(config))
    for index, entry in enumerate(config.tokens):
        path = ("tokens", index)
        if not entry.name.strip():
            report.error((*path, "name"), "the name is empty")
        if entry.scopes_hash is not None and entry.scopes_file is None:
            report.error((*path, "scopes_hash"), "there is a hash and no `scopes_file` that it could be of")
    _refuse_equal_keys(config, report)


def _token_names(config: Config) -> Iterator[tuple[str, KeyPath]]:
    """Those that were made up last: who chose a name like one of them is named first."""
    for index, entry in enumerate(config.tokens):
        yield entry.name, ("tokens", index, "name")
    made_up: dict[Secret, tuple[str, KeyPath]] = {}  # by key: that two keys are equal is told elsewhere
    for index, token in enumerate(config.api.auth.tokens):
        path = ("api", "auth", "tokens", index)
        if token.name:
            yield token.name, (*path, "name")
        else:
            made_up.setdefault(token.token, (api_token_name(token), path))
    yield from made_up.values()


def _refuse_equal_keys(config: Config, report: ValidationReport) -> None:
    """With one key under two names, the log could not say who called."""
    keys: dict[Secret, KeyPath] = {}
    listed: list[tuple[Secret, KeyPath]] = [
        (token.token, ("api", "auth", "tokens", index, "token"))
        for index, token in enumerate(config.api.auth.tokens)
    ]
    listed += [(entry.key, ("tokens", index, "key")) for index, entry in enumerate(config.tokens)]
    for key, path in listed:
        if key in keys:
            report.error(path, "another token has the same key", hint="give each token a key of its own")
        keys.setdefault(key, path)


def validate_scopes(scopes: tuple[str, ...], path: KeyPath, config: Config, report: ValidationReport) -> None:
    for index, scope in enumerate(scopes):
        subject = scope_subject(scope)
        if subject is None:
            report.error(
                (*path, index),
                "unknown scope",
                expected=SCOPES_EXPECTED,
                found=_quoted_scope(scope, (*path, index), report),
                hint=_nearest(scope, config.plugins),
            )
        elif subject not in _EVERY_SUBJECT and subject not in config.plugins:
            shown = _quoted_scope(scope, (*path, index), report)
            message = f"the scope {shown} is for a plugin that is not configured"
            hint = did_you_mean(subject, (*_SUBJECTS, *config.plugins))
            report.warn((*path, index), message, hint=hint)


def scope_subject(scope: str) -> str | None:
    """What a scope is about: one of our words or a plugin's name; None if it is no scope at all."""
    if scope == "*" or scope in _OLDER_SCOPES:
        return scope
    found = _SCOPE.fullmatch(scope)
    if found is None or (found["subject"] in RESERVED and found["subject"] not in _SUBJECTS):
        return None
    return found["subject"]


#: What people write for `ro` and `rw`.
_RIGHTS = {
    **dict.fromkeys(("read", "r", "readonly", "read-only", "view"), "ro"),
    **dict.fromkeys(("write", "w", "readwrite", "read-write", "admin"), "rw"),
}


def suggest_scope(scope: str, plugins: Collection[str]) -> str | None:
    """What to write instead of a scope that is none, or that is nearly one; None if it may stand."""
    subject = scope_subject(scope)
    if subject is None:
        return _nearest(scope, plugins) or SCOPES_EXPECTED
    if subject in _EVERY_SUBJECT or subject in plugins:
        return None
    right = scope.rpartition(":")[2]
    known = [f"{each}:{right}" for each in (*_SUBJECTS, *plugins)]
    return did_you_mean(scope, known) if did_you_mean(subject, (*_SUBJECTS, *plugins)) else None


def _nearest(scope: str, plugins: Collection[str]) -> str | None:
    known = [f"{subject}:{right}" for subject in (*_SUBJECTS, *plugins) for right in ("ro", "rw")]
    subject, _, right = scope.rpartition(":")
    # Never a right to write for a word that means reading.
    meant = f"{subject}:{_RIGHTS[right.lower()]}" if right.lower() in _RIGHTS else scope
    return f"did you mean {meant}?" if meant in known else did_you_mean(meant, known)


def _quoted_scope(scope: str, path: KeyPath, report: ValidationReport) -> str:
    """A scope of the configuration as written, or one of a scope file, where nothing is interpolated."""
    return f'"{scope}"' if node_at(report.root, path) is None else report.quote(path)


def _check_webhooks(config: Config, report: ValidationReport) -> None:
    _check_listen(("webhooks", "listen"), config.webhooks.listen, report)
    endpoints = config.webhooks.endpoints
    listen = config.webhooks.listen
    is_there = node_at(report.root, ("webhooks",)) is not None
    # Port 0 is any that is free, another one each time.
    if is_there and config.api.enabled and listen == config.api.listen and not listen.endswith(":0"):
        report.error(("webhooks", "listen"), "the API listens at the same address", hint="use another port")
    paths = (
        (endpoint.path, ("webhooks", "endpoints", index, "path")) for index, endpoint in enumerate(endpoints)
    )
    report.refuse_duplicates("webhook path", paths)
    _refuse_equal_names(endpoints, report)
    for index, endpoint in enumerate(endpoints):
        _check_endpoint(endpoint, ("webhooks", "endpoints", index), report)


def _refuse_equal_names(endpoints: Sequence[WebhookEndpointSettings], report: ValidationReport) -> None:
    """Many services want `/SERVICE/hook`, and the last part of a path is a name too."""
    named: dict[str, tuple[str, KeyPath]] = {}  # by path: one that occurs twice has been told of
    for index, endpoint in enumerate(endpoints):
        said = "path" if endpoint.name is None else "name"
        named.setdefault(endpoint.path, (endpoint_name(endpoint), ("webhooks", "endpoints", index, said)))
    report.refuse_duplicates("webhook name", named.values(), hint="give one of them a `name` of its own")


def _check_endpoint(endpoint: WebhookEndpointSettings, path: KeyPath, report: ValidationReport) -> None:
    if not re.fullmatch(r"/[^\s?#]*", endpoint.path) or endpoint.path in {"/", "/healthz"}:
        expected = "a path such as /hook/github, other than /healthz"
        report.error((*path, "path"), "this cannot be the path of an endpoint", expected=expected)
    _check_exactly_one(endpoint, ("plugin", "pipeline", "event"), path, report)
    _check_exactly_one(endpoint, ("secret_ref", "secret"), path, report)
    if endpoint.command is not None and endpoint.plugin is None:
        report.error((*path, "command"), "`command` goes with `plugin` only")
    if endpoint.event is not None and endpoint.event.startswith("ductile."):
        report.error(
            (*path, "event"), "types that begin with `ductile.` are reserved", hint="choose another type"
        )
    for key in ("signature_header", "delivery_header"):
        _check_header(getattr(endpoint, key), (*path, key), report)
    if endpoint.max_body_size > _MUCH_TO_HOLD:
        message = f"bodies above {format_size(_MUCH_TO_HOLD)} are more than all unsigned ones are to hold"
        hint = "use a smaller one: a body this large gives way as soon as another request comes"
        report.warn((*path, "max_body_size"), message, hint=hint)
    if endpoint.name is not None and not NAME.fullmatch(endpoint.name):
        report.error((*path, "name"), f"{report.quote((*path, 'name'))} cannot be the name of an endpoint")


def _check_exactly_one(
    endpoint: WebhookEndpointSettings, keys: tuple[str, ...], path: KeyPath, report: ValidationReport
) -> None:
    # What is there and cannot be read has been told of already.
    given = [key for key in keys if getattr(endpoint, key) is not None or report.is_written((*path, key))]
    if len(given) != 1:
        expected = f"exactly one of {', '.join(keys)}"
        found = " and ".join(given) or "none of them"
        report.error(path, "this endpoint is not complete", expected=expected, found=found)


def _check_header(name: str | None, path: KeyPath, report: ValidationReport) -> None:
    if name is not None and not _HEADER.fullmatch(name):
        expected = "letters, digits and hyphens, such as X-Signature"
        message = "this cannot be the name of a header"
        report.error(path, message, expected=expected, found=report.quote(path))


def _check_state_webhooks(config: Config, report: ValidationReport) -> None:
    header, at = config.state_webhooks.signature_header, ("state_webhooks", "signature_header")
    _check_header(header, at, report)
    if _TAKEN_HEADER.fullmatch(header.lower()):
        message = f"the header {report.quote(at)} is taken by something else"
        report.error(at, message, hint="choose another name, such as X-Signature")
    for index, host in enumerate(config.state_webhooks.allow):
        with_port = ":" in host and parse_literal(host) is None
        if not host.strip() or "/" in host or with_port:
            path = ("state_webhooks", "allow", index)
            report.error(
                path,
                "this is not a host",
                expected="a host such as hooks.example.org, without a port",
                found=report.quote(path),
            )


def validate_access_references(config: Config, report: ValidationReport) -> None:
    """Names of plugins, pipelines and secrets that stand for nothing, or for the wrong thing."""
    for index, endpoint in enumerate(config.webhooks.endpoints):
        path = ("webhooks", "endpoints", index)
        if endpoint.plugin is not None:
            validate_plugin_name(endpoint.plugin, (*path, "plugin"), config, report)
        if endpoint.pipeline is not None:
            validate_pipeline_name(endpoint.pipeline, (*path, "pipeline"), config, report)
    tokens = {token.name: index for index, token in enumerate(config.tokens)}
    for ref, name in _secret_refs(config):
        if name not in tokens:
            report.error(
                ref, f"there is no entry {report.quote(ref)} in `tokens`", hint=did_you_mean(name, tokens)
            )
        elif config.tokens[tokens[name]].scopes_file is not None:
            hint = "make two entries: a secret that is shared with others must not open the API"
            message = f"the token {report.quote(ref)} has scopes and is used as a secret as well"
            report.error(ref, message, hint=hint)


def _secret_refs(config: Config) -> Iterator[tuple[KeyPath, str]]:
    for index, endpoint in enumerate(config.webhooks.endpoints):
        if endpoint.secret_ref is not None:
            yield ("webhooks", "endpoints", index, "secret_ref"), endpoint.secret_ref
    if config.state_webhooks.secret_ref is not None:
        yield ("state_webhooks", "secret_ref"), config.state_webhooks.secret_ref


def _check_listen(path: KeyPath, listen: str, report: ValidationReport) -> None:
    found = _HOST_AND_PORT.fullmatch(listen)
    if found is None or int(found["port"]) > _HIGHEST_PORT:
        expected = "host and port, such as localhost:8080 or [::1]:8080"
        report.error(path, "this is not an address to listen at", expected=expected, found=report.quote(path))


def validate_literal_secrets(config: Config, report: ValidationReport) -> None:
    """A secret in the clear: doubtful, and refused in strict mode."""
    for path in _literal_secrets(report.root):
        message = "a secret is written in the clear"
        hint = "put it into a variable and refer to it as ${NAME}"
        if config.service.strict_mode:
            report.error(path, message, hint=hint)
        else:
            report.warn(path, message, hint=hint)


def _literal_secrets(root: MapNode) -> Iterator[KeyPath]:
    """In the order of the files."""
    found = dict(literal_urls(root))
    for path, node in secret_scalars(root):
        if node.written is not None and not literal_default(node.written):
            continue
        if path == ("state", "url"):
            continue  # an address without a password is none, and one with it was found above
        if not _is_reference(path, node.text):
            found[path] = node
    yield from sorted(found, key=lambda path: _line_and_column(found[path]))


def _line_and_column(node: ScalarNode) -> tuple[str, int, int]:
    return node.place.file, node.place.line, node.place.column


def _is_reference(path: KeyPath, text: str) -> bool:
    """Whether a step says here where a value comes from, and not what it is."""
    if path[0] != "pipelines":
        return False
    if "baggage" in path:
        return True
    return "with" in path and any(True for _ in references_in(text))
