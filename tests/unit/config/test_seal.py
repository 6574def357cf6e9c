"""The seal covers configuration, environment files, scopes and plugins."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from builders.configs import a_config_of, a_discovery, a_manifest, loaded, problems_of
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.edit.change import apply_edit, plan_edit
from ductile.config.file_io import hash_bytes, write_atomically
from ductile.config.find_config import CHECKSUMS_FILE
from ductile.config.load import SealMode
from ductile.config.seal import (
    Tier,
    build_checksums,
    read_checksums,
    write_checksums,
    write_sealed,
)
from ductile.errors import Exit, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

ENVIRON = {"T": "t", "U": "u"}


def a_sealed_config(directory: Path, main: str = "", **more_files: str) -> Path:
    scopes = '{"scopes": ["*"]}'
    config = a_config_of(
        directory,
        {
            "config.yaml": "include: [secrets.yaml, ops.yaml]\nenvironment_vars: {include: [.env]}\n" + main,
            "secrets.yaml": "tokens: [{name: a, key: '${T}', scopes_file: scopes/a.json}]\n",
            "ops.yaml": "plugins: {echo: {}}\n",
            ".env": "X=1\n",
            "scopes/a.json": scopes,
            **more_files,
        },
    )
    lock(config)
    return config


def lock(config: Path, plugins: dict[str, str] | None = None) -> None:
    result = loaded(config, ENVIRON)
    strict = result.model.service.strict_mode
    write_checksums(config.parent, build_checksums(result.files, plugins or {}, strict=strict))


def verified_warnings(config: Path) -> list[str]:
    """Return the first lines of the warnings, without the changed keys that follow."""
    warnings = loaded(config, ENVIRON, seal=SealMode.VERIFY).warnings
    return [warning.message.partition("\n")[0].removesuffix(":") for warning in warnings]


def test_every_loaded_file_is_sealed(tmp_path: Path) -> None:
    """Configuration, scope files and environment files are sealed with their tier."""
    sealed = read_checksums(a_sealed_config(tmp_path).parent)
    assert sealed is not None
    assert {name: file.tier for name, file in sealed.files.items()} == {
        "config.yaml": Tier.OPERATIONAL,
        "secrets.yaml": Tier.HIGH,
        "ops.yaml": Tier.OPERATIONAL,
        ".env": Tier.OPERATIONAL,
        "scopes/a.json": Tier.HIGH,
    }


ENV_SECTIONS = {
    "tokens": "tokens: [{name: b, key: '${X}', scopes_file: scopes/a.json}]\n",
    "webhooks": "webhooks: {endpoints: [{path: /hook/x, plugin: echo, secret: '${X}'}]}\n",
    "api.auth": "api: {auth: {tokens: [{token: '${X:-none}', scopes: ['*']}]}}\n",
    "state_webhooks": "state_webhooks: {signature_header: 'X-${X}'}\n",
}


@pytest.mark.parametrize("section", ENV_SECTIONS)
def test_an_env_file_with_access_variables_is_of_the_high_tier(tmp_path: Path, section: str) -> None:
    config = a_sealed_config(tmp_path, ENV_SECTIONS[section])
    sealed = read_checksums(tmp_path)
    assert sealed is not None
    assert sealed.files[".env"].tier is Tier.HIGH
    (tmp_path / ".env").write_text("X=2\n")
    with pytest.raises(IntegrityError) as excinfo:
        loaded(config, ENVIRON, seal=SealMode.VERIFY)
    assert [problem.message for problem in excinfo.value.problems if ".env" in problem.message] == [
        (
            ".env has changed since it was sealed:\n"
            "  the content of environment files is not kept, so the changed variables are not known"
        )
    ]


def test_dropping_the_reference_does_not_lower_the_tier_of_an_env_file(tmp_path: Path) -> None:
    config = a_sealed_config(tmp_path, ENV_SECTIONS["state_webhooks"])
    config.write_text(config.read_text().replace("X-${X}", "X-Signature"))
    assert verified_warnings(config) == ["config.yaml has changed since it was sealed"]
    (tmp_path / ".env").write_text("X=2\n")
    with pytest.raises(IntegrityError):
        loaded(config, ENVIRON, seal=SealMode.VERIFY)


def test_sealing_a_new_reference_raises_the_recorded_tier(tmp_path: Path) -> None:
    config = a_sealed_config(tmp_path, "state_webhooks: {signature_header: X-Signature}\n")
    apply_edit(plan_edit(config, "state_webhooks.signature_header", "'X-${X}'", ENVIRON), renew=True)
    sealed = read_checksums(tmp_path)
    assert sealed is not None
    assert sealed.files[".env"].tier is Tier.HIGH
    assert verified_warnings(config) == []


def test_the_temporary_file_of_a_killed_command_is_removed(tmp_path: Path) -> None:
    path = tmp_path / CHECKSUMS_FILE
    leftover = tmp_path / f".{CHECKSUMS_FILE}.abcd_123.tmp"
    other_files = [tmp_path / f".{CHECKSUMS_FILE}.original", tmp_path / ".config.yaml.abcd_123.tmp"]
    for file in (leftover, *other_files):
        file.write_text("x")
    write_atomically(path, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([path, *other_files])


def test_an_unchanged_configuration_has_no_warnings(tmp_path: Path) -> None:
    assert verified_warnings(a_sealed_config(tmp_path)) == []


@pytest.mark.parametrize("name", ["secrets.yaml", "scopes/a.json"])
def test_a_change_of_the_high_tier_refuses_the_start(tmp_path: Path, name: str) -> None:
    """The exit status is 78; the message names the change and the command that authorises it."""
    config = a_sealed_config(tmp_path)
    path = tmp_path / name
    path.write_text(path.read_text() + "\n")
    with pytest.raises(IntegrityError) as excinfo:
        loaded(config, ENVIRON, seal=SealMode.VERIFY)
    (problem,) = excinfo.value.problems
    assert problem.message == f"{name} has changed since it was sealed:\n  only comments or formatting"
    assert "ductile apply" in str(problem.hint)
    assert excinfo.value.exit_status is Exit.CONFIG


@pytest.mark.parametrize("name", ["config.yaml", "ops.yaml", ".env"])
def test_a_change_of_the_operational_tier_is_a_warning(tmp_path: Path, name: str) -> None:
    config = a_sealed_config(tmp_path)
    path = tmp_path / name
    path.write_text(path.read_text() + "\n")
    assert verified_warnings(config) == [f"{name} has changed since it was sealed"]


@pytest.mark.parametrize("name", ["config.yaml", "ops.yaml", ".env"])
def test_a_change_of_the_operational_tier_is_refused_in_strict_mode(tmp_path: Path, name: str) -> None:
    config = a_sealed_config(tmp_path, "service: {strict_mode: true}\n")
    path = tmp_path / name
    path.write_text(path.read_text() + "\n")
    (problem,) = problems_of(config, ENVIRON, seal=SealMode.VERIFY)
    assert name in problem.message


def test_removing_strict_mode_does_not_disable_it(tmp_path: Path) -> None:
    """A configuration sealed as strict stays strict until it is sealed again."""
    config = a_sealed_config(tmp_path, "service: {strict_mode: true}\n")
    config.write_text(config.read_text().replace("true", "false"))
    (problem,) = problems_of(config, ENVIRON, seal=SealMode.VERIFY)
    assert "config.yaml" in problem.message


def test_removing_a_section_cannot_lower_the_tier(tmp_path: Path) -> None:
    """The higher of the recorded and the current tier counts."""
    config = a_sealed_config(tmp_path)
    (tmp_path / "secrets.yaml").write_text("# nothing to see here\n")
    with pytest.raises(IntegrityError):
        loaded(config, ENVIRON, seal=SealMode.VERIFY)


@pytest.mark.parametrize(
    "section",
    [
        "tokens: [{name: b, key: '${U}'}]\n",
        "webhooks: {listen: '127.0.0.1:9'}\n",
        "api: {auth: {tokens: [{token: '${U}', scopes: ['*']}]}}\n",
        "tokens:\n",
    ],
)
def test_adding_a_section_raises_the_tier(tmp_path: Path, section: str) -> None:
    """The tier applies to every file that defines `tokens`, `webhooks` or `api.auth`."""
    config = a_sealed_config(tmp_path)
    (tmp_path / "ops.yaml").write_text("plugins: {echo: {}}\n" + section)
    with pytest.raises(IntegrityError):
        loaded(config, ENVIRON, seal=SealMode.VERIFY)


@pytest.mark.parametrize("name", ["tokens.yaml", "webhooks.yaml"])
def test_a_new_file_of_the_high_tier_refuses_the_start_even_if_it_is_empty(tmp_path: Path, name: str) -> None:
    """The tier is decided by the name of the file; a missing hash counts like a wrong one."""
    config = a_sealed_config(tmp_path)
    (tmp_path / "ops.yaml").write_text(f"include: [{name}]\nplugins: {{echo: {{}}}}\n")
    (tmp_path / name).write_text("")
    (problem,) = problems_of(config, ENVIRON, seal=SealMode.VERIFY)
    assert problem.message == f"{name} is not sealed"


def test_a_configuration_that_was_never_sealed(tmp_path: Path) -> None:
    """All operational files share one warning; the high tier refuses the start."""
    config = a_config_of(tmp_path, {"config.yaml": "include: [a.yaml]\n", "a.yaml": ""})
    assert verified_warnings(config) == ["the configuration has never been sealed"]
    (tmp_path / "a.yaml").write_text("tokens: [{name: a, key: '${T}'}]\n")
    (problem,) = problems_of(config, ENVIRON, seal=SealMode.VERIFY)
    assert problem.message == "a.yaml is not sealed"


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b'{"version": 2, "strict": false, "files": {}, "plugins": {}}', b"null"],
)
def test_an_unreadable_seal_is_an_error(tmp_path: Path, content: bytes) -> None:
    config = a_config_of(tmp_path, {"config.yaml": ""})
    (tmp_path / CHECKSUMS_FILE).write_bytes(content)
    with pytest.raises(IntegrityError, match="cannot be read"):
        loaded(config, seal=SealMode.VERIFY)


def test_a_seal_that_is_a_directory_is_an_error(tmp_path: Path) -> None:
    config = a_config_of(tmp_path, {"config.yaml": ""})
    (tmp_path / CHECKSUMS_FILE).mkdir()
    with pytest.raises(IntegrityError, match="cannot be read"):
        loaded(config, seal=SealMode.VERIFY)


def test_the_seal_is_verified_before_interpolation(tmp_path: Path) -> None:
    config = a_sealed_config(tmp_path)
    (tmp_path / "secrets.yaml").write_text("tokens: [{name: a, key: '${NEVER_SET}'}]\n")
    with pytest.raises(IntegrityError):
        loaded(config, ENVIRON, seal=SealMode.VERIFY)


def test_plugins_are_sealed_by_fingerprint(tmp_path: Path) -> None:
    """A changed manifest or entrypoint is an operational change, refused in strict mode."""
    discovery = a_discovery(tmp_path, a_manifest("echo"))
    config = a_sealed_config(tmp_path)
    lock(config, {"echo": discovery.installed["echo"].fingerprint})
    result = loaded(config, ENVIRON, seal=SealMode.VERIFY)
    assert compile_snapshot(result, discovery).warnings == ()
    lock(config, {"echo": "blake3:another"})
    snapshot = compile_snapshot(loaded(config, ENVIRON, seal=SealMode.VERIFY), discovery)
    assert [warning.message for warning in snapshot.warnings] == [
        "plugin echo has changed since it was sealed"
    ]
    config.write_text(config.read_text() + "service: {strict_mode: true}\n")
    lock(config, {"echo": "blake3:another"})
    with pytest.raises(IntegrityError):
        compile_snapshot(loaded(config, ENVIRON, seal=SealMode.VERIFY), discovery)


def test_plugins_with_the_same_violation_share_one_problem(tmp_path: Path) -> None:
    """A dozen separate problems would hide the others."""
    names = ("a", "b", "c", "d")
    discovery = a_discovery(tmp_path, *(a_manifest(name) for name in names))
    config = a_sealed_config(tmp_path)
    config.write_text("plugins: {a: {}, b: {}, c: {}, d: {}}\n")
    lock(config, {"c": "blake3:another", "d": discovery.installed["d"].fingerprint})
    snapshot = compile_snapshot(loaded(config, ENVIRON, seal=SealMode.VERIFY), discovery)
    assert [warning.message for warning in snapshot.warnings] == [
        "plugin c has changed since it was sealed",
        "2 plugins are not sealed: a, b",
    ]


def test_a_variable_cannot_disable_strict_mode_for_plugins(tmp_path: Path) -> None:
    """The configuration was sealed as strict, and no file has changed."""
    discovery = a_discovery(tmp_path, a_manifest("echo"))
    config = a_sealed_config(tmp_path, "service:\n  strict_mode: ${STRICT:-true}\n")
    lock(config, {"echo": "blake3:another"})
    lenient = loaded(config, {**ENVIRON, "STRICT": "false"}, seal=SealMode.VERIFY)
    assert not lenient.model.service.strict_mode
    with pytest.raises(IntegrityError):
        compile_snapshot(lenient, discovery)


def test_the_seal_is_private_and_reads_back(tmp_path: Path) -> None:
    """The file mode is 0600."""
    a_sealed_config(tmp_path)
    path = tmp_path / CHECKSUMS_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(f".{CHECKSUMS_FILE}")] == []


def test_an_atomic_replace_keeps_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12, 34)
    before = path.stat()
    write_atomically(path, b"two")
    after = path.stat()
    assert path.read_bytes() == b"two"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


def test_renewing_changes_one_entry_and_requires_a_sealed_file(tmp_path: Path) -> None:
    config = a_sealed_config(tmp_path)
    (tmp_path / "ops.yaml").write_text("plugins: {echo: {}, more: {}}\n")
    new = b"tokens: [{name: b, key: '${U}', scopes_file: scopes/a.json}]\n"
    write_sealed(tmp_path, tmp_path / "secrets.yaml", new)
    assert verified_warnings(config) == ["ops.yaml has changed since it was sealed"]
    (tmp_path / "secrets.yaml").write_text("tokens: []\n")
    with pytest.raises(IntegrityError, match="was not changed"):
        write_sealed(tmp_path, tmp_path / "secrets.yaml", new)
    assert (tmp_path / "secrets.yaml").read_text() == "tokens: []\n"


def test_an_interrupted_renewal_leaves_a_valid_seal(tmp_path: Path) -> None:
    """The seal has both hashes while the file is being replaced."""
    config = a_sealed_config(tmp_path)
    old = (tmp_path / "secrets.yaml").read_bytes()
    new = old + b"# more\n"
    (tmp_path / "secrets.yaml").unlink()
    (tmp_path / "secrets.yaml").write_bytes(old)
    before = (tmp_path / CHECKSUMS_FILE).read_text()
    pending = before.replace(f'"{hash_bytes(old)}",', f'"{hash_bytes(old)}", "pending": "{hash_bytes(new)}",')
    assert pending != before
    (tmp_path / CHECKSUMS_FILE).write_text(pending)
    assert verified_warnings(config) == []
    (tmp_path / "secrets.yaml").write_bytes(new)
    assert verified_warnings(config) == []
    write_sealed(tmp_path, tmp_path / "secrets.yaml", old)
    assert verified_warnings(config) == []
    assert "pending" not in (tmp_path / CHECKSUMS_FILE).read_text()
