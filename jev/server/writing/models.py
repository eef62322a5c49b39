"""What clients of Ollama ask about the models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, Request

from jev.schemas.ollama import (
    OllamaDescription,
    OllamaDetails,
    OllamaModel,
    OllamaModels,
    OllamaShow,
    OllamaVersion,
)
from jev.schemas.parse_text import parse_text_request
from jev.server.openapi import OLLAMA_ERRORS, OLLAMA_SHOW
from jev.server.routes import guard, service_of
from jev.server.writing.serve import body_of, model_named

if TYPE_CHECKING:
    from jev.engine import Engine

FAMILY = "diffusion-gemma"

models_api = APIRouter(prefix="/api", dependencies=[Depends(guard)], tags=["texts"])


@models_api.get("/tags", summary="List the models (Ollama)", responses=OLLAMA_ERRORS)
async def tags(request: Request) -> OllamaModels:
    """List what the `model` field of a request may name."""
    engine, _ = service_of(request).serving()
    details, size = _details(engine), _bytes(engine)
    return OllamaModels(
        models=[
            OllamaModel(
                name=one.name,
                model=one.name,
                modified_at=_modified(engine),
                size=size,
                digest=engine.fingerprint,
                details=details,
            )
            for one in engine.models()
        ]
    )


@models_api.get("/ps", summary="List the loaded models (Ollama)", responses=OLLAMA_ERRORS)
async def loaded(request: Request) -> OllamaModels:
    """List the models again: all are loaded."""
    return await tags(request)


@models_api.post("/show", summary="Describe a model (Ollama)", **OLLAMA_SHOW)
async def show(request: Request) -> OllamaDescription:
    """Describe the model that the body names."""
    engine, _ = service_of(request).serving()
    asked, _ = parse_text_request(await body_of(request, any_kind=True), OllamaShow, {}, idle=("verbose",))
    model_named(request, asked.model or asked.name or "jev-latest")
    template, config = engine.context.template, engine.model.config.text
    abilities = {"completion": True, "vision": engine.has_vision, "thinking": template.can_think}
    return OllamaDescription(
        modelfile="",
        parameters="",
        template="",
        details=_details(engine),
        model_info={
            "general.architecture": FAMILY,
            f"{FAMILY}.context_length": engine.max_context,
            f"{FAMILY}.embedding_length": config.hidden_size,
            f"{FAMILY}.block_count": len(config.layers),
            f"{FAMILY}.canvas_length": engine.model.config.canvas_length,
        },
        capabilities=[name for name, able in abilities.items() if able],
        modified_at=_modified(engine),
    )


@models_api.get("/version", summary="The server's version (Ollama)", responses=OLLAMA_ERRORS)
async def server_version() -> OllamaVersion:
    """Tell the version of this server, not of Ollama."""
    return OllamaVersion(version=version("jev-server"))


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _modified(engine: Engine) -> str:
    return f"{engine.release_date}T00:00:00Z"


def _details(engine: Engine) -> OllamaDetails:
    packed = engine.precision in ("int8", "int4")
    count = sum(one.numel() for one in engine.model.parameters())
    return OllamaDetails(
        family=FAMILY,
        families=[FAMILY],
        parameter_size="" if packed else f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M",
        quantization_level=engine.precision,
    )


def _bytes(engine: Engine) -> int:
    """Bytes of the weights in memory."""
    tensors = (*engine.model.parameters(), *engine.model.buffers())
    return sum(one.numel() * one.element_size() for one in tensors)
