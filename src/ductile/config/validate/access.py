"""Rules over incoming and outgoing access: API, tokens, webhooks, state webhooks, secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from ductile.config.names import NAME, RESERVED, name_error
from ductile.config.read.interpolate import has_default
from ductile.config.redaction import literal_urls, secret_scalars
from ductile.config.schema.model import (
    Config,
    TokenLimitSettings,
    TokenSettings,
    WebhookEndpointSettings,
    WebhookPreset,
)
from ductile.config.schema.pipelines import PipelineSettings
from ductile.config.schema.plugins import PluginSettings
from ductile.config.secrets import Secret
from ductile.config.validate.pipelines import validate_pipeline_name, validate_plugin_name
from ductile.config.validate.report import ValidationReport
from ductile.core.auth_scopes import PIPELINE_SUBJECT, AccessResource, pipeline_of
from ductile.core.durations import format_size
from ductile.core.expressions.templates import references_in
from ductile.core.suggest import did_you_mean
from ductile.core.webhooks.url_policy import parse_literal, refused_host, url_fault
from ductile.protocol.yaml_tree import KeyPath, node_at

_SCOPE = re.compile(r"(?P<subject>[A-Za-z_][A-Za-z0-9_-]*):(?P<right>ro|rw)", re.ASCII)
_SUBJECTS = tuple(map(str, AccessResource))
_OLDER_SCOPES = frozenset(("read:jobs", "read:events"))
_FIXED_SUBJECTS = frozenset((*_SUBJECTS, *_OLDER_SCOPES, "*"))
SCOPES_EXPECTED = (
    "*, pipeline:NAME, or one of plugin, jobs, own, events, system or a plugin's name with :ro or :rw"
)
#: Common words for `ro` and `rw`.
_RIGHTS = {
    **dict.fromkeys(("read", "r", "readonly", "read-only", "view"), "ro"),
    **dict.fromkeys(("write", "w", "readwrite", "read-write", "admin"), "rw"),
}
_HOST_AND_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.%a-z]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})", re.ASCII)
_MAX_PORT = 65535
#: The name of a header (RFC 9110).
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: Headers that a state webhook has anyway, or that control how it is sent.
_RESERVED_HEADER = re.compile(
    r"host|connection|expect|te|trailer|transfer-encoding|upgrade|user-agent|content-.*|webhook-.*|x-ductile-.*",
    re.ASCII,
)
#: Memory for all webhook bodies together: a body is held until it is complete and its signature is checked.
_MAX_UNVERIFIED_BYTES = 64 * 1024 * 1024


def _check_listen(path: KeyPath, listen: str, report: ValidationReport) -> None:
    """Check that an address to listen at has a host and a port."""
    match = _HOST_AND_PORT.fullmatch(listen)
    if match is None or int(match["port"]) > _MAX_PORT:
        expected = "host and port, such as localhost:8080 or [::1]:8080"
        report.error(path, "this is not an address to listen at", expected=expected, found=report.quote(path))


def validate_api_has_token(
    config: Config, granted: Mapping[str, tuple[str, ...]], report: ValidationReport
) -> None:
    """Add an error for an enabled API without a usable token.

    `granted` are the scopes in scope files, by the names of tokens. A token whose scope file cannot be
    read counts as usable: the file has its own error.
    """
    inline = any(token.scopes for token in config.api.auth.tokens)
    in_file = any(granted.get(token.name, True) for token in config.tokens if token.scopes_file is not None)
    if config.api.enabled and not inline and not in_file:
        hint = "add one under `api.auth.tokens`, or run `ductile token create`"
        report.error(("api", "enabled"), "the API is enabled and no token has scopes", hint=hint)


def validate_tokens(config: Config, report: ValidationReport) -> None:
    _check_listen(("api", "listen"), config.api.listen, report)
    keys: list[tuple[Secret, KeyPath]] = []
    for index, token in enumerate(config.api.auth.tokens):
        key_path: KeyPath = ("api", "auth", "tokens", index)
        keys.append((token.token, (*key_path, "token")))
        validate_scopes(token.scopes, (*key_path, "scopes"), config, report)
        _check_limits(token.limits, (*key_path, "limits"), config, report)
        if not token.scopes:
            report.warn(key_path, "this token has no scopes, so it cannot log in", hint="give it scopes")
    report.refuse_duplicates("token", _token_names(config))
    for index, entry in enumerate(config.tokens):
        path = ("tokens", index)
        keys.append((entry.key, (*path, "key")))
        if not entry.name.strip():
            report.error((*path, "name"), "the name is empty")
        if entry.scopes_hash is not None and entry.scopes_file is None:
            report.error((*path, "scopes_hash"), "`scopes_hash` needs a `scopes_file`")
        if entry.previous_key is not None:
            keys.append((entry.previous_key, (*path, "previous_key")))
        _check_previous(entry, path, report)
        if entry.limits is not None and entry.scopes_file is None:
            message = "only a token has limits, and this entry is a secret: it has no `scopes_file`"
            report.error((*path, "limits"), message)
        _check_limits(entry.limits, (*path, "limits"), config, report)
    seen_keys: set[Secret] = set()
    for key, key_path in keys:
        if key in seen_keys:  # the log could not tell the two callers apart
            report.error(key_path, "another token has the same key", hint="give each token a key of its own")
        seen_keys.add(key)


def _check_limits(
    limits: TokenLimitSettings | None, path: KeyPath, config: Config, report: ValidationReport
) -> None:
    """Check that the plugins and pipelines exist: a limit of another one would limit nothing."""
    if limits is None:
        return
    for name in limits.plugins:
        if name not in config.plugins:
            message = f"there is no plugin {name}, so this limits nothing"
            report.error((*path, "plugins", name), message, hint=did_you_mean(name, config.plugins))
    names = [pipeline.name for pipeline in config.pipelines]
    for name in limits.pipelines:
        if name not in names:
            message = f"there is no pipeline {name}, so this limits nothing"
            report.error((*path, "pipelines", name), message, hint=did_you_mean(name, names))


def _check_previous(entry: TokenSettings, path: KeyPath, report: ValidationReport) -> None:
    """Check the previous key of a rotation: it needs an end, and a shared secret has only one value."""
    written = [
        key
        for key in ("previous_key", "previous_expires_at")
        if getattr(entry, key) is not None or report.is_written((*path, key))
    ]
    if len(written) == 1:
        report.error((*path, written[0]), "`previous_key` and `previous_expires_at` go together")
    if written and entry.scopes_file is None:
        message = "only a token has a previous key, and this entry is a secret: it has no `scopes_file`"
        report.error((*path, written[0]), message)


def _token_names(config: Config) -> Iterator[tuple[str, KeyPath]]:
    """Yield the name of each token; generated ones last, so that an equal chosen name counts as the first."""
    for index, entry in enumerate(config.tokens):
        yield entry.name, ("tokens", index, "name")
    generated: dict[Secret, tuple[str, KeyPath]] = {}  # by key: equal keys have their own error
    for index, token in enumerate(config.api.auth.tokens):
        path = ("api", "auth", "tokens", index)
        if token.name:
            yield token.name, (*path, "name")
        else:
            generated.setdefault(token.token, (token.effective_name, path))
    yield from generated.values()


def validate_scopes(scopes: tuple[str, ...], path: KeyPath, config: Config, report: ValidationReport) -> None:
    for index, scope in enumerate(scopes):
        key_path = (*path, index)
        # The scopes of a scope file are not in the tree, and nothing in them is interpolated.
        quoted = f'"{scope}"' if node_at(report.root, key_path) is None else report.quote(key_path)
        subject = scope_subject(scope)
        if subject is None:
            hint = _similar_scope(scope, config.plugins)
            report.error(key_path, "unknown scope", expected=SCOPES_EXPECTED, found=quoted, hint=hint)
        elif (pipeline := pipeline_of(scope)) is not None:
            configured = [settings.name for settings in config.pipelines]
            if pipeline not in configured:
                message = f"the scope {quoted} is for a pipeline that is not configured"
                report.warn(key_path, message, hint=did_you_mean(pipeline, configured))
        elif subject not in _FIXED_SUBJECTS and subject not in config.plugins:
            message = f"the scope {quoted} is for a plugin that is not configured"
            report.warn(key_path, message, hint=did_you_mean(subject, (*_SUBJECTS, *config.plugins)))


def scope_subject(scope: str) -> str | None:
    """Return the subject of a scope, a fixed word or the name of a plugin; None if it is not a scope."""
    if scope == "*" or scope in _OLDER_SCOPES:
        return scope
    pipeline = pipeline_of(scope)
    if pipeline is not None and name_error(pipeline) is None:
        return PIPELINE_SUBJECT
    match = _SCOPE.fullmatch(scope)
    if match is None or (match["subject"] in RESERVED and match["subject"] not in _SUBJECTS):
        return None
    return match["subject"]


def suggest_scope(scope: str, plugins: Collection[str]) -> str | None:
    """Return a hint for a scope that is invalid or probably misspelt; None if it is good."""
    subject = scope_subject(scope)
    if subject is None:
        return _similar_scope(scope, plugins) or SCOPES_EXPECTED
    # A pipeline that does not exist is a warning of the configuration with the scope in it.
    if subject in (*_FIXED_SUBJECTS, PIPELINE_SUBJECT, *plugins):
        return None
    right = scope.rpartition(":")[2]
    names = [f"{resource}:{right}" for resource in (*_SUBJECTS, *plugins)]
    return did_you_mean(scope, names) if did_you_mean(subject, (*_SUBJECTS, *plugins)) else None


def _similar_scope(scope: str, plugins: Collection[str]) -> str | None:
    names = [f"{subject}:{right}" for subject in (*_SUBJECTS, *plugins) for right in ("ro", "rw")]
    subject, _, right = scope.rpartition(":")
    # A word that means reading is never corrected to the right to write.
    suggested = f"{subject}:{_RIGHTS[right.lower()]}" if right.lower() in _RIGHTS else scope
    return f"did you mean {suggested}?" if suggested in names else did_you_mean(suggested, names)


def validate_webhooks(config: Config, report: ValidationReport) -> None:
    listen, endpoints = config.webhooks.listen, config.webhooks.endpoints
    _check_listen(("webhooks", "listen"), listen, report)
    has_section = node_at(report.root, ("webhooks",)) is not None
    # Port 0 means any free port, a different one each time.
    if has_section and config.api.enabled and listen == config.api.listen and not listen.endswith(":0"):
        report.error(("webhooks", "listen"), "the API listens at the same address", hint="use another port")
    paths = (
        (endpoint.path, ("webhooks", "endpoints", index, "path")) for index, endpoint in enumerate(endpoints)
    )
    report.refuse_duplicates("webhook path", paths)
    # The last part of a path is the default name, and many services want `/SERVICE/hook`.
    names_by_path: dict[str, tuple[str, KeyPath]] = {}  # by path: a path that occurs twice has its own error
    for index, endpoint in enumerate(endpoints):
        key = "path" if endpoint.name is None else "name"
        names_by_path.setdefault(
            endpoint.path, (endpoint.effective_name, ("webhooks", "endpoints", index, key))
        )
    report.refuse_duplicates(
        "webhook name", names_by_path.values(), hint="give one of them a `name` of its own"
    )
    for index, endpoint in enumerate(endpoints):
        _check_endpoint(endpoint, ("webhooks", "endpoints", index), report)


def _check_endpoint(endpoint: WebhookEndpointSettings, path: KeyPath, report: ValidationReport) -> None:
    if not re.fullmatch(r"/[^\s?#]*", endpoint.path) or endpoint.path in {"/", "/healthz"}:
        expected = "a path such as /hook/github, other than /healthz"
        report.error((*path, "path"), "this cannot be the path of an endpoint", expected=expected)
    for keys in (("plugin", "pipeline", "event"), ("secret_ref", "secret")):
        # A key with an unreadable value counts: it has its own error.
        written = [
            key for key in keys if getattr(endpoint, key) is not None or report.is_written((*path, key))
        ]
        expected = f"exactly one of {', '.join(keys)}"
        report.require_one(path, written, "this endpoint is not complete", expected=expected)
    if endpoint.command is not None and endpoint.plugin is None:
        report.error((*path, "command"), "`command` goes with `plugin` only")
    if endpoint.event is not None and endpoint.event.startswith("ductile."):
        message = "types that begin with `ductile.` are reserved"
        report.error((*path, "event"), message, hint="choose another type")
    for name in ("signature_header", "delivery_header"):
        _check_header(getattr(endpoint, name), (*path, name), report)
    if endpoint.preset is WebhookPreset.URL_TOKEN and endpoint.signature_header is not None:
        message = "`url-token` has no signature: the secret is in the address, as `?token=`"
        report.error((*path, "signature_header"), message, hint="remove this key")
    if endpoint.max_body_size > _MAX_UNVERIFIED_BYTES:
        message = (
            f"larger than {format_size(_MAX_UNVERIFIED_BYTES)}, the memory for all unverified bodies together"
        )
        hint = "use a smaller size: a body this large is dropped as soon as another request arrives"
        report.warn((*path, "max_body_size"), message, hint=hint)
    if endpoint.name is not None and not NAME.fullmatch(endpoint.name):
        report.error((*path, "name"), f"{report.quote((*path, 'name'))} cannot be the name of an endpoint")


def _check_header(name: str | None, path: KeyPath, report: ValidationReport) -> None:
    if name is not None and not _HEADER.fullmatch(name):
        expected = "letters, digits and hyphens, such as X-Signature"
        message = "this cannot be the name of a header"
        report.error(path, message, expected=expected, found=report.quote(path))


def validate_state_webhooks(config: Config, report: ValidationReport) -> None:
    header, key_path = config.state_webhooks.signature_header, ("state_webhooks", "signature_header")
    _check_header(header, key_path, report)
    if _RESERVED_HEADER.fullmatch(header.lower()):
        message = f"the header {report.quote(key_path)} is taken already"
        report.error(key_path, message, hint="choose another name, such as X-Signature")
    for index, host in enumerate(config.state_webhooks.allow):
        with_port = ":" in host and parse_literal(host) is None
        if not host.strip() or "/" in host or with_port:
            path = ("state_webhooks", "allow", index)
            expected = "a host such as hooks.example.org, without a port"
            report.error(path, "this is not a host", expected=expected, found=report.quote(path))
    for plugin, settings in config.plugins.items():
        _check_state_webhook(settings, ("plugins", plugin), config, report)
    for index, pipeline in enumerate(config.pipelines):
        _check_state_webhook(pipeline, ("pipelines", index), config, report)


def _check_state_webhook(
    settings: PluginSettings | PipelineSettings, path: KeyPath, config: Config, report: ValidationReport
) -> None:
    """Check the URL by the same policy as one that a caller names. Errors do not repeat it."""
    url = settings.state_webhook_url
    if url is None:
        if settings.state_webhook_events:
            message = "`state_webhook_events` needs a `state_webhook_url`"
            report.error((*path, "state_webhook_events"), message)
    elif (fault := url_fault(url.reveal(), config.state_webhooks.allow)) is not None:
        host = refused_host(url.reveal(), None, config.state_webhooks.allow)
        # An `allow` list permits the hosts in it and no others.
        command = f"ductile config set 'state_webhooks.allow[+]' {host} --apply"
        hint = host and f"if it is a receiver of yours: `{command}`"
        report.error((*path, "state_webhook_url"), f"this URL cannot be used: {fault}", hint=hint)


def validate_access_references(config: Config, report: ValidationReport) -> None:
    """Check that the plugins, pipelines and secrets named by webhooks exist and fit."""
    secret_refs: list[tuple[KeyPath, str | None]] = []
    for index, endpoint in enumerate(config.webhooks.endpoints):
        path = ("webhooks", "endpoints", index)
        if endpoint.plugin is not None:
            validate_plugin_name(endpoint.plugin, (*path, "plugin"), config, report)
        if endpoint.pipeline is not None:
            validate_pipeline_name(endpoint.pipeline, (*path, "pipeline"), config, report)
        secret_refs.append(((*path, "secret_ref"), endpoint.secret_ref))
    secret_refs.append((("state_webhooks", "secret_ref"), config.state_webhooks.secret_ref))
    tokens = {token.name: token for token in config.tokens}
    for ref, name in secret_refs:
        if name is None:
            continue
        if name not in tokens:
            message = f"there is no entry {report.quote(ref)} in `tokens`"
            report.error(ref, message, hint=did_you_mean(name, tokens))
        elif tokens[name].scopes_file is not None:
            hint = "make two entries: a secret that is shared with others must not open the API"
            message = f"the token {report.quote(ref)} has scopes and is used as a secret as well"
            report.error(ref, message, hint=hint)


def validate_literal_secrets(config: Config, report: ValidationReport) -> None:
    """Add a warning for each secret in the clear, in strict mode an error, in the order of the files."""
    urls = dict(literal_urls(report.root))
    for path, node in secret_scalars(report.root):
        is_reference = node.written is not None and not has_default(node.written)
        # A URL is warned about only if it holds a password, which `literal_urls` finds.
        # A step names the source of a value in `baggage` and in a template, not the value itself.
        is_expression = path[0] == "pipelines" and (
            "baggage" in path or ("with" in path and any(True for _ in references_in(node.text)))
        )
        is_url = path == ("state", "url") or path[-1] == "state_webhook_url"
        if not is_reference and not is_expression and not is_url:
            urls[path] = node
    locations = {
        path: (node.location.file, node.location.line, node.location.column) for path, node in urls.items()
    }
    for path in sorted(urls, key=locations.__getitem__):
        message = "a secret is written in the clear"
        hint = "put it into a variable and refer to it as ${NAME}"
        if config.service.strict_mode:
            report.error(path, message, hint=hint)
        else:
            report.warn(path, message, hint=hint)
