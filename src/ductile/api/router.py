"""Which endpoint a path means. Segments are decoded one by one, so that a `/` in a name stays in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote

from ductile.api.endpoint import Endpoint, MatchedRoute
from ductile.errors import MethodNotAllowedError, NotFoundError
from ductile.struct import Value

_REMEMBERED_PATHS = 512
#: No longer ones are remembered: what strangers ask for must not fill memory.
_LONGEST_REMEMBERED = 256
_LONGEST_SHOWN = 300


class _PathPattern(Value, kw_only=False):
    """A path with its parameters; those endpoints that differ only in their method share one."""

    segments: tuple[str, ...]
    methods: dict[str, Endpoint]

    def add(self, endpoint: Endpoint) -> None:
        self.methods[endpoint.http.method] = endpoint
        # A stream has no length or end that could be told without it.
        if endpoint.http.method == "GET" and not endpoint.http.streams:
            self.methods["HEAD"] = endpoint

    def match(self, segments: list[str]) -> dict[str, str] | None:
        found: dict[str, str] = {}
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted[0:1] == "{":
                if not given:
                    return None
                found[wanted[1:-1]] = given
            elif wanted != given:
                return None
        return found


class Router:
    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._shapes: dict[tuple[str, int], list[_PathPattern]] = {}
        #: How many segments the path of each endpoint has that takes the rest, and its first segment.
        self._with_rest: set[tuple[str, int]] = set()
        for endpoint in endpoints:
            self._add(endpoint)
        self._remembered = lru_cache(maxsize=_REMEMBERED_PATHS)(self._look_up)

    def _add(self, endpoint: Endpoint) -> None:
        segments = tuple(endpoint.http.path[1:].split("/"))
        if endpoint.http.takes_rest:
            self._with_rest.add((segments[0], len(segments)))
        shapes = self._shapes.setdefault((segments[0], len(segments)), [])
        for shape in shapes:
            if shape.segments == segments:
                shape.add(endpoint)
                return
        shapes.append(shape := _PathPattern(segments, {}))
        shape.add(endpoint)
        # Words before parameters: `/plugin/x/openapi.json` is not the command `openapi.json`.
        shapes.sort(key=lambda shape: [segment.startswith("{") for segment in shape.segments])

    def find(self, method: str, raw_path: bytes) -> MatchedRoute:
        """What is asked for; raises what the caller is to be told."""
        if len(raw_path) > _LONGEST_REMEMBERED:
            return self._look_up(method, raw_path)
        return self._remembered(method, raw_path)  # most callers come back to the same few paths

    def _look_up(self, method: str, raw_path: bytes) -> MatchedRoute:
        segments = _segments(raw_path)
        allowed: set[str] = set()
        for shape, values in self._matches(segments):
            if (endpoint := shape.methods.get(method)) is not None:
                return MatchedRoute(endpoint, values, shown_path(raw_path))
            allowed |= shape.methods.keys()
        if allowed:
            allow = ", ".join(sorted(allowed))
            raise MethodNotAllowedError(
                f"{method} is not for this path", hint=f"It takes {allow}.", details={"allow": allow}
            )
        raise NotFoundError("there is nothing at this path", hint="GET / tells what there is.")

    def _matches(self, segments: list[str]) -> Iterator[tuple[_PathPattern, dict[str, str]]]:
        for shape in self._shapes.get((segments[0], len(segments)), ()):
            if (values := shape.match(segments)) is not None:
                yield shape, values
        for first, length in self._with_rest:
            if first == segments[0] and length < len(segments):
                joined = [*segments[: length - 1], "/".join(segments[length - 1 :])]
                for shape in self._shapes[first, length]:
                    values = shape.match(joined)
                    if values is not None and any(each.http.takes_rest for each in shape.methods.values()):
                        yield shape, values


def shown_path(raw_path: bytes) -> str:
    """Without the query, which may hold what nobody else is to read."""
    return raw_path[:_LONGEST_SHOWN].decode("latin-1")


def _segments(raw_path: bytes) -> list[str]:
    text = raw_path.decode("latin-1")
    path = text[1:].removesuffix("/") if len(text) > 1 else ""
    if "%" not in path:
        return path.split("/")
    return [unquote(segment, errors="replace") for segment in path.split("/")]
