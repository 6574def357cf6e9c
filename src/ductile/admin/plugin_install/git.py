"""Reads the files of a tag or commit of a git repository, without checking it out.

`git archive` writes the files of a commit as they are stored: no hook and no submodule takes part. It would
run the filters that the attributes of a repository name and the settings of the user define, such as that of
LFS, so it runs without those settings.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ductile.admin.plugin_install.tree import SourceTree, read_tar
from ductile.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ductile.admin.plugin_install.source import GitSource

_MAX_TAGS = 8
_COMMIT_DIGITS = 40
#: Variables with which git would work in another repository. A git hook that runs Ductile has them.
_REPOSITORY_VARIABLES = frozenset(("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"))
#: Variables with which git reads no settings but those of the repository itself.
_NO_SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
}


class GitRepository:
    """A bare copy of one commit in a temporary directory."""

    def __init__(self, directory: str, source: GitSource, environ: Mapping[str, str]) -> None:
        self._directory, self._source = directory, source
        # No password can be typed here, and messages of git are expected in one language.
        inherited = {name: value for name, value in environ.items() if name not in _REPOSITORY_VARIABLES}
        self._environ = {**inherited, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        self._run("init", "--quiet", "--bare", "--template=", directory)

    def fetch_commit(self) -> str:
        """Fetch the commit of the source and return its id.

        Raises `NotFoundError` if the repository has no such tag or commit, `RefusedError` if it cannot be
        reached.
        """
        revision = self._source.revision
        is_commit = len(revision) == _COMMIT_DIGITS and set(revision) <= set("0123456789abcdef")
        # A tag can have the digits of a commit as its name, and point to another one.
        reference = revision if is_commit else f"refs/tags/{revision}"
        fetched = self._git("fetch", "--quiet", "--depth=1", "--no-tags", self._source.url, reference)
        if fetched.returncode == 0:
            return self._run("rev-parse", "--verify", "FETCH_HEAD^{commit}").decode().strip()
        # This raises RefusedError if the repository cannot be reached.
        listed = self._run("ls-remote", "--tags", "--refs", "--sort=-v:refname", self._source.url).decode()
        tags = [line.partition("refs/tags/")[2] for line in listed.splitlines()][:_MAX_TAGS]
        hint = f"its tags are {', '.join(tags)}"
        if not tags:
            hint = "it has no tags; name a commit by all its 40 digits"
        raise NotFoundError(f"{self._source.url} has no tag or commit {revision}", hint=hint)

    def read_tree(self, commit: str) -> SourceTree:
        """Return the files of a commit below the path of the source.

        Raises `NotFoundError` if the commit has no such directory.
        """
        paths = [self._source.path] if self._source.path else []
        with tempfile.TemporaryFile() as stream:
            arguments = ("archive", "--format=tar", commit, "--", *paths)
            archived = self._git(*arguments, output=stream.fileno(), variables=_NO_SETTINGS)
            if archived.returncode != 0:
                raise NotFoundError(f"{self._source} has no directory {self._source.path}")
            stream.seek(0)
            tree = read_tar(stream, str(self._source))
        return tree.below(self._source.path or ".")

    def _run(self, *arguments: str) -> bytes:
        """Return the output of a git command. Raises `RefusedError` if it fails."""
        result = self._git(*arguments)
        if result.returncode != 0:
            lines = result.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
            raise RefusedError(f"git cannot read {self._source.url}: {lines[-1].removeprefix('fatal: ')}")
        return result.stdout

    def _git(
        self,
        *arguments: str,
        output: int = subprocess.PIPE,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git, which may only use the scheme of the source. Raises `NotFoundError` if git is missing."""
        options = ["-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never"]
        options += ["-c", f"protocol.{self._source.scheme}.allow=always"]
        try:
            return subprocess.run(
                ["git", *options, *arguments],
                cwd=self._directory,
                env={**self._environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                check=False,
            )
        except FileNotFoundError:
            raise NotFoundError("the program git was not found", hint="install git") from None


def read_repository(source: GitSource, environ: Mapping[str, str]) -> tuple[SourceTree, str]:
    """Return the files of a source, and the commit that they are from."""
    with tempfile.TemporaryDirectory(prefix="ductile-git-") as directory:
        repository = GitRepository(str(Path(directory)), source, environ)
        commit = repository.fetch_commit()
        return repository.read_tree(commit), commit
