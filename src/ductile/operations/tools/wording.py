"""Advice that names commands of the CLI, as calls of tools: an agent has no terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ductile.errors import ConfigError, DuctileError

#: The tool of a command, and what its words are called. A command without a tool stays as it is.
TOOL_OF_COMMAND: Mapping[str, tuple[str, ...]] = {
    "job explain": ("job_explain", "job_id"),
    "job retry": ("job_retry", "job_id"),
    "job rerun": ("job_rerun", "job_id"),
    "job cancel": ("job_cancel", "job_id"),
    "job wait": ("job_wait", "job_id"),
    "job show": ("job_show", "job_id"),
    "job logs": ("job_logs", "job_id"),
    "job list": ("job_list",),
    "queue list": ("queue",),
    "schedule explain": ("schedule_explain", "plugin", "schedule"),
    "schedule history": ("schedule_explain", "plugin", "schedule"),
    "schedule resume": ("schedule_resume", "plugin", "schedule"),
    "schedule pause": ("schedule_pause", "plugin", "schedule"),
    "schedule run": ("schedule_run", "plugin", "schedule"),
    "schedule list": ("schedule_list",),
    "system breaker": ("status",),
    "system reset": ("breaker_reset", "plugin"),
    "system status": ("status",),
    "status": ("status",),
    "system doctor": ("doctor",),
    "doctor": ("doctor",),
    "plugin list": ("plugin_list",),
    "plugins": ("plugin_list",),
    "pipeline list": ("pipeline_list",),
    "pipeline run": ("run", "name"),
    "run": ("run", "name"),
    "webhook deliveries": ("delivery_list",),
    "webhook resend": ("delivery_resend", "delivery_id"),
    "config history": ("config_history",),
    "token list": ("token_list",),
    "event send": ("event_send",),
}
_WORD = r"[^\s`,;:()&]*[^\s`,;:().&]"
_START = r"`?\bductile (?:--config \S+ )?"
_COMMAND = re.compile(
    rf"{_START}(?P<name>{'|'.join(sorted(TOOL_OF_COMMAND, key=len, reverse=True))})\b"
    rf"(?P<words>(?: (?!then\b|and\b|or\b|shows?\b|lists?\b|returns?\b|again\b|runs?\b|where\b){_WORD})*)`?"
)
_SET = re.compile(rf"{_START}config set (?P<key>{_WORD}) (?P<value>{_WORD})(?: --lock)?`?")
_ENABLE = re.compile(rf"{_START}plugin enable (?P<name>{_WORD})`?")
_APPLY = re.compile(rf"(?: && )?{_START}(?:apply|system reload|config lock)(?: --dry-run)?(?![\w-])`?")
_ROLLBACK = re.compile(rf"{_START}config rollback(?: (?P<id>[0-9a-f]{{4,}}))?`?")


def in_tool_words(text: str) -> str:
    """The text with calls of tools in place of commands, as far as there are such tools."""
    if "ductile " not in text and "--" not in text:
        return text
    text = _SET.sub(lambda found: f'config_plan set={{"{found["key"]}": "{found["value"]}"}}', text)
    text = _ENABLE.sub(lambda found: f'config_plan set={{"plugins.{found["name"]}.enabled": true}}', text)
    text = _ROLLBACK.sub(lambda found: f"config_plan rollback_to={found['id'] or 'previous'}", text)
    text = _APPLY.sub(" config_plan and config_apply", text).replace("  config_plan", " config_plan").lstrip()
    return _COMMAND.sub(_call, text)


def _call(found: re.Match[str]) -> str:
    tool, *names = TOOL_OF_COMMAND[found["name"]]
    words = found["words"].split()
    options: list[str] = []
    values: list[str] = []
    rest: list[str] = []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            takes = bool(words) and not words[0].startswith("--")
            options.append(f"{name}={words.pop(0) if takes else 'true'}")
        elif len(values) < len(names):
            values.append(word)
        else:
            rest.append(word)
    if tool == "job_retry" and any(each.startswith("from_step=") for each in options):
        tool, options = "run_retry", [each.replace("from_step=", "step=") for each in options]
    if tool == "delivery_resend" and not values:
        tool = "delivery_resend_many"
    given = [f"{name}={value}" for name, value in zip(names, values, strict=False)]
    return " ".join([tool, *given, *options, *rest])


def reworded(error: DuctileError) -> DuctileError:
    """The error with its hints in the words of tools."""
    error.message = in_tool_words(error.message)
    error.hint = None if error.hint is None else in_tool_words(error.hint)
    if isinstance(error, ConfigError):
        error.problems = tuple(
            replace(each, hint=None if each.hint is None else in_tool_words(each.hint))
            for each in error.problems
        )
    return error
