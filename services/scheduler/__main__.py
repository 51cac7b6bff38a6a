"""`python -m services.scheduler`: run the scheduler until SIGTERM."""

from __future__ import annotations

import sys

from kit import lifecycle, log
from kit.config import ConfigError, load
from services.scheduler.bootstrap import serve
from services.scheduler.config import SchedulerConfig


def main() -> int:
    """Read the configuration and run; 2 when it is wrong."""
    try:
        config = load(SchedulerConfig)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    log.configure("scheduler", fmt=config.log_format, level=config.log_level)
    return lifecycle.run(lambda stop: serve(config, stop), grace_s=config.drain_grace_s + 10)


if __name__ == "__main__":
    sys.exit(main())
