"""Continuous batching of Transformers (generate_batch) with its own attention and with LayerZero: tokens and tokens per second.

    python bench/serving/transformers_batches.py --out result.json                   # the packaged SmolLM2, 1, 4 and 16 requests
    python bench/serving/transformers_batches.py --subjects sdpa layerzero --rounds 1 --requests 4

Subjects: sdpa and paged|eager, Transformers' own; attention, attn_implementation="layerzero" alone; layerzero, lz.kernelize; and
layerzero+WEIGHTS, kernelize(weights=WEIGHTS). Each has a model of its own with the same weights; rounds go through all of them in turns.
Answers are greedy. same: the share of requests whose tokens are those of sdpa; other weights are others.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def subject(name: str, dtype: str, device: str) -> tuple[Any, Any]:
    """(the model, the report of kernelize or None)"""
    import layerzero as lz
    from layerzero import models
    from layerzero.integrations.transformers import register_with_transformers

    model, _ = models.load(dtype=dtype)
    model = model.to(device)
    kind, _, weights = name.partition("+")
    if kind == "layerzero":
        return model, lz.kernelize(model, weights or None, quiet=True)
    if kind == "attention":
        register_with_transformers()
    model.set_attn_implementation("layerzero" if kind == "attention" else kind)
    return model, None


def answers(model: Any, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], float]:
    """(the new tokens of each prompt, seconds)"""
    import transformers

    blocks = sum(-(-(len(one) + tokens) // 32) + 1 for one in prompts)
    settings = {"num_blocks": blocks, "page_size": 32, "max_batch_tokens": 512, "default_compile_level": 0}
    greedy = transformers.GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    began = time.perf_counter()
    found = model.generate_batch(
        inputs=prompts,
        generation_config=greedy,
        continuous_batching_config=transformers.ContinuousBatchingConfig(**settings),
        progress_bar=False,
    )
    seconds = time.perf_counter() - began
    by_prompt = {tuple(one.prompt_ids): one.generated_tokens for one in found.values()}
    return [by_prompt[tuple(one)] for one in prompts], seconds


def measure(subjects: dict[str, Any], prompts: list[list[int]], options: argparse.Namespace) -> dict[str, Any]:
    """Of one number of requests: tokens per second of each subject, each round's ratio to sdpa, and whose tokens agree."""
    tokens = {name: answers(model, prompts, options.output)[0] for name, model in subjects.items()}
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    names = list(subjects)
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds = answers(subjects[name], prompts, options.output)[1]
            rates[name].append(len(prompts) * options.output / seconds)
    first = names[0]
    return {
        name: {
            "tokens_per_s": round(statistics.median(found), 2),
            "ratio": round(statistics.median(a / b for a, b in zip(found, rates[first], strict=True)), 3),
            "same": statistics.mean(a == b for a, b in zip(tokens[name], tokens[first], strict=True)),
        }
        for name, found in rates.items()
    }


def integration(found: dict[str, Any]) -> dict[str, str]:
    """The row of docs/guide/integrations.md: subjects next to the first one, of Transformers."""
    import torch
    import transformers

    counts = found["requests"]
    own, *others = next(iter(counts.values()))
    speeds = [f"{name}, requests {count}: {of[name]['ratio']:.2f}" for name in others for count, of in counts.items()]
    exact = [name for name in others if "+" not in name]  # other weights write other tokens
    same = min((of[name]["same"] for name in exact for of in counts.values()), default=None)
    return {
        "version": f"{transformers.__version__}, torch {torch.__version__}",
        "run": f"generate_batch of SmolLM2 135M in {found['dtype']}, prompts of up to {found['input']} tokens, {found['output']} new ones",
        "result": "no exact subject"
        if same is None
        else f"tokens equal in at least {math.floor(same * 100)}% of the requests",
        "speed": f"throughput over {own}: {'; '.join(speeds)}",
    }


def write(found: dict[str, Any], out: Path | None) -> None:
    stamped = subprocess.run(
        [sys.executable, ROOT / "scripts/stamp_result.py"],
        input=json.dumps(found),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    (out.write_text if out else sys.stdout.write)(stamped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--subjects", nargs="+", default=["sdpa", "paged|eager", "attention", "layerzero", "layerzero+int8"]
    )
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument(
        "--input", type=int, default=96, help="tokens of the longest prompt; the shortest has a quarter"
    )
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    draw = random.Random(7)
    built = {name: subject(name, options.dtype, options.device) for name in options.subjects}
    models = {name: model for name, (model, _) in built.items()}
    found: dict[str, Any] = {key: getattr(options, key) for key in ("input", "output", "rounds", "dtype", "device")}
    found["requests"] = {}
    for count in options.requests:
        lengths = [draw.randint(options.input // 4, options.input) for _ in range(count)]
        prompts = [[draw.randrange(1000, 40000) for _ in range(length)] for length in lengths]
        found["requests"][count] = measure(models, prompts, options)
        print(count, json.dumps(found["requests"][count]), flush=True, file=sys.stderr)
        found["calls"] = {name: report.replaced["attention"]["calls"] for name, (_, report) in built.items() if report}
        found["integration"] = integration(found)
        if options.out:  # a run that is stopped has what it measured
            write(found, options.out)
    if not options.out:
        write(found, None)


if __name__ == "__main__":
    main()
