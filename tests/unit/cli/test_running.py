"""How a verb ends."""

from __future__ import annotations

import signal

from tokenloom.cli import shared


def test_ctrl_c_wakes_a_loop_that_is_falling_asleep():
    async def wakeup_fd():
        fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(fd)
        return fd

    assert shared.run(wakeup_fd()) != -1
