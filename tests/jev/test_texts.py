"""Texts take turns on the model beside decisions; neither order nor company changes what is written."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jev.engine import Engine
from jev.errors import ModelUnavailableError, OverloadedError, ServerError
from jev.scheduler import Scheduler
from jev.schemas import Noul, SystemOneRequest
from jev.texts import TextLimits
from jev.writing import Committed, Draft, Ended, Event, TextPlan

pytestmark = pytest.mark.anyio

PROMPTS = ("Hello.", "Why is the sky blue?", "Write a long poem about rain.", "One, two, three, and then?")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A tiny random model without a prefix cache of note; it ends a text now and then."""
    from jev.model.tiny import write_tiny_checkpoint

    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("writing") / "tiny", canvas=16)
    return Engine.load(folder, prefill_rows=8)


@pytest.fixture
def scheduler(writing: Engine) -> Iterator[Scheduler]:
    scheduler = Scheduler(writing, 64, 10**6, texts=TextLimits(texts=8, live=3))
    yield scheduler
    scheduler.close(timeout=10)


def plan(engine: Engine, text: str = PROMPTS[0], **given: Any) -> TextPlan:
    options = {"max_tokens": 40, "seed": 1, "max_denoising_steps": 4, **given}
    return engine.prepare_text(engine.context.template.chat(text), **options)


async def events(scheduler: Scheduler, plan: TextPlan) -> list[Event]:
    async with await scheduler.write(plan) as stream:
        return [event async for event in stream]


def commits(found: list[Event]) -> list[tuple[int, ...]]:
    return [event.ids for event in found if isinstance(event, Committed)]


async def until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


async def begun(scheduler: Scheduler, plan: TextPlan) -> tuple[Any, asyncio.Task[list[Event]]]:
    """A text of which something was seen, and the task that reads the rest."""
    stream = await scheduler.write(plan)
    first = await anext(stream)

    async def rest() -> list[Event]:
        return [first, *[event async for event in stream]]

    return stream, asyncio.create_task(rest())


async def test_events_of_a_text(scheduler: Scheduler, writing: Engine) -> None:
    found = await events(scheduler, plan(writing, drafts=True))
    end = found[-1]
    assert isinstance(end, Ended)
    done = [event for event in found if isinstance(event, Committed)]
    assert [event.block for event in done] == list(range(end.canvases))
    assert sum(len(event.ids) for event in done) == end.tokens <= 40
    assert sum(event.steps for event in done) == end.steps
    drafts = [event for event in found if isinstance(event, Draft)]
    assert {event.block for event in drafts if event.final} == set(range(end.canvases))
    assert all(len(event.ids) == len(event.kept) == 16 and event.steps == 4 for event in drafts)
    places = [(event.block, event.step) for event in drafts]
    assert places == sorted(places)


async def test_it_writes_what_the_model_writes_alone(scheduler: Scheduler, writing: Engine) -> None:
    from jev.model.denoise import Generation

    asked = plan(writing, PROMPTS[2])
    generation = Generation(writing.model, asked.prompt, asked.options, prefill_rows=8, cuts=asked.marks)
    while not generation.done:
        generation.step()
    written = [one for ids in commits(await events(scheduler, asked)) for one in ids]
    assert tuple(written) == generation.tokens


async def test_company_and_order_change_nothing(scheduler: Scheduler, writing: Engine) -> None:
    plans = [plan(writing, text, seed=seed) for text in PROMPTS for seed in (1, 2)]
    alone = [commits(await events(scheduler, one)) for one in plans]
    assert len({str(one) for one in alone}) == len(plans)
    for order in (plans, plans[::-1], plans[3:] + plans[:3]):
        await scheduler.reset_cache()
        together = await asyncio.gather(*(events(scheduler, one) for one in order))
        found = {id(one): commits(ended) for one, ended in zip(order, together, strict=True)}
        assert [found[id(one)] for one in plans] == alone


async def test_a_prompt_that_is_cached_changes_nothing(scheduler: Scheduler, writing: Engine) -> None:
    template, encode = writing.context.template, writing.context.tokenizer.encode
    first = template.chat(PROMPTS[1])
    longer = (*first, *encode("Because of rain."), template.turn_end, *encode("\n"), template.turn)
    longer = (*longer, *encode("user\nWhy?"), *template.answer_turn)
    asked = writing.prepare_text(longer, max_tokens=40, seed=3, max_denoising_steps=4)
    assert asked.marks == (len(first), len(longer))
    await scheduler.reset_cache()
    cold = commits(await events(scheduler, asked))
    await scheduler.reset_cache()
    await events(scheduler, plan(writing, PROMPTS[1], max_tokens=1))
    hits = writing.stats()["prefix_hits"]
    assert commits(await events(scheduler, asked)) == cold
    assert writing.stats()["prefix_hits"] == hits + 1
    assert commits(await events(scheduler, asked)) == cold, "and when all of it is cached"
    assert writing.stats()["prefix_hits"] == hits + 2


async def test_texts_of_several_adapters(
    writing: Engine, tmp_path: Path, random_adapter: Callable[..., Any]
) -> None:
    from jev.model.tiny import write_tiny_checkpoint

    config = writing.model.config.text
    adapters = {"one": random_adapter(config, 1, size=1.0), "two": random_adapter(config, 2, size=1.0)}
    engine = Engine.load(
        write_tiny_checkpoint(tmp_path / "tiny", canvas=16), name="tiny", adapters=adapters, prefill_rows=8
    )
    scheduler = Scheduler(engine, 64, 10**6, texts=TextLimits(batch=3))
    plans = [plan(engine, model=name, max_denoising_steps=2) for name in ("tiny", "tiny+one", "tiny+two")]
    alone = []
    for one in plans:
        await scheduler.reset_cache()
        alone.append(commits(await events(scheduler, one)))
    assert len({str(one) for one in alone}) == 3
    for _ in range(2):  # and again with all of the prompts in the cache
        together = await asyncio.gather(*(events(scheduler, one) for one in plans))
        assert [commits(one) for one in together] == alone, "no text has part in another one's adapter"
    scheduler.close(timeout=10)


async def test_a_chat_of_very_many_turns_leaves_the_cache_to_others(
    scheduler: Scheduler, writing: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jev import writer

    hashed = 0

    class Counting:
        """What `hashlib` makes; it notes how many bytes it is given."""

        def __init__(self, data: bytes = b"") -> None:
            self._hash = hashlib.sha256()
            self.update(data)

        def update(self, data: bytes) -> None:
            nonlocal hashed
            hashed += len(data)
            self._hash.update(data)

        def copy(self) -> Counting:
            other = Counting()
            other._hash = self._hash.copy()
            return other

        def digest(self) -> bytes:
            return self._hash.digest()

    monkeypatch.setattr(writer, "hashlib", SimpleNamespace(sha256=Counting))
    turns = [(role, ["a"]) for _ in range(50) for role in ("user", "model")]
    ids = writing.context.template.dialogue([*turns, ("user", ["b"])])
    asked = writing.prepare_text(ids, max_tokens=1, max_denoising_steps=1)
    assert len(asked.marks) == 51
    await scheduler.reset_cache()
    await events(scheduler, asked)
    assert hashed <= 2 * 8 * len(ids), "the model's thread reads the prompt once, however many turns it has"
    assert len(writing.writer.cache._entries) == 2, "only its last beginnings are kept"
    longer = writing.context.template.dialogue([*turns, ("user", ["b"]), ("model", ["a"]), ("user", ["c"])])
    hits = writing.stats()["prefix_hits"]
    await events(scheduler, writing.prepare_text(longer, max_tokens=1, max_denoising_steps=1))
    assert writing.stats()["prefix_hits"] == hits + 1, "the next message goes on from it"


async def test_a_deadline_ends_a_text_that_nobody_reads(scheduler: Scheduler, writing: Engine) -> None:
    asked = plan(writing, max_tokens=1600, max_denoising_steps=48, confidence=1e-9)
    stream = await scheduler.write(asked, deadline=time.monotonic() + 0.3)
    waiting = [await scheduler.write(asked, deadline=time.monotonic() + 0.3) for _ in range(4)]
    await until(lambda: scheduler.pending_texts == (0, 0))  # as with a connection that takes nothing
    for one in (stream, *waiting):
        with pytest.raises(OverloadedError, match="deadline passed"):
            async for _ in one:
                pass


async def test_texts_take_turns_of_a_canvas(writing: Engine) -> None:
    scheduler = Scheduler(writing, 64, 10**6, texts=TextLimits(live=2))
    order: list[tuple[str, int]] = []

    async def follow(name: str, asked: TextPlan) -> None:
        async with await scheduler.write(asked) as stream:
            async for event in stream:
                if isinstance(event, Committed):
                    order.append((name, event.block))

    await scheduler.pause()
    tasks = [asyncio.create_task(follow(name, plan(writing, max_tokens=48, seed=5))) for name in "abc"]
    await until(lambda: scheduler.pending_texts[0] == 3)
    scheduler.resume()
    await asyncio.gather(*tasks)
    scheduler.close(timeout=10)
    assert len(order) == 9, "this seed fills its canvases"
    assert order[:6] == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert order[6:] == [("c", 0), ("c", 1), ("c", 2)]


async def test_too_many_texts_are_refused_at_once(scheduler: Scheduler, writing: Engine) -> None:
    await scheduler.pause()
    streams = [await scheduler.write(plan(writing)) for _ in range(8)]
    with pytest.raises(OverloadedError, match="8 texts are pending already") as caught:
        await scheduler.write(plan(writing))
    assert caught.value.retry_after is not None and caught.value.retry_after >= 1
    await streams[0].aclose()
    scheduler.resume()
    await until(lambda: scheduler.pending_texts[0] < 8)
    for stream in streams[1:]:
        await stream.aclose()
    await until(lambda: scheduler.pending_texts == (0, 0))


async def test_one_that_is_closed_stops_within_a_step(scheduler: Scheduler, writing: Engine) -> None:
    stream = await scheduler.write(
        plan(writing, max_tokens=1600, max_denoising_steps=48, confidence=1e-9, drafts=True)
    )
    await anext(stream)
    await stream.aclose()
    await until(lambda: scheduler.pending_texts == (0, 0))
    steps = writing.stats()["text_steps"]
    await asyncio.sleep(0.1)
    assert writing.stats()["text_steps"] == steps
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_deadline_ends_a_text(scheduler: Scheduler, writing: Engine) -> None:
    with pytest.raises(OverloadedError, match="deadline passed before the text was queued"):
        await scheduler.write(plan(writing), deadline=time.monotonic() - 1)
    asked = plan(writing, max_tokens=1600, max_denoising_steps=48, confidence=1e-9)
    stream = await scheduler.write(asked, deadline=time.monotonic() + 0.2)
    with pytest.raises(OverloadedError, match="deadline passed before the text was finished"):
        async for _ in stream:
            pass
    await until(lambda: scheduler.pending_texts == (0, 0))


async def test_a_decision_goes_before_a_text(scheduler: Scheduler, writing: Engine) -> None:
    _, task = await begun(scheduler, plan(writing, max_tokens=1600, confidence=1e-9, drafts=True))
    ask = SystemOneRequest(state="It rains.", questions={"wet": Noul("Is it wet?")})
    alone = writing.decide(ask)
    for _ in range(5):
        before = writing.stats()["text_steps"]
        response, _ = await scheduler.submit(writing.prepare(ask))
        assert writing.stats()["text_steps"] <= before + 2  # the one in progress, and one that follows
        assert response.answers == alone.answers
    assert not task.done()
    task.cancel()


async def test_work_in_the_background_is_not_starved(scheduler: Scheduler, writing: Engine) -> None:
    stream, task = await begun(scheduler, plan(writing, max_tokens=1600, confidence=1e-9, drafts=True))
    ask = SystemOneRequest(state="It rains.", questions={"wet": Noul("Is it wet?")})
    async with asyncio.timeout(10):
        await scheduler.submit(writing.prepare(ask), background=True)
    assert not task.done()
    await stream.aclose()
    task.cancel()


@pytest.mark.parametrize("mode", ["keep", "finish"])
async def test_a_pause_changes_nothing_of_a_text(scheduler: Scheduler, writing: Engine, mode: Any) -> None:
    asked = plan(writing, PROMPTS[3], max_tokens=64, drafts=True, max_denoising_steps=12)
    whole = commits(await events(scheduler, asked))
    _, task = await begun(scheduler, asked)
    await scheduler.pause(mode)
    steps = writing.stats()["text_steps"]
    canvases = writing.stats()["canvases"]
    await scheduler.reset_cache()
    await asyncio.sleep(0.05)
    assert scheduler.paused and not task.done()
    assert (writing.stats()["text_steps"], writing.stats()["canvases"]) == (steps, canvases)
    job = scheduler._texts._ring[0]
    assert mode == "keep" or not job.refining, "a canvas that is begun is finished"
    scheduler.resume()
    assert commits(await task) == whole


async def test_an_abort_ends_texts_where_they_are(scheduler: Scheduler, writing: Engine) -> None:
    asked = plan(writing, max_tokens=1600, confidence=1e-9, drafts=True)
    _, task = await begun(scheduler, asked)
    waiting = await scheduler.write(asked)
    await scheduler.pause("abort")
    end = (await task)[-1]
    assert isinstance(end, Ended) and end.finish == "aborted" and end.tokens < 1600
    assert [event async for event in waiting] == [Ended("aborted", 0, 0, 0)]
    late = asyncio.create_task(events(scheduler, plan(writing)))
    await until(lambda: scheduler.pending_texts[0] == 1)
    assert not late.done()
    scheduler.resume()
    assert isinstance((await late)[-1], Ended)


async def test_a_pause_holds_decisions_too(scheduler: Scheduler, writing: Engine) -> None:
    ask = writing.prepare(SystemOneRequest(state="It rains.", questions={"wet": Noul("Is it wet?")}))
    await scheduler.pause()
    held = asyncio.create_task(scheduler.submit(ask))
    await until(lambda: scheduler.pending[0] == 1)
    await asyncio.sleep(0.05)
    assert not held.done()
    await scheduler.pause("abort")
    with pytest.raises(ModelUnavailableError, match="paused"):
        await held
    scheduler.resume()
    assert (await scheduler.submit(ask))[0].answers


async def test_closing_ends_texts(writing: Engine) -> None:
    scheduler = Scheduler(writing, 64, 10**6)
    _, task = await begun(scheduler, plan(writing, max_tokens=1600, confidence=1e-9, drafts=True))
    await asyncio.to_thread(scheduler.close, timeout=10)
    with pytest.raises(ModelUnavailableError, match="shutting down"):
        await task
    with pytest.raises(ModelUnavailableError):
        await scheduler.write(plan(writing))


async def test_draining_finishes_texts(writing: Engine) -> None:
    scheduler = Scheduler(writing, 64, 10**6)
    task = asyncio.create_task(events(scheduler, plan(writing)))
    await until(lambda: scheduler.pending_texts[0] == 1)
    await asyncio.to_thread(scheduler.close, drain=True, timeout=30)
    assert isinstance((await task)[-1], Ended)


async def test_a_failure_is_the_failure_of_one_text(
    writing: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from jev.model.denoise import Generation

    advance = Generation.advance
    bad = plan(writing, seed=666)
    secret = " ".join(["what", "the", "user", "wrote"])  # so that no line of code says it

    def fails(self: Generation, *rows: Any) -> Any:
        if self.options.seed == 666:
            raise MemoryError(secret)
        return advance(self, *rows)

    monkeypatch.setattr(Generation, "advance", fails)
    scheduler = Scheduler(writing, 64, 10**6, texts=TextLimits(batch=4))
    good = plan(writing, PROMPTS[1])
    ended = await asyncio.gather(
        *(events(scheduler, one) for one in (good, bad, good)), return_exceptions=True
    )
    scheduler.close(timeout=10)
    assert isinstance(ended[1], ServerError)
    assert all(isinstance(one, list) and isinstance(one[-1], Ended) for one in (ended[0], ended[2]))
    assert "MemoryError" in caplog.text and secret not in caplog.text


@pytest.mark.parametrize("sampler", ["entropy-bound", "confidence-threshold"])
async def test_temperatures_of_next_to_nothing(scheduler: Scheduler, writing: Engine, sampler: Any) -> None:
    found = [
        await events(scheduler, plan(writing, drafts=True, sampler=sampler, t_min=0.0, t_max=t_max))
        for t_max in (1e-20, 1e-40, 5e-324)
    ]
    for one in found:
        assert all(0 <= event.entropy < 1 for event in one if isinstance(event, Draft))
        assert commits(one) == commits(found[0])


async def test_numbers_of_a_model_that_are_none_are_an_error(
    scheduler: Scheduler, writing: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    project = writing.model.text.project
    monkeypatch.setattr(writing.model.text, "project", lambda hidden: project(hidden) * float("nan"))
    with pytest.raises(ServerError):
        await events(scheduler, plan(writing))
    assert "ArithmeticError" in caplog.text
    monkeypatch.undo()
    assert isinstance((await events(scheduler, plan(writing)))[-1], Ended), "the next one is none the worse"


async def test_several_in_a_forward_are_all_written(writing: Engine) -> None:
    scheduler = Scheduler(writing, 64, 10**6, texts=TextLimits(batch=3, live=3))
    plans = [plan(writing, text, seed=seed) for text in PROMPTS for seed in (1, 2)]
    before = writing.stats()
    found = await asyncio.gather(*(events(scheduler, one) for one in plans))
    after = writing.stats()
    scheduler.close(timeout=10)
    ends = [one[-1] for one in found]
    assert all(isinstance(end, Ended) for end in ends)
    forwards = after["text_steps"] - before["text_steps"]
    assert forwards < sum(end.steps for end in ends if isinstance(end, Ended)) / 1.5


async def test_one_token_runs_one_canvas(scheduler: Scheduler, writing: Engine) -> None:
    rows = writing.stats()["canvas_rows"]
    found = await events(scheduler, plan(writing, max_tokens=1))
    assert sum(map(len, commits(found))) <= 1
    assert writing.stats()["canvas_rows"] == rows + 16
