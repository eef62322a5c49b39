"""Log lines: text or JSON on standard error, one for each request."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from jev.settings import Settings

access_logger = logging.getLogger("jev.access")

FIELDS = "jev_fields"
"""The attribute of a log record that holds its structured fields."""


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO jev.access: request id=req_... status=200 ...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by a traceback where there is one."""
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JSONFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def configure_logging(settings: Settings) -> None:
    """Send the logs of jev and of the web server to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if settings.log_json else TextFormatter())
    level = settings.log_level.upper()
    # The multipart parser's warnings quote bytes of the body; what is wrong is in the response.
    others = {"uvicorn": "WARNING", "opentelemetry": "ERROR", "python_multipart": "CRITICAL"}
    for name, least in {"jev": level, **others}.items():
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(least)


def log_request(fields: dict[str, Any]) -> None:
    """Write the line of one finished request."""
    access_logger.info("request", extra={FIELDS: fields})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, FIELDS, {})


def _time(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
