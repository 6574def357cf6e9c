"""Secret values, the rule by which a key is taken to hold one, and the masking of values that are shown."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from copy import deepcopy
from typing import Generic, NoReturn, TypeVar

from ductile.core.json import JsonValue

MASK = "********"

Item = TypeVar("Item")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
#: A key with one of these words is secret, wherever the word stands in it.
_SECRET_WORDS = _words(
    """
    pwd pin secret secrets token tokens credential credentials creds bearer cookie cookies authorization
    jwt otp dsn
    """
)
#: A key that ends with one of these words is secret: `smtp_pass` is, `pass_rate` is not.
_SECRET_ENDINGS = _words("pass auth pat")
#: Words that give a following `pass` another meaning.
_NON_PASSWORD_PREFIXES = _words("low high band first second last single two multi by")
#: A key is a secret after one of these words: `api_key` is, `sort_key` is not.
_SECRET_KEY_PREFIXES = _words(
    "api private access secret signing encryption master ssh auth account tls ssl hmac"
)
#: Endings of two words that are secret although the second word alone is harmless.
_SECRET_PAIRS = frozenset(
    (*(("webhook", word) for word in ("url", "urls", "uri")), ("secret", "id"), ("connection", "string"))
)
#: The same without a separator: `dbpassword`, `PGPASSWORD`, `clientsecret`, `accesskey`.
_UNSEPARATED_SECRET_NAMES = re.compile(
    r"""
      .*(?:passwords?|passwd|passphrase|passcode)
    | .*(?:secrets?|secretid|token|sessionid|connectionstring|webhookurl)
    | (?:access|api|auth|refresh|bearer|id)tokens
    | .*(?:api|private|access|secret|signing|encryption|master|ssh|auth|account|tls|ssl|hmac)keys?
    | (?:smtp|imap|pop|mail|db|pg|mysql|redis|ftp|sftp|ssh|ldap|http|proxy|user|admin|root)pass
    | (?:basic|http|proxy)auth
    """,
    re.VERBOSE,
)
#: Before `tokens`, these words mean a count, as language models report it.
_COUNTED_TOKENS = _words("input output prompt completion cached reasoning context new used")
#: The last word names the kind of value: `token_url` is an address, `secret_ref` a name.
_HARMLESS_ENDINGS = _words(
    """
    url uri file path dir ref name header endpoint type ttl count limit length size id expiry expires at
    env var field ratio budget
    """
)
_HARMLESS_STARTS = _words("max min num total")
#: URL schemes whose host and path are an address. Others, such as those of chat services, put tokens there:
#: `tgram://TOKEN/CHAT`.
_ADDRESS_SCHEMES = _words(
    """
    http https ws wss dav davs socks4 socks5 socks5h
    file ftp ftps sftp ssh git svn rsync smb nfs rtsp
    sqlite postgres postgresql mysql mariadb mssql clickhouse
    redis rediss mongodb memcached amqp amqps mqtt mqtts nats kafka
    ldap ldaps smtp smtps imap imaps unix tcp udp tls dns
    s3 gs gcs az abfs hdfs docker oci
    """
)
#: Schemes in which the name before the @ is often a token itself.
_SCHEMES_WITH_TOKEN_AS_USER = _words("http https")
_URL = re.compile(
    # The scheme is bounded: an unbounded one takes quadratic time on a long text of letters.
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]{0,31})://"
    r"(?:(?P<user>[^/?#@:\s\"'<>]*)(?::(?P<password>[^/?#\s]*))?@)?"
    r"(?P<location>[^?#\s\"'<>]*)(?P<query>[^\s\"'<>]*)"
)
_SEPARATORS = re.compile(r"([/:]+)")
#: A reference to a variable, or one of a template, is not a secret itself.
_REFERENCE = re.compile(r"\$?\{[\w.]+\}")
_PARAMETER = re.compile(r"(?P<name>(?<=[?&;#])[^=?&;#]+)=(?!\$?\{[\w.]+\}(?:[&;#]|$))[^&;#]+")


class Secret:
    """A value that must never be shown. Only `reveal` returns it, so that every use can be found."""

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
        message = "a secret must not be pickled or copied to another process"
        raise TypeError(message)


class SecretMap(Generic[Item]):
    """A mapping that may hold secrets under any key, such as a plugin's configuration.

    Its `repr` is the redacted form; `reveal` returns a copy of the real values.
    """

    __slots__ = ("_redacted", "_values")

    def __init__(self, values: Mapping[str, Item], redacted: Mapping[str, JsonValue]) -> None:
        self._values = dict(values)
        self._redacted = dict(redacted)

    @classmethod
    def empty(cls) -> SecretMap[Item]:
        return cls({}, {})

    def reveal(self) -> dict[str, Item]:
        return deepcopy(self._values)

    def redacted(self) -> dict[str, JsonValue]:
        return deepcopy(self._redacted)

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretMap) and other._values == self._values

    def __hash__(self) -> int:
        return hash((SecretMap, *self._values))

    def __repr__(self) -> str:
        return f"SecretMap({self._redacted!r})"

    def __reduce__(self) -> NoReturn:
        message = "a map that may hold secrets must not be pickled or copied to another process"
        raise TypeError(message)


def generate_token() -> str:
    """Return a new API token: 256 bits, with a prefix that identifies a leaked one."""
    return f"dtl_{secrets.token_urlsafe(32)}"


def digest_of(secret: bytes) -> bytes:
    """Return the digest by which a secret is recognised. A fast hash: every request computes one."""
    return hashlib.sha256(secret).digest()


def looks_secret(key: str) -> bool:
    """Return whether a value under this key is treated as a secret, decided by the words of the key."""
    words = [word.lower() for word in _WORD.findall(key)]
    if not words or words[0] in _HARMLESS_STARTS:
        return False
    *before, last = words
    preceding = before[-1] if before else ""
    if (preceding, last) in _SECRET_PAIRS:
        return True
    if last in _HARMLESS_ENDINGS or (last == "tokens" and preceding in _COUNTED_TOKENS):
        return False
    if last in _SECRET_ENDINGS:
        return not (last == "pass" and preceding in _NON_PASSWORD_PREFIXES)
    if last in ("key", "keys"):
        return not before or not _SECRET_KEY_PREFIXES.isdisjoint(before) or any(map(_is_secret_word, before))
    return any(map(_is_secret_word, words))


def _is_secret_word(word: str) -> bool:
    return word in _SECRET_WORDS or _UNSEPARATED_SECRET_NAMES.fullmatch(word) is not None


def mask_urls(text: str) -> str:
    """Mask the secrets in every URL of a text: credentials, parameters whose names look secret, and host and
    path where the scheme puts tokens there.
    """
    return _URL.sub(_mask_url, text) if "://" in text else text


def has_secret_url(text: str) -> bool:
    """Return whether a URL in the text contains a literal secret.

    Where a scheme puts tokens into host and path and one part is a variable, the others count as names.
    """
    return any(
        _mask_url(url) != url[0] and (_is_address(url) or not _REFERENCE.search(url["location"]))
        for url in _URL.finditer(text)
    )


def _mask_url(url: re.Match[str]) -> str:
    user, password, location = url["user"], url["password"], url["location"]
    if not _is_address(url):
        user = user and _mask_text(user)
        location = "".join(_mask_text(part) for part in _SEPARATORS.split(location))
    elif user and password is None and _main_scheme(url) in _SCHEMES_WITH_TOKEN_AS_USER:
        user = _mask_text(user)
    credentials = "" if user is None else user if password is None else f"{user}:{_mask_text(password)}"
    at = "" if user is None else "@"
    query = _PARAMETER.sub(
        lambda match: f"{match['name']}={MASK}" if looks_secret(match["name"]) else match[0], url["query"]
    )
    return f"{url['scheme']}://{credentials}{at}{location}{query}"


def _is_address(url: re.Match[str]) -> bool:
    return _main_scheme(url) in _ADDRESS_SCHEMES


def _main_scheme(url: re.Match[str]) -> str:
    """Return the scheme without its transport: `git+ssh`, `mongodb+srv`."""
    scheme = url["scheme"].lower()
    return next((part for part in scheme.split("+") if part in _ADDRESS_SCHEMES), scheme)


def _mask_text(text: str) -> str:
    harmless = not text or _SEPARATORS.fullmatch(text) or _REFERENCE.fullmatch(text)
    return text if harmless else MASK


def redact(value: JsonValue) -> JsonValue:
    """Return the tree with every value masked that is under a key that looks secret, or secret in a URL."""
    match value:
        case dict():
            return {
                key: MASK
                if looks_secret(key) and inner is not None and not isinstance(inner, bool)
                else redact(inner)
                for key, inner in value.items()
            }
        case list():
            return [redact(item) for item in value]
        case str():
            return mask_urls(value)
        case _:
            return value
