from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_LOADING: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_LOADING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("worker_id", "state", "model_version", "runtime_revision", "last_epoch", "page_size", "page_count", "slot_count", "max_step_tokens", "context_length", "vocab_size", "kv_bytes_per_token", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_REVISION_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    state: WorkerState
    model_version: str
    runtime_revision: str
    last_epoch: int
    page_size: int
    page_count: int
    slot_count: int
    max_step_tokens: int
    context_length: int
    vocab_size: int
    kv_bytes_per_token: int
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., model_version: _Optional[str] = ..., runtime_revision: _Optional[str] = ..., last_epoch: _Optional[int] = ..., page_size: _Optional[int] = ..., page_count: _Optional[int] = ..., slot_count: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., context_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: StepPlan
    def __init__(self, plan: _Optional[_Union[StepPlan, _Mapping]] = ...) -> None: ...

class RunResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: StepResult
    def __init__(self, result: _Optional[_Union[StepResult, _Mapping]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("epoch", "step", "drop", "add", "slot", "token_count", "page_slot", "page")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SLOT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    drop: _containers.RepeatedScalarFieldContainer[int]
    add: _containers.RepeatedCompositeFieldContainer[Sequence]
    slot: _containers.RepeatedScalarFieldContainer[int]
    token_count: _containers.RepeatedScalarFieldContainer[int]
    page_slot: _containers.RepeatedScalarFieldContainer[int]
    page: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., drop: _Optional[_Iterable[int]] = ..., add: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., slot: _Optional[_Iterable[int]] = ..., token_count: _Optional[_Iterable[int]] = ..., page_slot: _Optional[_Iterable[int]] = ..., page: _Optional[_Iterable[int]] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("slot", "sequence_id", "token_ids", "prompt_len", "computed_len", "pages", "choice", "sampling")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_LEN_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    slot: int
    sequence_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_len: int
    computed_len: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    choice: int
    sampling: Sampling
    def __init__(self, slot: _Optional[int] = ..., sequence_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_len: _Optional[int] = ..., computed_len: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., choice: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "top_logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    top_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., top_logprobs: _Optional[int] = ...) -> None: ...

class LogprobColumns(_message.Message):
    __slots__ = ("row", "logprob", "top_count", "top_token_id", "top_logprob")
    ROW_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    row: _containers.RepeatedScalarFieldContainer[int]
    logprob: _containers.RepeatedScalarFieldContainer[float]
    top_count: _containers.RepeatedScalarFieldContainer[int]
    top_token_id: _containers.RepeatedScalarFieldContainer[int]
    top_logprob: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, row: _Optional[_Iterable[int]] = ..., logprob: _Optional[_Iterable[float]] = ..., top_count: _Optional[_Iterable[int]] = ..., top_token_id: _Optional[_Iterable[int]] = ..., top_logprob: _Optional[_Iterable[float]] = ...) -> None: ...

class RowError(_message.Message):
    __slots__ = ("slot", "reason")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    slot: int
    reason: str
    def __init__(self, slot: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("epoch", "step", "slot", "token_id", "logprobs", "row_error", "forward_us", "sample_us", "queue_us")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ROW_ERROR_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    slot: _containers.RepeatedScalarFieldContainer[int]
    token_id: _containers.RepeatedScalarFieldContainer[int]
    logprobs: LogprobColumns
    row_error: _containers.RepeatedCompositeFieldContainer[RowError]
    forward_us: int
    sample_us: int
    queue_us: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., slot: _Optional[_Iterable[int]] = ..., token_id: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Union[LogprobColumns, _Mapping]] = ..., row_error: _Optional[_Iterable[_Union[RowError, _Mapping]]] = ..., forward_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., queue_us: _Optional[int] = ...) -> None: ...
