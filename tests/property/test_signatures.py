"""Signatures of webhook bodies."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from builders.jobs import START
from ductile.core.jobs.admission import MAX_KEY_LENGTH
from ductile.core.webhooks.signatures import (
    GITHUB,
    REPLAY_WINDOW,
    SLACK,
    STANDARD,
    STRIPE,
    SignatureForm,
    SignatureScheme,
    delivery_id,
    explain_bad_signature,
    sign_body,
    sign_standard,
    signed_headers,
    standard_key,
    verify_signature,
)

PLAIN = SignatureScheme(form=SignatureForm.BODY, header="x-signature")
SECONDS = int(START.timestamp())
secrets = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
bodies = st.binary(max_size=200)


def hex_hmac(secret: str, signed: bytes) -> str:
    """Return the HMAC, computed without the code under test."""
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def sign_as_github(secret: str, body: bytes, at: int) -> dict[str, str]:
    del at
    return {"x-hub-signature-256": f"sha256={hex_hmac(secret, body)}"}


def sign_plainly(secret: str, body: bytes, at: int) -> dict[str, str]:
    del at
    return {"x-signature": hex_hmac(secret, body).upper()}


def sign_as_stripe(secret: str, body: bytes, at: int) -> dict[str, str]:
    signature = hex_hmac(secret, f"{at}.".encode() + body)
    return {"stripe-signature": f"t={at},v1={'0' * 64},v1={signature},v0=old"}


def sign_as_slack(secret: str, body: bytes, at: int) -> dict[str, str]:
    signature = hex_hmac(secret, f"v0:{at}:".encode() + body)
    return {"x-slack-request-timestamp": str(at), "x-slack-signature": f"v0={signature}"}


def sign_as_standard(secret: str, body: bytes, at: int) -> dict[str, str]:
    key = standard_key(secret)
    signature = base64.b64encode(hmac.new(key, f"m1.{at}.".encode() + body, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": "m1",
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1a,odd v1,{base64.b64encode(b'other').decode()} v1,{signature}",
    }


Signer = Callable[[str, bytes, int], dict[str, str]]
SENDERS: list[tuple[SignatureScheme, Signer]] = [
    (GITHUB, sign_as_github),
    (PLAIN, sign_plainly),
    (STRIPE, sign_as_stripe),
    (SLACK, sign_as_slack),
    (STANDARD, sign_as_standard),
]
TIMED = [pair for pair in SENDERS if pair[0].form is not SignatureForm.BODY]
senders = st.sampled_from(SENDERS)


@given(senders, secrets, bodies, st.integers(301, 10**6), st.sampled_from((1, -1)))
def test_why_a_request_is_not_genuine(
    sender: tuple[SignatureScheme, Signer], secret: str, body: bytes, offset: int, direction: int
) -> None:
    """Each cause has its own explanation, because each is corrected in a different place."""
    scheme, sign_headers = sender
    assert explain_bad_signature(scheme, {}, START).startswith(f"there is no header {scheme.header}:")
    current_headers = sign_headers(secret, body, SECONDS)
    assert explain_bad_signature(scheme, current_headers, START).startswith("the signature does not fit:")
    old_headers = sign_headers(secret, body, SECONDS + direction * offset)
    timed = scheme.form is not SignatureForm.BODY
    assert (
        explain_bad_signature(scheme, old_headers, START).startswith("not signed within 5 minutes") is timed
    )


@given(senders, secrets, bodies)
def test_a_body_signed_with_the_secret_is_genuine(
    sender: tuple[SignatureScheme, Signer], secret: str, body: bytes
) -> None:
    """The signature is HMAC-SHA256 over the raw body, as `sha256=<hex>` or bare hex."""
    scheme, sign = sender
    assert verify_signature(scheme, secret, sign(secret, body, SECONDS), body, START)


@given(st.binary(min_size=16, max_size=64), bodies)
def test_a_standard_secret_may_be_the_base64_of_its_key(key: bytes, body: bytes) -> None:
    """Libraries decode a secret without `whsec_` as base64; its text is accepted too."""
    secret = base64.b64encode(key).decode()
    stripped = body.decode("latin-1")  # the library takes text
    signature = Webhook(secret).sign("m1", START, stripped)
    headers = {"webhook-id": "m1", "webhook-timestamp": str(SECONDS), "webhook-signature": signature}
    for form in (secret, secret.rstrip("="), f"whsec_{secret}"):
        assert verify_signature(STANDARD, form, headers, stripped.encode(), START)
    assert verify_signature(STANDARD, secret, sign_as_standard(secret, body, SECONDS), body, START)


@pytest.mark.parametrize("secret", ["AAAA", "A" * 8, "QUJD", "="])
def test_a_short_secret_is_no_base64_of_a_key(secret: str) -> None:
    """The decoded key could be guessed; a key of zeros equals an empty one."""
    for key in (b"", b"\0" * 6, b"ABC"):
        signature = base64.b64encode(
            hmac.new(key, f"m1.{SECONDS}.".encode(), hashlib.sha256).digest()
        ).decode()
        headers = {
            "webhook-id": "m1",
            "webhook-timestamp": str(SECONDS),
            "webhook-signature": f"v1,{signature}",
        }
        assert not verify_signature(STANDARD, secret, headers, b"", START)


@given(senders, secrets, secrets, bodies, bodies)
def test_another_secret_or_body_is_not_genuine(
    sender: tuple[SignatureScheme, Signer], secret: str, other_secret: str, body: bytes, other_body: bytes
) -> None:
    scheme, sign = sender
    assume(standard_key(secret) != standard_key(other_secret) and secret != other_secret)
    headers = sign(secret, body, SECONDS)
    # HMAC pads its key with zero bytes, so keys that differ only in those are equal.
    assume(secret.rstrip("\0") != other_secret.rstrip("\0"))
    assert not verify_signature(scheme, other_secret, headers, body, START)
    assume(body != other_body)
    assert not verify_signature(scheme, secret, headers, other_body, START)


@given(
    senders,
    st.dictionaries(
        st.sampled_from(
            [
                *sign_as_stripe("s", b"", 1),
                *sign_as_slack("s", b"", 1),
                *sign_as_standard("s", b"", 1),
                "x-signature",
                "x-hub-signature-256",
            ]
        ),
        st.text(max_size=80),
    ),
    bodies,
)
def test_whatever_stands_in_the_headers_is_no_crash_and_not_genuine(
    sender: tuple[SignatureScheme, Signer], headers: dict[str, str], body: bytes
) -> None:
    assert not verify_signature(sender[0], "secret", headers, body, START)


@pytest.mark.parametrize(("scheme", "sign"), TIMED)
@given(seconds=st.integers(-100_000, 100_000))
def test_an_old_or_future_signature_is_a_replay(scheme: SignatureScheme, sign: Signer, seconds: int) -> None:
    """A signed instant has to be within five minutes."""
    headers = sign("secret", b"{}", SECONDS + seconds)
    genuine = verify_signature(scheme, "secret", headers, b"{}", START)
    assert genuine == (abs(seconds) <= REPLAY_WINDOW.total_seconds())


@pytest.mark.parametrize(("scheme", "sign"), SENDERS)
def test_an_empty_secret_opens_nothing(scheme: SignatureScheme, sign: Signer) -> None:
    assert not verify_signature(scheme, "", sign("", b"{}", SECONDS), b"{}", START)


def test_githubs_own_example() -> None:
    """The documentation of GitHub gives these values."""
    headers = {
        "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    }
    assert verify_signature(GITHUB, "It's a Secret to Everybody", headers, b"Hello, World!", START)


def test_slacks_own_example() -> None:
    """The documentation of Slack gives these values."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F"
        b"96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    then = datetime.fromtimestamp(1531420618, UTC) + timedelta(seconds=30)
    assert verify_signature(SLACK, "8f742231b10e8888abcd99yyyzzz85a5", headers, body, then)


@given(st.binary(min_size=1, max_size=64), st.text(st.characters(codec="ascii"), max_size=200))
def test_ours_is_accepted_by_the_reference_implementation(key: bytes, body: str) -> None:
    """The headers are those of Standard Webhooks."""
    now = int(datetime.now(UTC).timestamp())
    for secret, verifier in (
        (f"whsec_{base64.b64encode(key).decode()}", None),
        (f"plain-{key.hex()}", f"plain-{key.hex()}".encode()),
    ):
        signature = sign_standard(secret, message_id="m1", timestamp=now, body=body.encode())
        headers = {"webhook-id": "m1", "webhook-timestamp": str(now), "webhook-signature": signature}
        Webhook(verifier or secret).verify(body, headers, json_parse=False)


@given(st.binary(min_size=1, max_size=64))
def test_the_reference_implementation_is_accepted_by_us(key: bytes) -> None:
    secret = f"whsec_{base64.b64encode(key).decode()}"
    signature = Webhook(secret).sign("m1", START, "{}")
    headers = {"webhook-id": "m1", "webhook-timestamp": str(SECONDS), "webhook-signature": signature}
    assert verify_signature(STANDARD, secret, headers, b"{}", START)


def test_our_signature_has_the_form_of_github() -> None:
    """The header is `X-Foreman-Signature: sha256=<hmac of body>`."""
    assert sign_body("s", b"body") == f"sha256={hex_hmac('s', b'body')}"


def test_a_delivery_is_named_by_its_header_or_its_body() -> None:
    """A redelivery has the same id."""
    assert delivery_id(GITHUB, {"x-github-delivery": "d1"}, b"", {"id": "x"}) == "d1"
    assert delivery_id(STRIPE, {}, b"", {"id": "evt_1"}) == "evt_1"
    assert delivery_id(SLACK, {}, b"", {"event_id": "Ev1"}) == "Ev1"
    assert delivery_id(STANDARD, {"webhook-id": "m1"}, b"", {}) == "m1"
    assert delivery_id(PLAIN, {"x-delivery": "d"}, b"", {"id": "x"}) is None


@given(st.sampled_from([GITHUB, STRIPE, SLACK]), secrets, bodies, bodies)
def test_a_delivery_without_a_name_is_known_by_what_was_signed(
    scheme: SignatureScheme, secret: str, body: bytes, other_body: bytes
) -> None:
    """A request without its id is the same delivery; another body or instant is another one."""

    def name_of(body: bytes, now: datetime, **extra_headers: str) -> str | None:
        headers = signed_headers(scheme, secret, message_id="", body=body, now=now) | extra_headers
        return delivery_id(scheme, headers, body, {"id": 7})

    assert name_of(body, START) == name_of(body, START, unsigned="x") is not None
    assert (name_of(body, START) == name_of(other_body, START)) == (body == other_body)
    if scheme is not GITHUB:
        assert name_of(body, START) != name_of(body, START + timedelta(seconds=1))


def test_the_length_of_a_delivery_id_is_bounded() -> None:
    """The id is stored with the job and is part of every listed job."""
    longest, longer = "d" * MAX_KEY_LENGTH, "d" * (MAX_KEY_LENGTH + 1)
    assert delivery_id(GITHUB, {"x-github-delivery": longest}, b"", {}) == longest
    hashed = delivery_id(GITHUB, {"x-github-delivery": longer}, b"", {})
    assert hashed is not None
    assert len(hashed) < 100
    assert hashed == delivery_id(GITHUB, {"x-github-delivery": longer}, b"other", {})
    assert hashed != delivery_id(GITHUB, {"x-github-delivery": longer + "d"}, b"", {})


@given(st.sampled_from([GITHUB, PLAIN, STRIPE, SLACK, STANDARD]), secrets, bodies)
def test_we_sign_as_each_sender_does(scheme: SignatureScheme, secret: str, body: bytes) -> None:
    """`webhook send` uses the same signature as the real sender."""
    headers = signed_headers(scheme, secret, message_id="m1", body=body, now=START)
    assert verify_signature(scheme, secret, headers, body, START)
    if scheme.delivery_header is not None:
        assert delivery_id(scheme, headers, body, {}) == "m1"
