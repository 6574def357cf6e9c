"""docs/reference/manifest.md is complete, and its examples are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builders.plugins import command_keys, manifest_keys
from ductile.plugins.trust import RefusalCode
from ductile.protocol.manifest.read import parse_manifest
from ductile.protocol.yaml import parse_yaml

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "manifest.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL)
HEAD = "manifest_spec: ductile.plugin\nmanifest_version: 1\nname: x\nprotocol: 2\nentrypoint: run\n"


@pytest.mark.parametrize("name", sorted({*manifest_keys(), *command_keys(), *RefusalCode}))
def test_every_key_and_every_refusal_has_a_row(name: str) -> None:
    assert re.search(rf"^\| `{re.escape(name)}` \|", REFERENCE, re.MULTILINE)


def test_no_refusal_is_documented_that_does_not_exist() -> None:
    """The page has the refusals of discovery, and the two of a configuration."""
    section = REFERENCE.partition("## Why a plugin is refused")[2].partition("## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert documented == {*RefusalCode, "missing_config", "not_installed"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_can_be_read(example: str) -> None:
    """Each example is a manifest, or becomes one with the lines that it leaves out."""
    text = example if example.startswith("manifest_spec") else HEAD + example
    if "commands:" not in text:
        schema = "".join(f"    {line}\n" for line in example.splitlines())
        text = HEAD + (
            f"commands:\n  poll:\n{schema}" if "schema" in example else f"commands: [poll]\n{example}"
        )
    assert parse_manifest(parse_yaml(text, file="m"), file="m").commands
