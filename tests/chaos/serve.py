"""`tokenloom up` with a supervisor that restarts at once. Arguments: data directory, models, database."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tokenloom.up import files
from tokenloom.up.console import Console
from tokenloom.up.options import Options, Policy
from tokenloom.up.platform import Platform
from tokenloom.up.run import until_signal

# A killed service is back within a second: the backoff of a crash loop would only make the run idle.
_POLICY = Policy(backoff_s=0.2, backoff_max_s=1.0, probe_s=1.0, answer_s=3.0, hang_s=10.0)


async def _serve(options: Options) -> None:
    async with Platform(options, Console(sys.stderr), _POLICY) as platform:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await platform.wait_failed()


def main(data_dir: str, models_dir: str, database_url: str) -> None:
    """Serve two gateways and two workers until SIGINT."""
    options = Options(
        Path(data_dir), gateways=2, workers=2, models_dir=Path(models_dir), database_url=database_url
    )
    with files.exclusive(options.data_dir):
        asyncio.run(until_signal(_serve(options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
