"""Sources of plugins: reads the argument of `plugin add` into one of four kinds of source. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

from ductile.errors import UsageError
from ductile.struct import Value, replace

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip")
_GIT = "git+"
_SCHEMES = ("https", "ssh", "file")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_GIT_EXAMPLE = "git+https://example.org/plugins.git@v1.2#path=plugins/weather"


class ShippedSource(Value):
    """A plugin that is part of Ductile."""

    name: str

    def __str__(self) -> str:
        return self.name


class DirectorySource(Value):
    path: str

    def __str__(self) -> str:
        return self.path


class ArchiveSource(Value):
    path: str

    def __str__(self) -> str:
        return self.path


class GitSource(Value):
    """A tag or commit of a repository, and the directory of plugins in it."""

    url: str
    revision: str
    path: str | None = None

    def __str__(self) -> str:
        return f"{_GIT}{self.url}@{self.revision}{f'#path={self.path}' if self.path else ''}"

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme


Source: TypeAlias = ShippedSource | DirectorySource | ArchiveSource | GitSource


def parse_source(text: str, *, is_directory: bool, shipped: tuple[str, ...]) -> Source:
    """Return the source that a text names. Raises `UsageError` if it names none.

    `is_directory`: the text is the path of a directory. A shipped plugin of that name comes first, so that
    `fetch` is the plugin and `./fetch` the directory.
    """
    if text.startswith(_GIT):
        return _parse_git(text)
    if text in shipped:
        return ShippedSource(name=text)
    if "://" in text:
        hint = f"download it first, or name a repository: {_GIT_EXAMPLE}"
        raise UsageError(f"plugins are not added from {text.partition('://')[0]} addresses", hint=hint)
    if is_directory:
        return DirectorySource(path=text)
    if text.endswith(ARCHIVE_SUFFIXES):
        return ArchiveSource(path=text)
    raise UsageError(
        f"{text} is neither a shipped plugin, a directory, an archive nor a repository",
        hint=f"shipped are {', '.join(shipped)}; archives end with {', '.join(ARCHIVE_SUFFIXES)}; "
        f"a repository is written {_GIT_EXAMPLE}",
    )


def with_revision(source: GitSource, revision: str) -> GitSource:
    """Return the source at another tag or commit. Raises `UsageError` if it is no name of one."""
    return replace(source, revision=_checked_revision(revision))


def _parse_git(text: str) -> GitSource:
    """Return the repository that a text names. Raises `UsageError`."""
    url, _, fragment = text.removeprefix(_GIT).partition("#")
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise UsageError(
            f"a repository is reached by {', '.join(_SCHEMES)}, not by {parts.scheme or 'this'}",
            hint=f"write {_GIT_EXAMPLE}",
        )
    # Some services take a token as the name of the user; for ssh it is only a name.
    if parts.password is not None or (parts.username is not None and parts.scheme != "ssh"):
        raise UsageError(
            "the address of a repository must not hold a password or token: it would be stored and shown",
            hint="let a git credential helper or an ssh key answer for it",
        )
    path, at, revision = parts.path.partition("@")
    if not at or not revision:
        raise UsageError(
            "the tag or commit is missing: what a branch points to changes",
            hint=f"write it after @, as in {_GIT_EXAMPLE}",
        )
    source = GitSource(
        url=parts._replace(path=path, query="", fragment="").geturl(), revision=_checked_revision(revision)
    )
    if not fragment:
        return source
    parameters = parse_qs(fragment, keep_blank_values=True)
    if set(parameters) != {"path"}:
        raise UsageError(f"#{fragment} is not understood", hint=f"write {_GIT_EXAMPLE}")
    directory = PurePosixPath(parameters["path"][-1])
    if directory.is_absolute() or ".." in directory.parts or directory == PurePosixPath():
        raise UsageError(f"{parameters['path'][-1]!r} is not a directory of the repository")
    return replace(source, path=str(directory))


def _checked_revision(revision: str) -> str:
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise UsageError(f"{revision!r} is not the name of a tag or commit")
    return revision
