"""Logging: one line an event on stderr, readable or JSON. Tracebacks never carry local variables."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import TYPE_CHECKING, cast

import structlog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor


def configure(service: str, *, fmt: str = "console", level: str = "INFO") -> None:
    """Set up the process's logging; libraries' own loggers speak from WARNING on."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _naming(service),
    ]
    renderer = _renderer(fmt)
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # The NATS client makes TLS of a plain stream, of which asyncio complains whenever one ends.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received" not in record.getMessage())


def get(name: str) -> FilteringBoundLogger:
    """A logger whose lines carry `name` as their component."""
    return cast("FilteringBoundLogger", structlog.get_logger(component=name))


def trace(error: BaseException) -> str:
    """The frames and types of an error and its causes, without their messages: these may quote a prompt."""
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(f"{type(cause).__name__}\n{''.join(traceback.format_tb(cause.__traceback__))}")
        cause = cause.__cause__ or cause.__context__
    return "\ncaused by ".join(chain)


def _naming(service: str) -> Processor:
    def add(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["service"] = service
        return event

    return add


def _renderer(fmt: str) -> list[Processor]:
    if fmt == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # The default formatter prints local variables, and with them prompts.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
