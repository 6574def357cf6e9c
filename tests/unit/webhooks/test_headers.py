"""The headers of a signed request that a plugin may see."""

from __future__ import annotations

import pytest

from ductile.core.webhooks.signatures import GITHUB
from ductile.operations.webhooks.incoming import safe_headers


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-auth",
        "x-auth-key",
        "x-api-key",
        "x-functions-key",
        "x-webhook-key",
        "ocp-apim-subscription-key",
        "x-session-id",
        "x-csrf-token",
        "x-gitlab-token",
        "x-shopify-hmac-sha256",
        "x-twilio-signature",
        "x-hub-signature",
        "x-hub-signature-256",
        "x-amzn-oidc-accesstoken",
        "x-amzn-oidc-data",
        "dpop",
        "x-key",
        "x-secret-header",
        "x-token-id",
        "x-password-name",
        "x-hmacsha256",
        "x-forwarded-client-cert",
        "x-arr-clientcert",
    ],
)
def test_no_credential_and_no_signature(name: str) -> None:
    """Headers that prove the sender or the content are left out."""
    assert safe_headers({name: "canary"}, GITHUB) == {}


@pytest.mark.parametrize(
    "name",
    [
        "x-event-key",
        "idempotency-key",
        "x-github-event",
        "x-github-hook-id",
        "x-gitlab-event-uuid",
        "x-shopify-topic",
        "x-amz-sns-message-id",
        "user-agent",
        "content-type",
        "x-request-id",
        "traceparent",
        "webhook-id",
    ],
)
def test_headers_about_the_event_stay(name: str) -> None:
    """All other headers are passed on with lower-case names."""
    assert safe_headers({name: "value"}, GITHUB) == {name: "value"}
