"""The files of the page: read once, and sent with headers for caches and security."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ductile.http.responses import Header, RawResponse
from ductile.struct import Value

_DIRECTORY = Path(__file__).parent / "static"
_PAGE = "index.html"
#: The placeholder in the page for the path of its files. The path has their digest, so that every version of
#: them has its own addresses.
_BASE_PLACEHOLDER = b"{{assets}}"
STATIC = "/ui/static/"
#: The media types of texts. Those of the standard library have no character set.
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
#: Nothing is loaded from elsewhere, the page itself has no scripts and styles, and no text becomes markup.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_SECURITY_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", _CONTENT_SECURITY_POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
_IMMUTABLE = (b"cache-control", b"public, max-age=31536000, immutable")
_REVALIDATE = (b"cache-control", b"no-cache")
_NOT_MODIFIED = 304


class Asset(Value):
    """One file as it is sent."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: bytes
    cache_control: Header

    def response(self, headers: Mapping[bytes, bytes]) -> RawResponse:
        """Return the response to a request: compressed if it may be, without a body if the browser has it."""
        headers_of_file: tuple[Header, ...] = (
            *_SECURITY_HEADERS,
            self.cache_control,
            (b"etag", self.etag),
            (b"vary", b"accept-encoding"),
        )
        if headers.get(b"if-none-match") == self.etag:
            return self._response_with(b"", headers_of_file, status=_NOT_MODIFIED)
        if b"gzip" in headers.get(b"accept-encoding", b""):
            return self._response_with(self.compressed, (*headers_of_file, (b"content-encoding", b"gzip")))
        return self._response_with(self.content, headers_of_file)

    def _response_with(self, content: bytes, headers: tuple[Header, ...], status: int = 200) -> RawResponse:
        return RawResponse(
            content=content, media_type=self.media_type, status=status, headers=headers, is_cacheable=True
        )


class Assets(Value):
    page: Asset
    #: By path, such as `/ui/static/0a1b2c3d4e5f/main.js`.
    files: Mapping[str, Asset]


@cache
def load_assets() -> Assets:
    """Read all files. A first request takes a few milliseconds, further ones read memory."""
    paths = sorted(path for path in _DIRECTORY.rglob("*") if path.is_file())
    contents = {path.relative_to(_DIRECTORY).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256(b"".join(name.encode() + contents[name] for name in contents)).hexdigest()[:12]
    base = f"{STATIC}{digest}"
    page = contents.pop(_PAGE).replace(_BASE_PLACEHOLDER, base.encode())
    return Assets(
        page=_asset(_PAGE, page, digest, _REVALIDATE),
        files={
            f"{base}/{name}": _asset(name, content, digest, _IMMUTABLE) for name, content in contents.items()
        },
    )


def _asset(name: str, content: bytes, digest: str, cache_control: Header) -> Asset:
    media_type = _MEDIA_TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
    return Asset(
        content=content,
        compressed=gzip.compress(content, mtime=0),
        media_type=media_type or "application/octet-stream",
        etag=f'"{digest}"'.encode(),
        cache_control=cache_control,
    )
