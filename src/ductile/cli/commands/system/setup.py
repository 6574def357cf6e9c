"""`ductile system unit` and `ductile system completion`: text for systemd and for a shell.

A completion script holds all words of the table of commands, so that pressing Tab starts no process.
"""

from __future__ import annotations

from ductile.cli.command_table import NOUNS, SHORT_FORMS, first_words
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import CONFIG_FILES, DAEMON_OPTIONS, GLOBAL_OPTIONS, NO_DAEMON, Argument, Option, action

#: Seconds for `systemctl --version`.
_SYSTEMCTL_TIMEOUT = 5.0
#: The table in each script: the words that may follow, by the words typed so far.
_WORDS = """\
_ductile_words() {{
  case "$1" in
{cases}
    *) return 1 ;;
  esac
}}"""
_BASH = """\
# bash completion for ductile. To install it:
#   ductile system completion bash > ~/.local/share/bash-completion/completions/ductile
{words}
_ductile() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" typed="" word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    case "$word" in
      {with_value}) ((i++)) ;;
      -*) ;;
      *) typed="${{typed:+$typed }}$word" ;;
    esac
  done
  local first="${{typed%% *}}" two="$typed"
  [[ $typed == *" "*" "* ]] && two="${{typed%% *}} $(cut -d' ' -f2 <<<"$typed")"
  local words
  words=$(_ductile_words "$two") || words=$(_ductile_words "$first")
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _ductile ductile
"""

_ZSH = """\
#compdef ductile
# zsh completion for ductile. To install it, with fpath+=~/.zfunc before compinit:
#   ductile system completion zsh > ~/.zfunc/_ductile
{words}
_ductile() {{
  local -a typed
  local i
  for ((i = 2; i < CURRENT; i++)); do
    case "${{words[i]}}" in
      {with_value}) ((i++)) ;;
      -*) ;;
      *) typed+=("${{words[i]}}") ;;
    esac
  done
  local found
  found=$(_ductile_words "${{typed[1,2]}}") || found=$(_ductile_words "${{typed[1]}}")
  compadd -- ${{(s: :)found}}
  _files
}}
_ductile "$@"
"""

_FISH = """\
# fish completion for ductile. To install it:
#   ductile system completion fish > ~/.config/fish/completions/ductile.fish
function __ductile_typed
    set -l typed (commandline -opc | string match -v -- '-*')[2..]
    test "$typed[1..2]" = "$argv"; or test (count $argv) -eq 1 -a "$typed[1]" = "$argv"
end
function __ductile_first
    test (count (commandline -opc | string match -v -- '-*')) -eq 1
end
{lines}
"""


@action(
    "unit",
    "print a systemd unit for this configuration",
    options=(Option("--user NAME", "the user it runs as (default ductile)"),),
    about="Put it under /etc/systemd/system. It says what to do before the first start, restarts "
    "after every crash but not for a configuration that cannot be used, and drops rights that a "
    "daemon does not need.",
    local_reason=CONFIG_FILES,
)
def print_unit(invocation: Invocation) -> CommandResult:
    import shutil
    import sys
    from pathlib import Path

    from ductile.admin.config import open_configuration
    from ductile.admin.systemd_unit import systemd_unit

    opened = open_configuration(invocation.config, invocation.environ)
    # The unit has the absolute path of this program: systemd does not search the PATH of the user.
    command = Path(shutil.which(sys.argv[0]) or shutil.which("ductile") or sys.argv[0]).absolute()
    user = invocation.optional("user") or "ductile"
    unit = systemd_unit(opened.snapshot, opened.loaded.directory, command, user, version=_systemd_version())
    return CommandResult({"unit": unit}, unit.rstrip("\n"))


@action(
    "completion",
    "print a script that completes commands in your shell",
    arguments=(Argument("SHELL", "bash, zsh or fish"),),
    local_reason=NO_DAEMON,
)
def print_script(invocation: Invocation) -> CommandResult:
    from ductile.errors import UsageError

    shell = invocation.text("SHELL")
    # The words that may follow, by the words typed so far.
    following = {"": [*first_words()]}
    for noun in NOUNS:
        following[noun.name] = [*noun.modules]
        for declared in noun.actions:
            options = (*declared.options, *GLOBAL_OPTIONS)
            following[f"{noun.name} {declared.name}"] = [flag for option in options for flag in option.flags]
    for form in SHORT_FORMS:
        # `queue` is a noun and a short form: the words of both may follow.
        following[form.name] = [*following.get(form.name, ()), *following[f"{form.noun} {form.action}"]]
    cases = "\n".join(f'    "{typed}") echo "{" ".join(after)}" ;;' for typed, after in following.items())
    words = _WORDS.format(cases=cases)
    with_value = "|".join(flag for option in DAEMON_OPTIONS for flag in option.flags)
    lines = [f"complete -c ductile -n __ductile_first -f -a '{' '.join(following.pop(''))}'"]
    for typed, after in following.items():
        lines.append(f"complete -c ductile -n '__ductile_typed {typed}' -a '{' '.join(after)}'")
    scripts = {
        "bash": _BASH.format(words=words, with_value=with_value),
        "zsh": _ZSH.format(words=words, with_value=with_value),
        "fish": _FISH.format(lines="\n".join(lines)),
    }
    if shell not in scripts:
        raise UsageError(f"there is no completion for {shell}", hint=f"one of {', '.join(scripts)}")
    script = scripts[shell]
    return CommandResult({"shell": shell, "script": script}, script.rstrip("\n"))


def _systemd_version() -> int | None:
    """Return the version of systemd on this machine; None without systemd."""
    import re
    import subprocess

    try:
        output = subprocess.run(
            ["systemctl", "--version"], capture_output=True, text=True, check=True, timeout=_SYSTEMCTL_TIMEOUT
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"systemd (\d+)", output)
    return None if match is None else int(match[1])
