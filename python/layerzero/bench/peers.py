"""One GGUF model in every runtime on this machine: Transformers, llama.cpp and LayerZero, in one run.

Every side computes the logits of the last position of a prompt, and then tokens greedily, one call each. Sides take
turns in each round; Transformers has a second turn as "transformers bf16 again", which measures the noise. The memory
of a side is measured in a separate process.
"""

import contextlib
import importlib
import importlib.util
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, StaticCache

from layerzero.integrations.transformers import compile as compile_model
from layerzero.integrations.transformers import kernelize
from layerzero.integrations.transformers.arguments import cache_argument
from layerzero.models.gguf import load, resolve_model

PROMPT = "Why is the sky blue? Answer in two sentences."
START = 16  # prompt tokens before a decode
AGAIN = "transformers bf16 again"
COMPILE_S = 600  # time limit for one graph of torch.compile
# Upper bound of this side's weights and arena for a prompt of 220 tokens, relative to the file's bytes.
MEMORY_SIDE, MEMORY_BAR = "layerzero gguf int8", 1.1
_OF_TORCH = ("transformers bf16", "transformers f32", "torch.compile bf16")
# Required ratios: (side, metric, sides that it is compared with, at least).
BARS = (
    ("layerzero gguf int8", "decode_tok_s", ("llama.cpp",), 1.5),
    ("layerzero bf16", "decode_tok_s", ("transformers bf16",), 3.0),
    ("layerzero bf16", "prefill_220_tok_s", _OF_TORCH, 1.2),
    ("layerzero bf16", "prefill_2048_tok_s", _OF_TORCH, 1.2),
    ("layerzero gguf int8", "prefill_220_tok_s", (*_OF_TORCH, "llama.cpp"), 1.2),
    ("layerzero gguf int8", "prefill_2048_tok_s", (*_OF_TORCH, "llama.cpp"), 1.2),
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
        out, cache = [], self.new_cache(ids.shape[1] + tokens)
        with torch.inference_mode():
            logits = self._forward(ids, cache).logits
            start = time.perf_counter()
            for index in range(tokens):
                step = logits[:, -1].argmax(-1)
                out.append(int(step))
                logits = self.step(step[:, None], cache, ids.shape[1] + index)
            return out, time.perf_counter() - start

    def _forward(self, ids: torch.Tensor, cache: Any) -> Any:
        return self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **cache_argument(self.model, cache))

    def new_cache(self, length: int) -> Any:
        return DynamicCache(config=self.model.config)

    def step(self, ids: torch.Tensor, cache: Any, position: int) -> torch.Tensor:
        return self._forward(ids, cache).logits


class CompiledSide(TorchSide):
    """A Transformers model compiled by torch: a graph for prompts, and one for a token over a static cache."""

    def __init__(self, path: str, dtype: str) -> None:
        super().__init__(path, dtype, layerzero=False)
        self._prefill = torch.compile(self.model.forward, dynamic=True)
        self._step = torch.compile(self.model.forward)
        ids = torch.ones(1, START, dtype=torch.int64)
        for first in (lambda: self.prefill(ids.repeat(1, 8)), lambda: self.decode(ids, 2)):
            with _at_most(COMPILE_S):
                first()

    def prefill(self, ids: torch.Tensor) -> None:
        with torch.inference_mode():
            self._prefill(input_ids=ids, logits_to_keep=1, use_cache=False)

    def new_cache(self, length: int) -> Any:
        return StaticCache(config=self.model.config, max_cache_len=max(128, length))

    def step(self, ids: torch.Tensor, cache: Any, position: int) -> torch.Tensor:
        return self._step(
            input_ids=ids,
            position_ids=torch.tensor([[position]]),
            use_cache=True,
            logits_to_keep=1,
            **cache_argument(self.model, cache),
        ).logits


@contextlib.contextmanager
def _at_most(seconds: int) -> Any:
    """Raises TimeoutError inside the block after `seconds`, if in the main thread, where signals are available."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not ready within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class LlamaCpp:
    """llama.cpp on the same file; `make peers` installs it."""

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


def _makers(path: str, threads: int) -> dict[str, Callable[[], Any]]:
    blocks: dict[str, Any] = {"weights": "gguf", "release_originals": True}
    return {
        "transformers bf16": lambda: TorchSide(path, "bf16", layerzero=False),
        "transformers f32": lambda: TorchSide(path, "f32", layerzero=False),
        "torch.compile bf16": lambda: CompiledSide(path, "bf16"),
        "llama.cpp": lambda: LlamaCpp(path, threads),
        "layerzero bf16": lambda: TorchSide(path, "bf16"),
        "layerzero f32": lambda: TorchSide(path, "f32"),
        "layerzero gguf": lambda: TorchSide(path, "bf16", **blocks),
        "layerzero gguf int8": lambda: TorchSide(path, "bf16", **blocks, activations="int8"),
    }


def _sides(path: str, threads: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the available sides, and why the others are not."""
    sides, absent = {}, {}
    for name, make in _makers(path, threads).items():
        try:
            sides[name] = make()
        except ImportError as error:
            absent[name] = f"{error}; `make peers` installs it"
        except Exception as error:
            if not name.startswith("torch.compile"):
                raise
            absent[name] = (
                f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"  # no compiler, or too slow
            )
    return sides, absent


def memory_of(name: str, path: str, threads: int) -> dict[str, int]:
    """Returns the bytes of this process after a side's prompt of 220 tokens; run it in a separate process."""
    torch.set_num_threads(threads)
    side = _makers(path, threads)[name]()
    side.prefill(torch.ones(1, 220, dtype=torch.int64))
    side.decode(torch.ones(1, START, dtype=torch.int64), 4)
    result = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        field, _, value = line.partition(":")
        if field in ("VmRSS", "VmHWM"):
            result["rss_bytes" if field == "VmRSS" else "peak_rss_bytes"] = int(value.split()[0]) * 1024
    if getattr(side, "report", None) is not None:
        memory = compile_model(side.model).memory
        result["weights_bytes"] = memory["parameters"] + memory["blocks"]
        if memory["cache"]:
            result |= {"arena_bytes": 220 * memory["arena"]["decode"], "cache_token_bytes": memory["cache"]}
    return result


_CHILD = (
    "import json, sys; from layerzero.bench import peers; print(json.dumps(peers.memory_of(*json.loads(sys.argv[1]))))"
)


def _memory(names: list[str], path: str, threads: int) -> dict[str, dict[str, int]]:
    result = {}
    for name in names:
        if name.startswith("torch.compile"):  # this would measure the compiler's memory
            continue
        command = [sys.executable, "-c", _CHILD, json.dumps([name, path, threads])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the memory measurement of {name} failed:\n{done.stderr[-2000:]}")
        result[name] = json.loads(done.stdout.splitlines()[-1])
    return result


def _memory_bar(memory: dict[str, dict[str, int]], file_bytes: int) -> dict[str, Any]:
    of_side = memory.get(MEMORY_SIDE, {})
    got = (of_side["weights_bytes"] + of_side["arena_bytes"]) / file_bytes if "arena_bytes" in of_side else None
    return {"side": MEMORY_SIDE, "at_most": MEMORY_BAR, "got": got}


def run(
    model: str | None, threads: int, rounds: int, tokens: int = 64, on_step: Callable[[int, str], None] | None = None
) -> dict[str, Any]:
    """Returns {"sides": {name: {metric: samples}}, "absent", "bars", "aa_spread", "greedy_ids"}; rates in tokens/s."""
    path, is_gguf = resolve_model(model)
    if not is_gguf:
        from layerzero.errors import InvalidRequestError

        raise InvalidRequestError("model", "a .gguf file, which every peer reads", str(path), "pass the file")
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
    memory = _memory(list(sides), str(path), threads)
    return {
        "file": path.name,
        "file_bytes": path.stat().st_size,
        "prompt_tokens": [220, 2048],
        "decode_tokens": tokens,
        "rounds": rounds,
        "llama_cpp": sides["llama.cpp"].version if "llama.cpp" in sides else None,
        "sides": samples,
        "absent": absent,
        "aa_spread": {metric: _spread(samples, metric) for metric in samples[AGAIN]},
        "bars": [_bar(samples, *bar) for bar in BARS],
        "greedy_ids": ids,
        "memory": memory,
        "memory_bar": _memory_bar(memory, path.stat().st_size),
        "weights_bytes": {n: s.report.weights.bytes for n, s in sides.items() if _has_weights(s)},
    }


def _has_weights(side: Any) -> bool:
    report = getattr(side, "report", None)
    return report is not None and report.weights is not None


def _spread(samples: dict[str, dict[str, list[float]]], metric: str) -> float:
    pairs = zip(samples["transformers bf16"][metric], samples[AGAIN][metric], strict=True)
    return statistics.median(max(pair) / min(pair) for pair in pairs)


def _bar(samples: Any, side: str, metric: str, against: tuple[str, ...], wanted: float) -> dict[str, Any]:
    """Returns the ratio of each round to the best of the compared sides; None if one of them is missing."""
    present = [name for name in against if name in samples]
    result = {"side": side, "metric": metric, "against": list(against), "wanted": wanted, "got": None}
    if side in samples and len(present) == len(against):
        best = max(present, key=lambda name: statistics.median(samples[name][metric]))
        ratios = [a / b for a, b in zip(samples[side][metric], samples[best][metric], strict=True)]
        result |= {"best": best, "got": statistics.median(ratios), "ratios": ratios}
    return result
