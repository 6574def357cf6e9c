"""A process that restores an earlier configuration and kills itself when it is about to replace a file.

`test_config_change_survives_sigkill` starts it with the number of the replacement at which it dies.
"""

from __future__ import annotations

import os
import signal
import sys

from ductile.admin.apply import plan_offline, plan_rollback


def main(config: str, to: str, die_at: int) -> None:
    _, contents = plan_rollback(config, {}, to, keep_env=False)
    plan = plan_offline(config, {}, contents)
    replacements = 0

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal replacements
        if event in ("os.rename", "os.remove"):
            replacements += 1
            if replacements == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    plan.write("rollback")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
