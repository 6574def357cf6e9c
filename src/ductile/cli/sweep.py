"""`ductile system sweep`"""

from __future__ import annotations

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import Said, ask
from ductile.cli.progress import waiting_for
from ductile.cli.wording import facts


def sweep(call: Call) -> Answer:
    with waiting_for(call, "the sweep"):
        done = ask(call, "system.sweep", {"dry_run": call.switch("dry_run")}, patience=None)
    return Answer(data=done, text=lambda _: _text(done))


def _text(done: Said) -> str:
    if not done["removed"]:
        return "Nothing has been kept for longer than it should be."
    title = "Would remove at least:" if done.get("dry_run") else "Removed:"
    rows = ((kind.replace("_", " "), str(count)) for kind, count in done["removed"].items())
    return "\n".join([title, *facts(rows)])
