"""From a request to a text that is being written: what the routes of both APIs share."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.datastructures import Headers

from jev.channels import Channels
from jev.crash import crash_report
from jev.errors import (
    APIError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ServerError,
    UnsupportedMediaTypeError,
)
from jev.schemas import Issue, ModelInfo, Warning, parse_json
from jev.server.body import Media
from jev.server.metrics import Metrics
from jev.server.record import RequestRecord
from jev.server.routes import service_of
from jev.server.service import Service
from jev.server.tracing import Writing
from jev.server.waiting import seconds_allowed, unless_gone
from jev.server.writing.conversation import Conversation, read
from jev.server.writing.written import Part, written

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from jev.writing import TextPlan

logger = logging.getLogger(__name__)

MOST_TOKENS = 2**31 - 1
"""More than any text has; what is over means the same."""


@dataclass(frozen=True)
class Asked:
    """What a request wants, whatever API it follows.

    Attributes:
        conversation: what is to be answered.
        model: its name.
        limit: most tokens; None = what has room.
        seed: None = a random one.
        stops: strings that end the text.
        reasoning: whether thoughts are sent.
        drafts: whether canvases are sent while they are refined.
        stream: whether the text is sent bit by bit.
        usage: whether a stream ends with the numbers of tokens.
        diffusion: options of `jev.model.writing.Options`.
        within: the field of the body that they are in; None = the body itself.
        ignored: fields that are known and have no effect.
        warnings: fields that nobody knows.
    """

    conversation: Conversation
    model: str
    limit: int | None
    seed: int | None
    stops: tuple[str, ...] = ()
    reasoning: bool = False
    drafts: bool = False
    stream: bool = False
    usage: bool = False
    diffusion: Mapping[str, Any] = field(default_factory=dict)
    within: str | None = None
    ignored: Sequence[str] = ()
    warnings: Sequence[Warning] = ()


class Noted:
    """Says once for each field, in the log, that it has no effect."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def ignored(self, names: Sequence[str]) -> None:
        """Note fields by their names; these are the API's, never the caller's."""
        for name in names:
            if name not in self._seen:
                self._seen.add(name)
                logger.warning("a request gives %s, which has no effect on this model", name)


@dataclass(frozen=True)
class Started:
    """A text that is being written.

    Attributes:
        id: 32 hexadecimal digits, as in the request's id.
        asked: what is wanted.
        plan: what is written.
        model: the name that answers carry.
        warning: what the caller should know of the model.
        fingerprint: what else decides a text beside its seed.
        parts: what comes.
        headers: for the response.
        span: where its end is noted.
        record: the request's.
    """

    id: str
    asked: Asked
    plan: TextPlan
    model: str
    warning: str | None
    fingerprint: str | None
    parts: AsyncGenerator[Part]
    headers: dict[str, str]
    span: Writing
    record: RequestRecord

    def ended(self, tokens: int) -> None:
        """Note how many tokens the text has."""
        self.record.text_tokens = tokens
        self.span.answered(self.model, self.plan.prompt_tokens, tokens)


async def body_of(request: Request, *, any_kind: bool = False) -> Any:
    """The decoded JSON of a request whose body needs no pictures or tokenising.

    Raises: as `start`.
    """
    service = service_of(request)
    media = _media(request.headers, any_kind=any_kind)
    with service.bodies.lease() as lease:
        raw = await service.receive(request, lease)
        return await service.in_worker(lambda: _json(media, raw, service))


async def start(
    request: Request,
    parse: Callable[[Any], Asked],
    held: AsyncExitStack,
    *,
    any_kind: bool = False,
) -> Started:
    """Receive a request, check all of it, and begin to write.

    Args:
        request: the request.
        parse: a decoded body -> what it wants; raises BadRequestError.
        held: gets what must be closed at the end, or when the client goes away.
        any_kind: whether the content type does not matter.

    Raises:
        APIError: what is wrong with the request, or why nothing can be written now.
        ClientGoneError: the client closed the connection.
    """
    service, record = service_of(request), RequestRecord.of(request.scope)
    span = held.enter_context(service.tracing.writing(record.id, request.headers))
    engine, _ = service.serving()  # without a model, say so before the body is read
    media = _media(request.headers, any_kind=any_kind)
    deadline = time.monotonic() + seconds_allowed(request.headers, service.settings.text_timeout_s)
    with service.bodies.lease() as lease:
        raw = await service.receive(request, lease)
        prepared = _prepare(service, lambda: parse(_json(media, raw, service)), deadline)
        asked, plan = await unless_gone(request.receive, prepared)
    record.tokens = plan.tokens
    span.asked(asked.model)
    request.app.state.noted.ignored(asked.ignored)
    stream = await service.serving()[1].write(plan, deadline=deadline)
    held.push_async_callback(stream.aclose)
    context = engine.context
    channels = Channels(context.tokenizer, context.template, stop=asked.stops, reasoning=asked.reasoning)
    metrics: Metrics = request.app.state.metrics
    return Started(
        id=record.id.removeprefix("req_"),
        asked=asked,
        plan=plan,
        model=engine.name if plan.adapter is None else f"{engine.name}+{plan.adapter.name}",
        warning=engine.warning,
        fingerprint=f"fp_{engine.fingerprint[:12]}" if engine.fingerprint else None,
        parts=written(stream, channels, metrics),
        headers=_headers(asked, plan, engine.warning),
        span=span,
        record=record,
    )


async def _prepare(service: Service, parse: Callable[[], Asked], deadline: float) -> tuple[Asked, TextPlan]:
    engine, _ = service.serving()
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            asked = await service.in_worker(parse)
    except TimeoutError:
        raise OverloadedError("The deadline passed before the body was read", retry_after=1) from None
    prompt = await read(service, asked.conversation, deadline)

    def plan() -> TextPlan:
        return engine.prepare_text(
            prompt.ids,
            model=untagged(asked.model),
            pictures=prompt.pictures,
            max_tokens=None if asked.limit is None else min(asked.limit, MOST_TOKENS),
            capped=True,
            field=asked.conversation.field,
            drafts=asked.drafts,
            seed=secrets.randbits(31) if asked.seed is None else asked.seed,
            **asked.diffusion,
        )

    try:
        return asked, await service.in_worker(plan)
    except InvalidRequestError as error:
        raise InvalidRequestError.of([_renamed(issue, asked) for issue in error.issues]) from None


def _renamed(issue: Issue, asked: Asked) -> Issue:
    """An issue at the field's place on the wire, and of one kind for all prompts that are too long."""
    name = issue.loc[-1]
    if name == asked.conversation.field:
        return issue.model_copy(update={"type": "tokens_exceeded"})
    if name in asked.diffusion:
        name = "diffusion_sampler" if name == "sampler" else name
        return issue.model_copy(update={"loc": ["body", *([asked.within] if asked.within else []), name]})
    return issue


def model_named(request: Request, name: str) -> ModelInfo:
    """The loaded model of a name, which may have Ollama's tag.

    Raises:
        NotFoundError: there is none.
    """
    engine, _ = service_of(request).serving()
    for one in engine.models():
        if one.name == untagged(name):
            return one
    raise NotFoundError(f"No model named {name[:200]!r}; loaded: {engine.name}")


def untagged(name: str) -> str:
    """A model's name without the tag that clients of Ollama may add."""
    return name.removesuffix(":latest")


def _media(headers: Headers, *, any_kind: bool) -> Media:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (any_kind or kind in ("", "application/json") or kind.endswith("+json")):
        raise UnsupportedMediaTypeError("Send application/json")
    return Media.of(Headers(raw=[(name, value) for name, value in headers.raw if name != b"content-type"]))


def _json(media: Media, raw: bytes, service: Service) -> Any:
    body, _ = media.unpack(raw, service.settings.max_expanded_bytes)
    return parse_json(body)


def _headers(asked: Asked, plan: TextPlan, warning: str | None) -> dict[str, str]:
    unknown = [".".join(map(str, one.loc)) for one in asked.warnings]
    headers = {
        "x-jev-seed": str(plan.options.seed),
        "x-jev-ignored": ", ".join(asked.ignored),
        "x-jev-unknown": ", ".join(name for one in unknown if (name := _ascii(one).strip())),
        "x-jev-warning": _ascii(warning or "").strip(),
    }
    return {name: value for name, value in headers.items() if value}


def _ascii(text: str) -> str:
    """Text as a header can carry it, but for spaces around it."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def failure_of(started: Started, error: Exception) -> APIError:
    """What is said of an error after the response has begun; it is noted and logged."""
    started.span.failed(error)
    if isinstance(error, APIError):
        return error
    logger.error("request %s failed: %s", started.record.id, crash_report(error))
    return ServerError()
