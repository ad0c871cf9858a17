"""A decode step of a Llama of the 1B shape with random weights on a GPU: the model alone and kernelized.

python bench/gpu/decode_step.py > result.json        # --batch 1 --context 1024 --rounds 7 --steps 32

Checks correctness first: bf16 logits' error against an FP64 run as a multiple of the model's own, greedy ids in f32.
Then measures wall-clock times with a synchronization per step, like a token loop, interleaved: alone, kernelized, alone
again (A/A).
"""

import argparse
import copy
import json
import statistics
import sys
import time

import layerzero as lz
import torch
import transformers
from layerzero.integrations.transformers.arguments import cache_argument, cache_of

SIDES = ("transformers", "layerzero")
ERROR_BAR = 1.25


def config(layers):
    return transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=True,
    )


def both(dtype, layers):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config(layers)).to(dtype).eval()
    ours = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    report = lz.kernelize(ours)
    return {"transformers": model, "layerzero": ours}, report


def error_ratio(models, ids):
    """Returns maximum and mean error of the logits against FP64, as multiples of Transformers' own."""
    logits = {side: model(ids).logits.double() for side, model in models.items()}
    exact = copy.deepcopy(models["transformers"]).double()(ids).logits
    errors = {side: (value - exact).abs() for side, value in logits.items()}
    own, other = errors["transformers"], errors["layerzero"]
    ratios = {"max": (other.max() / own.max()).item(), "mean": (other.mean() / own.mean()).item(), "bar": ERROR_BAR}
    return ratios | {"ok": max(ratios["max"], ratios["mean"]) <= ERROR_BAR}


def greedy_ids_equal(layers, ids, tokens=32):
    models, _ = both(torch.float32, layers)
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    options["attention_mask"] = torch.ones_like(ids)
    one, two = (models[side].generate(ids, **options) for side in SIDES)
    return torch.equal(one, two)


def steps(model, ids, context, count):
    """Returns the seconds of each of `count` decode steps after `context` tokens, and of the prefill."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    out = model(ids[:, :context], use_cache=True, logits_to_keep=1)
    torch.cuda.synchronize()
    prefill = time.perf_counter() - start
    cache, times = cache_argument(model, cache_of(out)), []
    token = out.logits[:, -1:].argmax(-1)
    for _ in range(count):
        start = time.perf_counter()
        token = model(token, use_cache=True, **cache).logits[:, -1:].argmax(-1)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times, prefill


def measure(models, ids, args):
    samples = {side: [] for side in (*SIDES, "again")}
    prefills = {side: [] for side in (*SIDES, "again")}
    first = {}
    for number in range(args.rounds + 1):  # round 0 warms up every length
        for name in (*SIDES, "again"):
            times, prefill = steps(models.get(name, models["transformers"]), ids, args.context, args.steps)
            first.setdefault(name, statistics.median(times) * 1e3)
            if number:
                samples[name].append(statistics.median(times) * 1e3)
                prefills[name].append(prefill * 1e3)
    cold = {side: first[side] for side in SIDES}
    return {"decode_step_ms": _row(samples), "first_decode_step_ms": cold, "prefill_ms": _row(prefills)}


def _row(samples):
    rounds = list(zip(samples["transformers"], samples["layerzero"], samples["again"], strict=True))
    return {
        **{side: statistics.median(samples[side]) for side in SIDES},
        "speedup": statistics.median(own / ours for own, ours, _ in rounds),
        "aa_spread": statistics.median(abs(again / own - 1) for own, _, again in rounds),
    }


def kernels(batch, context):
    """Returns the kernels of a decode step."""
    x = torch.randn(batch, 1, 2048, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(batch, 1, 32, 64, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, context, 8, 64, device="cuda", dtype=torch.bfloat16)
    table = torch.randn(batch, 1, 64, device="cuda", dtype=torch.bfloat16)
    calls = {
        "rms_norm": (x, x[0, 0]),
        "fused_add_rms_norm": (x, x, x[0, 0]),
        "linear": (x, x[0].expand(2048, 2048).contiguous()),
        "rope": (q, table, table),
        "attention": (q, k, k),
        "swiglu": (x, x),
    }
    return {name: lz.which(name, *args)["kernel_id"] for name, args in calls.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("batch", 1), ("context", 1024), ("rounds", 7), ("steps", 32), ("layers", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("decode_step: wanted a CUDA device, got none")
    torch.manual_seed(1)
    ids = torch.randint(0, 128256, (args.batch, args.context), device="cuda")
    with torch.inference_mode():
        models, report = both(torch.bfloat16, args.layers)
        result = {"shape": f"1B Llama, {args.layers} layers, bf16", "batch": args.batch, "context": args.context}
        result |= {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
        result |= {"transformers": transformers.__version__, "rounds": args.rounds, "steps": args.steps}
        result["replaced"] = {part: entry["count"] for part, entry in report.replaced.items()}
        result["left"] = report.left
        result["kernels"] = kernels(args.batch, args.context)
        result["error_ratio"] = error_ratio(models, ids[:, :128])
        result["greedy_ids_equal_f32"] = greedy_ids_equal(args.layers, ids[:1, :16])
        result |= measure(models, ids, args)
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
