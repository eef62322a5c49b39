"""Proves that the block loop writes the tokens of transformers' `generate()`, and stops when it shall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from jev.model import sampling
from jev.model.denoise import Generation, step, write
from jev.model.packed import Block, ImageSpan, forward
from jev.model.pixels import patches_of
from jev.model.sampling import Noise, above_threshold, within_bound
from jev.model.writing import Options

if TYPE_CHECKING:
    from conftest import Pair

WIDTH = 16
FEW = 5
"""Steps in which rounding, which a random model doubles each time, stays too small to tip a token."""


def options(one: Pair, **given: Any) -> Options:
    return Options.of(one.model.config, **given)


def joined(generation: Generation) -> list[int]:
    return [token for canvas in generation.committed for token in canvas]


def check(one: Pair, prompt: list[int], chosen: Options, **inputs: Any) -> Generation:
    """Write on both sides and compare all that is committed."""
    from generating import generated

    ours = write(one.model, prompt, chosen)
    eos = one.model.config.eos_token_ids
    (theirs,), (rate,) = generated(one.reference, torch.tensor([prompt]), chosen, eos, **inputs)
    assert joined(ours) == theirs
    kept = sum(token != one.model.config.pad_token_id for token in theirs)
    assert kept / ours.steps == pytest.approx(rate)
    return ours


class TestIsTheReference:
    @pytest.mark.parametrize("max_tokens", [WIDTH, 3 * WIDTH])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_every_token_of_one_block_and_of_several(
        self, pair: Callable[..., Pair], seed: int, max_tokens: int
    ) -> None:
        one = pair()
        prompt = one.ids(12 + seed, seed=seed).tolist()
        ours = check(one, prompt, options(one, seed=seed, max_tokens=max_tokens, max_denoising_steps=FEW))
        assert ours.steps == FEW * max_tokens // WIDTH
        assert len(ours.committed) == max_tokens // WIDTH

    @pytest.mark.parametrize("stability", [0, 1, 2])
    @pytest.mark.parametrize("seed", [0, 1])
    def test_canvases_that_are_final_early(self, settled: Pair, seed: int, stability: int) -> None:
        prompt = settled.ids(20, seed=seed).tolist()
        chosen = options(settled, seed=seed, max_tokens=3 * WIDTH, stability=stability)
        assert chosen.max_denoising_steps == 48
        ours = check(settled, prompt, chosen)
        assert len(ours.committed) == 3
        assert 3 * (stability + 1) <= ours.steps < 100

    def test_other_temperatures_bounds_and_confidence(self, settled: Pair) -> None:
        prompt = settled.ids(9, seed=4).tolist()
        given = {"t_min": 0.0, "t_max": 1.5, "entropy_bound": 3.0, "confidence": 0.3, "stability": 1}
        check(settled, prompt, options(settled, seed=7, max_tokens=2 * WIDTH, **given))

    def test_the_end_of_the_text_inside_a_block(self, settled: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        prompt = settled.ids(20, seed=0).tolist()
        chosen = options(settled, max_tokens=3 * WIDTH)
        free = joined(write(settled.model, prompt, chosen))
        end = next(index for index in range(WIDTH + 3, 2 * WIDTH - 2) if free[index] not in free[:index])
        config = replace(settled.model.config, eos_token_ids=(free[end], 7))
        monkeypatch.setattr(settled.model, "config", config)
        ours = check(settled, prompt, chosen)
        assert joined(ours) == free[: end + 1] + [0] * (2 * WIDTH - end - 1)
        assert ours.tokens == tuple(free[:end])
        assert ours.finish == "stop"

    def test_rows_of_a_left_padded_batch(self, settled: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        from generating import Joint, Row, generated

        prompts = [settled.ids(length, seed=length).tolist() for length in (23, 5, 14)]
        chosen = options(settled, seed=3, max_tokens=3 * WIDTH)
        # The second row's text ends in its second block, and the others go on.
        end = joined(write(settled.model, prompts[1], chosen))[WIDTH + 2]
        monkeypatch.setattr(settled.model, "config", replace(settled.model.config, eos_token_ids=(end,)))
        longest = max(map(len, prompts))
        padded = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
        mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
        # In 5.24 the eager attention cannot make the decoder's mask of a padded batch.
        settled.reference.model.set_attn_implementation("sdpa")
        theirs, _ = generated(settled.reference, padded, chosen, [end], attention_mask=mask)
        settled.reference.model.set_attn_implementation("eager")

        joint = Joint(chosen.seed, len(prompts), settled.model.config.text.vocab_size)
        rows = [Row(joint, number) for number in range(len(prompts))]
        texts = [
            Generation(settled.model, ids, chosen, noise=row) for ids, row in zip(prompts, rows, strict=True)
        ]
        for block in range(3):
            for row in rows:
                row.start_block()
            while left := [one for one in texts if not one.done and len(one.committed) == block]:
                for one in left:
                    one.step()
        for ours, other in zip(texts, theirs, strict=True):
            expected = joined(ours)
            assert expected + [0] * (len(other) - len(expected)) == other
        assert len({ours.steps for ours in texts}) > 1

    def test_a_prompt_with_an_image(self, pair: Callable[..., Pair]) -> None:
        from generating import generated

        one = pair()
        vision = one.model.vision
        assert vision is not None
        pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        theirs = Gemma4ImageProcessorPil()(images=[image], return_tensors="pt", max_soft_tokens=70)
        patches = patches_of(image, vision.config, 70)
        raw = one.model.config.raw
        soft = [raw["image_token_id"]] * patches.tokens
        prompt = [2, 300, raw["boi_token_id"], *soft, raw["eoi_token_id"], *range(310, 320)]
        chosen = options(one, seed=4, max_tokens=2 * WIDTH, max_denoising_steps=FEW)
        (expected,), _ = generated(
            one.reference,
            torch.tensor([prompt]),
            chosen,
            pixel_values=theirs["pixel_values"],
            image_position_ids=theirs["image_position_ids"],
            mm_token_type_ids=(torch.tensor([prompt]) == raw["image_token_id"]).long(),
        )
        span = ImageSpan(3, vision(patches))
        assert joined(write(one.model, prompt, chosen, images=[span])) == expected
        assert joined(write(one.model, prompt, chosen)) != expected

    def test_draws(self) -> None:
        vocab = 3001
        p = torch.softmax(3 * torch.randn(20, vocab, generator=torch.Generator().manual_seed(0)), -1)
        noise = Noise(11, vocab, p.device)
        torch.manual_seed(11)
        wanted = torch.arange(20) % 3 == 0
        for _ in range(3):
            theirs = torch.multinomial(p, 1)[:, 0]
            assert torch.equal(noise.pick(p, wanted), torch.where(wanted, theirs, 0))
            assert torch.equal(noise.ids(20), torch.randint(0, vocab, (20,)))


class TestStepwise:
    def test_a_step_is_a_forward_and_says_what_it_did(self, settled: Pair) -> None:
        prompt = settled.ids(40, seed=0).tolist()
        one = Generation(settled.model, prompt, options(settled, max_tokens=2 * WIDTH), prefill_rows=15)
        seen = []
        while not one.done:
            seen.append(one.step())
        encoded = [progress for progress in seen if not progress.step]
        assert [progress.block for progress in encoded] == [0, 0, 0, 1]
        refined = [progress for progress in seen if progress.step]
        assert len(refined) == one.steps
        for number, canvas in enumerate(one.committed):
            mine = [progress for progress in refined if progress.block == number]
            assert [progress.step for progress in mine] == list(range(1, len(mine) + 1))
            assert [progress.final for progress in mine] == [False] * (len(mine) - 1) + [True]
            assert mine[-1].canvas == canvas
            assert all(any(progress.kept) and progress.entropy > 0 for progress in mine)
        assert one.finish == "length"

    def test_prompts_in_pieces_and_behind_a_cached_prefix_are_the_prompt(self, settled: Pair) -> None:
        prompt = settled.ids(40, seed=1).tolist()
        chosen = options(settled, max_tokens=2 * WIDTH)
        whole = joined(write(settled.model, prompt, chosen))
        one = Generation(settled.model, prompt, chosen, prefill_rows=7)
        cached = settled.model.prefill(prompt[:25])
        two = Generation(settled.model, prompt[25:], chosen, prefix=cached)
        three = Generation(settled.model, [], chosen, prefix=settled.model.prefill(prompt))
        for generation in (one, two, three):
            while not generation.done:
                generation.step()
            assert joined(generation) == whole
            assert generation.prompt_tokens == 40
        assert cached.length == 25

    def test_a_seed_decides_everything(self, settled: Pair) -> None:
        prompt = settled.ids(12, seed=2).tolist()
        texts = [
            joined(write(settled.model, prompt, options(settled, seed=seed, max_tokens=2 * WIDTH)))
            for seed in (5, 6, 5)
        ]
        assert texts[0] == texts[2] != texts[1]

    def test_texts_do_not_disturb_each_other(self, settled: Pair) -> None:
        prompts = [settled.ids(length, seed=length).tolist() for length in (9, 30, 17)]
        chosen = [options(settled, seed=n, max_tokens=n * WIDTH, stability=n) for n in (1, 2, 3)]
        alone = [joined(write(settled.model, *both)) for both in zip(prompts, chosen, strict=True)]
        texts = [Generation(settled.model, *both) for both in zip(prompts, chosen, strict=True)]
        while left := [one for one in texts if not one.done]:
            for one in reversed(left):
                one.step()
        assert [joined(one) for one in texts] == alone
        together = [Generation(settled.model, *both) for both in zip(prompts, chosen, strict=True)]
        while left := [one for one in together if not one.done]:
            step(settled.model, left)
        assert [joined(one) for one in together] == alone

    def test_cancelling_between_two_steps(self, settled: Pair) -> None:
        one = Generation(settled.model, settled.ids(9).tolist(), options(settled, max_tokens=3 * WIDTH))
        while not one.committed:
            one.step()
        one.step()
        assert one.kv.length == 9 + WIDTH
        one.cancel()
        assert one.done
        assert one.finish == "cancelled"
        assert len(one.tokens) == WIDTH
        assert one.kv.nbytes == 0
        one.cancel()

    def test_canvases_of_one_forward_have_their_own_past(self, settled: Pair) -> None:
        model = settled.model
        canvases = [settled.ids(width, seed=width).tolist() for width in (16, 3, 16)]
        kv = model.prefill(settled.ids(20))
        logits = model.decode(canvases[0], kv) / 0.8
        soft = model.text.soften(logits.softmax(-1))
        slots = [range(len(canvas)) for canvas in canvases]
        with torch.inference_mode():
            hidden, _ = forward(
                model.text, [Block(kv, canvases=canvases, slots=slots, soft=[soft, None, soft.flip(0)])]
            )
            ours = model.text.project(hidden).split([16, 3, 16])
        assert (ours[0] - model.decode(canvases[0], kv, previous=logits)).abs().max() < 1e-4
        assert (ours[1] - model.decode(canvases[1], kv)).abs().max() < 1e-4
        assert (ours[2] - model.decode(canvases[2], kv, previous=logits.flip(0))).abs().max() < 1e-4


class LargestTensor(TorchDispatchMode):
    """Notes the most values that a result had whose last dimension is the vocabulary."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab, self.values = vocab, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, torch.Tensor) and one.shape[-1:] == (self.vocab,):
                self.values = max(self.values, one.numel())
        return found


def test_vocabulary_wide_tensors_are_of_one_canvas_and_may_go_in_parts(
    settled: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab = settled.model.config.text.vocab_size
    chosen = options(settled, max_tokens=2 * WIDTH)
    prompts = [settled.ids(9, seed=seed).tolist() for seed in range(3)]
    alone = [joined(write(settled.model, prompt, chosen)) for prompt in prompts]
    for most in (sampling.MAX_VALUES, 5 * vocab):
        monkeypatch.setattr(sampling, "MAX_VALUES", most)
        monkeypatch.setattr(sampling, "CACHED_VALUES", most // 2)
        texts = [Generation(settled.model, prompt, chosen) for prompt in prompts]
        with LargestTensor(vocab) as largest:
            while left := [one for one in texts if not one.done]:
                step(settled.model, left)
        assert largest.values == WIDTH * vocab
        assert [joined(one) for one in texts] == alone


class TestConfidenceThreshold:
    @pytest.fixture
    def run(self, pair: Callable[..., Pair]) -> Callable[..., tuple[Generation, list[Any]]]:
        """A random model is never sure: where all must be as likely as 1, one token a step is kept."""
        random = pair()

        def run(**given: Any) -> tuple[Generation, list[Any]]:
            chosen = options(random, sampler="confidence-threshold", **given)
            one = Generation(random.model, random.ids(12, seed=6).tolist(), chosen)
            seen = []
            while not one.done:
                progress = one.step()
                if progress.step:
                    seen.append((progress, () if one.done else one.block().canvases[0]))
            return one, seen

        return run

    def test_keeps_at_least_one_more_each_step_and_for_good(self, run: Any) -> None:
        one, seen = run(threshold=1.0)
        assert one.steps == WIDTH
        assert [sum(progress.kept) for progress, _ in seen] == list(range(1, WIDTH + 1))
        for (before, was), (after, now) in pairwise(seen[:-1]):
            for index in range(WIDTH):
                if before.kept[index]:
                    assert after.kept[index]
                    assert now[index] == was[index]

    def test_threshold_0_takes_one_step(self, run: Any) -> None:
        assert run(threshold=0)[0].steps == 1
        assert 1 < run(threshold=0.02)[0].steps < WIDTH

    def test_ends_with_the_last_step(self, run: Any) -> None:
        one, seen = run(threshold=1, max_denoising_steps=3)
        assert one.steps == 3
        assert len(one.tokens) == WIDTH
        assert seen[-1][0].final


def test_rules_of_the_samplers() -> None:
    entropy = torch.tensor([0.5, 0.04, 0.07, 0.0, 0.2])
    assert within_bound(entropy, 0.1).tolist() == [False, True, True, True, False]
    assert within_bound(entropy + 1, 1e-9).tolist() == [False, False, False, True, False]
    sure = torch.tensor([0.9, 0.95, 0.2, 0.5])
    assert above_threshold(sure, torch.tensor([True, False, True, True]), 0.9).tolist() == [
        True,
        False,
        False,
        False,
    ]
    assert above_threshold(sure, torch.tensor([False, False, True, True]), 0.9).tolist()[3]
    assert not above_threshold(sure, torch.zeros(4, dtype=torch.bool), 0.0).any()


class TestOptions:
    def test_self_conditioning_can_be_off(self, settled: Pair) -> None:
        prompt = settled.ids(12, seed=3).tolist()
        texts = {}
        for on in (True, False):
            chosen = options(settled, self_conditioning=on, confidence=1e-9, max_denoising_steps=6)
            texts[on] = Generation(settled.model, prompt, chosen)
            for _ in range(3):
                texts[on].step()
            assert (texts[on].block().soft[0] is not None) == on

    def test_canvases_and_how_many(self, settled: Pair) -> None:
        def widths(**given: Any) -> list[int]:
            one = write(settled.model, [5], options(settled, max_denoising_steps=1, **given))
            assert sum(map(len, one.committed)) == one.options.rows
            assert len(one.tokens) <= one.options.max_tokens
            return [len(canvas) for canvas in one.committed]

        assert widths(max_tokens=33) == [16, 16, 16]
        assert widths(max_tokens=10) == [16]
        assert widths(max_tokens=33, full_canvas=False, min_canvas=4) == [16, 16, 4]
        assert widths(max_tokens=26, full_canvas=False, min_canvas=4) == [16, 10]
        assert widths(max_tokens=26, full_canvas=False) == [16, 16]
        assert widths(max_tokens=20, max_canvas=6) == [6, 6, 6, 6]
        assert widths(max_tokens=100, blocks=2) == [16, 16]
        assert widths(max_tokens=10**9, blocks=1) == [16]

    def test_cuts_at_max_tokens_and_counts_an_end_behind_it_as_too_late(
        self, settled: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prompt = settled.ids(20, seed=0).tolist()
        free = write(settled.model, prompt, options(settled)).tokens
        end = next(index for index in range(4, WIDTH) if free[index] not in free[:index])
        monkeypatch.setattr(
            settled.model, "config", replace(settled.model.config, eos_token_ids=(free[end],))
        )
        for limit, finish in ((end - 2, "length"), (end, "stop"), (end + 1, "stop")):
            one = write(settled.model, prompt, options(settled, max_tokens=limit))
            assert one.tokens == free[: min(limit, end)]
            assert one.finish == finish

    def test_what_does_not_fit_is_refused_before_anything_runs(self, settled: Pair) -> None:
        room = settled.model.config.text.max_position_embeddings
        chosen = options(settled, max_tokens=2 * WIDTH)
        Generation(settled.model, [5] * (room - 2 * WIDTH), chosen)
        with pytest.raises(
            ValueError, match=f"{room - 31} tokens and 2 canvases, 32 tokens, exceed .* {room}"
        ):
            Generation(settled.model, [5] * (room - 2 * WIDTH + 1), chosen)
        with pytest.raises(ValueError, match="at least one token"):
            Generation(settled.model, [], chosen)


@pytest.fixture
def packed(settled: Pair) -> Iterator[Any]:
    from jev.model.checkpoint import load_checkpoint

    yield load_checkpoint(settled.folder, bits=8)


def test_packed_weights_write_too(settled: Pair, packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev.model.quant.modules.BLOCK", 64 * 100)  # several blocks of the vocabulary
    chosen = options(settled, max_tokens=2 * WIDTH)
    one = write(packed, settled.ids(12).tolist(), chosen)
    assert len(joined(one)) == 2 * WIDTH
    weights = torch.rand(3, packed.config.text.vocab_size)
    table = packed.text.embed_tokens
    assert (table.mix(weights) - weights @ table.weight).abs().max() < 1e-3
