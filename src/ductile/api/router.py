"""Finds the endpoint for a method and a path. Segments are decoded one by one: a name may contain a `/`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote

from ductile.api.endpoint import Endpoint, MatchedEndpoint
from ductile.errors import MethodNotAllowedError, NotFoundError
from ductile.struct import Value

_CACHED_PATHS = 512
#: Longer paths are not cached: requests without a token must not fill the memory.
_MAX_CACHED_LENGTH = 256
_MAX_LOGGED_LENGTH = 300


class _PathPattern(Value, kw_only=False):
    """A path with parameters. Endpoints that differ only in their method share one."""

    segments: tuple[str, ...]
    methods: dict[str, Endpoint]

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """Return the values of the parameters, or None if the segments do not match."""
        values: dict[str, str] = {}
        for pattern, segment in zip(self.segments, segments, strict=True):
            if pattern[0:1] == "{":
                if not segment:
                    return None
                values[pattern[1:-1]] = segment
            elif pattern != segment:
                return None
        return values


class Router:
    """Finds endpoints by method and path, and remembers the results for short paths."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        #: The patterns by their first segment and their number of segments.
        self._patterns: dict[tuple[str, int], list[_PathPattern]] = {}
        #: The keys of patterns whose last parameter is catch-all: it matches the rest of the path.
        self._catch_all_keys: set[tuple[str, int]] = set()
        for endpoint in endpoints:
            segments = tuple(endpoint.http.path[1:].split("/"))
            key = (segments[0], len(segments))
            if endpoint.http.is_catch_all:
                self._catch_all_keys.add(key)
            patterns = self._patterns.setdefault(key, [])
            pattern = next((candidate for candidate in patterns if candidate.segments == segments), None)
            if pattern is None:
                patterns.append(pattern := _PathPattern(segments, {}))
                # Fixed segments before parameters: `/plugin/x/openapi.json` is not a command `openapi.json`.
                patterns.sort(key=lambda candidate: [text.startswith("{") for text in candidate.segments])
            pattern.methods[endpoint.http.method] = endpoint
            if endpoint.http.method == "GET" and not endpoint.http.streams:
                pattern.methods["HEAD"] = endpoint
        self._find_cached = lru_cache(maxsize=_CACHED_PATHS)(self._find)

    def find(self, method: str, raw_path: bytes) -> MatchedEndpoint:
        """Return the endpoint of a request. Raises `NotFoundError` or `MethodNotAllowedError`."""
        if len(raw_path) > _MAX_CACHED_LENGTH:
            return self._find(method, raw_path)
        return self._find_cached(method, raw_path)

    def _find(self, method: str, raw_path: bytes) -> MatchedEndpoint:
        text = raw_path.decode("latin-1")
        segments = text[1:].removesuffix("/").split("/")
        if "%" in text:
            segments = [unquote(segment, errors="replace") for segment in segments]
        allowed: set[str] = set()
        for pattern, values in self._matches(segments):
            if (endpoint := pattern.methods.get(method)) is not None:
                return MatchedEndpoint(endpoint, values, path_for_log(raw_path))
            allowed |= pattern.methods.keys()
        if allowed:
            allow = ", ".join(sorted(allowed))
            raise MethodNotAllowedError(
                f"{method} is not for this path", hint=f"It takes {allow}.", details={"allow": allow}
            )
        raise NotFoundError("there is nothing at this path", hint="GET / tells what there is.")

    def _matches(self, segments: list[str]) -> Iterator[tuple[_PathPattern, dict[str, str]]]:
        """Yield the patterns that a path matches, with the values of their parameters."""
        for pattern in self._patterns.get((segments[0], len(segments)), ()):
            if (values := pattern.match(segments)) is not None:
                yield pattern, values
        for first, length in self._catch_all_keys:
            if first == segments[0] and length < len(segments):
                joined = [*segments[: length - 1], "/".join(segments[length - 1 :])]
                for pattern in self._patterns[first, length]:
                    values = pattern.match(joined)
                    if values is not None and any(
                        endpoint.http.is_catch_all for endpoint in pattern.methods.values()
                    ):
                        yield pattern, values


def path_for_log(raw_path: bytes) -> str:
    """Return the path as text for the log: without the query, which may hold secrets."""
    return raw_path[:_MAX_LOGGED_LENGTH].decode("latin-1")
