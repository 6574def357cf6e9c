"""The log: a slow or missing reader of stdout does not delay a job."""

from __future__ import annotations

import json
import os
import queue
import threading
from datetime import UTC, datetime
from typing import BinaryIO
from zoneinfo import ZoneInfo

import pytest

from ductile.core.json import JsonObject
from ductile.telemetry import logs
from ductile.telemetry.logs import LogFormat, LogWriter
from ductile.telemetry.signals import Signal, SignalEvent, SignalLevel


def a_signal(number: int) -> SignalEvent:
    return SignalEvent(
        signal=Signal.JOB_SUCCEEDED, level=SignalLevel.INFO, message="done", data={"number": number}
    )


def read_all(descriptor: int) -> list[dict[str, object]]:
    with os.fdopen(descriptor, "rb") as file:
        return [json.loads(line) for line in file]


def a_log(stream: BinaryIO) -> LogWriter:
    return LogWriter(stream, lambda: datetime.now(UTC))


def test_lines_come_in_order_and_all_of_them() -> None:
    """Each signal is one line; closing writes the waiting lines."""
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "wb")
    log = a_log(stream)
    for number in range(100):
        log(a_signal(number))
    log.close()
    stream.close()
    assert [line["number"] for line in read_all(read_end)] == list(range(100))


def test_lines_that_nothing_reads_are_dropped_and_counted() -> None:
    """Lines beyond the limit are dropped; the log reports how many."""
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "wb")
    log = a_log(stream)
    emitted = logs.MAX_WAITING_LINES * 3
    for number in range(emitted):
        log(a_signal(number))
    lines: list[dict[str, object]] = []
    reader = threading.Thread(target=lambda: lines.extend(read_all(read_end)))
    reader.start()
    log.close()
    stream.close()
    reader.join()
    numbers = [line["number"] for line in lines if "number" in line]
    drop_messages = [str(line["message"]) for line in lines if line["component"] == "log"]
    assert numbers == sorted(numbers)  # type: ignore[type-var]  # they are integers
    assert len(numbers) + sum(int(words.split()[0]) for words in drop_messages) == emitted
    assert drop_messages


def test_lines_of_five_milliseconds_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread wakes and writes once for all lines of a pause."""
    waits: queue.SimpleQueue[float] = queue.SimpleQueue()
    over = threading.Semaphore(0)

    def wait(seconds: float) -> None:
        waits.put(seconds)
        over.acquire()

    monkeypatch.setattr("ductile.telemetry.logs.time.sleep", wait)
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "wb")
    log = a_log(stream)
    waited = []
    for lines in (12, 1, 1):
        for number in range(lines):
            log(a_signal(number))
        waited.append(waits.get(timeout=60))
        over.release()
        # The lines are written, so later lines are in another batch.
        assert os.read(read_end, 1 << 16).count(b"\n") == lines
    log.close()
    stream.close()
    os.close(read_end)
    assert waited == [0.005, 0.005, 0.005]


def test_keys_of_the_data_replace_none_of_ours() -> None:
    """A plugin must not forge the plugin or the time of a line."""
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "wb")
    log = a_log(stream)
    forged: JsonObject = {"signal": "job.dead", "timestamp": "never", "plugin": "other", "more": 1}
    log(
        SignalEvent(
            signal=Signal.JOB_SUCCEEDED, level=SignalLevel.INFO, message="done", plugin="echo", data=forged
        )
    )
    log.close()
    stream.close()
    (line,) = read_all(read_end)
    assert (line["signal"], line["plugin"], line["more"]) == ("job.succeeded", "echo", 1)
    assert line["timestamp"] != "never"


def test_no_text_can_forge_a_line_or_control_a_terminal() -> None:
    """In the text format a plugin's control characters are escaped."""
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "wb")
    log = a_log(stream)
    log.configure(level="info", log_format=LogFormat.TEXT)
    log(
        SignalEvent(
            signal=Signal.JOB_STDERR, level=SignalLevel.WARN, message="one\r\n\x1b[31mtwo\u2028three ä"
        )
    )
    log.close()
    stream.close()
    with os.fdopen(read_end, "rb") as file:
        (line,) = file.read().decode().splitlines()
    assert line.endswith(r"WARN  job.stderr: one\r\n\x1b[31mtwo\u2028three ä")


def test_a_line_that_cannot_be_encoded_does_not_end_the_log() -> None:
    """A file name may be invalid text."""
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "wb")
    log = a_log(stream)
    log(
        SignalEvent(
            signal=Signal.JOB_SUCCEEDED, level=SignalLevel.INFO, message="odd", data={"file": "caf\udce9"}
        )
    )
    log(
        SignalEvent(
            signal=Signal.JOB_SUCCEEDED,
            level=SignalLevel.INFO,
            message="odd \udce9",
            plugin="p\udce9",
            job_id="j1",
        )
    )
    log(a_signal(7))
    log.close()
    stream.close()
    first, second, third = read_all(read_end)
    assert str(first["message"]).startswith("'odd' (the rest")
    assert str(second["message"]).startswith(r"'odd \udce9' (the rest")
    assert (second["plugin"], second["job_id"]) == (r"p\udce9", "j1")
    assert third["number"] == 7


def test_a_terminal_gets_short_lines_with_local_times() -> None:
    """Usual values are left out; warnings and errors are coloured and keep their level as a word."""
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "wb")
    at = datetime(2026, 2, 8, 23, 30, tzinfo=UTC)
    vienna = ZoneInfo("Europe/Vienna")
    log = LogWriter(stream, lambda: at, log_format=LogFormat.TERMINAL, zone=vienna, colour=True)
    succeeded_data: JsonObject = {
        "command": "poll",
        "reason": "completed",
        "attempt": 1,
        "execution": 1,
        "error": None,
    }
    failed_data: JsonObject = {**succeeded_data, "reason": "bad_exit", "attempt": 4, "error": "exited with 3"}
    job_id = "01a1f047-c18a-7ab8-9119-585ff784ede6"
    for signal, message, data in (
        (Signal.SERVICE_READY, None, {}),
        (Signal.CONFIG_LOADED, None, {"fingerprint": "blake3:" + "0123456789abcdef" * 4}),
        (Signal.JOB_SUCCEEDED, None, succeeded_data),
        (Signal.JOB_DEAD, None, failed_data),
        (Signal.JOB_STDERR, "no\x1b[2Jspace\n", {}),
    ):
        is_of_job = signal.value.startswith("job.")
        log(
            SignalEvent(
                signal=signal,
                level=signal.level,
                message=message or signal.message,
                plugin="echo" if is_of_job else None,
                job_id=job_id if is_of_job else None,
                data=data,
            )
        )
    log.close()
    stream.close()
    with os.fdopen(read_end, "rb") as file:
        lines = file.read().decode().splitlines()
    assert lines == [
        f"00:30:00 service.ready {Signal.SERVICE_READY.message}",
        "00:30:00 config.loaded fingerprint=blake3:0123456789ab",
        "00:30:00 job.succeeded echo poll f784ede6",
        "\x1b[31m00:30:00 ERROR job.dead echo poll f784ede6 reason=bad_exit attempt=4 - exited with 3\x1b[0m",
        "\x1b[33m00:30:00 WARN job.stderr echo f784ede6 - no\\x1b[2Jspace\x1b[0m",
    ]
