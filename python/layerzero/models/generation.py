"""Token-by-token generation with a Transformers causal model and LayerZero's sampling operations."""

import dataclasses
import time
import warnings
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError
from layerzero.models.time_limit import within
from layerzero.tokenizers import detokenize, register_tokenizer, tokenize
from layerzero.tokenizers.libraries import typed_errors

_OPS = _layerzero.ops
TEMPLATE_SECONDS = 10.0  # a chat template takes milliseconds; one that loops is stopped


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; greedy by default."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    greedy: bool = True

    def __post_init__(self):
        for name, fits, wanted in (
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1"),
        ):
            if not fits:
                raise InvalidRequestError(name, wanted, f"{getattr(self, name)}")
        if self.min_p is not None and (self.top_k is not None or self.top_p is not None):
            raise InvalidRequestError("min_p", "it alone", "top_k or top_p too", "choose one of the two ways")

    @staticmethod
    def of(temperature=None, top_k=None, top_p=None, min_p=None, seed=None):
        """Returns greedy sampling if nothing but a seed is passed, or at temperature 0."""
        asked = any(value is not None for value in (temperature, top_k, top_p, min_p))
        if temperature == 0:
            return Sampling(seed=seed)
        return Sampling(1.0 if temperature is None else temperature, top_k, top_p, min_p, seed, not asked)

    def draw(self, logits, step):
        """Draws ids (batch,) from logits (batch, vocab). With a seed `step` is the offset: equal seeds repeat a run.

        Without a seed torch's default generator is used."""
        if self.greedy:
            return _OPS["sample_topk"](logits, 1, seed=0)
        how = {"temperature": float(self.temperature)}
        if self.seed is not None:
            how |= {"seed": self.seed, "offset": step}
        if self.min_p is not None:
            return _OPS["sample_minp"](logits, float(self.min_p), **how)
        if self.top_k is not None and self.top_p is not None:
            return _OPS["sample_topk_topp"](logits, self.top_k, float(self.top_p), **how)
        if self.top_k is not None:
            return _OPS["sample_topk"](logits, self.top_k, **how)
        return _OPS["sample_topp"](logits, 1.0 if self.top_p is None else float(self.top_p), **how)


@dataclasses.dataclass
class Result:
    """The result of one prompt; seconds and rates are of its whole batch."""

    text: str
    token_ids: list
    prompt_tokens: int
    stopped: bool
    first_token_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


def stop_ids(model, tokenizer):
    """Returns the ids that end an answer: the tokenizer's and the generation configuration's."""
    ids = set()
    for value in (tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None)):
        ids |= set(value) if isinstance(value, (list, tuple)) else {value}
    return ids - {None}


class Session:
    """A model, its tokenizer, and the cache of the conversation so far."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.tokenizer_id = register_tokenizer(tokenizer)
        self.stops = stop_ids(model, tokenizer)
        self._cache, self._cached = None, []
        self._warned = False

    def chat_ids(self, messages):
        """Returns the ids of a conversation ({"role", "content"}) in the model's chat template, if it has one."""
        if not self.tokenizer.chat_template:
            return tokenize("\n".join(m["content"] for m in messages), self.tokenizer_id)["input_ids"]
        with typed_errors("chat template", "one that renders these messages", "correct it, or pass --raw"):
            text = within(
                TEMPLATE_SECONDS,
                lambda: self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False),
            )
        return tokenize(text, self.tokenizer_id, add_special_tokens=False)["input_ids"]

    def text(self, ids):
        return detokenize(ids, self.tokenizer_id)

    def generate(self, prompts, max_tokens, sampling=None, on_text=None, stop=None):
        """Answers prompts given as lists of ids. on_text(piece): streams the text of a single prompt. stop(): called
        after each token; True ends the answers."""
        sampling = sampling or Sampling()
        if max_tokens < 1:
            raise InvalidRequestError("max_tokens", "at least 1", str(max_tokens), "pass 1 or more")
        if not prompts or not all(prompts):
            raise InvalidRequestError("prompt", "at least one token", "none", "pass some text")
        rows: list[list[int]] = [[] for _ in prompts]
        stopped = [False] * len(prompts)
        stream = _TextStream(self.text, on_text) if on_text and len(prompts) == 1 else None
        times = [time.perf_counter()]
        with torch.inference_mode():
            steps = self._steps(prompts, max_tokens, sampling)
            for ids in steps:
                times.append(time.perf_counter())
                for index, token in enumerate(ids):
                    if token in self.stops or token < 0:
                        stopped[index] = True
                    elif not stopped[index]:
                        rows[index].append(token)
                if stream and not stopped[0]:
                    stream.push(rows[0])
                if all(stopped) or (stop is not None and stop()):
                    break
            steps.close()
        if stream:
            stream.end(rows[0])
        return [
            self._result(prompt, row, end, times, prompts)
            for prompt, row, end in zip(prompts, rows, stopped, strict=False)
        ]

    def _result(self, prompt, row, stopped, times, prompts):
        first = times[1] - times[0]
        decode = (len(times) - 2) * len(prompts) / (times[-1] - times[1]) if len(times) > 2 else 0.0
        prefill = sum(map(len, prompts)) / first
        return Result(self.text(row), row, len(prompt), stopped, first, prefill, decode)

    def _steps(self, prompts, max_tokens, sampling):
        """Yields the ids of each step: one for each prompt."""
        from transformers.cache_utils import DynamicCache

        from layerzero.integrations.transformers.arguments import cache_argument

        single = len(prompts) == 1
        width = max(map(len, prompts))
        mask: Any = None
        if single:
            cache, ids = self._reuse(prompts[0])
            fed = list(prompts[0])
        else:
            cache = DynamicCache(config=self.model.config)
            pad = self.tokenizer.pad_token_id or 0
            ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        for step in range(max_tokens):
            positions = None
            if mask is not None:
                positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **cache_argument(self.model, cache),
            )
            if single:  # the tokens in the cache, for the next turn
                self._cache, self._cached = cache, list(fed)
            ids = sampling.draw(out.logits[:, -1].contiguous(), step)
            tokens = ids.tolist()
            yield tokens
            if single:
                fed += tokens
            else:
                mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=-1)
            ids = ids[:, None]

    def _reuse(self, prompt):
        """Returns the cache truncated to its common prefix with the prompt, and the remaining ids."""
        from transformers.cache_utils import DynamicCache

        shared = 0
        for old, new in zip(self._cached, prompt[:-1], strict=False):
            if old != new:
                break
            shared += 1
        cache, self._cache = self._cache, None  # an error does not leave a partial cache
        if cache is None or shared == 0:
            cache, shared = DynamicCache(config=self.model.config), 0
        elif shared < len(self._cached) and not _is_cut_back(cache, len(self._cached) - shared):
            self._warn(len(self._cached) - shared)
            cache, shared = DynamicCache(config=self.model.config), 0
        self._cached = []
        return cache, torch.tensor([prompt[shared:]])

    def _warn(self, count):
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the prompt leaves the conversation so far {count} tokens before its end, and this model's cache cannot go back: the "
                "whole prompt is computed again, as at each further turn of this kind",
                stacklevel=2,
            )


def _is_cut_back(cache, count):
    """Drops the last `count` positions; returns False if it cannot: for states and windows that have advanced."""
    if any(cache.is_linear):
        return False
    try:
        cache.crop(-count)
    except (
        RuntimeError,
        ValueError,
        NotImplementedError,
    ):  # some layers may be truncated: the cache is unusable
        return False
    return True


class _TextStream:
    """Emits text as soon as it is final: a character may need several tokens."""

    def __init__(self, decode, emit):
        self.decode, self.emit = decode, emit
        self.start, self.shown = 0, ""

    def push(self, ids):
        text = self.decode(ids[self.start :])
        if text.endswith("\ufffd"):
            return
        if text[: len(self.shown)] == self.shown:
            self.emit(text[len(self.shown) :])
            self.shown = text
        # A window of ids bounds the time of each step.
        if len(ids) - self.start > 64 and text.endswith("\n"):
            self.start, self.shown = len(ids), ""

    def end(self, ids):
        text = self.decode(ids[self.start :])
        if text[: len(self.shown)] == self.shown:
            self.emit(text[len(self.shown) :])
