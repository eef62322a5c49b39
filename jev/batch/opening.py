"""From a job's backend to the decider that asks it, and to what tells its model from others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jev.adapters import load_adapters
from jev.backends import BackendSpec, open_backend
from jev.backends import spec as specs
from jev.backends.base import fingerprint_of
from jev.batch.deciders import BackendDecider, Decider, EngineDecider
from jev.batch.job import Job
from jev.batch.readers import JobError
from jev.loading import check_pulled
from jev.retry import RetryPolicy

if TYPE_CHECKING:
    from jev.settings import Settings


def parsed_backend(job: Job) -> BackendSpec:
    """The job's backend.

    Raises:
        JobError: it is none.
    """
    try:
        return BackendSpec.parse(job.backend)
    except ValueError as error:
        raise JobError(str(error)) from None


def settings_for(spec: BackendSpec, settings: Settings) -> Settings:
    """The settings with what the spec says, if its model runs here.

    Raises:
        JobError: the spec names an adapter that the settings do not have.
    """
    if spec.remote:
        return settings
    try:
        return specs.settings_for(spec, settings)
    except ValueError as error:
        raise JobError(str(error)) from None


def identity(spec: BackendSpec, settings: Settings) -> str:
    """What tells the model that answers from others: its weights and precision, or its server.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    if spec.remote:
        address = (spec.target or "").rpartition("@")[2]  # without user and password
        return " ".join([spec.kind, address, *(f"{k}={v}" for k, v in sorted(spec.extras.items()))])
    from jev.model import embedded  # noqa: PLC0415 - the SDK has no model
    from jev.model.weights.identity import weights_digest  # noqa: PLC0415

    settings = settings_for(spec, settings)
    check_pulled(settings)
    if settings.dtype == "auto":
        from jev.planner import Machine, settle  # noqa: PLC0415 - it loads torch

        choice = settle(settings, Machine.here(settings.device))
        settings = settings.model_copy(update={"dtype": choice.dtype})
    weights = weights_digest(settings.model or embedded.path())
    adapters = load_adapters(settings.adapters, settings.model) if spec.kind == "torch" else {}
    return f"{spec.kind} {fingerprint_of(weights, settings, adapters, spec.adapter)}"


def open_decider(
    job: Job,
    settings: Settings,
    *,
    api_key: str | None = None,
    timeout: float | None = None,
) -> Decider:
    """Open the job's backend; loading a model is slow.

    Args:
        job: the job.
        settings: of a model that runs here, and how attachments are read.
        api_key: of a server; None = JEV_API_KEY.
        timeout: seconds that a server may take for a row; None = the backend's own.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        JobError: the backend cannot be opened.
        MissingExtraError: a package that it needs is not installed.
    """
    spec = parsed_backend(job)
    if spec.kind == "torch":
        from jev.loading import load_engine  # noqa: PLC0415 - it loads torch

        settings = settings_for(spec, settings)
        return EngineDecider(load_engine(settings), settings, rows=job.group_rows, adapter=spec.adapter)
    retry = RetryPolicy(max_retries=job.retries, max_backoff=30.0, budget=300.0)
    options: dict[str, Any] = {}
    if spec.kind == "systemone":
        # It retries by itself, because a server that says "not now" says it to all rows in flight.
        options = {"api_key": api_key, "retry": retry}
        options |= {} if timeout is None else {"timeout": timeout}
        options |= {} if job.concurrency is None else {"concurrency": job.concurrency}
    try:
        backend = open_backend(job.backend, settings, **options)
    except ValueError as error:
        raise JobError(str(error)) from None
    return BackendDecider(
        backend, concurrency=job.concurrency, retry=None if spec.kind == "systemone" else retry
    )
