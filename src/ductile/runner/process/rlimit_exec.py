"""A program of its own: sets resource limits on its process, then executes the plugin's program.

    python -I -S rlimit_exec.py ERROR_FD RESOURCE:SOFT:HARD,… PROGRAM [ARGUMENT …]

Limits belong to a process, so neither a thread of the daemon nor `posix_spawn` can set them. Setting them
from outside with prlimit(2) is too late for a quick program, and a `preexec_fn` forks the whole daemon,
which takes 20 ms. `sh` and prlimit(1) start faster, but change the environment or run any text file as a
script, and cannot report why a program could not be executed. Here the errno is written to ERROR_FD; the
kernel closes it when the program is executed.
"""

# Neither `os` nor `signal` is imported: without them the start takes half the time.
import posix
import resource
import sys
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal  # type: ignore[import-not-found]


def execute(command: list[str], limits: str) -> None:
    for signal_number in (SIGPIPE, SIGXFSZ):
        signal(signal_number, SIG_DFL)  # Python ignores these signals, and the program would inherit that
    # The environment as it was passed: the interpreter has added to its own copy.
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - no pathlib, see above
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0")[:-1]]
    for limit in limits.split(","):
        name, soft, hard = map(int, limit.split(":"))
        resource.setrlimit(name, (soft, hard))
    posix.execve(command[0], command, {name: value for name, _, value in entries})


if __name__ == "__main__":
    error_fd = int(sys.argv[1])
    posix.set_inheritable(error_fd, False)
    try:
        execute(sys.argv[3:], sys.argv[2])
    except OSError as error:
        posix.write(error_fd, b"%d" % (error.errno or 0))
    except ValueError:
        posix.write(error_fd, b"1")  # EPERM: the limit exceeds our own hard limit
    posix._exit(127)  # noqa: SLF001 - it is `os._exit`
