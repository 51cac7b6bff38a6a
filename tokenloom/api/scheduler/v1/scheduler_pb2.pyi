from tokenloom.api.inference.v1 import inference_pb2 as _inference_pb2
from tokenloom.api.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LaneRequest(_message.Message):
    __slots__ = ("hello", "submit", "cancel", "settle", "heartbeat", "attach", "detach", "open", "synced")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    submit: Submit
    cancel: Cancel
    settle: Settle
    heartbeat: Heartbeat
    attach: Attach
    detach: Detach
    open: Open
    synced: Synced
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., detach: _Optional[_Union[Detach, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., synced: _Optional[_Union[Synced, _Mapping]] = ...) -> None: ...

class LaneResponse(_message.Message):
    __slots__ = ("welcome", "accepted", "refused", "step", "attached", "granted", "settled", "heartbeat_ack", "sync")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    accepted: Accepted
    refused: Refused
    step: LaneStep
    attached: Attached
    granted: Granted
    settled: Settle
    heartbeat_ack: HeartbeatAck
    sync: Sync
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., step: _Optional[_Union[LaneStep, _Mapping]] = ..., attached: _Optional[_Union[Attached, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., settled: _Optional[_Union[Settle, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., sync: _Optional[_Union[Sync, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("gateway_id", "says_open", "says_synced")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    SAYS_OPEN_FIELD_NUMBER: _ClassVar[int]
    SAYS_SYNCED_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    says_open: bool
    says_synced: bool
    def __init__(self, gateway_id: _Optional[str] = ..., says_open: _Optional[bool] = ..., says_synced: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("scheduler_epoch", "lease_us")
    SCHEDULER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_US_FIELD_NUMBER: _ClassVar[int]
    scheduler_epoch: int
    lease_us: int
    def __init__(self, scheduler_epoch: _Optional[int] = ..., lease_us: _Optional[int] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request_id", "tenant_id", "model_version", "tokenizer_version", "prompt_token_ids", "max_output_tokens", "deadline_us", "n", "sampling", "stop_token_ids", "priority", "text_spec", "owner_epoch", "resume_lease_us", "resume", "output", "opened")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TEXT_SPEC_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESUME_LEASE_US_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tenant_id: str
    model_version: str
    tokenizer_version: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_output_tokens: int
    deadline_us: int
    n: int
    sampling: _worker_pb2.Sampling
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: _inference_pb2.Priority
    text_spec: bytes
    owner_epoch: int
    resume_lease_us: int
    resume: bool
    output: _containers.RepeatedCompositeFieldContainer[ChoiceRecord]
    opened: bool
    def __init__(self, request_id: _Optional[int] = ..., tenant_id: _Optional[str] = ..., model_version: _Optional[str] = ..., tokenizer_version: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., max_output_tokens: _Optional[int] = ..., deadline_us: _Optional[int] = ..., n: _Optional[int] = ..., sampling: _Optional[_Union[_worker_pb2.Sampling, _Mapping]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[_Union[_inference_pb2.Priority, str]] = ..., text_spec: _Optional[bytes] = ..., owner_epoch: _Optional[int] = ..., resume_lease_us: _Optional[int] = ..., resume: _Optional[bool] = ..., output: _Optional[_Iterable[_Union[ChoiceRecord, _Mapping]]] = ..., opened: _Optional[bool] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("request_id", "owner_epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    owner_epoch: int
    def __init__(self, request_id: _Optional[int] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("request_id", "tenant_id", "owner_epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tenant_id: str
    owner_epoch: int
    def __init__(self, request_id: _Optional[int] = ..., tenant_id: _Optional[str] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("request_id", "owner_epoch", "submit", "record", "runtime_revision", "opened_time_us", "age_us", "first_token_us")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_REVISION_FIELD_NUMBER: _ClassVar[int]
    OPENED_TIME_US_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    owner_epoch: int
    submit: Submit
    record: GetGenerationResponse
    runtime_revision: str
    opened_time_us: int
    age_us: int
    first_token_us: int
    def __init__(self, request_id: _Optional[int] = ..., owner_epoch: _Optional[int] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., record: _Optional[_Union[GetGenerationResponse, _Mapping]] = ..., runtime_revision: _Optional[str] = ..., opened_time_us: _Optional[int] = ..., age_us: _Optional[int] = ..., first_token_us: _Optional[int] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("request_id", "owner_epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    owner_epoch: int
    def __init__(self, request_id: _Optional[int] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class Detach(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request_id", "owner_epoch", "runtime_revision")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_REVISION_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    owner_epoch: int
    runtime_revision: str
    def __init__(self, request_id: _Optional[int] = ..., owner_epoch: _Optional[int] = ..., runtime_revision: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("request_id", "reason", "message", "field", "retry_after_us")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_US_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    reason: str
    message: str
    field: str
    retry_after_us: int
    def __init__(self, request_id: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_us: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "choice", "kept_tokens", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    choice: int
    kept_tokens: int
    reason: _inference_pb2.FinishReason
    def __init__(self, request_id: _Optional[int] = ..., choice: _Optional[int] = ..., kept_tokens: _Optional[int] = ..., reason: _Optional[_Union[_inference_pb2.FinishReason, str]] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("request_id", "owner_epoch", "finish_reason", "output_tokens", "input_tokens", "cached_tokens", "queue_us", "ttft_us", "total_us", "error_reason", "choice_finish_reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    TTFT_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    owner_epoch: int
    finish_reason: _inference_pb2.FinishReason
    output_tokens: _containers.RepeatedScalarFieldContainer[int]
    input_tokens: int
    cached_tokens: int
    queue_us: int
    ttft_us: int
    total_us: int
    error_reason: str
    choice_finish_reason: _containers.RepeatedScalarFieldContainer[_inference_pb2.FinishReason]
    def __init__(self, request_id: _Optional[int] = ..., owner_epoch: _Optional[int] = ..., finish_reason: _Optional[_Union[_inference_pb2.FinishReason, str]] = ..., output_tokens: _Optional[_Iterable[int]] = ..., input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., queue_us: _Optional[int] = ..., ttft_us: _Optional[int] = ..., total_us: _Optional[int] = ..., error_reason: _Optional[str] = ..., choice_finish_reason: _Optional[_Iterable[_Union[_inference_pb2.FinishReason, str]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Sync(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Synced(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LaneStep(_message.Message):
    __slots__ = ("request_id", "choice", "index", "token_id", "logprobs", "choice_end", "request_end")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_END_FIELD_NUMBER: _ClassVar[int]
    REQUEST_END_FIELD_NUMBER: _ClassVar[int]
    request_id: _containers.RepeatedScalarFieldContainer[int]
    choice: _containers.RepeatedScalarFieldContainer[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    token_id: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _worker_pb2.LogprobColumns
    choice_end: _containers.RepeatedCompositeFieldContainer[ChoiceEnd]
    request_end: _containers.RepeatedCompositeFieldContainer[RequestEnd]
    def __init__(self, request_id: _Optional[_Iterable[int]] = ..., choice: _Optional[_Iterable[int]] = ..., index: _Optional[_Iterable[int]] = ..., token_id: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[_worker_pb2.LogprobColumns, _Mapping]] = ..., choice_end: _Optional[_Iterable[_Union[ChoiceEnd, _Mapping]]] = ..., request_end: _Optional[_Iterable[_Union[RequestEnd, _Mapping]]] = ...) -> None: ...

class ChoiceEnd(_message.Message):
    __slots__ = ("request_id", "choice", "finish_reason", "output_tokens", "error_reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    choice: int
    finish_reason: _inference_pb2.FinishReason
    output_tokens: int
    error_reason: str
    def __init__(self, request_id: _Optional[int] = ..., choice: _Optional[int] = ..., finish_reason: _Optional[_Union[_inference_pb2.FinishReason, str]] = ..., output_tokens: _Optional[int] = ..., error_reason: _Optional[str] = ...) -> None: ...

class RequestEnd(_message.Message):
    __slots__ = ("request_id", "input_tokens", "cached_tokens", "queue_us")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    input_tokens: int
    cached_tokens: int
    queue_us: int
    def __init__(self, request_id: _Optional[int] = ..., input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., queue_us: _Optional[int] = ...) -> None: ...

class GetGenerationRequest(_message.Message):
    __slots__ = ("request_id", "tenant_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tenant_id: str
    def __init__(self, request_id: _Optional[int] = ..., tenant_id: _Optional[str] = ...) -> None: ...

class GetGenerationResponse(_message.Message):
    __slots__ = ("state", "model_version", "prompt_tokens", "text_spec", "choice", "end", "settled")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_SPEC_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    state: _inference_pb2.GenerationState
    model_version: str
    prompt_tokens: int
    text_spec: bytes
    choice: _containers.RepeatedCompositeFieldContainer[ChoiceRecord]
    end: RequestEnd
    settled: Settle
    def __init__(self, state: _Optional[_Union[_inference_pb2.GenerationState, str]] = ..., model_version: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., text_spec: _Optional[bytes] = ..., choice: _Optional[_Iterable[_Union[ChoiceRecord, _Mapping]]] = ..., end: _Optional[_Union[RequestEnd, _Mapping]] = ..., settled: _Optional[_Union[Settle, _Mapping]] = ...) -> None: ...

class ChoiceRecord(_message.Message):
    __slots__ = ("token_id", "logprobs", "finish_reason", "error_reason")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    token_id: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _worker_pb2.LogprobColumns
    finish_reason: _inference_pb2.FinishReason
    error_reason: str
    def __init__(self, token_id: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[_worker_pb2.LogprobColumns, _Mapping]] = ..., finish_reason: _Optional[_Union[_inference_pb2.FinishReason, str]] = ..., error_reason: _Optional[str] = ...) -> None: ...

class CancelGenerationRequest(_message.Message):
    __slots__ = ("request_id", "tenant_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tenant_id: str
    def __init__(self, request_id: _Optional[int] = ..., tenant_id: _Optional[str] = ...) -> None: ...

class CancelGenerationResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: _inference_pb2.GenerationState
    def __init__(self, state: _Optional[_Union[_inference_pb2.GenerationState, str]] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("lanes",)
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneStatus]
    def __init__(self, lanes: _Optional[_Iterable[_Union[LaneStatus, _Mapping]]] = ...) -> None: ...

class LaneStatus(_message.Message):
    __slots__ = ("model_version", "workers", "waiting", "running", "free_pages", "cached_pages", "owned_pages", "violations", "last_step_age_us")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    CACHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    OWNED_PAGES_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_AGE_US_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    workers: int
    waiting: int
    running: int
    free_pages: int
    cached_pages: int
    owned_pages: int
    violations: _containers.RepeatedScalarFieldContainer[str]
    last_step_age_us: int
    def __init__(self, model_version: _Optional[str] = ..., workers: _Optional[int] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., free_pages: _Optional[int] = ..., cached_pages: _Optional[int] = ..., owned_pages: _Optional[int] = ..., violations: _Optional[_Iterable[str]] = ..., last_step_age_us: _Optional[int] = ...) -> None: ...
