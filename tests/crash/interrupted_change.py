"""A process that restores an earlier configuration and kills itself when it is about to replace a file.

Started by `test_config_change_survives_sigkill` with the number of the replacement to die at.
"""

from __future__ import annotations

import os
import signal
import sys

from ductile.admin.apply import plan_offline, plan_rollback


def main(config: str, to: str, die_at: int) -> None:
    _, contents = plan_rollback(config, {}, to, keep_env=False)
    plan = plan_offline(config, {}, contents)
    seen = 0

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal seen
        if event in ("os.rename", "os.remove"):
            seen += 1
            if seen == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    plan.write("rollback")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
