"""`python -m services.worker`: run one worker until SIGTERM."""

from __future__ import annotations

import sys

from kit import lifecycle, log
from kit.config import ConfigError, load
from services.worker.bootstrap import serve
from services.worker.config import WorkerConfig


def main() -> int:
    """Read the configuration and run; 2 when it is wrong."""
    try:
        config = load(WorkerConfig)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    log.configure(config.worker_id, fmt=config.log_format, level=config.log_level)
    return lifecycle.run(lambda stop: serve(config, stop), grace_s=config.drain_grace_s + 5)


if __name__ == "__main__":
    sys.exit(main())
