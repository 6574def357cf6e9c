"""A fake of Google's token endpoint and of the Calendar API v3: sync tokens, pages, service accounts."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from fakes.oauth_server import OAuthService, Refusal, Rotation
from fakes.service import Call, Reply, serve

JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
#: How far the time of an assertion may be off, in seconds.
SKEW = 300
LIFETIME = 3600


class FakeGoogleCalendar(OAuthService):
    """A local fake of Google Calendar."""

    authorize_path = "/o/oauth2/v2/auth"
    base_path = "/calendar/v3"

    def __init__(self, *, page_size: int = 250) -> None:
        super().__init__(rotation=Rotation.NONE, lifetime=3599)
        self.page_size = page_size
        self.entries: dict[str, dict[str, Any]] = {}
        #: Changes in their order: a sync token is a position in it.
        self.log: list[str] = []
        #: Sync tokens before this position are no longer known.
        self.oldest_token = 0
        #: Assertions of service accounts that were accepted: header and claims.
        self.assertions: list[tuple[dict[str, Any], dict[str, Any]]] = []
        #: Checks the signature of an assertion: signed text and signature.
        self.verify: Callable[[bytes, bytes], bool] = lambda _signed, _signature: True
        self._clock = datetime(2026, 1, 1, tzinfo=UTC)

    # -- what a test sets

    def put(self, entry_id: str, summary: str, start: datetime, **more: Any) -> dict[str, Any]:
        """Add an entry, or change it."""
        entry = {
            **self.entries.get(entry_id, {"kind": "calendar#event", "id": entry_id, "status": "confirmed"}),
            "summary": summary,
            "start": {"dateTime": start.isoformat()},
            "end": {"dateTime": (start + timedelta(hours=1)).isoformat()},
            "htmlLink": f"https://calendar.google.com/event?eid={entry_id}",
            **more,
        }
        return self._store(entry)

    def delete(self, entry_id: str) -> None:
        self._store({"kind": "calendar#event", "id": entry_id, "status": "cancelled"})

    def forget_tokens(self) -> None:
        """Answer 410 to every sync token that was given so far."""
        self.oldest_token = len(self.log) + 1
        self.log.append("")

    def _store(self, entry: dict[str, Any]) -> dict[str, Any]:
        self._clock += timedelta(seconds=1)
        entry["updated"] = self._clock.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        entry["etag"] = f'"{len(self.log)}"'
        self.entries[entry["id"]] = entry
        self.log.append(entry["id"])
        return entry

    # -- the API

    def respond(self, call: Call) -> Reply:
        if call.path == self.token_path and call.form.get("grant_type") == JWT_GRANT:
            return self._service_token(call.form.get("assertion", ""))
        if (reply := self.respond_oauth(call)) is not None:
            return reply
        if self.grant_of(call) is None:
            return failed(401, "authError", "Request had invalid authentication credentials.")
        prefix = f"{self.base_path}/calendars/primary/events"
        if not call.path.startswith(prefix):
            return failed(404, "notFound", "Not Found")
        entry_id = call.path.removeprefix(prefix).strip("/")
        if call.method == "POST":
            return self._insert(call.json)
        if entry_id:
            found = self.entries.get(entry_id)
            return failed(404, "notFound", "Not Found") if found is None else Reply(found)
        return self._list(call.query)

    def _insert(self, body: dict[str, Any]) -> Reply:
        if body["id"] in self.entries:
            return failed(409, "duplicate", "The requested identifier already exists.")
        entry = {"kind": "calendar#event", "status": "confirmed", **body}
        entry["htmlLink"] = f"https://calendar.google.com/event?eid={body['id']}"
        return Reply(self._store(entry))

    def _list(self, query: dict[str, str]) -> Reply:
        if "syncToken" in query:
            since = int(query["syncToken"].removeprefix("sync-"))
            if since < self.oldest_token:
                return failed(
                    410, "fullSyncRequired", "Sync token is no longer valid, a full sync is required."
                )
            ids = dict.fromkeys(each for each in self.log[since:] if each)
            rows = [self.entries[each] for each in ids]
        else:
            rows = [each for each in self.entries.values() if each["status"] != "cancelled"]
            rows = [each for each in rows if _within(each, query)]
        start = int(query.get("pageToken", 0))
        page: dict[str, Any] = {"kind": "calendar#events", "items": rows[start : start + self.page_size]}
        if start + self.page_size < len(rows):
            page["nextPageToken"] = str(start + self.page_size)
        else:
            page["nextSyncToken"] = f"sync-{len(self.log)}"
        return Reply(page)

    def _service_token(self, assertion: str) -> Reply:
        try:
            header, claims = self._read_assertion(assertion)
        except Refusal as refusal:
            return Reply({"error": refusal.code, "error_description": refusal.description}, refusal.status)
        self.assertions.append((header, claims))
        access, _ = self.new_grant(claims["scope"])
        return Reply({"access_token": access, "expires_in": self.lifetime, "token_type": "Bearer"})

    def _read_assertion(self, assertion: str) -> tuple[dict[str, Any], dict[str, Any]]:
        signed, _, signature = assertion.rpartition(".")
        head, _, body = signed.partition(".")
        header, claims = json.loads(_decoded(head)), json.loads(_decoded(body))
        if not self.verify(signed.encode(), _decoded(signature)):
            raise Refusal("invalid_grant", "Invalid JWT Signature.")
        if abs(claims["iat"] - self.now()) > SKEW or claims["exp"] - claims["iat"] > LIFETIME:
            words = (
                "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
            )
            raise Refusal("invalid_grant", words)
        return header, claims


def failed(status: int, reason: str, message: str) -> Reply:
    errors = [{"domain": "global", "reason": reason, "message": message}]
    return Reply({"error": {"code": status, "message": message, "errors": errors}}, status)


def _within(entry: dict[str, Any], query: dict[str, str]) -> bool:
    start, end = (datetime.fromisoformat(entry[key]["dateTime"]) for key in ("start", "end"))
    low, high = query.get("timeMin"), query.get("timeMax")
    after = low is None or end > datetime.fromisoformat(low)
    return after and (high is None or start < datetime.fromisoformat(high))


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def main() -> None:
    service = FakeGoogleCalendar()
    service.put("standup", "Standup", datetime.now(UTC) + timedelta(minutes=30))
    serve(service, 9102)


if __name__ == "__main__":
    main()
