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

class WorkerAvailability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_AVAILABILITY_UNSPECIFIED: _ClassVar[WorkerAvailability]
    WORKER_AVAILABILITY_READY: _ClassVar[WorkerAvailability]
    WORKER_AVAILABILITY_DRAINING: _ClassVar[WorkerAvailability]
    WORKER_AVAILABILITY_GONE: _ClassVar[WorkerAvailability]
WORKER_AVAILABILITY_UNSPECIFIED: WorkerAvailability
WORKER_AVAILABILITY_READY: WorkerAvailability
WORKER_AVAILABILITY_DRAINING: WorkerAvailability
WORKER_AVAILABILITY_GONE: WorkerAvailability

class UsageOpened(_message.Message):
    __slots__ = ("request_id", "owner_epoch", "tenant_id", "model_version", "tokenizer_version", "runtime_revision", "opened_time")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_REVISION_FIELD_NUMBER: _ClassVar[int]
    OPENED_TIME_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    owner_epoch: int
    tenant_id: str
    model_version: str
    tokenizer_version: str
    runtime_revision: str
    opened_time: _timestamp_pb2.Timestamp
    def __init__(self, request_id: _Optional[int] = ..., owner_epoch: _Optional[int] = ..., tenant_id: _Optional[str] = ..., model_version: _Optional[str] = ..., tokenizer_version: _Optional[str] = ..., runtime_revision: _Optional[str] = ..., opened_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UsageClosed(_message.Message):
    __slots__ = ("opened", "finish_reason", "input_tokens", "cached_tokens", "output_tokens", "billable_tokens", "queue_ms", "ttft_ms", "total_ms", "closed_time")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BILLABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_TIME_FIELD_NUMBER: _ClassVar[int]
    opened: UsageOpened
    finish_reason: _inference_pb2.FinishReason
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    billable_tokens: int
    queue_ms: float
    ttft_ms: float
    total_ms: float
    closed_time: _timestamp_pb2.Timestamp
    def __init__(self, opened: _Optional[_Union[UsageOpened, _Mapping]] = ..., finish_reason: _Optional[_Union[_inference_pb2.FinishReason, str]] = ..., input_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., billable_tokens: _Optional[int] = ..., queue_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., closed_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UsageRenewed(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[_Iterable[int]] = ...) -> None: ...

class WorkerChanged(_message.Message):
    __slots__ = ("worker_id", "target", "model_version", "availability", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AVAILABILITY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    target: str
    model_version: str
    availability: WorkerAvailability
    incarnation: str
    def __init__(self, worker_id: _Optional[str] = ..., target: _Optional[str] = ..., model_version: _Optional[str] = ..., availability: _Optional[_Union[WorkerAvailability, str]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class RouteRecord(_message.Message):
    __slots__ = ("name", "model_version", "artifact_uri", "context_length", "family", "tokenizer_version", "unserved")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_URI_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNSERVED_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_version: str
    artifact_uri: str
    context_length: int
    family: str
    tokenizer_version: str
    unserved: bool
    def __init__(self, name: _Optional[str] = ..., model_version: _Optional[str] = ..., artifact_uri: _Optional[str] = ..., context_length: _Optional[int] = ..., family: _Optional[str] = ..., tokenizer_version: _Optional[str] = ..., unserved: _Optional[bool] = ...) -> None: ...

class KeyRecord(_message.Message):
    __slots__ = ("tenant_id", "priority", "revoked")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    priority: _inference_pb2.Priority
    revoked: bool
    def __init__(self, tenant_id: _Optional[str] = ..., priority: _Optional[_Union[_inference_pb2.Priority, str]] = ..., revoked: _Optional[bool] = ...) -> None: ...

class IdempotencyRecord(_message.Message):
    __slots__ = ("request_id", "content_sha256", "accepted", "created_time")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_SHA256_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CREATED_TIME_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    content_sha256: bytes
    accepted: bool
    created_time: _timestamp_pb2.Timestamp
    def __init__(self, request_id: _Optional[int] = ..., content_sha256: _Optional[bytes] = ..., accepted: _Optional[bool] = ..., created_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
