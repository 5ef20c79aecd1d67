"""Configuration and context of log lines. Entry points: `configure`, `about`.

Every line that is logged during a pass has its controller, plane, object and number. What looks like a secret is never
written.
"""

import logging
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, TextIO

import structlog
from msgspec import Struct
from structlog.typing import EventDict, Processor

from datum_compute.runtime.requests import Request

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
ENCODERS = ("json", "console")
HIDDEN = "(hidden)"


class _Pass(Struct, frozen=True):
    controller: str
    request: Request
    number: int


_current: ContextVar[_Pass | None] = ContextVar("pass", default=None)

_SECRET_NAME = re.compile(r"(?i)token|password|secret|authorization|credential|cookie|(private|client|api)[_-]?key")
_SECRET_TEXT = (
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),  # a JSON web token
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # in a URL
)


def configure(level: str = "info", encoder: str = "json", stream: TextIO | None = None) -> None:
    """Logs one line per event: a JSON object for programs, or columns for people."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is unknown; choose one of {', '.join(LEVELS)}")
    if encoder not in ENCODERS:
        raise ValueError(f"log encoder {encoder!r} is unknown; choose one of {', '.join(ENCODERS)}")
    stream = stream or sys.stderr
    rendering: list[Processor] = [structlog.processors.format_exc_info, without_secrets]
    rendering.append(
        structlog.processors.JSONRenderer()
        if encoder == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            with_pass,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def about(controller: str, request: Request, number: int) -> None:
    """From now on, every line of this task belongs to this pass."""
    _current.set(_Pass(controller, request, number))


def with_pass(logger: Any, method: str, event: EventDict) -> EventDict:
    current = _current.get()
    if current is None:
        return event
    request = current.request
    context = {"controller": current.controller, "plane": request.plane, "namespace": request.namespace}
    return {**context, "name": request.name, "pass": current.number, **event}


def without_secrets(logger: Any, method: str, event: EventDict) -> EventDict:
    return {name: _redacted(name, value) for name, value in event.items()}


def _redacted(name: str, value: Any) -> Any:
    if name != "event" and value and _SECRET_NAME.search(name):
        return HIDDEN
    match value:
        case str():
            for pattern in _SECRET_TEXT:
                value = pattern.sub(HIDDEN, value)
            return value
        case bytes():
            return _redacted(name, value.decode("utf-8", "replace"))
        case Mapping():
            return {key: _redacted(str(key), inner) for key, inner in value.items()}
        case list() | tuple():
            return [_redacted(name, inner) for inner in value]
        case Exception():
            return _redacted(name, str(value))
    return value
