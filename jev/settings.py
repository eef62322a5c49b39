"""Every setting of the server and the command line: one object, read once and passed down."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from jev import configs
from jev.adapters import check_adapter_name
from jev.errors import JevError
from jev.extractors import Limits
from jev.pull import Source, place

Bytes = Annotated[ByteSize, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SettingsError(JevError, ValueError):
    """A setting that cannot be used; the message is one sentence that names it."""


class Settings(BaseSettings):
    """What a deployment may decide.

    Precedence: explicit values, then environment (`JEV_PORT`), then a TOML file, then the defaults.
    Sizes are bytes, or strings such as "32MiB". Use `load` for a TOML file and one-sentence errors.
    """

    model_config = SettingsConfigDict(env_prefix="JEV_", env_ignore_empty=True, extra="forbid", frozen=True)

    model: Path | None = Field(
        default=None, description="checkpoint folder or GGUF file; none = the embedded model"
    )
    pull: dict[Literal["model", "vision"], Source] = Field(
        default_factory=dict,
        description="files of a model hub that `model` and `vision` are if not given (docs/models.md)",
    )
    name: str | None = Field(
        default=None, min_length=1, description="model name to answer with; none = the checkpoint's"
    )
    device: str = Field(default="cpu", min_length=1, description="torch device, such as cpu or cuda:0")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float8", "int8", "int4"] = Field(
        default="float32",
        description="precision of the arithmetic; float8, int8 and int4 keep the weights packed in memory; "
        "auto = the best that fits",
    )
    offload_layers: int | None = Field(
        default=None, ge=0, description="layers that a GPU leaves in the host's memory; none = as few as fit"
    )
    check_memory: bool = Field(
        default=True, description="whether a model that free memory cannot hold is refused before loading"
    )
    max_context: int | None = Field(
        default=None, ge=1, description="most tokens of a prompt with its canvas; none = the model's"
    )
    cache_bytes: Annotated[ByteSize, Field(ge=0)] = Field(
        default=ByteSize(256 * 2**20), description="memory for cached prompt prefixes; 0 = no cache"
    )
    step_rows: int = Field(default=512, ge=1, description="most rows of one forward pass")
    prefill_rows: int = Field(
        default=128,
        ge=1,
        description="rows of a long prompt in one pass; fewer let short requests pass sooner",
    )
    threads: int | None = Field(default=None, ge=1, description="torch threads; none = torch decides")

    calibrations: Annotated[dict[str, Path], NoDecode] = Field(
        default_factory=dict,
        description="calibration files by name (a table, or NAME=FILE, comma separated; docs/calibration.md)",
    )

    adapters: Annotated[dict[str, Path], NoDecode] = Field(
        default_factory=dict,
        description="adapter folders by name (a table, or NAME=FOLDER, comma separated; docs/adapters.md)",
    )

    vision: Path | None = Field(
        default=None,
        description="checkpoint folder or shard to take the vision tower from; none = the model's own",
    )
    image_rule: Literal["diffusion_gemma", "gemma4"] = Field(
        default="diffusion_gemma", description="how the rows of an image see each other"
    )
    soft_tokens: Literal[70, 140, 280, 560, 1120] | None = Field(
        default=None, description="most prompt rows a picture takes; none = the checkpoint's own budget"
    )
    vision_cache_bytes: Annotated[ByteSize, Field(ge=0)] = Field(
        default=ByteSize(64 * 2**20), description="memory for the rows of pictures seen before; 0 = no cache"
    )

    ocr: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="read text in pictures; auto = if the model has no vision tower and OCR is installed",
    )
    speech_model: str | None = Field(
        default=None, min_length=1, description="folder or name of a faster-whisper model for speech"
    )
    speech_compute_type: Literal["int8", "int8_float32", "float32"] = Field(
        default="int8", description="precision of the speech model"
    )
    speech_language: str | None = Field(
        default=None, min_length=2, description="language of speech, such as en; none = the model tells"
    )
    speech_url: str | None = Field(
        default=None, min_length=1, description="transcription service to ask instead of a speech model"
    )
    speech_url_model: str | None = Field(default=None, description="model to ask of that service")
    speech_api_key: SecretStr | None = Field(default=None, description="bearer key for that service")
    extract_workers: int = Field(default=2, ge=1, description="processes that read attachments")
    evidence_cache_bytes: Annotated[ByteSize, Field(ge=0)] = Field(
        default=ByteSize(64 * 2**20), description="memory for attachments read before; 0 = no cache"
    )
    limits: dict[str, float] = Field(
        default_factory=dict, description="limits on attachments by name (see docs/evidence.md)"
    )

    files_dir: Path | None = Field(
        default=None, description="folder for uploads; none = a temporary one that ends with the server"
    )
    files_quota_bytes: Bytes = Field(
        default=ByteSize(2 * 2**30), description="most bytes of all uploads together"
    )
    files_ttl_s: Seconds = Field(default=24 * 3600.0, description="time an upload is kept after its last use")
    max_upload_bytes: Bytes = Field(default=ByteSize(32 * 2**20), description="largest upload")

    batches_dir: Path | None = Field(
        default=None, description="folder for batches; none = a temporary one that ends with the server"
    )
    batches_ttl_s: Seconds = Field(
        default=7 * 24 * 3600.0, description="time a batch and its results are kept after it has ended"
    )
    max_batches: int = Field(default=1000, ge=1, description="most batches kept, ended ones too")
    max_batch_rows: int = Field(default=50_000, ge=1, description="most requests of one batch")
    batches_at_once: int = Field(default=1, ge=1, le=16, description="batches that run at a time")
    batch_in_flight: int = Field(
        default=16, ge=1, le=256, description="requests of one batch that are with the model at once"
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0 = any free one")
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(), description="accepted bearer keys (a list, or comma separated); none = no authentication"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="names besides localhost that a server without keys is reached by from web pages or on a "
        "loopback address (a list, or comma separated)",
    )
    page: bool = Field(default=True, description="whether / serves a page to try decisions and chat in")
    control_key: SecretStr | None = Field(
        default=None, min_length=1, description="key for /v1/control (pause, resume); none = no such routes"
    )
    rate_limit_rpm: int = Field(
        default=0, ge=0, description="requests a minute and key (or client address); 0 = no limit"
    )

    max_body_bytes: Bytes = Field(default=ByteSize(32 * 2**20), description="largest request body as sent")
    max_expanded_bytes: Bytes = Field(
        default=ByteSize(64 * 2**20), description="largest request body once decompressed"
    )
    max_header_bytes: Bytes = Field(default=ByteSize(64 * 2**10), description="largest head of a request")
    max_pending_requests: int = Field(default=64, ge=1, description="most requests waiting or running")
    max_pending_tokens: int = Field(
        default=262144, ge=1, description="most tokens of all requests waiting or running"
    )
    max_wait_s: Seconds = Field(
        default=6.0,
        description="longest wait, by the queue's pace, for which a request is still taken; five times as "
        "long for a burst",
    )
    request_timeout_s: Seconds = Field(default=60.0, description="deadline of a request")

    max_texts: int = Field(default=128, ge=1, description="most texts waiting or being written")
    live_texts: int = Field(
        default=4, ge=1, description="texts that take turns on the model, a canvas each; others wait"
    )
    max_text_tokens: int | None = Field(
        default=None, ge=1, description="most tokens of one text; none = what fits behind its prompt"
    )
    text_batch: int = Field(
        default=1,
        ge=1,
        le=64,
        description="texts refined in one forward; over 1 a text may depend on the others by rounding",
    )
    text_share: float = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="part of the model's time that texts get while decisions wait; 0 = none",
    )
    text_tile: int = Field(default=1, ge=1, le=4096, description="rows that the hardware computes at once")
    text_timeout_s: Seconds = Field(default=600.0, description="deadline of a text")
    reasoning_alias: bool = Field(
        default=True, description="whether reasoning is sent as `reasoning` too, beside `reasoning_content`"
    )
    body_timeout_s: Seconds = Field(default=30.0, description="time for a request body to arrive")
    keep_alive_s: int = Field(default=15, ge=1, description="how long an idle connection stays open")
    shutdown_timeout_s: int = Field(default=30, ge=0, description="time for requests to finish when stopping")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe line to log"
    )
    log_json: bool = Field(default=False, description="log one JSON object a line instead of text")
    trace_url: str | None = Field(
        default=None, description="where spans of decisions go (OTLP over HTTP); none = no tracing"
    )
    trace_content: bool = Field(
        default=False, description="whether spans carry states, questions and answers"
    )

    @field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        keys = [key.strip() for key in value.split(",") if key.strip()]
        # An empty list would silently turn authentication off.
        if not keys:
            raise ValueError("there is no key in it")
        return keys

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: Any) -> Any:
        return [name for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("allowed_hosts")
    @classmethod
    def _plain_hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        plain = tuple(name.strip().lower().strip("[]").rstrip(".") for name in names)
        for name in plain:
            if not name or any(mark in name for mark in "/\\\"'[]@ ") or name.count(":") == 1:
                raise ValueError(f"{name!r} is no name; give it without scheme, port and path")
        return plain

    @field_validator("api_keys")
    @classmethod
    def _sendable_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            text = key.get_secret_value()
            if not text or not all("!" <= character <= "~" for character in text):
                raise ValueError("a key is one or more printable ASCII characters without spaces")
        return keys

    @field_validator("calibrations", "adapters", mode="before")
    @classmethod
    def _split_pairs(cls, value: Any, info: ValidationInfo) -> Any:
        pairs = value.split(",") if isinstance(value, str) else value
        if not isinstance(pairs, (list, tuple)):
            return value
        files: dict[str, str] = {}
        for pair in pairs:
            name, equals, path = str(pair).strip().partition("=")
            if not (name and equals and path):
                raise ValueError(f"each is NAME={'FOLDER' if info.field_name == 'adapters' else 'FILE'}")
            if name in files:
                raise ValueError(f"the name {name!r} is given twice")
            files[name] = path
        return files

    @field_validator("adapters")
    @classmethod
    def _plain_names(cls, adapters: dict[str, Path]) -> dict[str, Path]:
        for name in adapters:
            check_adapter_name(name)
        return adapters

    @field_validator("trace_url")
    @classmethod
    def _absolute_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("it is an address such as http://127.0.0.1:4318/v1/traces")
        return url

    @field_validator("limits")
    @classmethod
    def _known_limits(cls, limits: dict[str, float]) -> dict[str, float]:
        evidence_limits(limits)
        return limits

    @model_validator(mode="after")
    def _find_pulled(self) -> Settings:
        for use, source in self.pull.items():
            if getattr(self, use) is None:
                object.__setattr__(self, use, place(source))  # frozen for everyone else
        return self

    @classmethod
    def load(cls, config: str | Path | None = None, **overrides: Any) -> Settings:
        """Read the environment and, if given, a TOML file; overrides that are None count as not given.

        Raises:
            SettingsError: for a file that cannot be read, an unknown setting or a bad value.
        """
        file = _read_toml(Path(config)) if config is not None else {}
        for key in file:
            if key not in cls.model_fields:
                close = difflib.get_close_matches(key, cls.model_fields, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise SettingsError(f"{config}: unknown setting {key!r}{hint}")
        given = {key: value for key, value in overrides.items() if value is not None}
        try:
            settings = cls(**{**file, **EnvSettingsSource(cls)(), **given})
        except ValidationError as error:
            raise SettingsError(_sentence(error, given, config)) from None
        for source in settings.pull.values():
            source.stands_in(configs.shown(config or ""))
        return settings


def evidence_limits(given: dict[str, float]) -> Limits:
    """The limits on attachments, with `given` in place of their defaults.

    Raises:
        ValueError: for an unknown limit or a value that is not positive.
    """
    known = {field.name: field.type for field in dataclasses.fields(Limits)}
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ValueError(f"unknown limit {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    whole = {name: value if known[name] == "float" else int(value) for name, value in given.items()}
    return Limits(**whole)  # type: ignore[arg-type]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is not valid TOML ({error})") from None


def _sentence(error: ValidationError, given: dict[str, Any], config: str | Path | None) -> str:
    """Name each bad setting and where it came from, never its value: it may be a key."""
    parts: list[str] = []
    for row in error.errors(include_url=False, include_context=False, include_input=False):
        name = str(row["loc"][0]) if row["loc"] else "settings"
        below = "".join(f".{part}" for part in row["loc"][1:] if name == "pull")
        variable = f"JEV_{name.upper()}"
        if name in given or name not in Settings.model_fields:
            source = ""
        elif os.environ.get(variable):
            source = f" (from {variable})"
        else:
            source = f" (in {config})"
        parts.append(f"{name}{below}{source}: {row['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)
