"""A gateway with the faults that operators meet, for agents to repair."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.daemons import PATIENCE, SLOW, answering
from builders.http import Api, an_api, an_api_workspace
from builders.services import Reply, Service, ServiceRequest, a_service

#: Fails until there is a file `up/PLUGIN` beside the configuration, with a message on stderr.
NEEDS_SERVICE = """#!/bin/sh
cat >/dev/null
here="$(dirname "$0")"
if [ -e "$here/../../up/$(basename "$here")" ]; then echo '{"status": "ok", "result": "done"}'; exit; fi
echo "connect to accounts.example: connection refused" >&2
echo '{"status": "error", "error": "the service does not answer"}'
"""
#: Takes longer than its timeout in the configuration.
LONG = '#!/bin/sh\ncat >/dev/null\nsleep 0.6\necho \'{"status": "ok", "result": "long"}\'\n'
NEEDS_VARIABLE = """#!/bin/sh
cat >/dev/null
: "${REGION:?is not set}"
printf '{"status": "ok", "result": "%s"}\\n' "$REGION"
"""
EMITS = answering(
    {"status": "ok", "result": "sold", "events": [{"type": "order.created", "payload": {"number": 7}}]}
)
#: Each fault has plugins of its own, so that no task repairs the fault of another one.
PLUGINS = """\
  invoices: {retry: {max_attempts: 1}}
  meter:
    retry: {max_attempts: 1}
    circuit_breaker: {threshold: 1, reset_after: 1d}
    schedules: [{id: hourly, every: 1h}]
  backup: {uses: echo, schedules: [{id: nightly, cron: "0 3 * * *"}]}
  notify: {uses: echo, state_webhook_url: "http://127.0.0.1:9/gone"}
  audit: {uses: echo, state_webhook_url: "RECEIVER/audit", state_webhook_events: [done]}
  hangs: {}
  report: {timeout: 300ms, retry: {max_attempts: 1}}
  region: {retry: {max_attempts: 1}}
  shop: {}
  twice:
    uses: echo
    schedules:
      - {id: daily, cron: "0 4 * * *"}
      - {id: daily-2, cron: "0 4 * * *"}
  flood: {uses: hangs, parallelism: 1}
  export: {uses: hangs}
  second: {retry: {max_attempts: 1}}
  price: {schedules: [{id: daily, cron: "0 5 * * *"}]}
"""
MORE = """\
include: [more.yaml]
pipelines:
  - {name: import, steps: [{id: load, uses: echo}, {id: store, uses: hangs}]}
  - {name: publish, steps: [{id: first, uses: echo}, {id: second, uses: second}, {id: third, uses: echo}]}
routes:
  - {from: shop, event_type: order.craeted, to: echo}
state_webhooks: {allow: [127.0.0.1], max_attempts: 1}
webhooks:
  listen: 127.0.0.1:0
  endpoints:
    - {name: git, path: /hook/git, plugin: echo, secret: "shared-secret-of-git", preset: github}
"""
INCLUDED = "plugins:\n  extra: {uses: echo, timeout: 20s}\n"
SECRET = b"shared-secret-of-git"


@dataclass(slots=True, kw_only=True)
class Gateway:
    """A running daemon and its receiver of state webhooks. Faults are injected from outside."""

    api: Api
    receiver: Service
    #: One value: whether the receiver accepts state webhooks.
    accepts: list[bool]

    @property
    def directory(self) -> Path:
        return self.api.workspace.config.parent

    def run(self, plugin: str, command: str = "handle", **body: Any) -> dict[str, Any]:
        """Submit a job, and wait for its end."""
        return self.api.ended(self.submit(plugin, command, **body))

    def submit(self, plugin: str, command: str = "handle", **body: Any) -> str:
        job_id: str = self.api.post(f"/plugin/{plugin}/{command}", body)["job_id"]
        return job_id

    def start(self, pipeline: str) -> str:
        job_id: str = self.api.post(f"/pipeline/{pipeline}", {})["job_id"]
        return job_id

    def jobs(self, **where: str) -> list[dict[str, Any]]:
        query = "&".join(f"{name}={value}" for name, value in {"limit": "200", **where}.items())
        jobs: list[dict[str, Any]] = self.api.get(f"/jobs?{query}")["jobs"]
        return jobs

    def start_service_of(self, plugin: str) -> None:
        (self.directory / "up" / plugin).touch()

    def send_signed_webhook(self, body: bytes, header: str) -> int:
        """Send a webhook with its signature in this header, and return the status of the response."""
        address = self.api.daemon.wait_for("webhook.listening")["address"]
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        signature = f"sha256={hmac.new(SECRET, body, hashlib.sha256).hexdigest()}"
        connection.request("POST", "/hook/git", body, {header: signature})
        status = connection.getresponse().status
        connection.close()
        return status

    def delivered(self, path: str) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.receiver.requests if request.path == path]


@contextmanager
def a_faulty_gateway(directory: Path) -> Iterator[Gateway]:
    accepts = [False]

    def answer(_request: ServiceRequest) -> Reply:
        return Reply(status=200 if accepts[0] else 500)

    with a_service(answer) as receiver:
        workspace = an_api_workspace(directory, PLUGINS.replace("RECEIVER", receiver.url), more=MORE)
        (workspace.config.parent / "more.yaml").write_text(INCLUDED)
        (workspace.config.parent / "up").mkdir()
        scripts: dict[str, str] = {
            "invoices": NEEDS_SERVICE,
            "meter": NEEDS_SERVICE,
            "second": NEEDS_SERVICE,
            "hangs": SLOW,
            "report": LONG,
            "region": NEEDS_VARIABLE,
            "shop": EMITS,
            "price": answering({"status": "ok", "result": "12 EUR"}),
        }
        for name, script in scripts.items():
            workspace.plugin(name, script)
        with an_api(workspace) as api:
            yield Gateway(api=api, receiver=receiver, accepts=accepts)
