"""Logs to stderr: each line is an event name with fields."""

import contextlib
import enum
import io
import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import Processor


class LogFormat(enum.StrEnum):
    """The format of a line. AUTO: console lines on a terminal, else JSON."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Stderr(io.TextIOBase):
    """Standard error. It drops a line that cannot be written, because a full disk must not end a service."""

    def write(self, text: str) -> int:
        """Writes, or drops the text."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes if that is possible."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure(format: LogFormat, level: str) -> None:  # noqa: A002 - what the setting is called everywhere
    """Sets up structlog for the whole process.

    Args:
        format: Console lines for people, JSON lines for collectors, or the one that suits standard error.
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
        # A cache would keep the loggers of an earlier configuration, and with them a closed stream.
        cache_logger_on_first_use=False,
    )


def _renderers(format: LogFormat) -> list[Processor]:  # noqa: A002 - as above
    match format:
        case LogFormat.AUTO:
            return _renderers(LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
        case LogFormat.JSON:
            return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        case LogFormat.CONSOLE:
            plain = structlog.dev.plain_traceback
            colors = sys.stderr.isatty()
            return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
