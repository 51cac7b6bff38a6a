"""Write the NATS configuration of the compose stack: `python deploy/nats/render.py > deploy/nats/nats.conf`.

Its users and permissions are those of `tokenloom up`; passwords are left to the server's environment.
"""

from __future__ import annotations

import json
import re
import sys

from tokenloom.up.nats import USERS, permissions

MONITOR = "127.0.0.1:8222"


def variable(user: str) -> str:
    """The environment variable that holds a user's password."""
    return f"TOKENLOOM_NATS_PASSWORD_{user.upper()}"


def render() -> str:
    """The configuration: JSON, but for references to variables, which the server reads unquoted."""
    users = [
        {"user": user, "password": f"${variable(user)}", "permissions": permissions(user)} for user in USERS
    ]
    document = {
        "listen": "0.0.0.0:4222",
        "http": MONITOR,
        "server_name": "tokenloom",
        "jetstream": {"store_dir": "/data"},
        "authorization": {"users": users},
    }
    return re.sub(r'"(\$TOKENLOOM_\w+)"', r"\1", json.dumps(document, indent=1)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
