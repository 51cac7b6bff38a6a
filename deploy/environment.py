"""Print an environment with fresh secrets for the compose stack: `python deploy/environment.py > .env`."""

from __future__ import annotations

import secrets
import sys

NATS_USERS = ("GATEWAY", "SCHEDULER", "WORKER", "USAGE", "REGISTRY")


def environment() -> dict[str, str]:
    """Every variable that docker-compose.yml insists on.

    All begin with a letter and hold letters and digits alone: they stand in URLs, and NATS would read a
    number as a number.
    """
    names = ["TOKENLOOM_POSTGRES_PASSWORD", *(f"TOKENLOOM_NATS_PASSWORD_{user}" for user in NATS_USERS)]
    return {name: f"s{secrets.token_hex(24)}" for name in names} | {
        "TOKENLOOM_API_KEY": f"tl-{secrets.token_hex(20)}"
    }


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}={value}\n" for name, value in environment().items()))
