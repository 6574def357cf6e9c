"""`config get`, `set`, `unset` and `edit`: a key in the file that defines it, or the text of one file.

A change is planned first, as a value: the new text, checked by loading the whole configuration with it. Only
then is it written. Comments, order and the rest of the file stay as they are.

The diff of a change masks secrets by position, not by value: a search for the value would miss one with
escapes or over several lines, and would mask unrelated text for a short one. Where the end of a secret is not
certain, more is masked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import Path
from types import MappingProxyType

from ductile.config.compile.compiler import signature_scheme
from ductile.config.compile.plugins import compile_retry
from ductile.config.differences import comparable_file, unknown_scalars
from ductile.config.edit.rewrite import with_entry, with_value, without_value
from ductile.config.file_io import read_overlaid, write_atomically
from ductile.config.history.file_copies import compare_contents
from ductile.config.load import LoadedConfig, SealMode, load_config
from ductile.config.read.includes import load_config_files
from ductile.config.read.interpolate import without_defaults
from ductile.config.redaction import redacted_config, secret_scalars
from ductile.config.schema.fields import (
    FieldType,
    ListOf,
    MapOf,
    SectionOf,
    SettingKey,
    keys_of,
    written_default,
)
from ductile.config.schema.model import Config
from ductile.config.seal import write_sealed
from ductile.config.secrets import MASK, mask_urls
from ductile.core.durations import format_duration
from ductile.core.json import JsonValue
from ductile.core.suggest import did_you_mean
from ductile.errors import ConfigError, NotFoundError, UsageError
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import (
    KeyPath,
    ListNode,
    MapNode,
    Node,
    SourceLocation,
    format_path,
    is_empty,
    location_of,
    node_at,
    to_plain,
    walk,
)
from ductile.struct import Value, hide_in_repr

_PART = re.compile(r"(?:^|\.)(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]{1,6})\]")
APPEND = "[+]"
_CONTEXT_LINES = 3
#: A default whose description is the value itself.
_LITERAL = re.compile(r"`([^`]*)`")
#: A reference and nothing else. A default is literal text and may be the secret itself.
_BARE_REFERENCE = re.compile(r"\s*\$\{\w+\}\s*")


class Setting(Value):
    """The redacted value of a key; `location` is None when it is the default."""

    key: str
    value: JsonValue
    location: SourceLocation | None


def parse_key(text: str) -> KeyPath:
    """Split `plugins.echo.schedules[0].every`. Raises UsageError if it is not of that form."""
    parts: list[str | int] = []
    end = 0
    for match in _PART.finditer(text):
        if match.start() != end:
            break
        parts.append(match["name"] if match["index"] is None else int(match["index"]))
        end = match.end()
    if not parts or end != len(text):
        hint = "write it as in service.log_level or routes[0].to; config set adds an entry with routes[+]"
        raise UsageError(f'"{text}" is not a key', hint=hint)
    return tuple(parts)


def get_setting(loaded: LoadedConfig, key: str) -> Setting:
    """Return the value of a key, or its default. Raises NotFoundError if there is no such key."""
    path = resolve_indexes(loaded.tree, parse_key(key))
    node = node_at(loaded.tree, path)
    if node is not None:
        return Setting(key=key, value=redacted_config(node, path), location=loaded.location(*path))
    default = effective_default(loaded, path, _find_setting_key(loaded.tree, path))
    return Setting(key=key, value=default, location=None)


def effective_default(loaded: LoadedConfig, path: KeyPath, key: SettingKey) -> JsonValue:
    """Return the value that applies where a key is not set, in words where it is not a single value."""
    model = loaded.model
    match path:
        case ("service", "max_workers"):
            return loaded.max_workers
        case (
            ("service", "timezone")
            | ("plugins", _, "schedules", _, "timezone")
            | ("plugins", _, "schedule", "timezone")
        ):
            return loaded.timezone
        case ("plugin_roots",) if model.plugins_dir:
            return [model.plugins_dir]
        case ("plugins", str(name), "uses"):
            return name
        case ("plugins", str(name), "retry", str(field)):
            retry = compile_retry(model.plugins[name].retry, max_attempts=model.plugins[name].max_attempts)
            value = getattr(retry, field)
            return value if field == "max_attempts" else format_duration(value)
        case ("webhooks", "endpoints", int(index), "name"):
            return model.webhooks.endpoints[index].effective_name
        case ("webhooks", "endpoints", int(index), "signature_header"):
            return signature_scheme(model.webhooks.endpoints[index]).header
        case _ if key.default_text is None:
            return written_default(key)
        case _ if literal := _LITERAL.fullmatch(key.default_text):
            return to_plain(parse_yaml(literal[1], file="a default"))
        case _:
            return key.default_text.replace("`", "")


def resolve_indexes(root: MapNode, path: KeyPath) -> KeyPath:
    """Return the path with numbers where lists are: `pipelines.1.name` means `pipelines[1].name`."""
    resolved: list[str | int] = []
    node: Node | None = root
    for part in path:
        numbered = isinstance(node, ListNode) and isinstance(part, str) and part.isascii() and part.isdigit()
        resolved.append(int(part) if numbered else part)
        node = node and node_at(node, (resolved[-1],))
    return tuple(resolved)


def _find_setting_key(root: MapNode, path: KeyPath) -> SettingKey:
    """Return the key of the model at a path. Raises NotFoundError for an entry: it has no default."""
    field_type: FieldType = SectionOf(section=Config)
    key: SettingKey | None = None
    for length, part in enumerate(path, start=1):
        prefix = path[:length]
        match field_type, part:
            case SectionOf(section=section), str():
                keys = {declared.name: declared for declared in keys_of(section)}
                if part not in keys:
                    raise NotFoundError(
                        f"there is no key {format_path(prefix)}", hint=did_you_mean(part, keys)
                    )
                key = keys[part]
                field_type = key.type
            case (MapOf(value=inner), str()) | (ListOf(item=inner), int()) if node_at(root, prefix):
                key, field_type = None, inner
            case _:
                parent = node_at(root, prefix[:-1])
                names = [node.text for node, _ in parent.entries] if isinstance(parent, MapNode) else []
                existing = f"{format_path(prefix[:-1])} has {', '.join(names)}" if names else None
                hint = did_you_mean(str(part), names) or existing
                raise NotFoundError(f"nothing is set at {format_path(path)}", hint=hint)
    if key is None:
        raise NotFoundError(f"nothing is set at {format_path(path)}")
    return key


@hide_in_repr("before", "after", "loaded")
class PlannedEdit(Value):
    """A change to one file that keeps the configuration valid. The diff shows no secrets."""

    key: str
    path: Path
    before: bytes
    after: bytes
    diff: str
    loaded: LoadedConfig


def plan_edit(config_file: Path, key: str, value: str, environ: Mapping[str, str]) -> PlannedEdit:
    """Plan to set a key to a value written in YAML. Raises ConfigError if the result would be invalid.

    A key that ends with `[+]` adds an entry at the end of a list.
    """
    # The files as written are enough to find the key, so that an invalid value can be corrected.
    sources = load_config_files(config_file)
    new_value = to_plain(parse_yaml(value, file=f"the value of {key}"))
    path = resolve_indexes(sources.root, parse_key(key.removesuffix(APPEND)))
    if key.endswith(APPEND):
        file, local_path = find_list_end(sources.root, path, config_file)
        existing = node_at(sources.root, path)
        path = (*path, len(existing.items) if isinstance(existing, ListNode) else 0)
        before = file.read_bytes()
        after = with_entry(before, local_path, new_value, file)
    else:
        file, local_path = find_definition(sources.root, path, config_file)
        before = file.read_bytes()
        after = with_value(before, local_path, new_value, file)
    changed = load_config(config_file, environ, seal=SealMode.IGNORE, overlay={file: after})
    # If another file overrides the key or adds to it, `get` would not return the value.
    result = load_config_files(config_file, {file: after}).root
    node = node_at(result, path)
    if node is None or to_plain(node) != new_value:
        location = location_of(result, path)
        overriding = "another file" if location.file == str(file) else location.file
        raise ConfigError(
            f"{format_path(path)} would not have this value if it were set in {file}: "
            f"{overriding} adds to it or replaces it",
            hint="set the single keys or entries, or edit the files by hand",
        )
    # Secrets are masked by their position; other values are redacted as in `config show`.
    diff = mask_urls(without_defaults(masked_diff(file, before, after)))
    return PlannedEdit(
        key=format_path(path), path=file, before=before, after=after, diff=diff, loaded=changed
    )


def plan_removal(config_file: Path, key: str, environ: Mapping[str, str]) -> PlannedEdit:
    """Plan to remove a key or an entry of a list, so that its default applies again.

    Raises NotFoundError if nothing is set there, ConfigError if the result would be invalid or another file
    sets the key as well.
    """
    sources = load_config_files(config_file)
    path = resolve_indexes(sources.root, parse_key(key))
    if node_at(sources.root, path) is None:
        _find_setting_key(sources.root, path)  # raises for a key that does not exist, with a suggestion
        raise NotFoundError(f"{format_path(path)} is not set: its default applies already")
    file, local_path = find_definition(sources.root, path, config_file)
    before = file.read_bytes()
    after = without_value(before, local_path, file)
    changed = load_config(config_file, environ, seal=SealMode.IGNORE, overlay={file: after})
    result = load_config_files(config_file, {file: after}).root
    if not isinstance(path[-1], int) and node_at(result, path) is not None:
        raise ConfigError(
            f"{format_path(path)} would still be set by {location_of(result, path).file}",
            hint="remove it there first, or edit the files by hand",
        )
    diff = mask_urls(without_defaults(masked_diff(file, before, after)))
    return PlannedEdit(
        key=format_path(path), path=file, before=before, after=after, diff=diff, loaded=changed
    )


def plan_text(config_file: Path, file: Path, after: bytes, environ: Mapping[str, str]) -> PlannedEdit:
    """Plan to replace the whole text of a file. Raises ConfigError if the result would be invalid."""
    before = file.read_bytes() if file.exists() else b""
    changed = load_config(config_file, environ, seal=SealMode.IGNORE, overlay={file: after})
    if comparable_file(before, file.name) is None or not file.name.endswith((".yaml", ".yml")):
        diff = "\n".join(compare_contents(file.name, before, after).describe(limit=100)) + "\n"
    else:
        diff = mask_urls(without_defaults(masked_diff(file, before, after)))
    diff = diff if before != after else ""
    return PlannedEdit(key=file.name, path=file, before=before, after=after, diff=diff, loaded=changed)


def apply_edit(edit: PlannedEdit, *, renew: bool = False) -> None:
    """Write a planned change. `renew` also seals it, which requires that the file is as sealed."""
    if edit.path.read_bytes() != edit.before:
        raise ConfigError(f"{edit.path} was changed meanwhile; nothing was written", hint="try again")
    if renew:
        strict = edit.loaded.model.service.strict_mode
        write_sealed(edit.loaded.directory, edit.path, edit.after, strict=strict, tiers=edit.loaded.tiers)
    else:
        write_atomically(edit.path, edit.after)


def find_list_end(
    root: MapNode,
    path: KeyPath,
    default_file: Path,
    overlay: Mapping[Path, bytes | None] = MappingProxyType({}),
) -> tuple[Path, KeyPath]:
    """Return the file with the end of a list, and the path of the list in that file."""
    node = node_at(root, path)
    if isinstance(node, ListNode) and node.items:
        file, local_path = _locate_in_file(node.items[-1].location, overlay)
        if local_path is not None:
            return file, local_path[:-1]
    if not isinstance(node, ListNode) and not is_empty(node):
        raise ConfigError(f"{format_path(path)} is not a list")
    return find_definition(root, path, default_file, overlay)


def find_definition(
    root: MapNode,
    path: KeyPath,
    default_file: Path,
    overlay: Mapping[Path, bytes | None] = MappingProxyType({}),
) -> tuple[Path, KeyPath]:
    """Return the file that defines a key, and the path of the key in that file.

    For a key that is not set, the file has its list entry, or else is the default file.

    The lists of several files are joined, so a position in the file may differ from that in the joined list.
    """
    # An entry of a list has to exist; the keys below the last one need not.
    entry_depth = max((index for index, part in enumerate(path) if isinstance(part, int)), default=-1) + 1
    for length in range(len(path), max(entry_depth, 1) - 1, -1):
        node = node_at(root, path[:length])
        if node is None:
            continue
        if length < len(path) and not entry_depth:
            break
        file, local_path = _locate_in_file(node.location, overlay)
        if local_path is not None:
            return file, (*local_path, *path[length:])
    if entry_depth:
        hint = f"{format_path(path[: entry_depth - 1])}{APPEND} adds an entry at the end"
        raise NotFoundError(f"there is nothing at {format_path(path[:entry_depth])}", hint=hint)
    return default_file, path


def _locate_in_file(
    location: SourceLocation, overlay: Mapping[Path, bytes | None]
) -> tuple[Path, KeyPath | None]:
    """Return the file of a location, and the path of its node in that file alone."""
    file = Path(location.file)
    root = parse_yaml(read_overlaid(file, overlay), file=str(file))
    nodes = () if root is None else walk(root)
    return file, next((path for path, node in nodes if path and node.location == location), None)


def masked_diff(file: Path, before: bytes, after: bytes) -> str:
    """Return a unified diff, empty only if the files are equal. A masked line may look unchanged."""
    old, new = _lines(before), _lines(after)
    masked_old, masked_new = mask_lines(before, str(file)), mask_lines(after, str(file))
    lines = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT_LINES):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_format_range(first[1], last[2])} +{_format_range(first[3], last[4])} @@")
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                lines += [f" {line}" for line in masked_old[old_start:old_end]]
                continue
            lines += [f"-{line}" for line in masked_old[old_start:old_end]]
            lines += [f"+{line}" for line in masked_new[new_start:new_end]]
    head = [f"--- {file}", f"+++ {file}"] if lines else []
    return "".join(f"{line}\n" for line in (*head, *lines))


def mask_lines(data: bytes, file: str) -> list[str]:
    """Return the lines of a file, the same number, with every secret masked."""
    lines = _lines(data)
    root = parse_yaml(data, file=file)
    if root is None:
        return lines
    masked = list(lines)
    # The lines on which a key or a value begins.
    starts = {node.location.line for _, node in walk(root)}
    starts |= {
        key.location.line for _, node in walk(root) if isinstance(node, MapNode) for key, _ in node.entries
    }
    for _, scalar in (*secret_scalars(root), *unknown_scalars(root)):
        if _BARE_REFERENCE.fullmatch(scalar.text):
            continue
        line, column = scalar.location.line, scalar.location.column
        end = line
        if scalar.text not in lines[line - 1][column - 1 :]:
            # Over several lines or with escapes: mask up to the next key or value.
            end = min((start - 1 for start in starts if start > line), default=len(lines))
        head = lines[line - 1][: column - 1] + MASK
        # With two secrets on one line, the mask of the first one stays.
        masked[line - 1] = min(masked[line - 1], head, key=len) if MASK in masked[line - 1] else head
        for index in range(line, end):
            if lines[index].strip():
                masked[index] = MASK
    return masked


def _lines(data: bytes) -> list[str]:
    """Split at the line breaks of YAML, so that locations fit."""
    return re.split(r"\r\n|\r|\n", data.decode("utf-8-sig"))


def _format_range(start: int, end: int) -> str:
    """Return a span of lines as unified diffs write it."""
    length = end - start
    return f"{start + 1 if length else start},{length}"
