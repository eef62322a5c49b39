"""Text on the wire: a string, an object or an array, wherever text is allowed."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_TEXT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array", "items": {}}],
    "description": "a string, or structured JSON (object or array)",
}


def _check_text(value: Any) -> Any:
    if not isinstance(value, (str, dict, list)):
        raise PydanticCustomError("text_type", "Input should be a string, an object or an array")
    try:
        render_text(value).encode()
    except (ValueError, TypeError, RecursionError) as error:
        # An infinite number (1e999), a lone surrogate, or a Python value that JSON does not have.
        reason = str(error)[:200]
        message = "Input cannot be sent: {reason}"
        raise PydanticCustomError("text_invalid", message, {"reason": reason}) from None
    return cast(Any, value)


Text: TypeAlias = Annotated[
    str | dict[str, Any] | list[Any], BeforeValidator(_check_text), WithJsonSchema(_TEXT_SCHEMA)
]
"""A string as it is, or JSON that the model sees in compact form (see `render_text`)."""


def render_text(value: Any) -> str:
    """Return what the model reads for `value`: a string unchanged, anything else as compact JSON.

    Compact means no spaces after separators, key order kept and non-ASCII characters as they are.
    """
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
