"""A job that refreshes a grant and uses it. SIGKILL ends it before the n-th line of the library.

    oauth_worker.py LIBRARY SERVICE_URL STATE_FILE N

Prints nothing if it is killed. Otherwise it prints the state, or the error, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any


def main() -> None:
    library, url, state_file, last = sys.argv[1:]
    sys.path.append(library)
    import oauth2  # noqa: PLC0415 - the path was just added
    from ductile_sdk import Failure, Request  # noqa: PLC0415

    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if Path(frame.f_code.co_filename).name != "oauth2.py":
            return None
        if event == "line":
            lines += 1
            if lines == int(last):
                os.kill(os.getpid(), signal.SIGKILL)
        return count

    deadline = datetime.now(UTC) + timedelta(seconds=60)
    request = Request(
        {
            "instance": "things",
            "state": json.loads(Path(state_file).read_text()),
            "deadline_at": deadline.isoformat(),
        }
    )
    provider = oauth2.Provider("client-1", "client-secret-1", url + "/authorize", url + "/token")
    sys.settrace(count)
    try:
        account = oauth2.Account(request, provider)
        response = account.call("GET", url + "/things")
        outcome = {"status": response.status, "state": request.succeeded("ok").get("state_updates", {})}
    except Failure as failure:
        outcome = {"error": str(failure), "retry": failure.retry}
    finally:
        sys.settrace(None)
    print(json.dumps(outcome))  # noqa: T201 - the test reads it


main()
