"""SGLang with its own attention backends and with LayerZero's: the same Llama, tokens, times, and which kernels ran.

    python bench/serving/sglang_backends.py --out result.json               # 1B, batches 1, 16, 128; 512 tokens in, 128 out
    python bench/serving/sglang_backends.py --engines layerzero fa3 --layers 2 --rounds 1                # a quick look

Like vllm_backends.py, whose model, times and comparison it uses: each engine is a process of its own, with the same random
weights and prompts; answers are greedy. NAME@eager runs without CUDA graphs, NAME+sampler also samples by LayerZero.
Needs SGLang 0.5.15 or later on the Python path; the plugin's entry point is made where LayerZero is not installed.
"""

import argparse
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vllm_backends import Selections, labelled, measured, model_folder, versions, written

ENGINES = ["fa3", "layerzero", "flashinfer", "triton"]
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "LAYERZERO_VERBOSE": "1"}


class Answer:
    """What vllm_backends.measured() reads of an answer."""

    def __init__(self, one):
        self.token_ids = list(one["output_ids"])
        self.logprobs = (one["meta_info"].get("output_token_logprobs") or [])[:1]


def weights(layers, root):
    """A folder of a Llama with random weights, so that every engine loads the same."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(model_folder(layers, root))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def one_engine(arguments):
    """Runs in a process of its own; prints its result as the last line."""
    name, _, mode = arguments.engine.partition("@")
    backend, _, sampler = name.partition("+")
    seen = Selections()
    logging.getLogger("layerzero").addHandler(seen)
    logging.getLogger("layerzero").setLevel(logging.INFO)
    start = time.monotonic()
    import sglang

    given = {"sampling_backend": "layerzero"} if sampler else {}
    if mode == "eager":
        given["disable_cuda_graph"] = True
    engine = sglang.Engine(
        model_path=str(arguments.model),
        attention_backend=backend,
        page_size=16,
        skip_tokenizer_init=True,
        disable_radix_cache=True,
        mem_fraction_static=0.6,
        cuda_graph_max_bs=max(arguments.batch),
        context_length=arguments.input + arguments.output + 64,
        random_seed=0,
        **given,
    )
    result = {"engine": arguments.engine, "start_s": time.monotonic() - start, "batches": {}}
    import torch

    generator = torch.Generator().manual_seed(3)
    prompts = torch.randint(10, 128000, (max(arguments.batch), arguments.input), generator=generator).tolist()

    def answers(batch, tokens, logprobs=False):
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        begin = time.perf_counter()
        outputs = engine.generate(input_ids=prompts[:batch], sampling_params=sampling, return_logprob=logprobs)
        return time.perf_counter() - begin, [Answer(one) for one in outputs]

    for batch in arguments.batch:
        result["batches"][batch] = measured(answers, batch, arguments)
    first = answers(max(arguments.batch), 1, True)[1]
    result["first_logprobs"] = [one.logprobs[0][0] for one in first]
    result["versions"] = versions()
    engine.shutdown()
    print("RESULT " + json.dumps(result))


def kernels_of(log):
    """The kernels that LAYERZERO_VERBOSE printed in SGLang's processes."""
    found = {}
    for line in log.read_text(errors="replace").splitlines():
        operation, colon, kernel = line.partition("layerzero: ")[2].partition(": ")
        if colon and operation.count(".") and " " not in operation:
            kernels = found.setdefault(operation, [])
            if kernel not in kernels:
                kernels.append(kernel)
    return found


def run(label, engine, arguments, folder):
    """Returns the engine's result, or why there is none."""
    passed = [a for n in ("input", "output", "rounds") for a in (f"--{n}", str(getattr(arguments, n)))]
    command = [sys.executable, __file__, "--engine", engine, "--model", str(folder), *passed]
    command += ["--batch", *map(str, arguments.batch)]
    log = arguments.out.with_suffix(f".{label.replace(', run ', '.')}.log")
    with log.open("w") as stream:
        try:
            code = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, timeout=arguments.most).returncode
        except subprocess.TimeoutExpired:
            return f"not ready within {arguments.most:.0f} s"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("RESULT ")]
    return (
        json.loads(lines[-1][7:]) | {"engine": label, "kernels": kernels_of(log)}
        if lines
        else f"{code}; see {log.name}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=ENGINES, help="the first is what the others are compared with")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("sglang-backends.json"))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 128])
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=200, help="seconds that one engine may take")
    arguments = parser.parse_args()
    if importlib.util.find_spec("sglang") is None:
        parser.exit(2, 'SGLang is not importable; install it by: pip install "layerzero-kernels[sglang]"\n')
    if arguments.engine:
        return one_engine(arguments)
    from layerzero.integrations.sglang.launch_server import entry_point

    results, failures = [], {}
    with tempfile.TemporaryDirectory() as root, entry_point():
        os.environ |= ENVIRONMENT
        folder = weights(arguments.layers, root)
        for label, engine in labelled(arguments.engines):
            found = run(label, engine, arguments, folder)
            if isinstance(found, dict):
                results.append(found)
            else:
                failures[label] = found
            for row in written(results, failures, arguments.out, base=arguments.engines[0]):
                print(json.dumps(row))
            print(label, failures.get(label, "ready"), flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
