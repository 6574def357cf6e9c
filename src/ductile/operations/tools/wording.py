"""Rewords advice: commands of the CLI become calls of tools, because an agent has no terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ductile.errors import ConfigError, DuctileError

#: The tool of a command, and the names of its positional arguments. A command without a tool stays as it is.
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


def replace_cli_commands(text: str) -> str:
    """Return the text with calls of tools in place of commands that have a tool."""
    if "ductile " not in text and "--" not in text:
        return text
    text = _SET.sub(lambda match: f'config_plan set={{"{match["key"]}": "{match["value"]}"}}', text)
    text = _ENABLE.sub(lambda match: f'config_plan set={{"plugins.{match["name"]}.enabled": true}}', text)
    text = _ROLLBACK.sub(lambda match: f"config_plan rollback_to={match['id'] or 'previous'}", text)
    text = _APPLY.sub(" config_plan and config_apply", text).replace("  config_plan", " config_plan").lstrip()
    return _COMMAND.sub(_tool_call, text)


def _tool_call(match: re.Match[str]) -> str:
    """Return the call of a tool that replaces a command line, such as `job_retry job_id=last`."""
    tool, *names = TOOL_OF_COMMAND[match["name"]]
    words = match["words"].split()
    options: list[str] = []
    values: list[str] = []
    extra_words: list[str] = []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            has_value = bool(words) and not words[0].startswith("--")
            options.append(f"{name}={words.pop(0) if has_value else 'true'}")
        elif len(values) < len(names):
            values.append(word)
        else:
            extra_words.append(word)
    if tool == "job_retry" and any(option.startswith("from_step=") for option in options):
        tool, options = "run_retry", [option.replace("from_step=", "step=") for option in options]
    if tool == "delivery_resend" and not values:
        tool = "delivery_resend_many"
    arguments = [f"{name}={value}" for name, value in zip(names, values, strict=False)]
    return " ".join([tool, *arguments, *options, *extra_words])


def reword_error(error: DuctileError) -> DuctileError:
    """Return the same error object, with its message and hints in the words of tools."""
    error.message = replace_cli_commands(error.message)
    error.hint = None if error.hint is None else replace_cli_commands(error.hint)
    if isinstance(error, ConfigError):
        error.problems = tuple(
            replace(problem, hint=None if problem.hint is None else replace_cli_commands(problem.hint))
            for problem in error.problems
        )
    return error
