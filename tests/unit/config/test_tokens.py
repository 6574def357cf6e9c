"""Creating and revoking a token changes all its files or none, also if the command crashes."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ductile.admin.config import open_configuration
from ductile.admin.init_config import create_starter_config
from ductile.admin.seal import seal_configuration
from ductile.config import seal
from ductile.config.edit.token_entries import list_tokens
from ductile.config.edit.tokens import create_token, revoke_token
from ductile.config.file_io import write_atomically
from ductile.config.find_config import CHECKSUMS_FILE
from ductile.config.load import LoadedConfig, load_config
from ductile.config.seal import Tier, read_checksums
from ductile.config.secrets import digest_of
from ductile.config.snapshot import Snapshot
from ductile.config.validate.access import SCOPES_EXPECTED
from ductile.errors import ConfigError, ConflictError, DuctileError, IntegrityError, NotFoundError, UsageError

SCOPES = ("jobs:ro", "plugin:rw")


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    create_starter_config(str(tmp_path / "demo"), {}, token="dtl_of_the_admin")
    return tmp_path / "demo"


def snapshot(directory: Path) -> Snapshot:
    """Return the snapshot as the daemon loads it, with the seal verified."""
    return open_configuration(str(directory), {}).snapshot


def loaded(directory: Path) -> LoadedConfig:
    return load_config(directory / "config.yaml", {})


def contents(directory: Path) -> dict[str, bytes]:
    files = (
        path
        for path in directory.rglob("*")
        if path.is_file() and not {"plugins", ".ductile"} & {*path.parts}
    )
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def without_seal(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != CHECKSUMS_FILE}


def test_a_token_opens_the_api_with_its_scopes(demo: Path) -> None:
    """The configuration has `${NAME}`, a private environment file has the value, and the seal is renewed."""
    created = create_token(str(demo), {}, "ci", SCOPES)
    token = next(token for token in snapshot(demo).tokens if token.name == "ci")
    assert created.value is not None
    assert (token.digest, token.scopes) == (digest_of(created.value.encode()), SCOPES)
    assert f"{created.variable}={created.value}" in (demo / ".env").read_text()
    assert created.value not in (demo / "tokens.yaml").read_text()
    assert f"${{{created.variable}}}" in (demo / "tokens.yaml").read_text()
    assert stat.S_IMODE((demo / ".env").stat().st_mode) == 0o600
    assert stat.S_IMODE((demo / "scopes" / "ci.json").stat().st_mode) == 0o600
    assert loaded(demo).warnings == ()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o600])
def test_an_env_file_is_private_before_a_value_is_in_it(
    demo: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode is 0600 before the value is written, whatever it was."""
    env_file, modes = demo / ".env", []
    env_file.chmod(mode)

    def write_and_record_mode(path: Path, data: bytes) -> None:
        write_atomically(path, data)
        if path == env_file:
            modes.append(stat.S_IMODE(path.stat().st_mode))

    monkeypatch.setattr(seal, "write_atomically", write_and_record_mode)
    create_token(str(demo), {}, "ci", SCOPES)
    revoke_token(str(demo), {}, "ci")
    assert modes == [0o600, 0o600]


def test_a_scope_for_a_plugin_that_is_not_configured_is_a_warning(demo: Path) -> None:
    """A warning is returned with the token that it is about, and not with the next one."""
    for dry_run in (True, False):
        created = create_token(str(demo), {}, "ci", ("mail:rw", "jobs:ro"), dry_run=dry_run)
        (warning,) = created.warnings
        assert warning.message == 'the scope "mail:rw" is for a plugin that is not configured'
    assert create_token(str(demo), {}, "other", SCOPES).warnings == ()


def test_without_scopes_it_is_a_secret_that_opens_nothing(demo: Path) -> None:
    """An entry without scopes is a secret only."""
    created = create_token(str(demo), {}, "github", (), value=' with "quotes" and \\ \n')
    current = snapshot(demo)
    assert current.secrets["github"].reveal() == 'with "quotes" and \\'
    assert "github" not in {token.name for token in current.tokens}
    assert created.files == (".env", "tokens.yaml")


def test_the_env_file_that_holds_the_first_token_is_recorded_as_high(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("environment_vars: {include: [.env]}\ntokens: []\n")
    (tmp_path / ".env").write_text("GREETING=hello\n")
    seal_configuration(str(tmp_path), {})
    create_token(str(tmp_path), {}, "ci", SCOPES)
    sealed = read_checksums(tmp_path)
    assert sealed is not None
    assert sealed.files[".env"].tier is Tier.HIGH


def test_revoking_takes_all_of_it_away(demo: Path) -> None:
    before = contents(demo)
    create_token(str(demo), {}, "ci", SCOPES)
    revoke_token(str(demo), {}, "ci")
    after = contents(demo)
    assert without_seal(after) == without_seal(before)
    sealed = seal.read_checksums(demo)
    assert sealed is not None
    assert "scopes/ci.json" not in sealed.files
    assert loaded(demo).warnings == ()


def test_a_dry_run_checks_everything_and_writes_nothing(demo: Path) -> None:
    before = contents(demo)
    created = create_token(str(demo), {}, "ci", SCOPES, dry_run=True)
    assert (created.value, created.written) == (None, False)
    assert created.files == ("scopes/ci.json", ".env", "tokens.yaml")
    with pytest.raises(UsageError):
        create_token(str(demo), {}, "ci", ("no-such:scope",), dry_run=True)
    with pytest.raises(ConfigError):
        create_token(str(demo), {}, "ci", (), value="dtl_of_the_admin", dry_run=True)
    create_token(str(demo), {}, "extra", SCOPES)
    between = contents(demo)
    revoke_token(str(demo), {}, "extra", dry_run=True)
    assert contents(demo) == between
    revoke_token(str(demo), {}, "extra")
    assert without_seal(contents(demo)) == without_seal(before)


def test_files_that_are_not_there_yet_are_made_and_included(tmp_path: Path) -> None:
    """A configuration without tokens gets `tokens.yaml` and `.env`."""
    (tmp_path / "config.yaml").write_text("# mine\nservice: {name: small}  # and this\n")
    seal_configuration(str(tmp_path), {})
    create_token(str(tmp_path), {}, "first", ("*",))
    assert [token.name for token in snapshot(tmp_path).tokens] == ["first"]
    text = (tmp_path / "config.yaml").read_text()
    assert text.startswith("# mine\nservice: {name: small}  # and this\n")
    assert loaded(tmp_path).warnings == ()


def test_the_first_token_of_an_api_that_has_none(tmp_path: Path) -> None:
    """The API cannot be enabled without a token, and the error names this command."""
    (tmp_path / "config.yaml").write_text("tokens: []\n")
    seal_configuration(str(tmp_path), {})
    seal.write_sealed(tmp_path, tmp_path / "config.yaml", b"api: {enabled: true}\ntokens: []\n")
    with pytest.raises(ConfigError):
        loaded(tmp_path)
    create_token(str(tmp_path), {}, "first", ("*",))
    assert [token.name for token in snapshot(tmp_path).tokens] == ["first"]


@pytest.mark.parametrize("change", ["tokens.yaml", ".env"])
def test_a_file_that_is_not_what_was_sealed_is_not_touched(demo: Path, change: str) -> None:
    """The file is verified first: another change to it is not sealed along with the token."""
    with (demo / change).open("a") as file:
        file.write("# slipped in\n")
    before = without_seal(contents(demo))
    with pytest.raises(IntegrityError):
        create_token(str(demo), {}, "ci", ())
    assert (demo / change).read_bytes() == before[change]
    assert b"ci" not in (demo / "tokens.yaml").read_bytes()


def test_only_what_was_changed_is_sealed_anew(demo: Path) -> None:
    """Seals of other files stay as they are, also those that do not match."""
    (demo / "pipelines.yaml").write_text("# slipped in\npipelines: []\n")
    create_token(str(demo), {}, "ci", SCOPES)
    assert [problem.message.partition(":")[0] for problem in loaded(demo).warnings] == [
        "pipelines.yaml has changed since it was sealed"
    ]


def test_a_needed_token_is_not_revoked(demo: Path) -> None:
    with pytest.raises(ConfigError, match="nothing was written"):
        revoke_token(str(demo), {}, "admin")  # the API would have no token
    create_token(str(demo), {}, "hooks", ())
    config = demo / "config.yaml"
    config.write_text(config.read_text() + "state_webhooks: {secret_ref: hooks}\n")
    seal_configuration(str(demo), {})
    with pytest.raises(ConfigError, match="nothing was written"):
        revoke_token(str(demo), {}, "hooks")
    assert "hooks" in snapshot(demo).secrets


def test_mistakes_are_reported_and_change_nothing(demo: Path) -> None:
    create_token(str(demo), {}, "ci", SCOPES)
    before = contents(demo)
    mistakes: list[tuple[type[DuctileError], Callable[[], object]]] = [
        (ConflictError, lambda: create_token(str(demo), {}, "ci", SCOPES)),
        (ConflictError, lambda: create_token(str(demo), {"DUCTILE_X_TOKEN": "v"}, "x", SCOPES)),
        (UsageError, lambda: create_token(str(demo), {}, "../evil", SCOPES)),
        (UsageError, lambda: create_token(str(demo), {}, "x", (), value=" \n ")),
        (UsageError, lambda: create_token(str(demo), {}, "x", (), value="a\nB=c")),
        (UsageError, lambda: create_token(str(demo), {}, "x", ("jobs:maybe",))),
        (ConfigError, lambda: create_token(str(demo), {}, "x", (), value="dtl_of_the_admin")),
        (NotFoundError, lambda: revoke_token(str(demo), {}, "cj")),
    ]
    for kind, mistake in mistakes:
        with pytest.raises(kind) as excinfo:
            mistake()
        assert "dtl_of_the_admin" not in repr(excinfo.value.__dict__)
    assert contents(demo) == before


@pytest.mark.parametrize(
    ("scope", "hint"),
    [
        ("plugn:rw", "did you mean plugin:rw?"),
        ("ecko:ro", "did you mean echo:ro?"),
        ("jobs:read", "did you mean jobs:ro?"),
        ("jobs:write", "did you mean jobs:rw?"),
        ("all", SCOPES_EXPECTED),
    ],
)
def test_a_misspelt_scope_is_refused_before_the_token_is_handed_out(
    demo: Path, scope: str, hint: str
) -> None:
    """Otherwise the missing right would be found only by a 403 response."""
    before = contents(demo)
    with pytest.raises(UsageError) as excinfo:
        create_token(str(demo), {}, "ci", ("jobs:ro", scope))
    assert excinfo.value.hint == hint
    assert contents(demo) == before


def test_a_token_under_api_auth_is_listed_and_not_revoked(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "api: {auth: {tokens: [{name: old, token: canary, scopes: [jobs:ro]}]}}\n"
    )
    (row,) = list_tokens(str(tmp_path), {})
    assert (row.name, row.kind, row.scopes, row.inline) == ("old", "token", ("jobs:ro",), True)
    assert "canary" not in repr(row)
    with pytest.raises(ConflictError, match=r"api\.auth\.tokens"):
        revoke_token(str(tmp_path), {}, "old")


def test_a_variable_that_others_use_is_left_to_them(demo: Path) -> None:
    create_token(str(demo), {}, "shared", ())
    config = demo / "config.yaml"
    config.write_text(config.read_text().replace("hello from", "${DUCTILE_SHARED_TOKEN} from"))
    seal_configuration(str(demo), {})
    revoke_token(str(demo), {}, "shared")
    assert "DUCTILE_SHARED_TOKEN" in (demo / ".env").read_text()


class PowerCutError(BaseException):
    """A simulated power cut, which no code catches."""


def cut_power_at(monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    """Let writes succeed until write number `write`, which raises PowerCutError."""
    written: list[Path] = []

    def write_or_fail(path: Path, data: bytes) -> None:
        if len(written) == write:
            raise PowerCutError
        written.append(path)
        write_atomically(path, data)

    monkeypatch.setattr(seal, "write_atomically", write_or_fail)


@pytest.mark.parametrize("bare", [False, True])
def test_whenever_the_power_fails_the_configuration_can_be_started(
    tmp_path: Path, demo: Path, monkeypatch: pytest.MonkeyPatch, *, bare: bool
) -> None:
    """The change is atomic, and the same command can be repeated afterwards."""
    if bare:
        demo = tmp_path / "bare"
        demo.mkdir()
        (demo / "config.yaml").write_text("tokens: []\n")
        seal_configuration(str(demo), {})
    survived = 0
    for write in range(30):
        directory = tmp_path / f"cut-{write}"
        shutil.copytree(demo, directory)
        with monkeypatch.context() as patched:
            cut_power_at(patched, write)
            try:
                create_token(str(directory), {}, "ci", SCOPES)
                survived += 1
            except PowerCutError:
                pass
        names = {token.name for token in snapshot(directory).tokens}
        if "ci" not in names and not bare:
            create_token(str(directory), {}, "ci", SCOPES)
            assert "ci" in {token.name for token in snapshot(directory).tokens}
        if survived:
            break
    assert survived
    assert write > 5


def test_whenever_the_power_fails_while_revoking_the_configuration_can_be_started(
    tmp_path: Path, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_token(str(demo), {}, "ci", SCOPES)
    survived = False
    for write in range(30):
        directory = tmp_path / f"cut-{write}"
        shutil.copytree(demo, directory)
        with monkeypatch.context() as patched:
            cut_power_at(patched, write)
            try:
                revoke_token(str(directory), {}, "ci")
                survived = True
            except PowerCutError:
                pass
        after_cut = snapshot(directory)
        if any(token.name == "ci" for token in after_cut.tokens):
            revoke_token(str(directory), {}, "ci")
        assert "ci" not in {token.name for token in snapshot(directory).tokens}
        if survived:
            break
    assert survived
