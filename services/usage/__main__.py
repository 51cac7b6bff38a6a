"""`python -m services.usage`: run the usage service until SIGTERM."""

from __future__ import annotations

import sys

from kit import lifecycle, log
from kit.config import ConfigError, load
from services.usage.bootstrap import serve
from services.usage.config import UsageConfig


def main() -> int:
    """Read the configuration and run; 2 when it is wrong."""
    try:
        config = load(UsageConfig)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    log.configure("usage", fmt=config.log_format, level=config.log_level)
    return lifecycle.run(lambda stop: serve(config, stop))


if __name__ == "__main__":
    sys.exit(main())
