"""The rows of the table that are about who comes in and who is told: webhook, token."""

from __future__ import annotations

from ductile.cli.spec import DRY_RUN, Action, Argument, Example, Noun, Option

WEBHOOK = Noun(
    "webhook",
    "see and try webhooks that come in, follow those that go out",
    (
        Action(
            "list",
            "list the endpoints: their paths, what they start, how they are signed",
            "webhook:list_all",
        ),
        Action(
            "send",
            "send a signed request to an endpoint of this daemon, to try it",
            "webhook:send",
            arguments=(Argument("NAME", "name or path of the endpoint"),),
            options=(
                Option(("--payload",), "the body: JSON, @FILE, or - for standard input (default {})", "JSON"),
                Option(("--delivery",), "the delivery's id; the same one again is a redelivery", "ID"),
                DRY_RUN,
            ),
            about="Signs the body with the endpoint's secret as its sender would, and posts it to "
            "webhooks.listen. Exit status 0 if it was accepted.",
            examples=(
                Example(
                    'ductile webhook send github --payload \'{"action": "opened"}\'', "as its sender would"
                ),
                Example(
                    "ductile webhook send github --payload @push.json --delivery try-1",
                    "a delivery that was recorded; sent again, it runs nothing twice",
                ),
            ),
        ),
        Action(
            "deliveries",
            "list the state webhooks that were sent or wait to be, newest first",
            "webhook:deliveries",
            options=(
                Option(("--job",), "only those of this job", "JOB"),
                Option(("--status",), "pending, delivered, dropped or gone", "STATUS"),
                Option(("-n", "--limit"), "at most this many, from 1 to 200 (default 50)", "NUMBER"),
                Option(("--cursor",), "continue after the previous page: its `next_cursor`", "TEXT"),
            ),
            about="Of a receiver's URL only the host is shown: the rest may hold a secret.",
            examples=(Example("ductile webhook deliveries --status dropped", "what never arrived, and why"),),
        ),
        Action(
            "resend",
            "send a state webhook again that was delivered, dropped or gone",
            "webhook:resend",
            arguments=(Argument("DELIVERY", "id of the delivery"),),
            options=(DRY_RUN,),
            about="With the same id and body, and with fresh attempts.",
        ),
    ),
)

TOKEN = Noun(
    "token",
    "create, list and revoke API tokens and shared secrets",
    (
        Action(
            "create",
            "create a token, and show its value only once",
            "token:create",
            arguments=(Argument("NAME", "its name in logs and in `secret_ref`"),),
            options=(
                Option(
                    ("--scopes",),
                    "what its holder may do, such as jobs:ro,plugin:rw; without scopes it is a secret for "
                    "signatures and opens nothing",
                    "LIST",
                ),
                Option(("--stdin",), "read the value from standard input instead of generating one"),
                DRY_RUN,
            ),
            about="The value goes to the env file, a reference to it and the scopes to tokens.yaml and "
            "scopes/NAME.json, and the seal of these files is renewed; they have to be as they were sealed. "
            "The daemon accepts it from the next `ductile reload`.",
            examples=(
                Example(
                    "ductile token create ci --scopes jobs:ro,plugin:rw",
                    "for a program that runs plugins and looks at jobs",
                ),
                Example(
                    "ductile token create github-secret --stdin",
                    "the secret that another service signs its webhooks with",
                ),
            ),
        ),
        Action("list", "list tokens and secrets, without their values", "token:list_all"),
        Action(
            "revoke",
            "revoke a token: remove its entry, its value and its scopes",
            "token:revoke",
            arguments=(Argument("NAME", "name of the token"),),
            options=(DRY_RUN,),
            about="Refused while a webhook needs it, or if no token could use the API any more. "
            "A running daemon accepts it until `ductile reload`.",
        ),
    ),
)
