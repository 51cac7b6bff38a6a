from tokenloom.api.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelVersion(_message.Message):
    __slots__ = ("model_version", "artifact_uri", "family", "context_length", "tokenizer_version", "source", "licence", "size_bytes", "current")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_URI_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LICENCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    artifact_uri: str
    family: str
    context_length: int
    tokenizer_version: str
    source: str
    licence: str
    size_bytes: int
    current: bool
    def __init__(self, model_version: _Optional[str] = ..., artifact_uri: _Optional[str] = ..., family: _Optional[str] = ..., context_length: _Optional[int] = ..., tokenizer_version: _Optional[str] = ..., source: _Optional[str] = ..., licence: _Optional[str] = ..., size_bytes: _Optional[int] = ..., current: _Optional[bool] = ...) -> None: ...

class RegisterModelRequest(_message.Message):
    __slots__ = ("model_version",)
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    def __init__(self, model_version: _Optional[str] = ...) -> None: ...

class RegisterModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelVersion
    def __init__(self, model: _Optional[_Union[ModelVersion, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ...) -> None: ...

class SetRouteRequest(_message.Message):
    __slots__ = ("model_version",)
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    def __init__(self, model_version: _Optional[str] = ...) -> None: ...

class SetRouteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "target", "incarnation", "model")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    target: str
    incarnation: str
    model: str
    def __init__(self, worker_id: _Optional[str] = ..., target: _Optional[str] = ..., incarnation: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class JoinWorkerResponse(_message.Message):
    __slots__ = ("model", "lease_us")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LEASE_US_FIELD_NUMBER: _ClassVar[int]
    model: ModelVersion
    lease_us: int
    def __init__(self, model: _Optional[_Union[ModelVersion, _Mapping]] = ..., lease_us: _Optional[int] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("worker_id", "incarnation", "state")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    state: _worker_pb2.WorkerState
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[_Union[_worker_pb2.WorkerState, str]] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
