"""Why a model cannot be served here."""

from __future__ import annotations


class EngineError(Exception):
    """A model cannot be loaded as configured.

    EngineError
    +-- UnsupportedModelError   an architecture or a feature of it that no module implements
    +-- BadWeightsError         a tensor is missing or has another shape; the message names it
    """


class UnsupportedModelError(EngineError):
    """The artifact's config.json asks for what no family here implements."""


class BadWeightsError(EngineError):
    """The artifact's tensors are not those its config.json describes."""
