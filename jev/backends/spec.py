"""Backends by a short text, such as `torch:int8` or `systemone=http://127.0.0.1:8000`."""

# ruff: noqa: PLC0415 - a backend's packages are imported when it is opened

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from jev._extras import extra_named
from jev.backends.base import Backend

if TYPE_CHECKING:
    from jev.settings import Settings

KINDS: Mapping[str, str] = {
    "torch": "torch[:fp32|bf16|fp16|int8|int4][+ADAPTER][=CHECKPOINT]",
    "unified": "unified[=CHECKPOINT]",
    "transformers": "transformers[=CHECKPOINT]",
    "vllm": "vllm=http://HOST:PORT[,tokenizer=CHECKPOINT][,model=NAME]",
    "systemone": "systemone=http://HOST:PORT[,model=NAME]",
}
"""Every kind and how it is written."""

DTYPES: Mapping[str, str] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
    "int4": "int4",
}
"""Variants of `torch` and the settings' word for each."""

_REMOTE: Mapping[str, frozenset[str]] = {
    "vllm": frozenset({"tokenizer", "model"}),
    "systemone": frozenset({"model"}),
}


@dataclass(frozen=True)
class BackendSpec:
    """What a spec says: `KIND[:VARIANT][+ADAPTER][=TARGET]`; behind a URL also `,KEY=VALUE`.

    Attributes:
        text: the spec as it was written.
        kind: one of `KINDS`.
        variant: precision of `torch`.
        target: checkpoint folder or URL.
        extras: what follows a URL.
        adapter: name of the adapter of `torch` that answers requests which name none.
    """

    text: str
    kind: str
    variant: str | None = None
    target: str | None = None
    extras: Mapping[str, str] = field(default_factory=dict[str, str])
    adapter: str | None = None

    @property
    def remote(self) -> bool:
        """Whether it is a server's address."""
        return self.kind in _REMOTE

    @property
    def shown(self) -> str:
        """The spec for reports: an address without user and password."""
        if not self.remote:
            return self.text
        url = httpx.URL(self.target or "")
        shown = f"{url.scheme}://{url.netloc.decode()}{url.path.rstrip('/')}"
        return ",".join([f"{self.kind}={shown}", *(f"{key}={value}" for key, value in self.extras.items())])

    @classmethod
    def parse(cls, text: str) -> BackendSpec:
        """Read a spec.

        Raises:
            ValueError: one sentence that names what is wrong and what there is.
        """
        head, equals, target = text.strip().partition("=")
        head, plus, adapter = head.partition("+")
        kind, colon, variant = head.partition(":")
        if kind not in KINDS:
            raise _bad(text, f"there is no kind {kind!r}")
        if colon and kind != "torch":
            raise _bad(text, f"{kind} has no variants, so {variant!r} has no meaning")
        if colon and variant not in DTYPES:
            raise _bad(text, f"torch has no variant {variant!r}")
        if plus and kind != "torch":
            raise _bad(text, f"{kind} takes no adapter, so {adapter!r} has no meaning")
        if plus and not adapter:
            raise _bad(text, "no adapter follows the plus sign")
        if equals and not target:
            raise _bad(text, "nothing follows the equals sign")
        if kind not in _REMOTE:
            return cls(text.strip(), kind, variant or None, target or None, adapter=adapter or None)
        if not target:
            raise _bad(text, f"{kind} needs the address of a server")
        url, *rest = target.split(",")
        extras: dict[str, str] = {}
        for part in rest:
            key, _, value = part.partition("=")
            if key not in _REMOTE[kind] or not value:
                raise _bad(text, f"{part!r} is not one of {_listed(_REMOTE[kind])} with a value")
            extras[key] = value
        _check_url(text, url)
        return cls(text.strip(), kind, None, url, extras)


def open_backend(spec: str, settings: Settings | None = None, **options: Any) -> Backend:
    """Open a backend by its spec: `KIND[:VARIANT][=TARGET]`, see `KINDS`. Loading a model is slow.

    Args:
        spec: such as "torch", "torch:int8=/path/to/checkpoint" or "systemone=http://127.0.0.1:8000".
        settings: for models that run here: the device, the checkpoint where the spec names none, and
            how attachments are read; None = from the environment (JEV_MODEL, JEV_DEVICE, ...).
        options: arguments of the backend's class, such as `concurrency`, or `api_key` for a server.

    Raises:
        ValueError: for a spec that cannot be read, or a checkpoint that cannot be used.
        MissingExtraError: when a package that the kind needs is not installed; it names the extra.
    """
    parsed = BackendSpec.parse(spec)
    if parsed.kind == "systemone":
        from jev.backends.systemone import SystemOneBackend

        assert parsed.target is not None
        return SystemOneBackend(parsed.target, **{"name": parsed.shown, **parsed.extras, **options})
    extra = "dev" if parsed.kind == "transformers" else "server"
    with extra_named(f"the backend {parsed.kind!r}", extra):
        return _with_extra(parsed, settings, options)


def _with_extra(spec: BackendSpec, settings: Settings | None, options: dict[str, Any]) -> Backend:
    """Open what needs more than the SDK."""
    from jev.settings import Settings

    settings = settings or Settings.load()
    options = {"name": spec.shown, **options}
    if spec.kind == "vllm":
        from jev.backends.vllm import VllmBackend

        assert spec.target is not None
        return VllmBackend(spec.target, settings=settings, **{**spec.extras, **options})
    settings = settings_for(spec, settings)
    if spec.kind == "torch":
        from jev.backends.torch import TorchBackend

        return TorchBackend(settings=settings, adapter=spec.adapter, **options)
    if spec.kind == "unified":
        from jev.backends.unified import UnifiedBackend

        return UnifiedBackend(settings=settings, **options)
    from jev.backends.transformers import TransformersBackend

    return TransformersBackend(settings=settings, **options)


def settings_for(spec: BackendSpec, settings: Settings) -> Settings:
    """The settings with the checkpoint and precision that a spec names; its model runs here.

    Raises:
        ValueError: the settings have no adapter of the name that the spec has.
    """
    changes: dict[str, Any] = {}
    if spec.target is not None:
        changes["model"] = Path(spec.target).expanduser()
    if spec.variant is not None:
        changes["dtype"] = DTYPES[spec.variant]
    if spec.adapter is not None and spec.adapter not in settings.adapters:
        there = f"there is {_listed(frozenset(settings.adapters))}" if settings.adapters else "there is none"
        raise ValueError(
            f"backend {spec.text[:200]!r}: no adapter is named {spec.adapter[:200]!r} (settings `adapters`, "
            f"or --adapter NAME=FOLDER); {there}"
        )
    if spec.adapter is not None:
        changes["adapters"] = {spec.adapter: settings.adapters[spec.adapter]}
    return settings.model_copy(update=changes)


def _check_url(text: str, url: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise _bad(text, f"the address is not one ({error})") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise _bad(text, f"the address must look like http://host:port, not {url!r}")


def _bad(text: str, reason: str) -> ValueError:
    shown = text if len(text) <= 200 else text[:200] + "..."
    return ValueError(f"backend {shown!r}: {reason}; a backend is one of {_listed(KINDS.values())}")


def _listed(names: Any) -> str:
    return ", ".join(sorted(names) if isinstance(names, frozenset) else names)
