"""Logs as a subscriber: one line on stdout for each happening, JSON for machines or text for people."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import BinaryIO

import msgspec

from ductile.core.json import JsonValue
from ductile.core.terminal_text import escape_in_json
from ductile.core.timestamps import format_timestamp
from ductile.telemetry.signals import Signal, SignalEvent, SignalLevel

WAITING_LINES = 10_000
CLOSING_SECONDS = 2.0
#: How long a line waits for others, and how long when they come one after the other.
_MOMENT = 0.005
_BUSY_MOMENT = 0.05
_MANY_LINES = 10

_encoder = msgspec.json.Encoder()
_LEVEL_WORDS = {level: level.name.lower() for level in SignalLevel}
#: Component and name, of which the encoder finds plain text more quickly than an enum's.
_NAMES = {signal: (signal.partition(".")[0], signal.value) for signal in Signal}


class LogWriter:
    """Writes what is at or above a level. Level and format can be changed while it runs.

    A thread makes the lines and writes them: whoever reads our stdout may stop reading, and no job waits for
    that. What finds the waiting room full is dropped and counted; the ledger has what happened all the same.
    """

    def __init__(
        self, stream: BinaryIO, clock: Callable[[], datetime], *, level: str = "info", text: bool = False
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._waiting: queue.SimpleQueue[tuple[SignalEvent, datetime] | None] = queue.SimpleQueue()
        self._dropped = 0
        self.configure(level=level, text=text)
        self._thread = threading.Thread(target=self._write, name="ductile-log", daemon=True)
        self._thread.start()

    def configure(self, *, level: str, text: bool) -> None:
        self._level = SignalLevel[level.upper()]
        self._format = _as_text if text else _as_json

    def __call__(self, happening: SignalEvent) -> None:
        if happening.level < self._level:
            return
        if self._waiting.qsize() >= WAITING_LINES:
            self._dropped += 1
        else:
            self._waiting.put((happening, self._clock()))

    def close(self) -> None:
        """Write what waits, but do not wait for ever for somebody who does not read."""
        self._waiting.put(None)
        self._thread.join(CLOSING_SECONDS)

    def _write(self) -> None:
        going_on, moment = True, _MOMENT
        while going_on:
            # Whoever follows the first within a moment goes out with it: for each line to wake us and to
            # write costs several times what making it did.
            first = self._waiting.get()
            if first is not None:
                time.sleep(moment)
            told = [first, *(self._waiting.get() for _ in range(self._waiting.qsize()))]
            going_on = None not in told
            moment = _MOMENT if len(told) < _MANY_LINES else _BUSY_MOMENT
            lines = [self._line(*entry) for entry in told if entry is not None]
            dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(
                    b'{"level":"warn","component":"log","message":"%d lines were dropped"}\n' % dropped
                )
            try:
                self._stream.write(b"".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                return  # nobody reads our log any more; jobs matter more

    def _line(self, happening: SignalEvent, at: datetime) -> bytes:
        try:
            return self._format(happening, format_timestamp(at))
        except Exception as error:  # noqa: BLE001 - what cannot be told must not silence all the rest
            plain = SignalEvent(
                signal=happening.signal,
                level=happening.level,
                message=f"{happening.message!a} (the rest of this line could not be written: {error!a})",
                plugin=None if happening.plugin is None else ascii(happening.plugin)[1:-1],
                job_id=None if happening.job_id is None else ascii(happening.job_id)[1:-1],
            )
            return self._format(plain, format_timestamp(at))


def _as_json(happening: SignalEvent, at: str) -> bytes:
    component, name = _NAMES[happening.signal]
    line: dict[str, JsonValue] = {
        "timestamp": at,
        "level": _LEVEL_WORDS[happening.level],
        "component": component,
        "signal": name,
        "message": happening.message,
    }
    if happening.plugin is not None:
        line["plugin"] = happening.plugin
    if happening.job_id is not None:
        line["job_id"] = happening.job_id
    # Whatever the data call themselves, they do not replace what is ours.
    line.update(happening.data if line.keys().isdisjoint(happening.data) else {**happening.data, **line})
    encoded = _encoder.encode(line) + b"\n"
    # A daemon in the foreground writes to a terminal; the line means the same with escapes.
    return encoded if encoded.isascii() else escape_in_json(encoded.decode()).encode()


def _as_text(happening: SignalEvent, at: str) -> bytes:
    about = " ".join(part for part in (happening.plugin, happening.job_id) if part)
    more = " ".join(f"{name}={value}" for name, value in happening.data.items())
    parts = [at[:23] + "Z", f"{happening.level.name:<5}", f"{happening.signal.value}:", happening.message]
    parts += [f"[{about}]"] if about else []
    parts += [more] if more else []
    # A plugin's text must not be able to forge lines.
    line = " ".join(parts)
    if not line.isprintable():  # nor to steer a terminal
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return line.encode(errors="backslashreplace") + b"\n"
