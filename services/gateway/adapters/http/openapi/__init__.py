"""The gateway's own OpenAPI document: made of the models that validate, and of what the faces answer."""

from services.gateway.adapters.http.openapi.document import document
from services.gateway.adapters.http.openapi.face import DocumentFace

__all__ = ["DocumentFace", "document"]
