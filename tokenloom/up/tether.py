"""Runs a command that dies with its supervisor: `python tether.py SUPERVISOR_PID COMMAND...`.

A program of its own, since what a process asks of the kernel here must be asked between fork and exec,
where a threaded parent cannot safely run Python.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
