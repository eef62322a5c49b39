"""Puts the server together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI

from jev.server.batch_jobs import BatchJobs
from jev.server.batch_routes import batches_api
from jev.server.control_routes import control_api
from jev.server.errors import install_error_handlers
from jev.server.file_routes import files_api
from jev.server.metrics import Metrics
from jev.server.middleware import RequestMiddleware
from jev.server.openapi import describe
from jev.server.page import page_routes
from jev.server.routes import api, ops
from jev.server.service import Service
from jev.server.writing.models import models_api
from jev.server.writing.ollama import ollama_api
from jev.server.writing.openai import openai_api
from jev.server.writing.serve import Noted
from jev.settings import Settings, SettingsError

if TYPE_CHECKING:
    from jev.engine import Engine


def create_app(settings: Settings, engine: Engine | None = None) -> FastAPI:
    """Build the ASGI app.

    Args:
        settings: the deployment's settings.
        engine: a loaded engine. Without one the app loads the model that the settings name after it
            has started: `/health` answers at once, `/ready` and `/v1` say 503 until it is loaded.
    """
    service = Service(settings, engine)
    batches = BatchJobs(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await batches.open()
        except SettingsError as error:
            if engine is not None:
                raise
            service.loaded.set_exception(error)  # as everything that comes between here and serving
            yield
            return
        await service.start()
        await batches.start()
        try:
            yield
        finally:
            await batches.stop()
            await service.stop()

    app = FastAPI(
        title="jev",
        description="Typed decisions: a state and questions in, label probabilities out.",
        version=version("jev-server"),
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect would drop the body
        # Newer versions can send spans and logs of their own, which would quote what callers wrote.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service = service
    app.state.batches = batches
    app.state.noted = Noted()
    app.state.metrics = Metrics(
        service.pending, service.stats, service.stored_bytes, batches.stats, service.pending_texts
    )
    app.include_router(api)
    app.include_router(files_api)
    app.include_router(batches_api)
    app.include_router(openai_api)
    app.include_router(ollama_api)
    app.include_router(models_api)
    app.include_router(ops)
    control = control_api(key.get_secret_value()) if (key := settings.control_key) else APIRouter()
    app.include_router(control)
    page = page_routes() if settings.page else APIRouter()
    app.include_router(page)
    install_error_handlers(app)
    describe(app, bearer=bool(settings.api_keys))
    routers = (api, files_api, batches_api, openai_api, ollama_api, models_api, ops, control, page)
    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    paths = frozenset(path for route in routes if (path := getattr(route, "path", None)))
    allowed = None if settings.api_keys else frozenset(settings.allowed_hosts)
    app.add_middleware(RequestMiddleware, metrics=app.state.metrics, paths=paths, allowed=allowed)
    return app
