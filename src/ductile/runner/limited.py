"""A program of its own: puts limits on its process, then becomes the plugin's program.

    python -I -S limited.py DESCRIPTOR NAME:SOFT:HARD,… PROGRAM

Limits belong to a process, so they can be set neither in a thread of the daemon nor by `posix_spawn`; to
set them from outside comes too late for a program that is quick; and a `preexec_fn` copies the daemon and
holds all of it up for 20 ms. `sh` and prlimit(1) are quicker than this, but they change the environment or
take any text for a script, and cannot say why a program could not be started. Here that is told through the
descriptor, as a number of <errno.h>; it closes without a word when the program has begun.
"""

# Neither `os` nor `signal`: a start without them takes half the time.
import posix
import resource
import sys
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]


def become(program: str, limits: str) -> None:
    for signal_number in (SIGPIPE, SIGXFSZ):
        signal(signal_number, SIG_DFL)  # Python ignores these two, and the program would inherit that
    # As it was given to us: the interpreter has added to its own.
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - no pathlib, see above
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0")[:-1]]
    for limit in limits.split(","):
        name, soft, hard = map(int, limit.split(":"))
        resource.setrlimit(name, (soft, hard))
    posix.execve(program, [program], {name: value for name, _, value in entries})


if __name__ == "__main__":
    told = int(sys.argv[1])
    posix.set_inheritable(told, False)
    try:
        become(sys.argv[3], sys.argv[2])
    except OSError as error:
        posix.write(told, b"%d" % (error.errno or 0))
    except ValueError:
        posix.write(told, b"1")  # the limit is above the one that we have: EPERM
    posix._exit(127)  # noqa: SLF001 - it is `os._exit`
