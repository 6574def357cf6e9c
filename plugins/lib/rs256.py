"""RS256: RSA signatures with SHA-256 (PKCS#1 v1.5) for JSON Web Tokens, without a package.

For short-lived assertions of service accounts. The standard library has no RSA; signing is one modular power.
It does not take constant time: do not use it where others can measure many signatures.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, NamedTuple

#: DER of DigestInfo for SHA-256, before the digest (RFC 8017, section 9.2).
_SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")
_RSA_OID = bytes.fromhex("2a864886f70d010101")
_SEQUENCE, _INTEGER, _OCTETS, _OBJECT = 0x30, 0x02, 0x04, 0x06
_SHORT_LENGTH = 0x80
_MIN_BITS = 1024


class RsaKey(NamedTuple):
    modulus: int
    public_exponent: int
    prime1: int
    prime2: int
    exponent1: int
    exponent2: int
    coefficient: int

    def __repr__(self) -> str:
        return f"RsaKey({self.modulus.bit_length()} bits)"


def read_key(pem: str) -> RsaKey:
    """Return the key of a PEM text, PKCS#8 or PKCS#1. ValueError if it is none, or encrypted."""
    lines = [line.strip() for line in pem.strip().splitlines()]
    if len(lines) < 3 or lines[0] not in ("-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----"):  # noqa: PLR2004 - head, content, end
        raise ValueError("it is not an unencrypted private key in PEM format")
    content = base64.b64decode("".join(lines[1:-1]), validate=True)
    outer = _elements(_only(content, _SEQUENCE))
    if lines[0] == "-----BEGIN PRIVATE KEY-----":
        algorithm, key = outer[1], outer[2]
        if _elements(algorithm[1])[0] != (_OBJECT, _RSA_OID) or key[0] != _OCTETS:
            raise ValueError("it is not an RSA key")
        outer = _elements(_only(key[1], _SEQUENCE))
    if len(outer) < 9 or any(kind != _INTEGER for kind, _ in outer[:9]):  # noqa: PLR2004 - of RSAPrivateKey
        raise ValueError("it is not an RSA private key")
    _, modulus, public, _, *rest = (int.from_bytes(value, "big") for _, value in outer[:9])
    if modulus.bit_length() < _MIN_BITS:
        raise ValueError(f"the key has fewer than {_MIN_BITS} bits")
    return RsaKey(modulus, public, *rest)


def sign(key: RsaKey, message: bytes) -> bytes:
    """Return the signature. ValueError if the parts of the key do not fit together."""
    size = (key.modulus.bit_length() + 7) // 8
    tail = _SHA256 + hashlib.sha256(message).digest()
    padded = b"\x00\x01" + b"\xff" * (size - len(tail) - 3) + b"\x00" + tail
    number = int.from_bytes(padded, "big")
    one = pow(number, key.exponent1, key.prime1)
    two = pow(number, key.exponent2, key.prime2)
    signature = two + key.prime2 * ((one - two) * key.coefficient % key.prime1)
    if pow(signature, key.public_exponent, key.modulus) != number:
        # A faulty signature by the Chinese remainder theorem would give the key away.
        raise ValueError("the parts of the key do not fit together")
    return signature.to_bytes(size, "big")


def encode_jwt(key: RsaKey, claims: dict[str, Any], key_id: str | None = None) -> str:
    header = {"alg": "RS256", "typ": "JWT", **({"kid": key_id} if key_id else {})}
    signed = f"{_part(json.dumps(header).encode())}.{_part(json.dumps(claims).encode())}"
    return f"{signed}.{_part(sign(key, signed.encode()))}"


def _part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _only(der: bytes, kind: int) -> bytes:
    (element,) = _elements(der)
    if element[0] != kind:
        raise ValueError("it is not the DER of a private key")
    return element[1]


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return the elements of a DER sequence: tag and content of each."""
    found, position = [], 0
    while position < len(der):
        kind, position = der[position], position + 1
        length, position = der[position], position + 1
        if length >= _SHORT_LENGTH:
            count = length - _SHORT_LENGTH
            length, position = int.from_bytes(der[position : position + count], "big"), position + count
        if position + length > len(der):
            raise ValueError("its DER is cut off")
        found.append((kind, der[position : position + length]))
        position += length
    return found
