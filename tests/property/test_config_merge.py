"""Files are merged by one rule without exceptions."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from builders.configs import a_config_of
from ductile.config.read.includes import load_config_files, merge_trees
from ductile.config.schema.decode import decode
from ductile.config.schema.fields import (
    Choice,
    FieldType,
    ListOf,
    MapOf,
    OneOf,
    Scalar,
    Section,
    SectionOf,
    SettingKey,
    SettingType,
    keys_of,
    settings_under,
)
from ductile.config.schema.model import Config
from ductile.protocol.yaml import parse_yaml
from ductile.protocol.yaml_tree import to_plain

#: A value of each type that is not a default.
SAMPLES: dict[SettingType, Any] = {
    SettingType.TEXT: "a-sample",
    SettingType.ADDRESS: "127.0.0.1:7777",
    SettingType.WHOLE_NUMBER: 77,
    SettingType.NUMBER: 7.7,
    SettingType.DURATION: "77s",
    SettingType.INTERVAL: "77m",
    SettingType.SIZE: "77KB",
    SettingType.SECRET: "sample-secret",
    SettingType.INSTANT: "2026-12-24T18:00:00+01:00",
    SettingType.TIME_OF_DAY: "07:07",
    SettingType.WINDOW: "07:07-08:08",
    SettingType.WEEKDAY: "sunday",
    SettingType.VARIABLES: {"A_SAMPLE": "x"},
    SettingType.OBJECT: {"a-sample": {"deep": [1]}},
    SettingType.ANYTHING: {"a-sample": [1, 2]},
}


def sample(field_type: FieldType, default: object) -> Any:
    match field_type:
        case Scalar(type=SettingType.BOOLEAN):
            return not default
        case Scalar(type=setting_type):
            return SAMPLES[setting_type]
        case Choice(words=words):
            return next(word for word in words if word != default)
        case OneOf(alternatives=alternatives):
            return sample(alternatives[0], False)
        case ListOf(item=item):
            return [sample(item, None)]
        case MapOf(value=value):
            return {"sample_name": sample(value, None)}
        case SectionOf(section=section):
            return required_of(section) or {optional_of(section).name: sample_of(optional_of(section))}


def sample_of(key: SettingKey) -> Any:
    return sample(key.type, key.default)


def required_of(section: type[Section]) -> dict[str, Any]:
    return {key.name: sample_of(key) for key in keys_of(section) if key.required}


def optional_of(section: type[Section]) -> SettingKey:
    return next(key for key in keys_of(section) if not key.required)


def document(path: tuple[str, ...], value: Any) -> Any:
    """Return a configuration that sets one key and the required keys of its sections."""
    return _wrap(path, value, Config)


def _wrap(path: tuple[str, ...], value: Any, section: type[Section]) -> Any:
    name, *rest = path
    key = next(key for key in keys_of(section) if key.name == name)
    return {**required_of(section), name: _inside(key.type, tuple(rest), value)}


def _inside(field_type: FieldType, rest: tuple[str, ...], value: Any) -> Any:
    if not rest:
        return value
    match field_type:
        case SectionOf(section=section):
            return _wrap(rest, value, section)
        case ListOf(item=item):
            return [_inside(item, rest[1:], value)]
        case MapOf(value=inner):
            return {"sample_name": _inside(inner, rest[1:], value)}
        case _:
            raise AssertionError(rest)


def model_of(**files: Any) -> Config:
    with TemporaryDirectory() as directory:
        config = a_config_of(
            Path(directory), {f"{name}.yaml": yaml.safe_dump(content) for name, content in files.items()}
        )
        model, problems = decode(load_config_files(config).root)
    assert not problems
    return model


SETTINGS = {".".join(path): (path, key) for path, key in settings_under(Config)}
#: All keys but `include`, which every case here uses.
MERGEABLE = sorted(name for name in SETTINGS if name != "include")


@pytest.mark.parametrize("name", MERGEABLE)
def test_every_key_can_be_set_in_an_include(name: str) -> None:
    """The loaded configuration is the same as if it were set in the main file."""
    path, key = SETTINGS[name]
    setting = document(path, sample_of(key))
    included = model_of(config={"include": ["other.yaml"]}, other=setting)
    direct = model_of(config={"include": [], **setting})
    assert included != model_of(config={"include": ["other.yaml"]}, other={})
    assert [
        getattr(included, section_key.attribute)
        for section_key in keys_of(Config)
        if section_key.name != "include"
    ] == [
        getattr(direct, section_key.attribute)
        for section_key in keys_of(Config)
        if section_key.name != "include"
    ]


@given(st.lists(st.sampled_from(MERGEABLE), min_size=2, max_size=6, unique=True))
def test_keys_of_all_files_are_in_the_loaded_configuration(names: list[str]) -> None:
    """No key of a file is lost, whatever the keys of the others."""
    top = {
        SETTINGS[name][0][0]: name for name in names
    }  # one key of each section, so that no key overrides another
    settings = [document(SETTINGS[name][0], sample_of(SETTINGS[name][1])) for name in top.values()]
    files = {f"part{index}": setting for index, setting in enumerate(settings)}
    model = model_of(config={"include": [f"{name}.yaml" for name in files]}, **files)
    for section, setting in zip(top, settings, strict=True):
        alone = model_of(config=setting)
        attribute = next(key.attribute for key in keys_of(Config) if key.name == section)
        assert getattr(model, attribute) == getattr(alone, attribute)


json_scalars = st.booleans() | st.integers(-99, 99) | st.text("abc", min_size=1, max_size=3)
json_trees = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
    max_leaves=8,
)
json_maps = st.dictionaries(st.sampled_from("pqrs"), json_trees, max_size=4)


def merged_plainly(earlier: Any, later: Any) -> Any:
    if isinstance(earlier, dict) and isinstance(later, dict):
        merged = {key: merged_plainly(earlier[key], later[key]) for key in earlier if key in later}
        return {**earlier, **later, **merged}
    if isinstance(earlier, list) and isinstance(later, list):
        return earlier + later
    return later


@given(json_maps, json_maps)
def test_the_merge_follows_the_rule(earlier: Any, later: Any) -> None:
    """Maps merge by key at every depth, lists append, scalars replace."""
    first = parse_yaml(yaml.safe_dump(earlier), file="a")
    second = parse_yaml(yaml.safe_dump(later), file="b")
    assert first is not None
    assert second is not None
    assert to_plain(merge_trees(first, second)) == merged_plainly(earlier, later)
