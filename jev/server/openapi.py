"""The OpenAPI description. The body is read by hand, so its schema is added by hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from jev.schemas import ErrorBody, IssueList, SystemOneRequest, SystemOneResponse

_REF = "#/components/schemas/{model}"

_MEANINGS = {
    401: "The key is wrong",
    403: "There is no key",
    404: "No such model",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The content type or encoding is not served",
    429: "The caller sends too many requests",
    500: "The server failed",
    503: "No model can answer",
    529: "The queue is full",
}

ERRORS: dict[int | str, dict[str, Any]] = {
    422: {"model": IssueList, "description": "The request is not valid"},
    **{status: {"model": ErrorBody, "description": text} for status, text in _MEANINGS.items()},
}

_MULTIPART = {
    "type": "object",
    "required": ["request"],
    "properties": {"request": {"$ref": _REF.format(model="SystemOneRequest")}},
    "additionalProperties": {"type": "string", "format": "binary"},
}

SYSTEMONE: dict[str, Any] = {
    "responses": {200: {"model": SystemOneResponse, "description": "An answer to every question"}},
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "description": "Optionally packed with `Content-Encoding: gzip` or `zstd`.",
            "content": {
                "application/json": {"schema": {"$ref": _REF.format(model="SystemOneRequest")}},
                "multipart/form-data": {"schema": _MULTIPART},
            },
        },
        "parameters": [
            {
                "name": "timeout",
                "in": "header",
                "required": False,
                "description": "seconds after which the caller no longer wants the answer",
                "schema": {"type": "number", "exclusiveMinimum": 0},
            }
        ],
    },
}


def describe(app: FastAPI, *, bearer: bool) -> None:
    """Complete the app's OpenAPI document: the request's schema, and the key where one is needed."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            request = SystemOneRequest.model_json_schema(ref_template=_REF)
            components = document.setdefault("components", {})
            schemas = components.setdefault("schemas", {})
            schemas.update(request.pop("$defs", {}))
            schemas["SystemOneRequest"] = request
            if bearer:
                components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
                for path, operations in document["paths"].items():
                    if path.startswith("/v1/"):
                        for operation in operations.values():
                            operation["security"] = [{"bearer": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi
