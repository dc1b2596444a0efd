"""Logging: an event name and its fields, one line each, on stderr."""

import contextlib
import enum
import io
import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import Processor


class LogFormat(enum.StrEnum):
    """How a line looks."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least important line that is still written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Stderr(io.TextIOBase):
    """Standard error, where a line that cannot be written is lost and nothing else is: a full disk ends no service."""

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(format: LogFormat, level: str) -> None:  # noqa: A002 - what the setting is called everywhere
    """Set up structlog for the whole process.

    Args:
        format: Console lines for people, JSON lines for collectors.
        level: A `LogLevel`, in any case.

    Raises:
        ValueError: The level is unknown.
    """
    number = logging.getLevelNamesMapping()[LogLevel(level.lower()).upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        # Caching would keep the loggers of an earlier configuration, and a closed stream with them.
        cache_logger_on_first_use=False,
    )


def _renderers(format: LogFormat) -> list[Processor]:  # noqa: A002 - as above
    match format:
        case LogFormat.JSON:
            return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        case LogFormat.CONSOLE:
            plain = structlog.dev.plain_traceback
            colors = sys.stderr.isatty()
            return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
