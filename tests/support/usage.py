"""Usage events for the tests."""

from tokenloom.api.events.v1 import events_pb2
from tokenloom.api.inference.v1 import inference_pb2

BASE_US = 1_780_000_000_000_000


def opened(
    request_id: int, *, epoch: int = 1, tenant: str = "acme", at_us: int = BASE_US
) -> events_pb2.UsageOpened:
    event = events_pb2.UsageOpened(
        request_id=request_id,
        owner_epoch=epoch,
        tenant_id=tenant,
        model_version="chat@1",
        tokenizer_version="t1",
        runtime_revision="r1",
    )
    event.opened_time.FromMicroseconds(at_us)
    return event


def closed(
    request_id: int, *, epoch: int = 1, output: int = 87, tenant: str = "acme", at_us: int = BASE_US
) -> events_pb2.UsageClosed:
    event = events_pb2.UsageClosed(
        opened=opened(request_id, epoch=epoch, tenant=tenant, at_us=at_us),
        finish_reason=inference_pb2.FINISH_REASON_STOP,
        input_tokens=5,
        cached_tokens=2,
        output_tokens=output,
        billable_tokens=5 + output,
        queue_ms=1.5,
        ttft_ms=20.25,
        total_ms=900.125,
    )
    event.closed_time.FromMicroseconds(at_us + 900_125)
    return event


def renewed(*request_ids: int) -> events_pb2.UsageRenewed:
    return events_pb2.UsageRenewed(request_id=request_ids)
