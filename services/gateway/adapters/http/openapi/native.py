"""What the native face answers."""

from __future__ import annotations

from services.gateway.adapters.http.openapi.refusals import native_error
from services.gateway.adapters.http.openapi.schema import (
    COUNT,
    INTEGER,
    MILLISECONDS,
    NUMBER,
    TEXT,
    TIME,
    Schema,
    array,
    nullable,
    record,
    ref,
    words,
)
from services.gateway.app.ports import State
from services.gateway.core.outcome import FinishReason
from tokenloom.api.usage.v1 import usage_pb2

ID: Schema = {"type": "string", "pattern": "^gen-[0-9a-f]{16}$"}
_FINISH = words(*(reason.label for reason in FinishReason))
_STATE = words(*(state.label for state in State))
_ROW_STATES = [
    name.removeprefix("ROW_STATE_").lower() for name, number in usage_pb2.RowState.items() if number
]
_ENTRY: Schema = {"tokenId": INTEGER, "token": TEXT, "logprob": nullable(NUMBER)}
_LOGPROBS = {"logprobs": array(ref("TokenLogprob"))}
_ACCEPTED: Schema = {
    "requestId": ID,
    "modelVersion": TEXT,
    "tokenizerVersion": TEXT,
    "runtimeRevision": TEXT,
    "sampling": record(
        {"temperature": NUMBER, "topP": NUMBER, "topK": INTEGER, "minP": NUMBER, "seed": INTEGER}
    ),
}
_OUTPUT: Schema = {"text": TEXT, "tokenIds": array(COUNT)}
_OUTPUT_MORE: Schema = _LOGPROBS | {"choices": array(ref("Choice"), minItems=2)}
_DONE: Schema = {
    "finishReason": _FINISH,
    "inputTokens": COUNT,
    "outputTokens": COUNT,
    "cachedTokens": COUNT,
    "queueMs": MILLISECONDS,
    "ttftMs": MILLISECONDS,
    "totalMs": MILLISECONDS,
}


def native() -> dict[str, Schema]:
    """Every native answer by its name."""
    token = {"choice": COUNT, "index": COUNT, "count": COUNT} | _OUTPUT
    return {
        "Error": native_error(),
        "Accepted": record(_ACCEPTED),
        "Token": record(token, _LOGPROBS | {"finishReason": _FINISH}),
        "Done": record(_DONE),
        "TokenLogprob": record(_ENTRY | {"top": array(record(_ENTRY))}),
        "Choice": record({"choice": COUNT} | _OUTPUT, _LOGPROBS | {"finishReason": _FINISH}),
        "Generation": record(_ACCEPTED | _OUTPUT | _DONE, _OUTPUT_MORE),
        "Snapshot": record(
            {"requestId": ID, "state": _STATE, "modelVersion": TEXT} | _OUTPUT, _OUTPUT_MORE | _DONE
        ),
        "Cancelled": record({"requestId": ID, "state": _STATE}),
        "UsagePage": record({"data": array(ref("UsageRow"))}, {"nextPageToken": TEXT}),
        "UsageRow": record(_row()),
    }


def _row() -> Schema:
    return {
        "requestId": ID,
        "tenantId": TEXT,
        "modelVersion": TEXT,
        "tokenizerVersion": TEXT,
        "adapter": TEXT,
        "runtimeRevision": TEXT,
        "inputTokens": COUNT,
        "cachedTokens": COUNT,
        "outputTokens": COUNT,
        "billableTokens": COUNT,
        "finishReason": nullable(_FINISH),
        "queueMs": MILLISECONDS,
        "ttftMs": MILLISECONDS,
        "totalMs": MILLISECONDS,
        "openedTime": nullable(TIME),
        "closedTime": nullable(TIME),
        "state": words(*_ROW_STATES),
        "ownerEpoch": COUNT,
    }
