"""RS256 without a package: the same signatures as OpenSSL makes."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import rs256

from builders.rsa import KEY

#: `printf hello | openssl dgst -sha256 -sign KEY`
SIGNATURE = bytes.fromhex(
    "35a2fd75247365ef64f410bc05fda7d67cd3865704dfa7b48a983cfa7fc67ae208aaaf4533e51b670c31913255d54fc7"
    "8e9616f630d89c36f9f5bd5c6bb7c8decb35b2913aca281145e98a8044e70a74c1fc032a6633880c97818109d9dc31f3"
    "c7a05f99ddae6198cb1a5f1ad25b5519ac43cc0c5a0e0e71cd31d7a3c3ad6f44"
)


def test_a_signature_is_that_of_openssl() -> None:
    """PKCS#1 v1.5 has no randomness: there is one right signature."""
    assert rs256.sign(rs256.read_key(KEY), b"hello") == SIGNATURE


@pytest.mark.skipif(shutil.which("openssl") is None, reason="compared with the program openssl")
@pytest.mark.parametrize("bits", [1024, 2048])
@pytest.mark.parametrize("key_format", ["pkcs1", "pkcs8"])
def test_openssl_verifies_what_is_signed(bits: int, key_format: str, tmp_path: Path) -> None:
    """OpenSSL verifies signatures of fresh keys in both formats."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    openssl("genrsa", "-traditional", "-out", "pkcs1", str(bits))
    openssl("pkcs8", "-topk8", "-nocrypt", "-in", "pkcs1", "-out", "pkcs8")
    openssl("rsa", "-in", "pkcs1", "-pubout", "-out", "public")
    key = rs256.read_key((tmp_path / key_format).read_text())
    for message in (b"", b"a" * 10_000):
        (tmp_path / "message").write_bytes(message)
        (tmp_path / "signature").write_bytes(rs256.sign(key, message))
        openssl("dgst", "-sha256", "-verify", "public", "-signature", "signature", "message")


def test_a_token_has_three_parts() -> None:
    head, body, signature = rs256.encode_jwt(rs256.read_key(KEY), {"iss": "me"}, "k1").split(".")
    decoded = [json.loads(base64.urlsafe_b64decode(part + "==")) for part in (head, body)]
    assert decoded == [{"alg": "RS256", "typ": "JWT", "kid": "k1"}, {"iss": "me"}]
    assert "=" not in signature


@pytest.mark.parametrize(
    "pem",
    [
        "",
        "hello",
        KEY.replace("BEGIN PRIVATE", "BEGIN ENCRYPTED PRIVATE"),
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
        "\n".join(KEY.splitlines()[:4] + KEY.splitlines()[-1:]),
    ],
)
def test_what_is_no_key_is_refused(pem: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        rs256.read_key(pem)


def test_a_key_whose_parts_do_not_fit_signs_nothing() -> None:
    """A faulty signature by the Chinese remainder theorem would give the key away."""
    broken = rs256.read_key(KEY)._replace(exponent1=3)
    with pytest.raises(ValueError, match="do not fit together"):
        rs256.sign(broken, b"hello")


def test_a_key_is_not_shown() -> None:
    assert repr(rs256.read_key(KEY)) == "RsaKey(1024 bits)"
