"""`python -m services.usage`."""

from __future__ import annotations

import sys
from functools import partial

from kit import lifecycle, log
from kit.config import ConfigError, load
from services.usage.bootstrap import serve
from services.usage.config import UsageConfig

try:
    config = load(UsageConfig)
except ConfigError as error:
    sys.stderr.write(f"usage: {error}\n")
    sys.exit(2)
log.configure("usage", fmt=config.log_format, level=config.log_level)
sys.exit(lifecycle.run(partial(serve, config)))
