"""The difference between two versions of a configuration file, fit to be shown.

Secrets are masked by where they stand, not by what they are: a search for the value would miss one that is
written with escapes or over several lines, and would tear up the text around a short one. Where the end of
a secret is not certain, more is masked rather than less.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from ductile.config.redaction import secret_scalars
from ductile.config.secrets import MASK
from ductile.protocol.yaml import ListNode, MapNode, parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ductile.protocol.yaml import Node, ScalarNode

_CONTEXT = 3
#: A reference and nothing else. One with a default holds text that may be the secret itself.
_BARE_REFERENCE = re.compile(r"\s*\$\{\w+\}\s*")


def masked_diff(file: Path, before: bytes, after: bytes) -> str:
    """A unified diff; empty if and only if the files are equal, though a masked line may look unchanged."""
    old, new = _lines(before), _lines(after)
    shown_old, shown_new = mask_lines(before, str(file)), mask_lines(after, str(file))
    lines = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@")
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                lines += [f" {line}" for line in shown_old[old_start:old_end]]
                continue
            lines += [f"-{line}" for line in shown_old[old_start:old_end]]
            lines += [f"+{line}" for line in shown_new[new_start:new_end]]
    head = [f"--- {file}", f"+++ {file}"] if lines else []
    return "".join(f"{line}\n" for line in (*head, *lines))


def mask_lines(data: bytes, file: str) -> list[str]:
    """The lines of a file, as many as it has, with every secret in them masked."""
    lines = _lines(data)
    root = parse_yaml(data, file=file)
    if root is None:
        return lines
    starts = sorted(set(_starts(root)))
    masked = list(lines)
    for _, scalar in secret_scalars(root):
        if not _BARE_REFERENCE.fullmatch(scalar.text):
            _mask(scalar, lines, masked, starts)
    return masked


def _mask(scalar: ScalarNode, lines: list[str], masked: list[str], starts: list[tuple[int, int]]) -> None:
    line, column = scalar.place.line, scalar.place.column
    if scalar.text in lines[line - 1][column - 1 :]:
        end = line
    else:  # over several lines, or with escapes: up to where the next thing begins
        end = next((start - 1 for start, _ in starts if start > line), len(lines))
    head = lines[line - 1][: column - 1] + MASK
    # Two secrets may stand on one line; what the first has masked must not come back.
    masked[line - 1] = min(masked[line - 1], head, key=len) if MASK in masked[line - 1] else head
    for index in range(line, end):
        if lines[index].strip():
            masked[index] = MASK


def _starts(node: Node) -> Iterator[tuple[int, int]]:
    yield node.place.line, node.place.column
    match node:
        case MapNode(entries=entries):
            for key, value in entries:
                yield key.place.line, key.place.column
                yield from _starts(value)
        case ListNode(items=items):
            for item in items:
                yield from _starts(item)
        case _:
            return


def _lines(data: bytes) -> list[str]:
    """As YAML counts them, so that places fit."""
    return re.split(r"\r\n|\r|\n", data.decode("utf-8-sig"))


def _range(start: int, end: int) -> str:
    """A span of lines as unified diffs write it."""
    length = end - start
    return f"{start + 1 if length else start},{length}"
