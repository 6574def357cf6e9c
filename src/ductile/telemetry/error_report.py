"""An unexpected fault as it may be told: what it was and where, and nothing of what was in its hands."""

from __future__ import annotations

import traceback

from ductile.core.json import JsonObject

_MOST_FRAMES = 5


def describe_error(fault: BaseException) -> JsonObject:
    """Not its text: nobody has looked at what that may hold, which may be anybody's secret."""
    frames = traceback.extract_tb(fault.__traceback__)[-_MOST_FRAMES:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return {"fault": type(fault).__name__, "at": " < ".join(places[::-1])}
