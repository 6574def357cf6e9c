#!/usr/bin/env python3
"""The shell plugin: runs programs that the operator has listed by name, and nothing else.

A payload chooses among them and, where that is allowed, adds arguments. It never becomes part of a line that
a shell reads: a script gets added arguments as "$1", "$2" and so on.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from typing import IO, Any, NamedTuple

sys.path.append(sys.path[0] + "/../lib")  # the sdk lies in lib/, beside the plugins
from ductile_sdk import Failure, Plugin, Request

#: Seconds kept back for answering before the process is ended.
RESERVE = 2.0
CHUNK = 65536
#: Characters of the stdout of a program that failed. Ductile keeps 64 KiB of stderr, which it shares.
KEPT_STDOUT = 30_000
#: sysexits.h EX_TEMPFAIL: the program itself says that trying again may help.
TEMPORARY = 75

plugin = Plugin()


class Program(NamedTuple):
    """An entry of `programs`, checked."""

    name: str
    argv: tuple[str, ...]
    takes_args: bool
    takes_payload: bool
    directory: str | None
    env: dict[str, str]
    timeout: float
    #: What `timeout` comes from, in words.
    limit: str
    max_output: int
    ok: tuple[int, ...]
    retry: bool


class Ended(NamedTuple):
    """`exit_code` is None if it was ended because its time was over."""

    exit_code: int | None
    stdout: str
    stderr: str
    cut: bool


@plugin.command
def poll(request: Request) -> Any:
    name = request.config.get("poll")
    if not isinstance(name, str):
        raise Failure("`poll` in the plugin's config has to name the program to run", retry=False)
    return run_program(request, find_program(request, name), ())


@plugin.command
def handle(request: Request) -> Any:
    name = request.payload.get("program")
    if not isinstance(name, str):
        raise Failure("`program` is missing in the payload", retry=False)
    program = find_program(request, name)
    return run_program(request, program, added_arguments(request.payload.get("args"), program))


@plugin.command
def health(request: Request) -> str:
    programs = [find_program(request, name) for name in listed(request)]
    missing = [program.name for program in programs if shutil.which(program.argv[0]) is None]
    if missing:
        raise Failure(f"cannot be executed: {', '.join(missing)}", retry=False)
    return f"healthy, {len(programs)} listed"


def listed(request: Request) -> dict[str, Any]:
    programs = request.config.get("programs")
    if not isinstance(programs, dict):
        raise Failure("`programs` in the plugin's config has to be a map of names", retry=False)
    return programs


def find_program(request: Request, name: str) -> Program:
    programs = listed(request)
    if name not in programs:
        raise Failure(f"{name!r} is not among `programs` in the plugin's config", retry=False)
    entry = programs[name]
    if isinstance(entry, list):
        entry = {"argv": entry}
    try:
        return read_program(name, entry, request)
    except (TypeError, ValueError, AttributeError) as error:
        raise Failure(
            f"programs.{name} in the plugin's config cannot be used: {error}", retry=False
        ) from None


def read_program(name: str, entry: dict[str, Any], request: Request) -> Program:
    # One limit: the program's own timeout, or the job's deadline if that comes first.
    left = request.seconds_left() - RESERVE
    own = entry.get("timeout", request.config.get("timeout"))
    timeout = left if own is None else float(own)
    limit = f"its timeout of {timeout:g} s"
    if own is None or left < timeout:
        timeout, limit = max(0.1, left), "the timeout of the job (`timeout` of this plugin)"
    return Program(
        name=name,
        argv=read_argv(entry),
        takes_args=entry.get("args") is True,
        takes_payload=entry.get("stdin") == "payload",
        directory=entry.get("directory"),
        env={str(key): str(value) for key, value in (entry.get("env") or {}).items()},
        timeout=timeout,
        limit=limit,
        max_output=int(entry.get("max_output", request.config.get("max_output", CHUNK))),
        ok=tuple(int(code) for code in entry.get("ok") or (0,)),
        retry=entry.get("retry") is True,
    )


def read_argv(entry: dict[str, Any]) -> tuple[str, ...]:
    argv, script = entry.get("argv"), entry.get("script")
    if isinstance(script, str) and argv is None:
        return ("/bin/sh", "-c", script, "sh")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise ValueError("it needs `argv`, a list of texts, or `script`, a text for the shell")
    return tuple(argv)


def added_arguments(given: Any, program: Program) -> tuple[str, ...]:
    if given is None:
        return ()
    if not program.takes_args:
        raise Failure(f"{program.name} takes no arguments: it has no `args: true` in the config", retry=False)
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise Failure("`args` has to be a list of texts", retry=False)
    return tuple(given)


def run_program(request: Request, program: Program, args: tuple[str, ...]) -> dict[str, Any]:
    ended = execute(program, args, json.dumps(request.payload).encode() if program.takes_payload else b"")
    answer = {
        "program": program.name,
        "exit_code": ended.exit_code,
        "stdout": ended.stdout,
        "stderr": ended.stderr,
        "cut": ended.cut,
    }
    if ended.exit_code is None:
        keep_output(ended)
        error = f"{program.name} was ended after {program.timeout:.3g} s, by {program.limit}"
        raise Failure(error, retry=program.retry)
    if ended.exit_code not in program.ok:
        keep_output(ended)
        retry = program.retry or ended.exit_code == TEMPORARY
        raise Failure(f"{program.name} ended with {ended.exit_code}: {last_line(ended)}", retry=retry)
    request.emit("shell.done", answer)
    return answer


def keep_output(ended: Ended) -> None:
    """Print what the program printed to stderr, which is kept with the job: an error has no result."""
    if ended.stdout:
        sys.stderr.write(f"stdout:\n{ended.stdout[-KEPT_STDOUT:].rstrip()}\nstderr:\n")
    sys.stderr.write(ended.stderr)


def last_line(ended: Ended) -> str:
    lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
    return lines[-1][:200] if lines else "it said nothing"


def execute(program: Program, args: tuple[str, ...], stdin: bytes) -> Ended:
    """It stays in this plugin's process group: what it leaves behind is ended with the job."""
    try:
        process = subprocess.Popen(
            [*program.argv, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=program.directory,
            env={**os.environ, **program.env},
        )
    except (OSError, ValueError) as error:
        raise Failure(f"{program.name} cannot be started: {error}", retry=False) from None
    return attend(process, program, stdin)


def attend(process: subprocess.Popen[bytes], program: Program, stdin: bytes) -> Ended:
    """Read both outputs until they end or the time is over; keep no more of them than is allowed."""
    assert process.stdin is not None  # noqa: S101 - all three were asked for as pipes
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    end = time.monotonic() + program.timeout
    kept = {process.stdout: bytearray(), process.stderr: bytearray()}
    cut = False
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        rest = memoryview(stdin)
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    rest = write_some(process.stdin, rest)
                    done = not rest
                else:
                    output = kept[key.fileobj]  # type: ignore[index]  # the other two are its keys
                    chunk = os.read(key.fd, CHUNK)
                    cut = cut or len(output) + len(chunk) > program.max_output
                    output += chunk[: program.max_output - len(output)]
                    done = not chunk
                if done:
                    selector.unregister(key.fileobj)
                    if key.fileobj is process.stdin:
                        process.stdin.close()
    exit_code = wait(process, end)
    stdout, stderr = (bytes(output).decode("utf-8", "replace") for output in kept.values())
    return Ended(exit_code, stdout, stderr, cut)


def write_some(stream: IO[bytes], rest: memoryview) -> memoryview:
    """What is left to write; nothing, if the program does not want to read it."""
    try:
        return rest[os.write(stream.fileno(), rest[:CHUNK]) :] if rest else rest
    except BrokenPipeError:
        return memoryview(b"")


def wait(process: subprocess.Popen[bytes], end: float) -> int | None:
    try:
        return process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


plugin.run()
