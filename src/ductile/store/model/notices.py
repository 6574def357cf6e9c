"""Failure notices as they are stored, and the health of their receiver."""

from __future__ import annotations

import msgspec

from ductile.core.jobs.failure_notices import ReportedFailure
from ductile.struct import Value

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[ReportedFailure, ...])


def encode_failures(failures: tuple[ReportedFailure, ...]) -> str:
    return _encoder.encode(failures).decode()


def decode_failures(text: str) -> tuple[ReportedFailure, ...]:
    return _decoder.decode(text)


class NoticeHealth(Value):
    """The health of the receiver of failure notices."""

    #: Notices that failed in a row, with the latest of them and its error.
    failed: int = 0
    failed_job_id: str | None = None
    error: str | None = None
    #: Failures that wait to be reported.
    waiting: int = 0
