"""The log: one line on stdout for each signal, as JSON, as text, or as short text on a terminal."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import datetime, tzinfo
from enum import Enum, auto
from typing import BinaryIO

import msgspec

from ductile.core.json import JsonValue
from ductile.core.terminal_text import escape_in_json
from ductile.core.timestamps import format_timestamp
from ductile.telemetry.signals import Signal, SignalEvent, SignalLevel

MAX_WAITING_LINES = 10_000
CLOSE_SECONDS = 2.0
#: How long the first line waits for others, to be written together.
_BATCH_SECONDS = 0.005

_encoder = msgspec.json.Encoder()
_LEVEL_WORDS = {level: level.name.lower() for level in SignalLevel}
#: Component and name of each signal, as plain strings: the encoder is slower for enums.
_NAMES = {signal: (signal.partition(".")[0], signal.value) for signal in Signal}


#: The usual values of fields. A line for a terminal leaves out fields with these values.
_USUAL_VALUES = {"reason": "completed", "attempt": 1, "execution": 1}
#: Digits of a job's id on a terminal, as in the tables of the command line.
_SHORT_ID = 8
_HASH_LENGTH = len("blake3:") + 12
_COLOURS = {SignalLevel.WARN: "\x1b[33m", SignalLevel.ERROR: "\x1b[31m"}
_RESET = "\x1b[0m"


class LogFormat(Enum):
    JSON = auto()
    TEXT = auto()
    #: For people: short lines with local times.
    TERMINAL = auto()


class LogWriter:
    """Writes signals at or above a level. Level and format can be changed at any time.

    A thread formats and writes the lines: the reader of stdout may stop reading, and no job must wait for
    it. With too many lines waiting, further ones are dropped and counted; the ledger has every event.
    """

    def __init__(
        self,
        stream: BinaryIO,
        clock: Callable[[], datetime],
        *,
        level: str = "info",
        log_format: LogFormat = LogFormat.JSON,
        zone: tzinfo | None = None,
        colour: bool = False,
    ) -> None:
        """`zone` and `colour` are those of a terminal; without a zone its times are in that of the system."""
        self._stream = stream
        self._clock = clock
        self._waiting: queue.SimpleQueue[tuple[SignalEvent, datetime] | None] = queue.SimpleQueue()
        self._dropped = 0
        self._zone, self._colour = zone, colour
        self.configure(level=level, log_format=log_format)
        self._thread = threading.Thread(target=self._write, name="ductile-log", daemon=True)
        self._thread.start()

    def configure(self, *, level: str, log_format: LogFormat) -> None:
        self._level = SignalLevel[level.upper()]
        self._format = {
            LogFormat.JSON: _as_json,
            LogFormat.TEXT: _as_text,
            LogFormat.TERMINAL: self._for_terminal,
        }[log_format]

    def __call__(self, event: SignalEvent) -> None:
        if event.level < self._level:
            return
        if self._waiting.qsize() >= MAX_WAITING_LINES:
            self._dropped += 1
        else:
            self._waiting.put((event, self._clock()))

    def close(self) -> None:
        """Write the waiting lines; give up after two seconds if stdout is not read."""
        self._waiting.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _write(self) -> None:
        is_open = True
        while is_open:
            # Waking this thread and writing for each line would cost several times its formatting.
            first = self._waiting.get()
            if first is not None:
                time.sleep(_BATCH_SECONDS)
            batch = [first, *(self._waiting.get() for _ in range(self._waiting.qsize()))]
            is_open = None not in batch
            lines = [self._line(*entry) for entry in batch if entry is not None]
            dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(
                    b'{"level":"warn","component":"log","message":"%d lines were dropped"}\n' % dropped
                )
            try:
                self._stream.write(b"".join(lines))
                self._stream.flush()
            except (OSError, ValueError):
                return  # Stdout is closed; jobs continue without a log.

    def _line(self, event: SignalEvent, at: datetime) -> bytes:
        """Return the line of an event. If its data cannot be encoded, the line has no data."""
        try:
            return self._format(event, at)
        except Exception as error:  # noqa: BLE001 - one line that cannot be encoded must not end the log
            plain = SignalEvent(
                signal=event.signal,
                level=event.level,
                message=f"{event.message!a} (the rest of this line could not be written: {error!a})",
                plugin=None if event.plugin is None else ascii(event.plugin)[1:-1],
                job_id=None if event.job_id is None else ascii(event.job_id)[1:-1],
            )
            return self._format(plain, at)

    def _for_terminal(self, event: SignalEvent, at: datetime) -> bytes:
        """Return the local time, the signal's name, its job and its data, without data with the usual value.

        The reference describes each signal by its name, so the usual message of a signal is left out.
        """
        data = {
            name: value
            for name, value in event.data.items()
            if value is not None and (name not in _USUAL_VALUES or value != _USUAL_VALUES[name])
        }
        command, error = data.pop("command", None), data.pop("error", None)
        subject = [str(name) for name in (event.plugin, command) if name]
        subject += [event.job_id[-_SHORT_ID:]] if event.job_id else []
        for name, value in data.items():
            if isinstance(value, str) and value.startswith("blake3:"):
                data[name] = value[:_HASH_LENGTH]
        has_own_message = event.message != event.signal.message
        message = error or (event.message.strip() if has_own_message or not (subject or data) else None)
        parts = [
            f"{at.astimezone(self._zone):%H:%M:%S}",
            "" if event.level is SignalLevel.INFO else event.level.name,
            event.signal.value,
            " ".join(subject),
            " ".join(f"{name}={value}" for name, value in data.items()),
            "" if message is None else f"- {message}" if subject or data else str(message),
        ]
        line = _printable(" ".join(part for part in parts if part))
        if self._colour and (colour := _COLOURS.get(event.level)):
            line = f"{colour}{line}{_RESET}"
        return line.encode(errors="backslashreplace") + b"\n"


def _as_json(event: SignalEvent, at: datetime) -> bytes:
    component, name = _NAMES[event.signal]
    line: dict[str, JsonValue] = {
        "timestamp": format_timestamp(at),
        "level": _LEVEL_WORDS[event.level],
        "component": component,
        "signal": name,
        "message": event.message,
    }
    if event.plugin is not None:
        line["plugin"] = event.plugin
    if event.job_id is not None:
        line["job_id"] = event.job_id
    # Keys of the data do not replace the keys above.
    line.update(event.data if line.keys().isdisjoint(event.data) else {**event.data, **line})
    encoded = _encoder.encode(line) + b"\n"
    # Stdout may be a terminal, so control characters are escaped; the JSON means the same.
    return encoded if encoded.isascii() else escape_in_json(encoded.decode()).encode()


def _as_text(event: SignalEvent, at: datetime) -> bytes:
    subject = " ".join(part for part in (event.plugin, event.job_id) if part)
    data = " ".join(f"{name}={value}" for name, value in event.data.items())
    parts = [
        format_timestamp(at)[:23] + "Z",
        f"{event.level.name:<5}",
        f"{event.signal.value}:",
        event.message,
    ]
    parts += [f"[{subject}]"] if subject else []
    parts += [data] if data else []
    return _printable(" ".join(parts)).encode(errors="backslashreplace") + b"\n"


def _printable(line: str) -> str:
    """Escape control characters: a plugin's text must not forge lines or control a terminal."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
