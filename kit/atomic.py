"""Several events stored by JetStream as one (its atomic batch): all of them or none, and one sync for all.

A server that syncs every event syncs each of those published singly. Before it acknowledges a batch, every
event is on disk too.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from nats.errors import MaxPayloadError
from nats.js.api import Header
from nats.js.errors import APIError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.client import Client
    from nats.js import JetStreamContext

    from kit.backlog import Event


async def publish(client: Client, js: JetStreamContext, events: Sequence[Event]) -> bool:
    """Whether all were stored together; if not, they are to be published singly, by their ids.

    So when one of them is stored already or cannot be, or where the server is too old for batches.
    """
    if len(events) == 1:  # dearer as a batch
        return False
    batch_id, end = secrets.token_hex(8), events[-1]
    try:
        for place, event in enumerate(events[:-1], 1):
            await client.publish(event.subject, event.payload, headers=_headers(event, batch_id, place))
        headers = _headers(end, batch_id, len(events)) | {Header.BATCH_COMMIT.value: "1"}
        ack = await js.publish(end.subject, end.payload, headers=headers)
    except (APIError, MaxPayloadError):
        return False
    return ack.batch_size == len(events)


def _headers(event: Event, batch_id: str, place: int) -> dict[str, str]:
    return {
        Header.MSG_ID.value: event.msg_id,
        Header.BATCH_ID.value: batch_id,
        Header.BATCH_SEQUENCE.value: str(place),
    }
