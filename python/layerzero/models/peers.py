"""One GGUF model in every runtime on this machine: Transformers, llama.cpp and LayerZero, side by side in one run.

Every side gives the logits of the last position of a prompt, and then tokens greedily, one call each; sides take turns
in each round, and Transformers has a second turn as "transformers bf16 again": the spread of equal things.
"""

import importlib
import importlib.util
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from layerzero.integrations.transformers import kernelize
from layerzero.models.gguf import load, resolve_model

PROMPT = "Why is the sky blue? Answer in two sentences."
START = 16  # tokens of a prompt that is decoded from
AGAIN = "transformers bf16 again"
# What is wanted of a ratio: (side, metric, beside, at least).
BARS = (
    ("layerzero gguf int8", "decode_tok_s", ("llama.cpp",), 1.5),
    ("layerzero bf16", "decode_tok_s", ("transformers bf16",), 3.0),
    ("layerzero bf16", "prefill_220_tok_s", ("transformers bf16", "transformers f32"), 1.2),
    ("layerzero bf16", "prefill_2048_tok_s", ("transformers bf16", "transformers f32"), 1.2),
    ("layerzero gguf int8", "prefill_220_tok_s", ("transformers bf16", "transformers f32", "llama.cpp"), 1.2),
    ("layerzero gguf int8", "prefill_2048_tok_s", ("transformers bf16", "transformers f32", "llama.cpp"), 1.2),
)


class TorchSide:
    """A Transformers model, kernelized or not."""

    def __init__(self, path: str, dtype: str, **options: Any) -> None:
        self.model, _ = load(path, dtype)
        ours = options.pop("layerzero", True)
        self.report = kernelize(self.model, **options) if ours else None

    def prefill(self, ids: torch.Tensor) -> None:
        with torch.inference_mode():
            self.model(input_ids=ids, logits_to_keep=1, use_cache=True)

    def decode(self, ids: torch.Tensor, tokens: int) -> tuple[list[int], float]:
        out, cache = [], DynamicCache(config=self.model.config)
        with torch.inference_mode():
            logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            start = time.perf_counter()
            for _ in range(tokens):
                step = logits[:, -1].argmax(-1)
                out.append(int(step))
                logits = self.model(
                    input_ids=step[:, None], past_key_values=cache, use_cache=True, logits_to_keep=1
                ).logits
            return out, time.perf_counter() - start


class LlamaCpp:
    """llama.cpp on the same file, as `make peers` installs it."""

    def __init__(self, path: str, threads: int) -> None:
        folder = str(pathlib.Path(sys.prefix) / "peers")
        if importlib.util.find_spec("llama_cpp") is None and folder not in sys.path:
            sys.path.append(folder)
        llama_cpp = importlib.import_module("llama_cpp")
        self.version = llama_cpp.__version__
        self.llama = llama_cpp.Llama(path, n_ctx=4096, n_threads=threads, n_threads_batch=threads, verbose=False)

    def prefill(self, ids: torch.Tensor) -> None:
        self.llama.reset()
        self.llama.eval(ids[0].tolist())

    def decode(self, ids: torch.Tensor, tokens: int) -> tuple[list[int], float]:
        self.prefill(ids)
        out = []
        start = time.perf_counter()
        for _ in range(tokens):
            out.append(int(self.llama.sample(temp=0.0)))
            self.llama.eval(out[-1:])
        return out, time.perf_counter() - start


def _sides(path: str, threads: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The sides that this machine has, and why it lacks the others."""
    makers: dict[str, Callable[[], Any]] = {
        "transformers bf16": lambda: TorchSide(path, "bf16", layerzero=False),
        "transformers f32": lambda: TorchSide(path, "f32", layerzero=False),
        "llama.cpp": lambda: LlamaCpp(path, threads),
        "layerzero bf16": lambda: TorchSide(path, "bf16"),
        "layerzero f32": lambda: TorchSide(path, "f32"),
        "layerzero gguf": lambda: TorchSide(path, "bf16", weights="gguf"),
        "layerzero gguf int8": lambda: TorchSide(path, "bf16", weights="gguf", activations="int8"),
    }
    sides, absent = {}, {}
    for name, make in makers.items():
        try:
            sides[name] = make()
        except ImportError as error:
            absent[name] = f"{error}; `make peers` installs it"
    return sides, absent


def run(
    model: str | None, threads: int, rounds: int, tokens: int = 64, on_step: Callable[[int, str], None] | None = None
) -> dict[str, Any]:
    """{"sides": {name: {metric: samples}}, "absent", "bars", "aa_spread", "greedy_ids"}; rates in tokens a second."""
    path, is_gguf = resolve_model(model)
    if not is_gguf:
        from layerzero.errors import InvalidRequestError

        raise InvalidRequestError(f"model: wanted a .gguf file, which every peer reads, got {path}; pass the file")
    sides, absent = _sides(str(path), threads)
    _, tokenizer = load(str(path), "bf16")
    text = tokenizer(PROMPT * 200, return_tensors="pt")["input_ids"]
    order = [*sides, AGAIN]
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in order}
    ids: dict[str, list[int]] = {}
    for index in range(rounds + 1):  # round 0 warms up
        for name in order:
            side = sides[name.removesuffix(" again")]
            for length in (220, 2048):
                start = time.perf_counter()
                side.prefill(text[:, :length])
                rate = length / (time.perf_counter() - start)
                if index:
                    samples[name].setdefault(f"prefill_{length}_tok_s", []).append(rate)
            new, seconds = side.decode(text[:, :START], tokens)
            if index:
                samples[name].setdefault("decode_tok_s", []).append(tokens / seconds)
            ids[name] = new
            if on_step:
                on_step(index, name)
    return {
        "file": path.name,
        "prompt_tokens": [220, 2048],
        "decode_tokens": tokens,
        "rounds": rounds,
        "llama_cpp": sides["llama.cpp"].version if "llama.cpp" in sides else None,
        "sides": samples,
        "absent": absent,
        "aa_spread": {metric: _spread(samples, metric) for metric in samples[AGAIN]},
        "bars": [_bar(samples, *bar) for bar in BARS],
        "greedy_ids": ids,
        "weights_bytes": {n: s.report.weights.bytes for n, s in sides.items() if _has_weights(s)},
    }


def _has_weights(side: Any) -> bool:
    report = getattr(side, "report", None)
    return report is not None and report.weights is not None


def _spread(samples: dict[str, dict[str, list[float]]], metric: str) -> float:
    pairs = zip(samples["transformers bf16"][metric], samples[AGAIN][metric], strict=True)
    return statistics.median(max(pair) / min(pair) for pair in pairs)


def _bar(samples: Any, side: str, metric: str, beside: tuple[str, ...], wanted: float) -> dict[str, Any]:
    """The ratio of each round to the best of those beside; None where one of them is missing."""
    present = [name for name in beside if name in samples]
    result = {"side": side, "metric": metric, "beside": list(beside), "wanted": wanted, "got": None}
    if side in samples and len(present) == len(beside):
        best = max(present, key=lambda name: statistics.median(samples[name][metric]))
        ratios = [a / b for a, b in zip(samples[side][metric], samples[best][metric], strict=True)]
        result |= {"best": best, "got": statistics.median(ratios), "ratios": ratios}
    return result
