import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from tokenloom.api.inference.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RowState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_STATE_UNSPECIFIED: _ClassVar[RowState]
    ROW_STATE_OPEN: _ClassVar[RowState]
    ROW_STATE_CLOSED: _ClassVar[RowState]
    ROW_STATE_FINAL: _ClassVar[RowState]
    ROW_STATE_UNRESOLVED: _ClassVar[RowState]
ROW_STATE_UNSPECIFIED: RowState
ROW_STATE_OPEN: RowState
ROW_STATE_CLOSED: RowState
ROW_STATE_FINAL: RowState
ROW_STATE_UNRESOLVED: RowState

class ListUsageRequest(_message.Message):
    __slots__ = ("tenant_id", "request_id", "start_time", "end_time", "page_size", "page_token")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    request_id: int
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    page_size: int
    page_token: str
    def __init__(self, tenant_id: _Optional[str] = ..., request_id: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListUsageResponse(_message.Message):
    __slots__ = ("rows", "next_page_token")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[UsageRow]
    next_page_token: str
    def __init__(self, rows: _Optional[_Iterable[_Union[UsageRow, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UsageRow(_message.Message):
    __slots__ = ("request_id", "tenant_id", "model_version", "tokenizer_version", "adapter", "runtime_revision", "input_tokens", "cached_tokens", "output_tokens", "billable_tokens", "finish_reason", "queue_ms", "ttft_ms", "total_ms", "opened_time", "closed_time", "state", "owner_epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_REVISION_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BILLABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    OPENED_TIME_FIELD_NUMBER: _ClassVar[int]
    CLOSED_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    tenant_id: str
    model_version: str
    tokenizer_version: str
    adapter: str
    runtime_revision: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    billable_tokens: int
    finish_reason: _inference_pb2.FinishReason
    queue_ms: float
    ttft_ms: float
    total_ms: float
    opened_time: _timestamp_pb2.Timestamp
    closed_time: _timestamp_pb2.Timestamp
    state: RowState
    owner_epoch: int
    def __init__(self, request_id: _Optional[int] = ..., tenant_id: _Optional[str] = ..., model_version: _Optional[str] = ..., tokenizer_version: _Optional[str] = ..., adapter: _Optional[str] = ..., runtime_revision: _Optional[str] = ..., input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., billable_tokens: _Optional[int] = ..., finish_reason: _Optional[_Union[_inference_pb2.FinishReason, str]] = ..., queue_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., opened_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., closed_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[RowState, str]] = ..., owner_epoch: _Optional[int] = ...) -> None: ...
