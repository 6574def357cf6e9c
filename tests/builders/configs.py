"""Configurations on disk for tests: real directories with real files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ductile.config.load import LoadedConfig, Machine, SealMode, load_config
from ductile.config.snapshot import Discovery, InstalledPlugin, RefusedPlugin
from ductile.errors import ConfigError, Problem
from ductile.protocol.manifest.model import Command, Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MACHINE = Machine(processors=4, timezone="Europe/Vienna")


def a_config(directory: Path, main: str = "", **files: str) -> Path:
    """Write `config.yaml` and further files; `conf__d__a_yaml` is written to `conf/d/a.yaml`."""
    written = {"config.yaml": main}
    for name, text in files.items():
        *folders, file = name.split("__")
        stem, _, suffix = file.rpartition("_")
        written["/".join([*folders, f"{stem}.{suffix}"])] = text
    return a_config_of(directory, written)


def a_config_of(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory / "config.yaml"


def loaded(
    path: Path, environ: Mapping[str, str] | None = None, *, seal: SealMode = SealMode.IGNORE
) -> LoadedConfig:
    return load_config(path, environ or {}, seal=seal, machine=MACHINE)


def problems_of(
    path: Path, environ: Mapping[str, str] | None = None, *, seal: SealMode = SealMode.IGNORE
) -> tuple[Problem, ...]:
    """Return the problems of a configuration, which must be refused."""
    with pytest.raises(ConfigError) as refused:
        loaded(path, environ, seal=seal)
    return refused.value.problems


def a_manifest(name: str, *commands: str, **fields: object) -> Manifest:
    listed = {command: Command(name=command) for command in commands or ("poll", "handle")}
    return Manifest(name=name, entrypoint="run.sh", commands=listed, **fields)  # type: ignore[arg-type]  # fields of the test's choice


def a_discovery(root: Path, *manifests: Manifest, refused: tuple[str, ...] = ()) -> Discovery:
    installed = {
        manifest.name: InstalledPlugin(
            name=manifest.name,
            version="1.0.0",
            root=root,
            directory=root / manifest.name,
            entrypoint=root / manifest.name / "run.sh",
            manifest=manifest,
            fingerprint=f"blake3:{manifest.name}",
        )
        for manifest in manifests
    }
    return Discovery(
        installed=installed,
        refused={
            name: RefusedPlugin(
                name=name, directory=root / name, code="world_writable", reason="anyone may change it"
            )
            for name in refused
        },
    )
