"""The difference between two versions of a configuration file, with secrets masked.

Secrets are masked by position, not by value: a search for the value would miss one with escapes or over
several lines, and would mask unrelated text for a short one. Where the end of a secret is not certain, more
is masked.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from ductile.config.redaction import secret_scalars
from ductile.config.secrets import MASK
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import MapNode, walk

if TYPE_CHECKING:
    from pathlib import Path

_CONTEXT_LINES = 3
#: A reference and nothing else. A default is literal text and may be the secret itself.
_BARE_REFERENCE = re.compile(r"\s*\$\{\w+\}\s*")


def masked_diff(file: Path, before: bytes, after: bytes) -> str:
    """Return a unified diff, empty only if the files are equal. A masked line may look unchanged."""
    old, new = _lines(before), _lines(after)
    masked_old, masked_new = mask_lines(before, str(file)), mask_lines(after, str(file))
    lines = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT_LINES):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@")
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
    for _, scalar in secret_scalars(root):
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


def _range(start: int, end: int) -> str:
    """Return a span of lines as unified diffs write it."""
    length = end - start
    return f"{start + 1 if length else start},{length}"
