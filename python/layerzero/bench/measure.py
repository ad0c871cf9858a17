"""Transformers alone compared with the same model through LayerZero: correctness, rates, first token, memory."""

import copy
import json
import statistics
import subprocess
import sys
import time

import torch

from layerzero.integrations.transformers import kernelize
from layerzero.models.gguf import load

SIDES = ("transformers", "layerzero")
PROMPT = "Why is the sky blue? Answer in two sentences." * 20  # 220 tokens of SmolLM2
ERROR_BAR = 1.25  # LayerZero's error against FP64, as a multiple of Transformers' own


def both_sides(model):
    """Returns {side: model} over the same parameters; only LayerZero's is kernelized."""
    memo = {id(parameter): parameter for parameter in model.parameters()}
    ours = copy.deepcopy(model, memo)
    report = kernelize(ours)
    return {"transformers": model, "layerzero": ours}, report


def prefill_s(model, ids):
    start = time.perf_counter()
    model(input_ids=ids, logits_to_keep=1, use_cache=True)
    return time.perf_counter() - start


def generate_ids(model, ids, tokens):
    """Returns (new ids, seconds) of greedy generation of exactly `tokens` tokens."""
    start = time.perf_counter()
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return out[0, ids.shape[1] :].tolist(), time.perf_counter() - start


def _errors(logits, exact):
    difference = (logits.double() - exact).abs()
    return difference.max().item(), difference.mean().item()


def check(models, ids, tokens=32):
    """Compares greedy ids in f32; in narrower dtypes the logits' error against an FP64 run of the same weights."""
    dtype = models["transformers"].dtype
    with torch.inference_mode():
        greedy = {side: generate_ids(model, ids[:, :16], tokens)[0] for side, model in models.items()}
        same = greedy["transformers"] == greedy["layerzero"]
        result = {"greedy_ids_equal": same, "tokens": tokens}
        if dtype == torch.float32:
            logits = {side: model(input_ids=ids, use_cache=False).logits for side, model in models.items()}
            result["max_logit_difference"] = (logits["transformers"] - logits["layerzero"]).abs().max().item()
            return result | {"ok": same}
        exact = copy.deepcopy(models["transformers"]).double()(input_ids=ids, use_cache=False).logits
        error = {s: _errors(m(input_ids=ids, use_cache=False).logits, exact) for s, m in models.items()}
    ratios = [ours / own for ours, own in zip(error["layerzero"], error["transformers"], strict=False)]
    result["error_max"], result["error_mean"] = ({s: error[s][i] for s in SIDES} for i in range(2))
    result["error_ratio"] = {"max": ratios[0], "mean": ratios[1], "bar": ERROR_BAR}
    return result | {"ok": max(ratios) <= ERROR_BAR}


def measure(models, ids, rounds, tokens=64, budget_s=None, again=True, on_step=None):
    """Returns interleaved samples: {side: {"prefill_tok_s", "decode_tok_s", "first_token_s"}}, each a list.

    With `again` each round ends with Transformers once more, as "transformers_again", which measures the noise (A/A).
    """
    order = (*SIDES, "transformers") if again else SIDES
    samples: dict = {side: {"prefill_tok_s": [], "decode_tok_s": [], "first_token_s": []} for side in SIDES}
    samples["transformers_again"] = copy.deepcopy(samples["transformers"])
    deadline = time.perf_counter() + budget_s if budget_s else None
    with torch.inference_mode():
        for round_index in range(rounds + 1):  # round 0 warms up
            if round_index > 1 and deadline and time.perf_counter() > deadline:
                break
            for position, side in enumerate(order):
                if round_index == 0 and position == 2:
                    continue
                model = models[side]
                into = samples["transformers_again" if position == 2 else side]
                first = prefill_s(model, ids)
                _, seconds = generate_ids(model, ids[:, :16], tokens if round_index else 4)
                if round_index:
                    into["prefill_tok_s"].append(ids.shape[1] / first)
                    into["first_token_s"].append(first)
                    into["decode_tok_s"].append(tokens / seconds)
                if on_step:
                    on_step(round_index, side)
    return samples


def summary(samples):
    """Returns medians, the ratio LayerZero / Transformers of each round, and the A/A spread of Transformers."""
    result = {}
    for metric in ("prefill_tok_s", "decode_tok_s", "first_token_s"):
        own, ours = samples["transformers"][metric], samples["layerzero"][metric]
        again = samples["transformers_again"][metric]
        ratios = [b / a for a, b in zip(own, ours, strict=False)]
        spread = [max(a, b) / min(a, b) for a, b in zip(own, again, strict=bool(again))]
        result[metric] = {
            "transformers": statistics.median(own),
            "layerzero": statistics.median(ours),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "aa_spread": statistics.median(spread) if spread else None,
        }
    return result


# The child measures itself alone. VmHWM is reset with each program; ru_maxrss is not.
_CHILD = """
import json, sys
import torch
from layerzero.models.gguf import load
from layerzero.bench import measure
model_path, dtype, side, threads = json.loads(sys.argv[1])
torch.set_num_threads(threads)
model, tokenizer = load(model_path, dtype)
if side == "layerzero":
    measure.kernelize(model)
ids = tokenizer(measure.PROMPT, return_tensors="pt")["input_ids"]
with torch.inference_mode():
    measure.prefill_s(model, ids)
    measure.generate_ids(model, ids, 2)
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""


def peak_memory(model_path, dtype):
    """Returns {side: bytes}: the peak resident size of a process that loads the model, prefills twice and decodes."""
    result = {}
    for side in SIDES:
        argument = json.dumps([None if model_path is None else str(model_path), dtype, side, torch.get_num_threads()])
        done = subprocess.run([sys.executable, "-c", _CHILD, argument], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the memory measurement of {side} failed:\n{done.stderr[-2000:]}")
        result[side] = int(done.stdout.split()[-1])
    return result


def run(model_path, dtype, rounds, tokens=64, memory=True, on_step=None):
    """Returns one dtype's full comparison as a dictionary for JSON."""
    model, tokenizer = load(model_path, dtype)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    models, report = both_sides(model)
    checked = check(models, ids)
    samples = measure(models, ids, rounds, tokens, on_step=on_step)
    measured = summary(samples)
    decoder = models["layerzero"].base_model.__dict__.get("_layerzero_decoder")
    result = {
        "dtype": dtype,
        "prompt_tokens": ids.shape[1],
        "decode_tokens": tokens,
        "rounds": rounds,
        "check": checked,
        "replaced": report.replaced,
        "left": report.left,
        "stepped_aside": dict(decoder.why_aside) if decoder else {},
        "measured": measured,
        "bars": {
            "decode": {"wanted": 1.2, "got": measured["decode_tok_s"]["ratio"]},
            "prefill": {"wanted": 1.0, "got": measured["prefill_tok_s"]["ratio"]},
        },
    }
    result["ok"] = checked["ok"] and all(bar["got"] >= bar["wanted"] for bar in result["bars"].values())
    del models, model
    if memory:
        result["peak_memory_bytes"] = peak_memory(model_path, dtype)
    return result
