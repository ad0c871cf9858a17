"""Linear layers that others have quantized: their own forward and LayerZero's, in turns in one process.

python bench/quantized_checkpoints.py | python scripts/stamp_result.py > bench/results/quantized-checkpoints-<machine>.json

Layers of GPTQ and AWQ are those of tests/python/support/packed_layers.py, whose plain arithmetic is no fair opponent: of
them only the time of LayerZero is kept. torchao is measured where it is installed.

Speeds are of the least times, and of the medians too: a call of two threads waits for a processor where other processes
want them all, which only adds time, and more to a kernel whose threads wait for each other. GPTQ's and AWQ's layers have one layout and one kernel; where their times differ, that is such waiting.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import layerzero as lz
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/python/support"))
from packed_layers import AWQLinear, GPTQLinear  # noqa: E402

SIZE, ROUNDS = 2048, 31


def layers():
    """(name, a layer, whether its own forward is what its users run)."""
    for kind in (GPTQLinear, AWQLinear):
        yield kind.__name__, kind(torch.nn.Linear(SIZE, SIZE, bias=False), 128), False
    try:
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError:
        return
    for config in (Int8WeightOnlyConfig, Float8WeightOnlyConfig):
        holder = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE, bias=False))
        quantize_(holder, config())
        yield f"torchao {config.__name__.removesuffix('Config')}", holder[0], True


def times_us(calls, rows):
    """The median and the least time of each call, by name; each round has all of them in turn."""
    times = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call(rows)
            if turn:  # the first one packs and compiles
                times[name].append(time.perf_counter() - start)
    found = {f"{name}_us": statistics.median(each) * 1e6 for name, each in times.items()}
    return found | {f"{name}_least_us": min(each) * 1e6 for name, each in times.items()}


def speed(times):
    """How many times as fast LayerZero is as the layer's own forward, or as float32: by least times and by medians."""
    name, other = ("own", "its own") if "own_us" in times else ("float32", "float32")
    least, median = (times[f"{name}{kind}_us"] / times[f"layerzero{kind}_us"] for kind in ("_least", ""))
    return f"{least:.2f} of {other} by least times, {median:.2f} by medians"


def main():
    plain, found = torch.nn.Linear(SIZE, SIZE, bias=False), {}
    with torch.no_grad():
        for name, layer, is_real in layers():
            holder = torch.nn.ModuleDict({"layer": layer})
            report = lz.kernelize(holder, quiet=True)
            assert "layer" not in report.left, report
            for count in (1, 64):
                rows = torch.randn(count, SIZE)
                calls = {"layerzero": layer, "float32": plain}
                if is_real:
                    calls["own"] = lambda x, layer=layer: type(layer).forward(layer, x)
                found.setdefault(name, {})[str(count)] = times_us(calls, rows)
    speeds = [f"{name}, rows {n}: {speed(each)}" for name, counts in found.items() for n, each in counts.items()]
    row = {
        "version": f"torch {torch.__version__}",
        "run": f"linear layers of {SIZE} by {SIZE}, float32 activations",
        "result": "weights equal bit for bit where the library unpacks them, outputs within the dtype's tolerance",
        "speed": "; ".join(speeds),
    }
    print(json.dumps({"size": SIZE, "rounds": ROUNDS, "layers": found, "integration": row}))


if __name__ == "__main__":
    main()
