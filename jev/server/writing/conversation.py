"""A conversation on the wire -> the ids of its prompt and its pictures."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from jev.attachments import Source
from jev.errors import InvalidRequestError, OverloadedError
from jev.extractors import Budget, LimitExceeded, Limits
from jev.extractors.evidence import Picture
from jev.material import Loc
from jev.model.pixels import Patches, patches_of
from jev.schemas import decode_base64
from jev.schemas.chat import ChatRequest, ImagePart, Message, TextPart
from jev.schemas.ollama import OllamaChat, OllamaGenerate
from jev.server.service import Service

if TYPE_CHECKING:
    from jev.engine import Engine

MAX_PICTURES = 8
"""Most pictures of one conversation."""

_THOUGHT = re.compile(r"<\|channel>.*?(?:<channel\|>|\Z)", re.DOTALL)

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "model"}


@dataclass(frozen=True)
class Image64:
    """A picture as it came: where in the body, its base64 data or data URL, and whether it must be a URL."""

    loc: Loc
    data: str
    is_url: bool = False


@dataclass(frozen=True)
class Turn:
    """One turn: its role in the chat layout, and its texts and pictures."""

    role: str
    parts: tuple[str | Image64, ...]


@dataclass(frozen=True)
class Conversation:
    """What is to be answered.

    Attributes:
        turns: in order.
        field: where they are in the body.
        think: the field that lets the model think first; None = it may not.
        raw: without any chat layout; then there is one turn of one text.
    """

    turns: tuple[Turn, ...]
    field: str
    think: str | None = None
    raw: bool = False

    @property
    def images(self) -> list[Image64]:
        """All pictures in order."""
        return [part for turn in self.turns for part in turn.parts if isinstance(part, Image64)]

    @property
    def characters(self) -> int:
        """Length of all texts."""
        return sum(len(part) for turn in self.turns for part in turn.parts if isinstance(part, str))


def of_chat(request: ChatRequest) -> Conversation:
    """The conversation of a request in OpenAI's shape."""
    turns = [_turn(index, message) for index, message in enumerate(request.messages)]
    return Conversation(tuple(turns), "messages", request.thinks)


def of_text(text: str) -> Conversation:
    """A text to go on from."""
    return Conversation((Turn("", (text,)),), "prompt", raw=True)


def of_ollama_chat(request: OllamaChat) -> Conversation:
    """The conversation of a chat in Ollama's shape."""
    turns = []
    for index, message in enumerate(request.messages):
        images = [
            Image64(("messages", index, "images", number), data) for number, data in enumerate(message.images)
        ]
        text = _said(message.content) if message.role == "assistant" else message.content.strip()
        turns.append(Turn(_ROLES[message.role], (*images, text)))
    return Conversation(tuple(turns), "messages", "think" if request.think else None)


def of_ollama_prompt(request: OllamaGenerate) -> Conversation:
    """The conversation of a single prompt in Ollama's shape."""
    if request.raw:
        return of_text(request.prompt)
    images = [Image64(("images", number), data) for number, data in enumerate(request.images)]
    system = [Turn("system", (request.system.strip(),))] if request.system.strip() else []
    turns = (*system, Turn("user", (*images, request.prompt.strip())))
    return Conversation(turns, "prompt", "think" if request.think else None)


async def read(service: Service, conversation: Conversation, deadline: float) -> Prompt:
    """Decode the pictures and tokenise the texts, off the event loop.

    Raises:
        InvalidRequestError: for a picture that cannot be shown, or texts that are too long, naming the field.
        ModelUnavailableError: when what could read a picture is broken.
        OverloadedError: the deadline passed.
    """
    engine, _ = service.serving()
    _check_length(engine, conversation)
    if conversation.think and not engine.context.template.can_think:
        raise InvalidRequestError.at(conversation.think, msg="This model has no thinking mode")
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            pictures: list[Picture] = []
            if conversation.images:
                sources = await service.in_worker(lambda: _sources(engine, conversation, service.limits))
                material = await service.reader().read(sources)
                pictures = [one.pictures[0] for one in material.evidence]
            return await service.in_worker(lambda: _prompt(engine, conversation, pictures))
    except TimeoutError:
        raise OverloadedError(
            "The deadline passed while the prompt was being prepared", retry_after=1
        ) from None


@dataclass(frozen=True)
class Prompt:
    """Ids of a prompt, and its pictures in order."""

    ids: tuple[int, ...]
    pictures: tuple[Patches, ...] = ()


def _turn(index: int, message: Message) -> Turn:
    role = _ROLES[message.role]
    if isinstance(message.content, str):
        text = _said(message.content) if role == "model" else message.content.strip()
        return Turn(role, (text,))
    parts: list[str | Image64] = []
    for number, part in enumerate(message.content):
        if isinstance(part, ImagePart):
            loc = ("messages", index, "content", number, "image_url", "url")
            parts.append(Image64(loc, part.image_url.url, is_url=True))
        else:
            text = part.text if isinstance(part, TextPart) else part.refusal
            text = _said(text) if role == "model" else text.strip()
            # As the published layout writes it.
            parts.append(f"{text} " if role == "system" else text)
    return Turn(role, tuple(parts))


def _said(text: str) -> str:
    """What an assistant said, without what it thought."""
    return _THOUGHT.sub("", text).strip()


def _check_length(engine: Engine, conversation: Conversation) -> None:
    """Refuse what is too long however it is tokenised, before that is paid for."""
    least = conversation.characters // engine.context.tokenizer.longest
    if least > engine.max_context:
        raise InvalidRequestError.at(
            conversation.field,
            msg=f"The prompt has at least {least} tokens, the limit is {engine.max_context}",
            type="tokens_exceeded",
        )


def _sources(engine: Engine, conversation: Conversation, limits: Limits) -> list[Source]:
    images = conversation.images
    if not engine.has_vision:
        raise InvalidRequestError.at(
            *images[0].loc, msg="This model has no vision tower, so it cannot see pictures", type="attachment"
        )
    if len(images) > MAX_PICTURES:
        raise InvalidRequestError.at(
            *images[MAX_PICTURES].loc, msg=f"There are {len(images)} pictures, the limit is {MAX_PICTURES}"
        )
    budget = Budget(limits)
    sources = []
    for image in images:
        try:
            data = _decoded(image, limits.max_image_bytes)
            budget.admit(len(data), attachment=False)
        except (ValueError, LimitExceeded) as error:
            raise InvalidRequestError.at(*image.loc, msg=str(error), type="attachment") from None
        sources.append(Source(image.loc, "images", "image", data))
    return sources


def _decoded(image: Image64, limit: int) -> bytes:
    """The bytes of a picture; an address is not fetched."""
    if image.is_url and image.data[:5].lower() != "data:":
        raise ValueError("Input should be a base64 data URL; no URL is fetched")
    return decode_base64(image.data, limit)


def _prompt(engine: Engine, conversation: Conversation, pictures: Sequence[Picture]) -> Prompt:
    template, vision = engine.context.template, engine.context.vision
    if conversation.raw:
        (text,) = conversation.turns[0].parts
        assert isinstance(text, str)
        return Prompt((template.bos, *template.rows([text])))
    shown: list[Patches] = []
    for picture, image in zip(pictures, conversation.images, strict=True):
        assert vision is not None  # pictures are refused without a tower
        try:
            with Image.open(io.BytesIO(picture.png)) as opened:
                shown.append(patches_of(opened, vision, engine.context.soft_tokens))
        except ValueError as error:
            raise InvalidRequestError.at(*image.loc, msg=str(error), type="attachment") from None
    left = iter(shown)
    turns = [
        (turn.role, [part if isinstance(part, str) else next(left).tokens for part in turn.parts])
        for turn in conversation.turns
    ]
    return Prompt(template.dialogue(turns, think=conversation.think is not None), tuple(shown))
