"""Secret values, and what counts as one.

Owns the type that keeps a secret out of every text by accident, the rule by which a key is taken to
hold one, and the masking of plain trees that are about to be shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from ductile.core.json_values import JsonValue

MASK = "********"

Value = TypeVar("Value")

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    [
        "password",
        "passwords",
        "passwd",
        "pwd",
        "passphrase",
        "passcode",
        "pin",
        "secret",
        "secrets",
        "token",
        "tokens",
        "apikey",
        "apikeys",
        "credential",
        "credentials",
        "creds",
        "bearer",
        "cookie",
        "cookies",
        "authorization",
        "jwt",
        "otp",
        "dsn",
    ]
)
#: A key is a secret when one of these goes before it: `api_key` is, `sort_key` is not.
_KEY_OWNERS = frozenset(
    ["api", "private", "access", "secret", "signing", "encryption", "master", "ssh", "auth", "account"]
)
#: What comes last says what the value is: `token_url` is an address, `secret_ref` a name.
_HARMLESS_ENDINGS = frozenset(
    [
        "url",
        "uri",
        "file",
        "path",
        "dir",
        "ref",
        "name",
        "header",
        "endpoint",
        "type",
        "ttl",
        "count",
        "limit",
        "length",
        "size",
        "id",
        "expiry",
        "expires",
        "at",
        "env",
        "var",
        "field",
        "ratio",
        "budget",
    ]
)
_HARMLESS_STARTS = frozenset(("max", "min", "num", "total"))
#: What is no more than a reference to a variable, or a template's, is no secret itself.
_AFTER_COLON = r"(?!\$\{\w+\}@)[^/?#@\s]*"
_USERINFO = re.compile(rf"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<user>[^/?#@:\s]*):{_AFTER_COLON}@")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+")
_PARAMETER = re.compile(r"(?P<name>(?<=[?&;#])[^=?&;#]+)=(?!\$?\{[\w.]+\}(?:[&;#]|$))[^&;#]+")


class Secret:
    """A value that must never be shown. Only `reveal` gives it, so that every use can be found."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def digest(self) -> bytes:
        return digest_of(self._value.encode())

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __reduce__(self) -> NoReturn:
        message = "a secret is not to be pickled or copied to another process"
        raise TypeError(message)


class Guarded(Generic[Value]):
    """A mapping that may hold secrets under any key, such as a plugin's configuration.

    It shows itself only in the form that was made for showing; `reveal` gives a copy of the real one.
    """

    __slots__ = ("_shown", "_values")

    def __init__(self, values: Mapping[str, Value], shown: Mapping[str, JsonValue]) -> None:
        self._values = dict(values)
        self._shown = dict(shown)

    @classmethod
    def empty(cls) -> Guarded[Value]:
        return cls({}, {})

    def reveal(self) -> dict[str, Value]:
        return deepcopy(self._values)

    def shown(self) -> dict[str, JsonValue]:
        return deepcopy(self._shown)

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guarded) and other._values == self._values

    def __hash__(self) -> int:
        return hash((Guarded, *self._values))

    def __repr__(self) -> str:
        return f"Guarded({self._shown!r})"

    def __reduce__(self) -> NoReturn:
        message = "what may hold secrets is not to be pickled or copied to another process"
        raise TypeError(message)


def digest_of(secret: bytes) -> bytes:
    """What is kept of a secret that only has to be known again. Nothing slow: every request makes one."""
    return hashlib.sha256(secret).digest()


def looks_secret(key: str) -> bool:
    """Whether a value under this key is to be treated as a secret, judged by the key's words."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if not words or words[-1] in _HARMLESS_ENDINGS or words[0] in _HARMLESS_STARTS:
        return False
    if _SECRET_WORDS.intersection(words) or words in (["key"], ["keys"]):
        return True
    return words[-1] in ("key", "keys") and bool(_KEY_OWNERS.intersection(words[:-1]))


def mask_urls(text: str) -> str:
    """Hide the password of every URL in a text, and its parameters whose names look secret."""
    if "://" not in text:
        return text
    masked = _USERINFO.sub(rf"\g<scheme>\g<user>:{MASK}@", text)
    return _URL.sub(lambda url: _PARAMETER.sub(_mask_parameter, url[0]), masked)


def _mask_parameter(found: re.Match[str]) -> str:
    return f"{found['name']}={MASK}" if looks_secret(found["name"]) else found[0]


def redact(value: JsonValue) -> JsonValue:
    """The same tree with everything masked that lies under a key which looks secret."""
    match value:
        case dict():
            return {key: _redact_entry(key, inner) for key, inner in value.items()}
        case list():
            return [redact(item) for item in value]
        case str():
            return mask_urls(value)
        case _:
            return value


def _redact_entry(key: str, value: JsonValue) -> JsonValue:
    if looks_secret(key) and value is not None and not isinstance(value, bool):
        return MASK
    return redact(value)
