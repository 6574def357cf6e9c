"""A fake of the Withings API: https://developer.withings.com/api-reference

Every answer has HTTP status 200; what went wrong is in `status` of the body, as with the real service.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import Any

from fakes.oauth_server import OAuthService, Refusal, Rotation
from fakes.service import Call, Reply, serve

#: Statuses of the body.
UNAUTHORIZED, INVALID_PARAMS, TOO_MANY, NOT_IMPLEMENTED = 401, 503, 601, 2554
DAY = 86400


class FakeWithings(OAuthService):
    """A local fake of the Withings API."""

    authorize_path = "/oauth2_user/authorize2"

    def __init__(self, *, page_size: int = 100) -> None:
        super().__init__(rotation=Rotation.ON_USE, lifetime=10800)
        #: Rows in one answer; more are fetched with `offset`.
        self.page_size = page_size
        self.userid = "12345678"
        self.measure_groups: list[dict[str, Any]] = []
        self.activities: list[dict[str, Any]] = []
        self.nights: list[dict[str, Any]] = []
        #: Subscriptions by callback URL and `appli`.
        self.subscriptions: dict[tuple[str, int], str] = {}
        #: Answers with status 601 that are still to be given.
        self.limited = 0
        self._nonces: set[str] = set()

    # -- what a test sets

    def weigh(self, kilograms: float, at: int | None = None, **more: float) -> dict[str, Any]:
        """Add a measure group as a scale sends it. `more` are `fat_ratio` and `pulse`."""
        at = int(self.now()) if at is None else at
        measures = [measure(1, kilograms, -3)]
        measures += [measure(6, more["fat_ratio"], -3)] if "fat_ratio" in more else []
        measures += [measure(11, more["pulse"], 0)] if "pulse" in more else []
        return self.add_group(measures, at)

    def add_group(self, measures: list[dict[str, int]], at: int) -> dict[str, Any]:
        group = {
            "grpid": 4_000_000_000 + len(self.measure_groups),
            "attrib": 0,
            "date": at,
            "created": at,
            "modified": at,
            "category": 1,
            "deviceid": "892359876fd8805ac45bab078c4828692f0276b1",
            "hash_deviceid": "892359876fd8805ac45bab078c4828692f0276b1",
            "measures": measures,
            "modelid": 13,
            "model": "Body+",
            "comment": None,
        }
        self.measure_groups.append(group)
        return group

    def walk(self, date: str, steps: int, modified: int) -> None:
        """Add the activity of a day, or replace it: the day of today grows."""
        self.activities = [each for each in self.activities if each["date"] != date]
        row: dict[str, Any] = {
            "date": date,
            "timezone": "Europe/Berlin",
            "deviceid": None,
            "is_tracker": True,
        }
        row |= {"steps": steps, "distance": round(steps * 0.7, 1), "calories": round(steps / 30, 1)}
        row |= {"hr_average": 71, "hr_min": 52, "hr_max": 133, "brand": 1, "modified": modified}
        self.activities.append(row)

    def sleep(self, date: str, end: int, hours: float) -> None:
        """Add a night that ended at `end`."""
        asleep = int(hours * 3600)
        self.nights.append(
            {
                "id": 2_000_000_000 + len(self.nights),
                "timezone": "Europe/Berlin",
                "model": 32,
                "model_id": 63,
                "startdate": end - asleep - 1800,
                "enddate": end,
                "date": date,
                "created": end,
                "modified": end,
                "data": {
                    "total_sleep_time": asleep,
                    "deepsleepduration": asleep // 4,
                    "lightsleepduration": asleep // 2,
                    "remsleepduration": asleep // 4,
                    "wakeupcount": 2,
                    "hr_average": 58,
                    "sleep_score": 82,
                },
            }
        )

    # -- the API

    def respond(self, call: Call) -> Reply:
        if call.path == self.authorize_path and call.method == "GET":
            return self.authorize(call)
        fields = {**call.query, **call.form}
        actions = {
            ("/v2/oauth2", "requesttoken"): self._request_token,
            ("/v2/signature", "getnonce"): self._nonce,
        }
        if (public := actions.get((call.path, fields.get("action", "")))) is not None:
            return public(fields)
        if self.grant_of(call) is None:
            words = "XRequestID: Not provided invalid_token: The access token provided is invalid"
            return failed(UNAUTHORIZED, words)
        if self.limited > 0:
            self.limited -= 1
            return Reply({"status": TOO_MANY, "body": {"wait_seconds": 0}, "error": "Too Many Requests"})
        services = {
            ("/measure", "getmeas"): self._getmeas,
            ("/v2/measure", "getactivity"): self._getactivity,
            ("/v2/sleep", "getsummary"): self._getsummary,
            ("/notify", "subscribe"): self._subscribe,
            ("/notify", "revoke"): self._revoke,
            ("/notify", "list"): self._list,
        }
        service = services.get((call.path, fields.get("action", "")))
        return failed(NOT_IMPLEMENTED, "Not implemented") if service is None else service(fields)

    def _request_token(self, fields: dict[str, str]) -> Reply:
        try:
            if "signature" in fields:
                self._check_signature(fields)
            else:
                self.check_client(fields)
            return succeeded({**self.token(fields), "userid": self.userid})
        except Refusal as refusal:
            if refusal.code == "invalid_client":
                return failed(INVALID_PARAMS, "Invalid Params: invalid client")
            name = "refresh_token" if fields.get("grant_type") == "refresh_token" else "code"
            return failed(INVALID_PARAMS, f"Invalid Params: invalid {name}")

    def _nonce(self, fields: dict[str, str]) -> Reply:
        expected = self._sign(f"getnonce,{fields.get('client_id')},{fields.get('timestamp')}")
        if not hmac.compare_digest(expected, fields.get("signature", "")):
            return failed(INVALID_PARAMS, "Invalid Params: invalid signature")
        nonce = secrets.token_hex(16)
        self._nonces.add(nonce)
        return succeeded({"nonce": nonce})

    def _check_signature(self, fields: dict[str, str]) -> None:
        nonce = fields.get("nonce", "")
        expected = self._sign(f"{fields['action']},{fields.get('client_id')},{nonce}")
        if nonce not in self._nonces or not hmac.compare_digest(expected, fields["signature"]):
            raise Refusal("invalid_client")
        self._nonces.discard(nonce)

    def _sign(self, text: str) -> str:
        return hmac.new(self.client_secret.encode(), text.encode(), hashlib.sha256).hexdigest()

    def _getmeas(self, fields: dict[str, str]) -> Reply:
        since, until = int(fields.get("startdate", 0)), int(fields.get("enddate", 1 << 40))
        groups = [
            each
            for each in self._updated(self.measure_groups, fields)
            if since <= each["date"] <= until and fields.get("category", "1") == str(each["category"])
        ]
        if types := fields.get("meastypes") or fields.get("meastype"):
            wanted = {int(each) for each in types.split(",")}
            groups = [
                {**each, "measures": kept}
                for each in groups
                if (kept := [one for one in each["measures"] if one["type"] in wanted])
            ]
        about = {"updatetime": int(self.now()), "timezone": "Europe/Berlin"}
        return succeeded({**about, **self._page("measuregrps", groups, fields)})

    def _getactivity(self, fields: dict[str, str]) -> Reply:
        rows = [
            {key: value for key, value in each.items() if key != "modified"}
            for each in self._updated(self.activities, fields)
        ]
        return succeeded(self._page("activities", rows, fields))

    def _getsummary(self, fields: dict[str, str]) -> Reply:
        return succeeded(self._page("series", self._updated(self.nights, fields), fields))

    def _updated(self, rows: list[dict[str, Any]], fields: dict[str, str]) -> list[dict[str, Any]]:
        since = int(fields.get("lastupdate", 0))
        return sorted((each for each in rows if each["modified"] > since), key=lambda row: row["modified"])

    def _page(self, key: str, rows: list[dict[str, Any]], fields: dict[str, str]) -> dict[str, Any]:
        start = int(fields.get("offset", 0))
        end = start + self.page_size
        page: dict[str, Any] = {key: rows[start:end]}
        if end < len(rows):
            # The real service writes `more` as 1 in `getmeas` and as true elsewhere.
            page |= {"more": 1 if key == "measuregrps" else True, "offset": end}
        return page

    def _subscribe(self, fields: dict[str, str]) -> Reply:
        self.subscriptions[fields["callbackurl"], int(fields["appli"])] = fields.get("comment", "")
        return succeeded({})

    def _revoke(self, fields: dict[str, str]) -> Reply:
        if self.subscriptions.pop((fields["callbackurl"], int(fields.get("appli", 0))), None) is None:
            return failed(294, "no such subscription")
        return succeeded({})

    def _list(self, fields: dict[str, str]) -> Reply:
        profiles = [
            {"appli": appli, "callbackurl": url, "expires": 2147483647, "comment": comment}
            for (url, appli), comment in self.subscriptions.items()
            if fields.get("appli") in (None, str(appli))
        ]
        return succeeded({"profiles": profiles})


def measure(kind: int, value: float, unit: int) -> dict[str, int]:
    """A measure on the wire: the value is an integer times ten to the power of `unit`."""
    return {"value": round(value * 10**-unit), "type": kind, "unit": unit, "algo": 0, "fm": 3}


def succeeded(body: dict[str, Any]) -> Reply:
    return Reply({"status": 0, "body": body})


def failed(status: int, words: str) -> Reply:
    return Reply({"status": status, "body": {}, "error": words})


def main() -> None:
    service = FakeWithings()
    now = int(time.time())
    for days in range(30, 0, -1):
        morning = now - days * DAY
        date = time.strftime("%Y-%m-%d", time.gmtime(morning))
        service.weigh(80 - days % 7 * 0.1, morning, fat_ratio=21.5, pulse=60 + days % 5)
        service.walk(date, 6000 + days * 37 % 5000, morning)
        service.sleep(date, morning, 7 + days % 3 * 0.5)
    serve(service, 9101)


if __name__ == "__main__":
    main()
