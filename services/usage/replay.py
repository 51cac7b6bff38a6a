"""Have the ledger hear every kept event again: `python -m services.usage.replay`.

For a database restored from a backup: what came after the backup was acknowledged and would not come again.
The stream keeps events for 14 days, and recording one a second time changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

from nats.js.errors import NotFoundError

from kit import log
from kit.bus import Bus
from kit.config import ConfigError, load
from services.usage.bootstrap import DURABLE, STREAM
from services.usage.config import UsageConfig

if TYPE_CHECKING:
    import ssl

_log = log.get("replay")


async def replay(nats_url: str, tls: ssl.SSLContext | None = None) -> None:
    """Forget what the ledger acknowledged: its service consumes the stream from the start the next time."""
    bus = await Bus.connect(nats_url, "usage", tls)
    try:
        with contextlib.suppress(NotFoundError):
            await bus.js.delete_consumer(STREAM, DURABLE)
        kept = (await bus.js.stream_info(STREAM)).state.messages
    finally:
        await bus.close()
    _log.info("every kept event comes again", events=kept)


def main() -> int:
    """Read the configuration of the service and ask for the replay."""
    try:
        config = load(UsageConfig)
    except ConfigError as error:
        sys.stderr.write(f"usage: {error}\n")
        return 2
    log.configure("usage", fmt=config.log_format, level=config.log_level)
    asyncio.run(replay(config.nats_url, config.nats_tls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
