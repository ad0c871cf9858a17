"""A decode step of a Llama with random weights on a GPU: the model alone, compiled, and kernelized.

python bench/gpu/decode_step.py > result.json        # --shape 1B 8B --batch 1 16 64 --context 1024 8192 --compiled

Checks correctness first: bf16 logits' error against an FP64 run as a multiple of the model's own, greedy ids in f32.
Then measures wall-clock times with a synchronization per step, like a token loop, interleaved: alone, kernelized,
kernelized with a static cache, alone again (A/A); with --compiled also torch.compile's reduce-overhead with a static cache.
Caches are filled with random numbers. `floor_ms` is what reading weights, keys and values once takes at the copy rate.
A cell that does not fit into the device's memory says so. With --profile also the kernels of one step, how
long they take and how long the device did nothing before them (less than 0: it began before the last one had ended), and
where the host spends its time. With --serial also a
side with the kernels that calls select, each of which begins when the one before has ended. With --generate also a token of
`generate`, greedy and sampled: `outside` is LayerZero's with tokens that are chosen outside of the steps.
"""

import argparse
import contextlib
import copy
import cProfile
import json
import pstats
import statistics
import sys
import time
from unittest import mock

import layerzero as lz
import torch
import transformers
from layerzero.integrations.transformers.arguments import cache_argument
from layerzero.integrations.transformers.run import captured, generating

SIDES = ("transformers", "layerzero")
STATIC = ("layerzero_static", "compiled")
SERIAL = "layerzero_serial"
ERROR_BAR = 1.25
PROMPTS = (16, 128, 512, 1024)


SHAPES = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "layers": 16, "head_dim": 64, "tie_word_embeddings": True},
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "layers": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
HEADS, KV_HEADS = 32, 8


def config(shape, layers=None):
    sizes = dict(SHAPES[shape])
    all_layers = sizes.pop("layers")
    return transformers.LlamaConfig(
        vocab_size=128256,
        num_hidden_layers=layers or all_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=16384,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        **sizes,
    )


def both(dtype, shape, layers=None, serial=False):
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config(shape, layers)).eval()
    torch.set_default_dtype(torch.float32)
    ours = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    models = {"transformers": model, "layerzero": ours}
    report = lz.kernelize(ours)
    if serial:
        models[SERIAL] = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        lz.kernelize(models[SERIAL])
    return models, report


def error_ratio(models, ids):
    """Returns maximum and mean error of the logits against FP64, as multiples of Transformers' own."""
    logits = {side: models[side](ids).logits.double() for side in SIDES}
    exact = copy.deepcopy(models["transformers"]).double()(ids).logits
    errors = {side: (value - exact).abs() for side, value in logits.items()}
    own, other = errors["transformers"], errors["layerzero"]
    ratios = {"max": (other.max() / own.max()).item(), "mean": (other.mean() / own.mean()).item(), "bar": ERROR_BAR}
    return ratios | {"ok": max(ratios["max"], ratios["mean"]) <= ERROR_BAR}


def greedy_ids_equal(shape, ids, layers=4, tokens=32):
    models, _ = both(torch.float32, shape, layers)
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    options["attention_mask"] = torch.ones_like(ids)
    one, two = (models[side].generate(ids, **options) for side in SIDES)
    return torch.equal(one, two)


def filled(model, batch, context, count, static):
    """A cache with `context` positions of random numbers and room for `count` more."""
    sizes = model.config
    cache = (
        transformers.StaticCache(config=sizes, max_cache_len=context + count + 1)
        if static
        else transformers.DynamicCache(config=sizes)
    )
    shape = batch, KV_HEADS, context, sizes.head_dim
    for layer in range(sizes.num_hidden_layers):
        cache.update(*(torch.randn(shape, device="cuda", dtype=model.dtype) * 0.1 for _ in range(2)), layer)
    return cache


def step_ms(forward, model, batch, context, count, static):
    """The median of the milliseconds of `count` decode steps after `context` positions."""
    cache = cache_argument(model, filled(model, batch, context, count, static))
    token, times = torch.full((batch, 1), 7, device="cuda"), []
    for _ in range(count):
        start = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        token = forward(token, use_cache=True, **cache).logits[:, -1:].argmax(-1)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def copy_rate():
    """Bytes read and written per second by a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(), target.copy_(source), end.record(), end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * source.numel() / statistics.median(times)


def needed(model, batch, context):
    """(bytes that a step reads, bytes that a cell needs with the copies that a growing cache makes)."""
    sizes = model.config
    cache = 2 * sizes.num_hidden_layers * batch * KV_HEADS * context * sizes.head_dim * 2
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    embedding = 0 if sizes.tie_word_embeddings else model.model.embed_tokens.weight.numel() * 2
    return weights - embedding + cache, weights + 3.5 * cache


def measure(models, compiled, batch, context, args):
    forwards = {side: models[side] for side in SIDES} | {"layerzero_static": models["layerzero"]}
    forwards |= {SERIAL: models[SERIAL]} if args.serial else {}
    forwards |= {"compiled": compiled} if compiled is not None else {}
    names = [*forwards, "again"]
    samples = {name: [] for name in names}
    for number in range(args.rounds + 1):  # round 0 warms up, compiles and captures
        for name in names:
            forward = forwards.get(name, models["transformers"])
            model = models["layerzero" if name.startswith("layerzero") else "transformers"]
            with (
                mock.patch.object(captured, "_first_variants", lambda _: [{}])
                if name == SERIAL
                else contextlib.nullcontext()
            ):
                took = step_ms(forward, model, batch, context, args.steps, name in STATIC)
            samples[name] += [took] if number else []
            torch.cuda.empty_cache() if context * batch > 1 << 17 else None
    return _row(samples)


def _row(samples):
    own = samples["transformers"]

    def ratio(side, other):
        return statistics.median(a / b for a, b in zip(samples[side], samples[other], strict=True))

    best = min(("layerzero", "layerzero_static"), key=lambda side: statistics.median(samples[side]))
    row = {side: round(statistics.median(times), 4) for side, times in samples.items()}
    row |= {"speedup": ratio("transformers", "layerzero"), "best": best}
    row |= {"over_serial": ratio(SERIAL, "layerzero")} if SERIAL in samples else {}
    row |= {"aa_spread": statistics.median(abs(b / a - 1) for a, b in zip(own, samples["again"], strict=True))}
    return row | ({"over_compiled": ratio("compiled", best)} if "compiled" in samples else {})


def profiled(model, batch, context, steps=24):
    """The kernels of one step in the order in which they begin, and the functions in which the host spends most."""
    cache = cache_argument(model, filled(model, batch, context, steps, static=False))
    token, host, calls = torch.full((batch, 1), 7, device="cuda"), [], cProfile.Profile()

    def step(is_profiled=False):
        nonlocal token
        torch.cuda.synchronize()
        start = time.perf_counter()
        if is_profiled:
            calls.enable()
        logits = model(token, use_cache=True, **cache).logits
        calls.disable()
        host.append(time.perf_counter() - start)
        token = logits[:, -1:].argmax(-1)
        torch.cuda.synchronize()

    for number in range(steps - 1):
        step(number >= steps // 2)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
    found = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels, end = [], None
    for event in sorted(found, key=lambda e: e.time_range.start):
        begin = event.time_range.start
        gap = None if end is None else round(begin - end, 2)
        kernels.append([event.name[:100], round(event.time_range.elapsed_us(), 2), gap])
        end = max(event.time_range.end, end or 0)
    functions = pstats.Stats(calls).stats.items()
    most = sorted(((round(f[3] * 1e3, 3), f[0], *name) for name, f in functions), reverse=True)[:40]
    result = {"kernels": kernels, "span_us": round(end - min(e.time_range.start for e in found), 1)}
    return result | {"host_ms": statistics.median(host[2 : steps // 2]) * 1e3, "host_functions_ms": most}


def generate_ms(models, batch, context, tokens=64, rounds=5):
    """Milliseconds for each token after the first of `generate`, at the median of `rounds`."""
    ids = torch.randint(3, 128256, (batch, context), device="cuda")
    sides = {"transformers": "transformers", "layerzero": "layerzero", "outside": "layerzero"}
    found = {}
    for name, options in {
        "greedy": {"do_sample": False},
        "top_p": {"do_sample": True, "top_p": 0.9, "top_k": 0},
    }.items():
        samples = {side: [] for side in sides}
        for number in range(rounds + 2):  # the first two capture
            for side, model in sides.items():
                took = []
                with (
                    mock.patch.object(generating._Loop, "why_not", lambda _: "it is measured so")
                    if side == "outside"
                    else contextlib.nullcontext()
                ):
                    for count in (1, tokens + 1):
                        lengths = {
                            "max_new_tokens": count,
                            "min_new_tokens": count,
                            "attention_mask": torch.ones_like(ids),
                        }
                        torch.cuda.synchronize()
                        start = time.perf_counter()
                        models[model].generate(ids, pad_token_id=0, **lengths, **options)
                        torch.cuda.synchronize()
                        took.append(time.perf_counter() - start)
                samples[side] += [(took[1] - took[0]) / tokens * 1e3] if number > 1 else []
        found[name] = {side: round(statistics.median(times), 4) for side, times in samples.items()}
    return found


def prefill_ms(models, ids, rounds=5):
    samples = {side: [] for side in (*SIDES, "again")}
    for _ in range(rounds):
        for name, times in samples.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            models.get(name, models["transformers"])(ids, use_cache=True, logits_to_keep=1)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
    return {side: round(statistics.median(times[1:]), 3) for side, times in samples.items()}


def cells(shape, args, rate):
    """The result of one shape; shows each cell as it is measured."""
    models, report = both(torch.bfloat16, shape, serial=args.serial)
    ids = torch.randint(0, 128256, (1, 1024), device="cuda")
    result = {"error_ratio": error_ratio(models, ids[:, :128]) if shape == "1B" else None}
    result["greedy_ids_equal_f32"] = greedy_ids_equal(shape, ids[:, :16])
    result |= {"prefill_ms": {length: prefill_ms(models, ids[:, :length]) for length in args.prompts}, "cells": []}
    for batch in args.batch:
        compiled = (
            torch.compile(models["transformers"].forward, mode="reduce-overhead", dynamic=False)
            if args.compiled
            else None
        )
        for context in args.context:
            torch.compiler.reset() if args.compiled else None
            read, whole = needed(models["transformers"], batch, context)
            cell = {"batch": batch, "context": context, "floor_ms": round(1e3 * read / rate, 4)}
            if whole > torch.cuda.mem_get_info()[1]:
                cell["left_out"] = f"needs about {whole / 2**30:.0f} GiB"
            else:
                cell |= measure(models, compiled, batch, context, args)
                cell |= {"generate_ms": generate_ms(models, batch, context)} if args.generate else {}
            result["cells"].append(cell)
            print(shape, cell, file=sys.stderr, flush=True)
    kept = ("count", "calls", "captured", "not_captured", "chosen", "chosen_outside", "products")
    result["replaced"] = {part: {k: e[k] for k in kept if k in e} for part, e in report.replaced.items()}
    if args.profile:
        steps = [(batch, context) for batch in args.batch for context in args.context]
        result["profile"] = {f"{b} x {c}": profiled(models["layerzero"], b, c) for b, c in steps}
    return result | {"left": report.left}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["1B"], choices=[*SHAPES])
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--context", nargs="+", type=int, default=[1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument(
        "--compiled", action="store_true", help="also torch.compile's reduce-overhead, which takes a minute a cell"
    )
    parser.add_argument("--prompts", nargs="*", type=int, default=PROMPTS, help="lengths of prompts")
    parser.add_argument("--serial", action="store_true", help="also without kernels that begin early")
    parser.add_argument("--generate", action="store_true", help="also a token of `generate`")
    parser.add_argument("--profile", action="store_true", help="also the kernels of one step of LayerZero's")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("decode_step: wanted a CUDA device, got none")
    result = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    result |= {"rounds": args.rounds, "steps": args.steps, "dtype": "bfloat16"}
    with torch.inference_mode():
        rate = copy_rate()
        result["copy_gb_per_s"] = round(rate / 1e9)
        for shape in args.shape:
            result[shape] = cells(shape, args, rate)
            torch.cuda.empty_cache()
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
