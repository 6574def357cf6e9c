"""The reference of the configuration is up to date, and its examples work."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from builders.configs import a_config_of, loaded
from ductile.config.schema.fields import settings_under
from ductile.config.schema.model import Config

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reference" / "configuration.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_part_is_up_to_date() -> None:
    """After a change of the model, run `make docs`."""
    text = PAGE.read_text(encoding="utf-8")
    assert generator().regenerate("reference/configuration.md", text) == text


def test_every_key_of_the_model_is_documented() -> None:
    """A key is documented under the heading of its section, or of the section that it refers to."""
    text = PAGE.read_text(encoding="utf-8")
    generate: Any = generator()
    sections = dict(re.findall(r"### (.+)\n\n((?:.+\n)+)", text))
    for path, key in settings_under(Config):
        body = sections[generate.section_title(path[:-1])]
        reference = re.match(r"The same keys as \[(.+)\]\(#", body)
        rows = sections[reference[1]] if reference else body
        assert f"| `{key.name}` |" in rows, path
        assert key.description in rows


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid_configurations(tmp_path: Path, example: str) -> None:
    config = a_config_of(
        tmp_path,
        {
            "config.yaml": example,
            "tokens.yaml": "tokens: [{name: github, key: '${GITHUB_SECRET}'}]\n",
            "conf.d/nothing.yaml": "",
            ".env": "PHONE_TOKEN=a\nGITHUB_SECRET=b\nAPPRISE_URLS=c\n"
            "WITHINGS_CLIENT_ID=d\nWITHINGS_CLIENT_SECRET=e\n",
        },
    )
    assert loaded(config).warnings == ()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2
