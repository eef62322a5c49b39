"""A vLLM server with structured diffusion, as far as reads need it, over a tiny checkpoint.

It computes the real log-probabilities and is as strict as the real one: a canvas of the wrong length, too
many label ids or an unknown option is a 400.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from jev.engine import Engine
from jev.model.tokenizer import Tokenizer

MAX_LABEL_IDS = 128
FIELDS = {
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "ignore_eos",
    "logprobs",
    "logprob_token_ids",
    "return_tokens_as_token_ids",
    "vllm_xargs",
}
XARGS = {
    "diffusion_seed_canvas",
    "diffusion_canvas_length",
    "diffusion_pinned",
    "diffusion_max_steps",
    "diffusion_read_only",
}


@dataclass
class FakeVllm:
    """The server; `app` is what httpx calls.

    Attributes:
        engine: whose model it runs.
        tokenizer: what `/tokenize` uses; None = there is no such route.
        canvas: the served canvas width.
        narrower: whether it takes narrower canvases.
        hidden: label ids that it forgets to return.
        failures: answers to give instead, one a call of completions, then none.
        calls: bodies of `/v1/completions`.
    """

    engine: Engine
    tokenizer: Tokenizer | None = None
    canvas: int = 16
    narrower: bool = True
    hidden: frozenset[int] = frozenset()
    failures: list[Any] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app = FastAPI()
        self.app.get("/v1/models")(self.models)
        self.app.post("/v1/completions")(self.completions)
        if self.tokenizer is not None:
            self.app.post("/tokenize")(self.tokenize)

    async def models(self) -> Any:
        return {"object": "list", "data": [{"id": "served/diffusiongemma", "object": "model"}]}

    async def tokenize(self, request: Request) -> Any:
        assert self.tokenizer is not None
        body = await request.json()
        tokens = self.tokenizer.encode(body["prompt"])
        return {"count": len(tokens), "max_model_len": 4096, "tokens": tokens}

    async def completions(self, request: Request) -> Any:
        body = await request.json()
        self.calls.append(body)
        if self.failures:
            failure = self.failures.pop(0)
            if failure is not None:
                return failure
        wrong = self.wrong_with(body)
        if wrong:
            error = {"message": wrong, "type": "BadRequestError", "param": None, "code": 400}
            return JSONResponse({"error": error}, 400)
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": body["model"],
            "choices": [{"index": 0, "text": "", "finish_reason": "length", "logprobs": self.logprobs(body)}],
            "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]},
        }

    def wrong_with(self, body: dict[str, Any]) -> str | None:
        """What vLLM would refuse."""
        extra = body.get("vllm_xargs", {})
        unknown = sorted((body.keys() - FIELDS) | (extra.keys() - XARGS))
        if unknown:
            return f"unknown fields {unknown}"
        width = extra.get("diffusion_canvas_length", self.canvas)
        if width > self.canvas or (width < self.canvas and not self.narrower):
            return f"diffusion_canvas_length {width} cannot be served"
        if len(extra["diffusion_seed_canvas"]) != width or body["max_tokens"] != width:
            return f"diffusion_seed_canvas must have {width} ids"
        if not extra["diffusion_read_only"] or extra["diffusion_max_steps"] != 1:
            return "not a read"
        if len(body["logprob_token_ids"]) > MAX_LABEL_IDS:
            return f"at most {MAX_LABEL_IDS} logprob_token_ids"
        if body["logprob_token_ids"] != sorted(set(body["logprob_token_ids"])) or not body["logprobs"]:
            return "logprob_token_ids"
        return None

    def logprobs(self, body: dict[str, Any]) -> dict[str, Any]:
        """Log-probabilities over the whole vocabulary of the asked ids and the likeliest one, row by row."""
        model = self.engine.model
        rows = model.decode(body["vllm_xargs"]["diffusion_seed_canvas"], model.prefill(body["prompt"]))
        values = rows.double().log_softmax(-1)
        best = values.argmax(-1).tolist()
        shown = [
            {
                token: row[token].item()
                for token in (top, *body["logprob_token_ids"])
                if token not in self.hidden
            }
            for row, top in zip(values, best, strict=True)
        ]
        return {
            "tokens": [f"token_id:{token}" for token in best],
            "token_logprobs": [row[top].item() for row, top in zip(values, best, strict=True)],
            "top_logprobs": [{f"token_id:{k}": v for k, v in row.items()} for row in shown],
            "text_offset": [0] * len(best),
        }
