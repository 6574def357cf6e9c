"""Signatures of webhooks: sign outgoing bodies, and verify incoming ones.

All are HMAC-SHA256, except for senders that cannot sign and have the secret in their address. They differ in
what is signed (the body alone, or an id and a timestamp before it) and in how the result is written.
Comparisons take constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from ductile.core.jobs.admission import MAX_KEY_LENGTH, normalise_key
from ductile.struct import Value

REPLAY_WINDOW = timedelta(minutes=5)
STANDARD_PREFIX = "whsec_"

_HEX = re.compile(r"[0-9a-fA-F]{64}")
#: A secret that decodes to fewer bytes is not the base64 of a key.
_MIN_KEY_BYTES = 16
_NO_TOKEN = "there is no `token` in the address"  # noqa: S105 - a message
_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,60}", re.ASCII)
#: The most header names that an explanation lists.
_MAX_NAMED = 3


class SignatureForm(StrEnum):
    """The form in which a sender signs."""

    BODY = "body"  # `sha256=<hex>` or bare hex, over the body
    STRIPE = "stripe"  # `t=<seconds>,v1=<hex>`, over `<seconds>.<body>`
    SLACK = "slack"  # `v0=<hex>`, over `v0:<seconds>:<body>`; the seconds in a header of their own
    STANDARD = "standard"  # `v1,<base64>`, over `<id>.<seconds>.<body>`; Standard Webhooks
    #: Not signed: the secret itself is in the address, as `?token=<secret>`.
    URL_TOKEN = "url_token"  # noqa: S105 - a name


class SignatureScheme(Value):
    """The place of a sender's signature, and the content that it covers. Header names are in lower case."""

    form: SignatureForm
    header: str
    #: The header, or without one the field of the body, that identifies a delivery and its repetitions.
    delivery_header: str | None = None
    delivery_field: str | None = None
    #: Whether a request without that id is identified by a hash of the content that is signed.
    identified_by_content: bool = False


SLACK_TIMESTAMP = "x-slack-request-timestamp"
STANDARD_ID, STANDARD_TIMESTAMP, STANDARD_SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

GITHUB = SignatureScheme(
    form=SignatureForm.BODY,
    header="x-hub-signature-256",
    delivery_header="x-github-delivery",
    identified_by_content=True,
)
STRIPE = SignatureScheme(
    form=SignatureForm.STRIPE, header="stripe-signature", delivery_field="id", identified_by_content=True
)
SLACK = SignatureScheme(
    form=SignatureForm.SLACK,
    header="x-slack-signature",
    delivery_field="event_id",
    identified_by_content=True,
)
STANDARD = SignatureScheme(
    form=SignatureForm.STANDARD, header=STANDARD_SIGNATURE, delivery_header=STANDARD_ID
)
#: For senders that cannot sign. Its header is a name that no request can have; the listener sets it.
URL_TOKEN = SignatureScheme(form=SignatureForm.URL_TOKEN, header="?token")


def sign_body(secret: str, body: bytes) -> str:
    """Return a signature as GitHub writes it: `sha256=<hex>`."""
    return f"sha256={_hmac(secret.encode(), body).hex()}"


def sign_standard(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Return a signature of Standard Webhooks: `v1,<base64>`."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return f"v1,{b64encode(_hmac(standard_key(secret), signed)).decode()}"


def standard_key(secret: str) -> bytes:
    """Return the key of a Standard Webhooks secret: `whsec_` and base64, or the bytes of any other text."""
    if secret.startswith(STANDARD_PREFIX):
        return _decode_base64(_padded(secret.removeprefix(STANDARD_PREFIX))) or secret.encode()
    return secret.encode()


def verify_signature(
    scheme: SignatureScheme, secret: str, headers: Mapping[str, str], body: bytes, now: datetime
) -> bool:
    """Return whether a request was signed with the secret, and recently if the timestamp is signed."""
    if not secret:
        return False  # Every sender knows an empty key.
    if scheme.form is SignatureForm.URL_TOKEN:
        return hmac.compare_digest(headers.get(scheme.header, "").encode(), secret.encode())
    timestamp, signed, signatures = _read_signature(scheme, headers, body)
    if timestamp is not None and not _is_recent(timestamp, now):
        return False
    keys = [secret.encode()]
    if scheme.form is SignatureForm.STANDARD:
        keys = [standard_key(secret)]
        decoded = _decode_base64(_padded(secret))
        if not secret.startswith(STANDARD_PREFIX) and len(decoded) >= _MIN_KEY_BYTES:
            keys.append(decoded)  # Some libraries decode a secret without the prefix, too.
    return any(hmac.compare_digest(_hmac(key, signed), signature) for key in keys for signature in signatures)


def _read_signature(
    scheme: SignatureScheme, headers: Mapping[str, str], body: bytes
) -> tuple[str | None, bytes, tuple[bytes, ...]]:
    """Return the timestamp as written (None if the scheme has none), the signed bytes, and the signatures."""
    header = headers.get(scheme.header, "")
    match scheme.form:
        case SignatureForm.BODY:
            return None, body, (_from_hex(header.removeprefix("sha256=")),)
        case SignatureForm.STRIPE:
            pairs = [part.strip().partition("=") for part in header.split(",")]
            seconds = next((value for name, _, value in pairs if name == "t"), "")
            signatures = tuple(_from_hex(value) for name, _, value in pairs if name == "v1")
            return seconds, f"{seconds}.".encode() + body, signatures
        case SignatureForm.SLACK:
            seconds = headers.get(SLACK_TIMESTAMP, "")
            return seconds, f"v0:{seconds}:".encode() + body, (_from_hex(header.removeprefix("v0=")),)
        case SignatureForm.STANDARD:
            message_id, seconds = headers.get(STANDARD_ID, ""), headers.get(STANDARD_TIMESTAMP, "")
            parts = [part.removeprefix("v1,") for part in header.split(" ") if part.startswith("v1,")]
            signatures = tuple(_decode_base64(part) for part in parts) if message_id else ()
            return seconds, f"{message_id}.{seconds}.".encode() + body, signatures
        case SignatureForm.URL_TOKEN:
            return None, body, ()


def explain_bad_signature(scheme: SignatureScheme, headers: Mapping[str, str], now: datetime) -> str:
    """Return why a signature is invalid, for the operator; the sender does not get it."""
    if scheme.form is SignatureForm.URL_TOKEN:
        return "the `token` in the address is not the secret" if headers.get(scheme.header) else _NO_TOKEN
    if scheme.header not in headers:
        # Headers that may carry the signature, by name only: their values may be secret.
        names = [name for name in headers if "signature" in name and _HEADER_NAME.fullmatch(name)]
        sent = f" (it sent {', '.join(names[:_MAX_NAMED])})" if names else ""
        return (
            f"there is no header {scheme.header}: no secret at the sender, or it signs in another way{sent}"
        )
    timestamp, _, _ = _read_signature(scheme, headers, b"")
    if timestamp is not None and not _is_recent(timestamp, now):
        minutes = int(REPLAY_WINDOW.total_seconds() // 60)
        return f"not signed within {minutes} minutes of now: an old one sent again, or a clock that is wrong"
    return "the signature does not fit: another secret at the sender, or the body was changed on its way"


def delivery_id(
    scheme: SignatureScheme, headers: Mapping[str, str], body: bytes, payload: Mapping[str, object]
) -> str | None:
    """Return the sender's id of this delivery, which is the same when it is repeated; None if there is none.

    For schemes that always have an id, a request without one is identified by a hash of its signed content,
    so that a recorded request cannot be repeated by removing the id.
    """
    if scheme.delivery_header is not None:
        sent_id = headers.get(scheme.delivery_header)
    else:
        value = None if scheme.delivery_field is None else payload.get(scheme.delivery_field)
        sent_id = value if isinstance(value, str) else None
    key = normalise_key(sent_id)
    if key is not None:
        return key if len(key) <= MAX_KEY_LENGTH else _hashed(key.encode(errors="replace"))
    if not scheme.identified_by_content:
        return None
    timestamp, _, _ = _read_signature(scheme, headers, body)
    return _hashed(f"{timestamp or ''}.".encode() + body)


def signed_headers(
    scheme: SignatureScheme, secret: str, *, message_id: str, body: bytes, now: datetime
) -> dict[str, str]:
    """Return the headers with which a sender of this scheme would sign a body now."""
    seconds = int(now.timestamp())
    id_header = {} if scheme.delivery_header is None else {scheme.delivery_header: message_id}
    match scheme.form:
        case SignatureForm.BODY:
            return id_header | {scheme.header: sign_body(secret, body)}
        case SignatureForm.STRIPE:
            signature = _hmac(secret.encode(), f"{seconds}.".encode() + body).hex()
            return id_header | {scheme.header: f"t={seconds},v1={signature}"}
        case SignatureForm.SLACK:
            signature = _hmac(secret.encode(), f"v0:{seconds}:".encode() + body).hex()
            return id_header | {SLACK_TIMESTAMP: str(seconds), scheme.header: f"v0={signature}"}
        case SignatureForm.STANDARD:
            signature = sign_standard(secret, message_id=message_id, timestamp=seconds, body=body)
            standard = {STANDARD_ID: message_id, STANDARD_TIMESTAMP: str(seconds)}
            return id_header | standard | {scheme.header: signature}
        case SignatureForm.URL_TOKEN:
            return id_header | {scheme.header: secret}


def _hashed(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _hmac(key: bytes, signed: bytes) -> bytes:
    # Not `hmac.digest`: it releases the GIL, which takes several times as long as the hash.
    return hmac.new(key, signed, hashlib.sha256).digest()


def _is_recent(seconds: str, now: datetime) -> bool:
    if not _SECONDS.fullmatch(seconds):
        return False
    return abs(now.timestamp() - int(seconds)) <= REPLAY_WINDOW.total_seconds()


def _from_hex(text: str) -> bytes:
    stripped = text.strip()
    return bytes.fromhex(stripped) if _HEX.fullmatch(stripped) else b""


def _padded(encoded: str) -> str:
    stripped = encoded.rstrip("=")
    return stripped + "=" * (-len(stripped) % 4)


def _decode_base64(text: str) -> bytes:
    """Decode base64. Returns no bytes if it is invalid."""
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return b""
