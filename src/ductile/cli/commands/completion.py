"""`ductile system completion`: a script for the shell, made from the table of commands.

The script holds all words, so that pressing Tab starts no process.
"""

from __future__ import annotations

from ductile.cli.command_table import NOUNS, SHORT_FORMS, first_words
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import EVERYWHERE, Action, Argument, action

#: Each script has a table: the words that may follow, by the words that were typed so far.
_BASH = """\
# bash completion for ductile. To install it:
#   ductile system completion bash > ~/.local/share/bash-completion/completions/ductile
_ductile_words() {{
  case "$1" in
{cases}
    *) return 1 ;;
  esac
}}
_ductile() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" said="" word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    case "$word" in
      --config) ((i++)) ;;
      -*) ;;
      *) said="${{said:+$said }}$word" ;;
    esac
  done
  local first="${{said%% *}}" two="$said"
  [[ $said == *" "*" "* ]] && two="${{said%% *}} $(cut -d' ' -f2 <<<"$said")"
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
_ductile_words() {{
  case "$1" in
{cases}
    *) return 1 ;;
  esac
}}
_ductile() {{
  local -a said
  local i
  for ((i = 2; i < CURRENT; i++)); do
    case "${{words[i]}}" in
      --config) ((i++)) ;;
      -*) ;;
      *) said+=("${{words[i]}}") ;;
    esac
  done
  local found
  found=$(_ductile_words "${{said[1,2]}}") || found=$(_ductile_words "${{said[1]}}")
  compadd -- ${{(s: :)found}}
  _files
}}
_ductile "$@"
"""

_FISH = """\
# fish completion for ductile. To install it:
#   ductile system completion fish > ~/.config/fish/completions/ductile.fish
function __ductile_said
    set -l said (commandline -opc | string match -v -- '-*')[2..]
    test "$said[1..2]" = "$argv"; or test (count $argv) -eq 1 -a "$said[1]" = "$argv"
end
function __ductile_first
    test (count (commandline -opc | string match -v -- '-*')) -eq 1
end
{lines}
"""


@action(
    "completion",
    "print a script that completes commands in your shell",
    arguments=(Argument("SHELL", "bash, zsh or fish"),),
)
def print_script(call: Invocation) -> CommandResult:
    from ductile.errors import UsageError

    shell = call.text("SHELL")
    scripts = {"bash": _BASH.format(cases=_cases()), "zsh": _ZSH.format(cases=_cases()), "fish": _fish()}
    if shell not in scripts:
        raise UsageError(f"there is no completion for {shell}", hint=f"one of {', '.join(scripts)}")
    script = scripts[shell]
    return CommandResult({"shell": shell, "script": script}, lambda _: script.rstrip("\n"))


def _following() -> dict[str, list[str]]:
    """The words that may follow each beginning of a command."""
    found = {"": [*first_words()]}
    for noun in NOUNS:
        found[noun.name] = [*noun.modules]
        found |= {f"{noun.name} {each.name}": _flags(each) for each in noun.actions}
    for form in SHORT_FORMS:
        # `queue` is a noun and a short form: the words of both may follow.
        found[form.name] = [*found.get(form.name, ()), *found[f"{form.noun} {form.action}"]]
    return found


def _flags(declared: Action) -> list[str]:
    return [flag for option in (*declared.options, *EVERYWHERE) for flag in option.flags]


def _cases() -> str:
    return "\n".join(f'    "{said}") echo "{" ".join(words)}" ;;' for said, words in _following().items())


def _fish() -> str:
    lines = [f"complete -c ductile -n __ductile_first -f -a '{' '.join(_following().pop(''))}'"]
    for said, words in _following().items():
        if said:
            lines.append(f"complete -c ductile -n '__ductile_said {said}' -a '{' '.join(words)}'")
    return _FISH.format(lines="\n".join(lines))
