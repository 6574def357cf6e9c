"""`config get` and `config set`: one key at a time, in the file that defines it.

A change is planned first, as a value: the new text, checked by loading the whole configuration with
it. Only then is it written. Comments, order and the rest of the file stay as they are; that is
verified, not hoped for.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ductile.config.compile.effective_defaults import effective_default
from ductile.config.edit.diff import masked_diff
from ductile.config.edit.indent import measure_indentation
from ductile.config.edit.splice import keep_lines, put_scalar
from ductile.config.file_io import write_atomically
from ductile.config.key_paths import KeyPath, did_you_mean, format_path, node_at, place_of
from ductile.config.load import LoadedConfig, SealCheck, load_config
from ductile.config.read.includes import load_config_files
from ductile.config.read.interpolate import without_defaults
from ductile.config.read.merge import is_empty
from ductile.config.redaction import redacted_config
from ductile.config.schema.fields import FieldType, ListOf, MapOf, SectionOf, SettingKey, keys_of
from ductile.config.schema.model import Config
from ductile.config.seal import write_sealed
from ductile.config.secrets import mask_urls
from ductile.errors import ConfigError, NotFoundError, UsageError
from ductile.protocol.yaml import ListNode, MapNode, Node, ScalarNode, SourceLocation, parse_yaml, to_plain
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.config.schema.types import Section
    from ductile.core.json import JsonValue

_PART = re.compile(r"(?:^|\.)(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]{1,6})\]")
_APPEND = "[+]"


class Setting(Value):
    """What a key says, fit to be shown, and where; `place` is None when it is the default."""

    key: str
    value: JsonValue
    place: SourceLocation | None


@hide_in_repr("before", "after", "loaded")
class PlannedEdit(Value):
    """A change to one file that leaves the configuration good. The diff shows no secrets."""

    key: str
    path: Path
    before: bytes
    after: bytes
    diff: str
    loaded: LoadedConfig


def parse_key(text: str) -> KeyPath:
    """`plugins.echo.schedules[0].every` as its parts; UsageError if it is not of that form."""
    parts: list[str | int] = []
    end = 0
    for found in _PART.finditer(text):
        if found.start() != end:
            break
        parts.append(found["name"] if found["index"] is None else int(found["index"]))
        end = found.end()
    if not parts or end != len(text):
        message = f'"{text}" is not a key'
        hint = "write it as in service.log_level or routes[0].to; config set adds an entry with routes[+]"
        raise UsageError(message, hint=hint)
    return tuple(parts)


def get_setting(loaded: LoadedConfig, key: str) -> Setting:
    """What is set at a key, or its default; NotFoundError if there is no such key."""
    path = resolve_path_of(loaded.tree, parse_key(key))
    node = node_at(loaded.tree, path)
    if node is not None:
        return Setting(key=key, value=redacted_config(node, path), place=loaded.place(*path))
    return Setting(key=key, value=effective_default(loaded, path, _key_of_model(loaded, path)), place=None)


def resolve_path_of(root: MapNode, path: KeyPath) -> KeyPath:
    """The path with numbers where lists are: `pipelines.1.name` is `pipelines[1].name`."""
    resolved: list[str | int] = []
    node: Node | None = root
    for part in path:
        numbered = isinstance(node, ListNode) and isinstance(part, str) and part.isascii() and part.isdigit()
        resolved.append(int(part) if numbered else part)
        node = node and node_at(node, (resolved[-1],))
    return tuple(resolved)


def plan_edit(config_file: Path, key: str, value: str, environ: Mapping[str, str]) -> PlannedEdit:
    """The change that sets a key to a value written in YAML; ConfigError if it would not be good.

    A key that ends with `[+]` is one more entry at the end of a list.
    """
    # The files as written are enough to find the place: a value that cannot be read can be set right.
    sources = load_config_files(config_file)
    wanted = to_plain(parse_yaml(value, file=f"the value of {key}"))
    if key.endswith(_APPEND):
        path = resolve_path_of(sources.root, parse_key(key.removesuffix(_APPEND)))
        file, local = _where_to_append(sources.root, path, otherwise=config_file)
        before = file.read_bytes()
        after = with_entry(before, local, wanted, file)
        path = (*path, _length_at(sources.root, path))
    else:
        path = resolve_path_of(sources.root, parse_key(key))
        file, local = _where(sources.root, path, otherwise=config_file)
        before = file.read_bytes()
        after = _rewrite(before, lambda tree: _put(tree, local, deepcopy(wanted)), file, of=local)
    changed = load_config(config_file, environ, seal=SealCheck.IGNORE, overlay={file: after})
    _refuse_without_effect(load_config_files(config_file, {file: after}).root, path, wanted, file)
    return PlannedEdit(
        key=format_path(path),
        path=file,
        before=before,
        after=after,
        diff=_diff(file, before, after),
        loaded=changed,
    )


def _refuse_without_effect(root: MapNode, path: KeyPath, wanted: Any, file: Path) -> None:
    """What other files say of a key is merged with it: then `get` would not read what was set."""
    node = node_at(root, path)
    if node is not None and to_plain(node) == wanted:
        return
    said = place_of(root, path)
    elsewhere = said.file if said is not None and said.file != str(file) else "another file"
    raise ConfigError(
        f"{format_path(path)} would not have this value if it were set in {file}: "
        f"{elsewhere} adds to it or replaces it",
        hint="set the single keys or entries, or edit the files by hand",
    )


def _where_to_append(root: MapNode, path: KeyPath, *, otherwise: Path) -> tuple[Path, KeyPath]:
    """The file with the end of a list, and where in it the list is."""
    node = node_at(root, path)
    if isinstance(node, ListNode) and node.items:
        last = node.items[-1]
        file = Path(last.place.file)
        if local := _path_to(parse_yaml(file.read_bytes(), file=str(file)), last.place):
            return file, local[:-1]
    if isinstance(node, MapNode) or (isinstance(node, ScalarNode) and not is_empty(node)):
        raise ConfigError(f"{format_path(path)} is not a list")
    return _where(root, path, otherwise=otherwise)


def _length_at(root: MapNode, path: KeyPath) -> int:
    node = node_at(root, path)
    return len(node.items) if isinstance(node, ListNode) else 0


def _diff(file: Path, before: bytes, after: bytes) -> str:
    """What is masked by its place, and besides it what `config show` would not show of other values."""
    return mask_urls(without_defaults(masked_diff(file, before, after)))


def apply_edit(edit: PlannedEdit, *, renew: bool = False) -> None:
    """Write a planned change. `renew` seals it, if the file is what was sealed before."""
    if edit.path.read_bytes() != edit.before:
        raise ConfigError(f"{edit.path} was changed meanwhile; nothing was written", hint="try again")
    if renew:
        strict = edit.loaded.model.service.strict_mode
        write_sealed(edit.loaded.directory, edit.path, edit.after, strict=strict, tiers=edit.loaded.tiers)
    else:
        write_atomically(edit.path, edit.after)


def _where(root: MapNode, path: KeyPath, *, otherwise: Path) -> tuple[Path, KeyPath]:
    """The file a key is defined in, else the one its list entry is in, else `config.yaml`.

    Lists of several files are appended to each other, so the position in the file may be another one.
    """
    needed = max((index for index, part in enumerate(path) if isinstance(part, int)), default=-1) + 1
    for length in range(len(path), max(needed, 1) - 1, -1):
        node = node_at(root, path[:length])
        if node is None:
            continue
        if length < len(path) and not needed:
            break
        file = Path(node.place.file)
        local = _path_to(parse_yaml(file.read_bytes(), file=str(file)), node.place)
        if local is not None:
            return file, (*local, *path[length:])
    if needed:
        hint = f"{format_path(path[: needed - 1])}{_APPEND} adds an entry at the end"
        raise NotFoundError(f"there is nothing at {format_path(path[:needed])}", hint=hint)
    return otherwise, path


def _path_to(root: Node | None, place: SourceLocation) -> KeyPath | None:
    for path, node in _nodes(root, ()):
        if node.place == place and path:
            return path
    return None


def _nodes(node: Node | None, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    if node is None:
        return
    yield path, node
    match node:
        case MapNode(entries=entries):
            for key, value in entries:
                yield from _nodes(value, (*path, key.text))
        case ListNode(items=items):
            for index, item in enumerate(items):
                yield from _nodes(item, (*path, index))
        case _:
            return


def with_entry(before: bytes, path: KeyPath, entry: JsonValue, file: Path) -> bytes:
    """The text of a file with one more entry at the end of a list, which is made if it is not there."""

    def append(tree: Any) -> None:
        *way, last = path
        try:
            for part in way:
                if isinstance(part, str) and tree.get(part) is None:
                    tree[part] = {}
                tree = tree[part]
            known = tree[last] if isinstance(last, int) else tree.get(last)
            if known is None:
                tree[last] = known = []
            known.append(deepcopy(entry))
        except (
            AttributeError,
            TypeError,
            IndexError,
            KeyError,
        ):  # the path goes through text, or ends at one
            raise NotFoundError(f"nothing can be added at {format_path(path)}") from None

    return _rewrite(before, append, file)


def without_entry(before: bytes, path: KeyPath, file: Path) -> bytes:
    """The text of a file without the entry of a list that the path leads to."""

    def remove(tree: Any) -> None:
        *way, last = path
        for part in way:
            tree = tree[part]
        del tree[last]

    return _rewrite(before, remove, file)


def _rewrite(before: bytes, change: Callable[[Any], None], file: Path, of: KeyPath = ()) -> bytes:
    """The text with one change made to it, in the value at `of` or in whole lines, and nowhere else.

    Checked to mean what it meant before but for that change.
    """
    text = before.decode("utf-8-sig")
    tree = parse_yaml(before, file=str(file))
    changed = _emitted(text, tree, change)
    expected = to_plain(tree) or {}
    change(expected)
    if tree is None:  # nothing in it but comments, at most
        lines = f"{text}\n{changed}" if text and not text.endswith("\n") else text + changed
    else:
        shift = _shift(tree, _read(changed, file), of)
        lines = keep_lines(text, _emitted(text, tree, None), changed, shift=shift)
    for after in (put_scalar(text, changed, of), lines):
        if after is not None and to_plain(_read(after, file)) == expected:
            return codecs.BOM_UTF8 * before.startswith(codecs.BOM_UTF8) + after.encode()
    message = f"{file} cannot be rewritten without changing something else in it"
    raise ConfigError(message, hint="edit the file by hand")


def _shift(tree: Node, changed: Node | None, path: KeyPath) -> int:
    """How much further to the right the keys begin among which a key is set, compared with the emitter's."""
    if changed is None:
        return 0
    for length in range(len(path) - 1, 0, -1):
        match node_at(tree, path[:length]), node_at(changed, path[:length]):
            case MapNode(entries=((own, _), *_)), MapNode(entries=((emitted, _), *_)):
                return own.place.column - emitted.place.column
            case None, _:
                continue
            case _:
                break
    return 0


def _read(text: str, file: Path) -> Node | None:
    """What a text means; nothing for one that is no YAML any more."""
    try:
        return parse_yaml(text, file=str(file))
    except ConfigError:
        return None


def _emitted(text: str, tree: Node | None, change: Callable[[Any], None] | None) -> str:
    """The whole file as the emitter writes it, with a change or without."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - 30 ms that only a change has to pay

    like = measure_indentation(tree)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.width = 100_000
    yaml.indent(mapping=like.keys, sequence=like.dashes + 2, offset=like.dashes)
    document = yaml.load(re.sub(r"\r\n?", "\n", text))  # of other line breaks it loses empty lines
    document = {} if document is None else document
    if change is not None:
        change(document)
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _put(tree: Any, path: KeyPath, value: Any) -> None:
    """Set a value deep in a tree, making the maps on the way that are not there yet."""
    *way, last = path
    try:
        for part in way:
            if isinstance(part, str) and (part not in tree or tree[part] is None):
                tree[part] = {}
            tree = tree[part]
        tree[last] = value
    except (TypeError, IndexError, KeyError):  # text or a list where the path wants a map
        numbered = any(isinstance(part, str) and part.isdigit() for part in path)
        hint = "An entry of a list is written in brackets, such as schedules[0]." if numbered else None
        raise NotFoundError(f"nothing can be set at {format_path(path)}", hint=hint) from None


def _key_of_model(loaded: LoadedConfig, path: KeyPath) -> SettingKey:
    """The key that a path means, if everything around it is there: an entry of a list has no default."""
    shape: FieldType = SectionOf(section=Config)
    key: SettingKey | None = None
    for length, part in enumerate(path, start=1):
        match shape, part:
            case SectionOf(section=section), str():
                key = _key_of_section(section, part, path[:length])
                shape = key.shape
            case (MapOf(value=inner), str()) | (ListOf(item=inner), int()) if node_at(
                loaded.tree, path[:length]
            ):
                key, shape = None, inner
            case _:
                raise NotFoundError(
                    f"nothing is set at {format_path(path)}", hint=_near_key(loaded, path[:length])
                )
    if key is None:
        raise NotFoundError(f"nothing is set at {format_path(path)}")
    return key


def _near_key(loaded: LoadedConfig, path: KeyPath) -> str | None:
    """The key beside it that is spelled nearly so; where there is none, those that there are."""
    parent = node_at(loaded.tree, path[:-1])
    names = [key.text for key, _ in parent.entries] if isinstance(parent, MapNode) else []
    if not names:
        return None
    return did_you_mean(str(path[-1]), names) or f"{format_path(path[:-1])} has {', '.join(names)}"


def _key_of_section(section: type[Section], name: str, path: KeyPath) -> SettingKey:
    keys = {key.name: key for key in keys_of(section)}
    if name not in keys:
        raise NotFoundError(f"there is no key {format_path(path)}", hint=did_you_mean(name, keys))
    return keys[name]
