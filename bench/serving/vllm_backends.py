"""vLLM with its own attention backends and with LayerZero's: the same Llama, tokens, times, and which kernels ran.

    python bench/serving/vllm_backends.py --out result.json                # 1B, batches 1, 16, 128; 512 tokens in, 128 out
    python bench/serving/vllm_backends.py --engines layerzero flash_attn --layers 2 --rounds 1     # a quick look
    python bench/serving/vllm_backends.py --engines flash_attn layerzero flash_attn layerzero      # each twice: the order's effect
    python bench/serving/vllm_backends.py --engines layerzero@default flash_attn@default flashinfer@default     # as vLLM runs

Each engine is a process of its own, one after the other, each with the same random weights (standard deviation 0.02) and
prompts of random ids. An engine named NAME+ops runs LayerZero's norms, activations, rotary embeddings and products too;
NAME@MODE runs another way: `graphs` (decode steps as CUDA graphs, nothing compiled), `default` (vLLM's own: compiled,
graphs of both kinds), `eager`. The plugin must be installed, or LayerZero on the Python path with its entry point.

Times are wall-clock of `generate` for whole batches; the first token's from a run that ends there. Answers are greedy: one
list for each prompt and batch, compared between engines by equal tokens before the first difference (vllm_logprobs.py shows
why they differ). An engine that is named again is "NAME, run 2" in the results: what differs between two runs of one engine
is vLLM's own, or the machine's. Steps that are replayed by graphs select no kernel again: `kernels` has those that were
selected while the engine started and ran. `host` says what a batch's runs cost the host (host_costs.py); --profile adds
where the time of the smallest batch goes, on the host and the device.

An engine's results are written as its batches end, so that a run that is cut off has what came ("cut_off"). One that does
not start is a row of "failed" with its error, and the next one starts. FLASHINFER compiles kernels that its package does
not have: --most says how long an engine may take. The first engine also gets --cold seconds: on a fresh machine it reads
the libraries from the disk and compiles vLLM's Triton kernels for all.
"""

import argparse
import json
import logging
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import host_costs  # noqa: E402

ENGINES = [
    "layerzero", "flash_attn", "layerzero@default", "flash_attn@default", "layerzero+ops@default", "flashinfer",
    "flashinfer@default",
]  # fmt: skip
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
OPS = ["rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding", "linear"]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "LAYERZERO_VERBOSE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # kernels are counted where they run
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiles for minutes, and answers here are greedy
}


def model_folder(layers, root):
    config = SHAPE | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "num_hidden_layers": layers,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (Path(root) / "config.json").write_text(json.dumps(config))
    return root


def random_weights(model):
    """In place, so that graphs that were captured read them; the same in every engine."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(7)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            wide = 2.0 if "qkv" in name else 1.0  # attention that is not nearly uniform
            parameter.data.normal_(0.0, 0.02 * wide, generator=generator)
        else:
            parameter.data.fill_(1.0)
    return sum(p.numel() for p in model.parameters())


def options_of(engine, mode, ops, arguments):
    given = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": arguments.input + arguments.output + 64,
        "max_num_seqs": max(arguments.batch),
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.6,
        "enable_prefix_caching": False,
        "attention_backend": engine.upper(),
        "seed": 0,
    }
    if mode == "eager":
        given["enforce_eager"] = True
    elif mode == "graphs":
        sizes = sorted({1, 2, 4, *arguments.batch})
        given["compilation_config"] = {
            "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes
        }  # fmt: skip
    else:
        given["compilation_config"] = {"cudagraph_capture_sizes": sorted({1, 2, 4, 8, *arguments.batch, 256, 512})}
    if ops:
        given["additional_config"] = {"layerzero": {"ops": OPS}}
    return given


class Selections(logging.Handler):
    def __init__(self):
        super().__init__()
        self.found = {}

    def emit(self, record):
        operation, _, kernel = record.getMessage().partition(": ")
        kernels = self.found.setdefault(operation.removeprefix("layerzero: "), [])
        if kernel not in kernels:
            kernels.append(kernel)


def started(arguments, root):
    """Returns an engine of this process and the first part of its result; root: a folder for its configuration."""
    name, _, mode = arguments.engine.partition("@")
    backend, _, ops = name.partition("+")
    seen = Selections()
    logging.getLogger("layerzero").addHandler(seen)
    logging.getLogger("layerzero").setLevel(logging.INFO)
    start, fresh = time.monotonic(), host_costs.python_ms()
    from vllm import LLM

    imported = time.monotonic()
    llm = LLM(model_folder(arguments.layers, root), **options_of(backend, mode or "graphs", bool(ops), arguments))
    (parameters,) = llm.apply_model(random_weights)
    return llm, {
        "engine": arguments.engine,
        "parameters": parameters,
        "import_s": imported - start,
        "start_s": time.monotonic() - imported,
        "python_ms": {"fresh": fresh, "ready": host_costs.python_ms()},
        "backends": sorted({type(m.impl).__name__ for m in _attention_layers(llm)}),
        "batches": {},
        "kernels": seen.found,  # which grows
        "versions": versions(),
    }


def random_prompts(count, length):
    import torch

    generator = torch.Generator().manual_seed(3)
    return torch.randint(10, 128000, (count, length), generator=generator).tolist()


def came(result, **further):
    result.update(further)
    print("\nRESULT " + json.dumps(result), flush=True)


def one_engine(arguments):
    """Runs in a process of its own; prints its result as the last line."""
    with tempfile.TemporaryDirectory() as root:
        llm, result = started(arguments, root)
        import torch
        from vllm import SamplingParams

        prompts = random_prompts(max(arguments.batch), arguments.input)

        def answers(batch, tokens, logprobs=None):
            sampling = SamplingParams(
                temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
            )
            given = [{"prompt_token_ids": ids} for ids in prompts[:batch]]
            torch.cuda.synchronize()
            begin = time.perf_counter()
            outputs = llm.generate(given, sampling, use_tqdm=False)
            return time.perf_counter() - begin, [one.outputs[0] for one in outputs]

        for batch in arguments.batch:
            result["batches"][batch] = measured(answers, batch, arguments)
            came(result, cut_off=True)
        first = answers(max(arguments.batch), 1, logprobs=1)[1]
        came(result, first_logprobs=[next(iter(one.logprobs[0].values())).logprob for one in first])
        if arguments.profile:
            few = min(arguments.batch)
            came(result, profile=host_costs.device_profile(lambda: answers(few, 16)))
            came(result, functions=host_costs.functions(lambda: answers(few, 64)))
        result["python_ms"]["end"] = host_costs.python_ms()
        came(result, cut_off=False)


def _attention_layers(llm):
    config = llm.llm_engine.vllm_config.compilation_config
    return [layer for layer in config.static_forward_context.values() if hasattr(layer, "impl")]


def measured(answers, batch, arguments):
    _, once = answers(batch, arguments.output)
    firsts, wholes, same = [], [], True
    with host_costs.Usage() as host:
        for _ in range(arguments.rounds):
            firsts.append(answers(batch, 1)[0])
            seconds, again = answers(batch, arguments.output)
            wholes.append(seconds)
            same &= [one.token_ids for one in again] == [one.token_ids for one in once]
    first, whole = statistics.median(firsts), statistics.median(wholes)
    return {
        "first_token_ms": first * 1e3,
        "whole_ms": whole * 1e3,
        "step_ms": (whole - first) / (arguments.output - 1) * 1e3,
        "tokens_per_s": batch * arguments.output / whole,
        "spread": (max(wholes) - min(wholes)) / whole,
        "same_in_every_run": same,
        "host": host.found,
        "tokens": [list(one.token_ids) for one in once],
    }


def labelled(engines):
    """(label, engine) in order; the label of an engine's second run is "NAME, run 2"."""
    labels = []
    for index, engine in enumerate(engines):
        run = engines[: index + 1].count(engine)
        labels.append((engine if run == 1 else f"{engine}, run {run}", engine))
    return labels


def versions():
    import importlib.metadata

    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    found = {"python": platform.python_version(), "device": device}
    for name in ("vllm", "sglang", "torch", "triton", "flashinfer-python", "transformers"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    if layerzero := sys.modules.get("layerzero"):
        found["layerzero"] = layerzero.__version__
    return found


def compared(results, base="flash_attn"):
    """Each engine and the first whose name begins with `base`: equal tokens before the first difference, times as a ratio."""
    base = next((r for r in results if r["engine"].startswith(base)), None)
    rows = []
    for one in results if base is not None else ():
        for batch, own in one["batches"].items():
            if (other := base["batches"].get(batch)) is None:
                continue  # cut off before
            pairs = list(zip(own["tokens"], other["tokens"], strict=True))
            prefixes = [
                next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x)) for x, y in pairs
            ]
            logprobs = list(zip(one.get("first_logprobs", ()), base.get("first_logprobs", ()), strict=False))
            rows.append(
                {
                    "engine": one["engine"],
                    "against": base["engine"],
                    "batch": batch,
                    "equal_answers": sum(x == y for x, y in pairs) / len(pairs),
                    "equal_first_tokens": sum(x[0] == y[0] for x, y in pairs) / len(pairs),
                    "equal_before_first_difference": statistics.mean(prefixes),
                    "first_logprob_difference": max((abs(a - b) for a, b in logprobs), default=None),
                    "throughput": own["tokens_per_s"] / other["tokens_per_s"],
                    "first_token": other["first_token_ms"] / own["first_token_ms"],
                    "step": other["step_ms"] / own["step_ms"],
                }
            )
    return rows


def written(results, failures, path, base="flash_attn"):
    rows = compared(results, base)
    kept = json.loads(json.dumps(results))
    for one in kept:
        for batch in one["batches"].values():
            batch["tokens"] = batch["tokens"][0][:16]  # enough to see that they are an answer
    path.write_text(json.dumps({"engines": kept, "compared": rows, "failed": failures}, indent=1) + "\n")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("vllm-backends.json"))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 128])
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also write where the time of the smallest batch goes")
    parser.add_argument("--seconds", type=float, default=480, help="no engine starts after this time")
    parser.add_argument("--most", type=float, default=200, help="seconds that one engine may take")
    parser.add_argument("--cold", type=float, default=120, help="seconds that the first engine may take besides")
    arguments = parser.parse_args()
    if arguments.engine:
        return one_engine(arguments)
    end = time.monotonic() + arguments.seconds
    results, failures = [], {}
    passed = [a for n in ("input", "output", "layers", "rounds") for a in (f"--{n}", str(getattr(arguments, n)))]
    passed += ["--batch", *map(str, arguments.batch), *(["--profile"] if arguments.profile else [])]
    for label, engine in labelled(arguments.engines):
        if time.monotonic() > end:
            failures[label] = "no time left"
            continue
        command = [sys.executable, __file__, "--engine", engine, *passed]
        cold = arguments.cold if not results and not failures else 0
        log = arguments.out.with_suffix(f".{label.replace(', run ', '.')}.log")
        rows = []
        for found, failure in run(command, log, min(arguments.most + cold, max(end - time.monotonic(), 1) + 30)):
            now = [found | {"engine": label}] if found else []
            rows = written(results + now, failures | ({label: failure} if failure else {}), arguments.out)
        results += now
        failures |= {label: failure} if failure else {}
        for row in rows:
            print(json.dumps(row))
        print(json.dumps({"engine": label, "error": failure}) if failure else f"{label} ready", flush=True)
    return 1 if failures else 0


def run(command, log, limit):
    """Yields (what the engine has written so far or None, why it did not come to its end or "") after each of its results,
    last when it has ended. log: the file of its output."""
    with log.open("w") as stream:
        process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stdout=stream, stderr=subprocess.STDOUT)
    end, seen = time.monotonic() + limit, ""
    try:
        while process.poll() is None and time.monotonic() < end:
            time.sleep(1)
            if (line := _last_result(log)) != seen:
                seen = line
                yield json.loads(line), ""
        failure = f"not ready within {limit:.0f} s" if process.poll() is None else process.returncode
    finally:
        process.kill()
        process.wait()
    found = json.loads(_last_result(log) or "null")
    complete = found is not None and not found["cut_off"]  # how its process ended after that is of no interest
    yield found, "" if complete else f"{failure}{last_error(log)}; see {log.name}"


def last_error(log):
    """ ": " and the text of the last exception that a log has; "" without one."""
    found = re.findall(
        r"^(?:\([^)]*\) )*((?:\w+\.)*\w*(?:Error|Exception|Exit)(?:: .*)?)$", log.read_text(errors="replace"), re.M
    )
    return f": {found[-1][:300]}" if found else ""


def _last_result(log):
    """What follows the last whole line's "RESULT "; "" before the first."""
    lines = log.read_text(errors="replace").splitlines(keepends=True)
    return next((line[7:] for line in reversed(lines) if line.startswith("RESULT ") and line.endswith("\n")), "")


if __name__ == "__main__":
    sys.exit(main())
