"""Linear layers that others have quantized: their own forward and LayerZero's, in turns in one process.

python bench/quantized_checkpoints.py | python scripts/stamp_result.py > bench/results/quantized-checkpoints-<machine>.json

Layers of GPTQ and AWQ are those of tests/python/support/packed_layers.py, whose plain arithmetic is no fair opponent: of
them only the time of LayerZero is kept. torchao is measured where it is installed.
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

SIZE, ROUNDS = 2048, 15


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


def median_us(call, rows):
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call(rows)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main():
    plain, found = torch.nn.Linear(SIZE, SIZE, bias=False), {}
    with torch.no_grad():
        for name, layer, is_real in layers():
            holder = torch.nn.ModuleDict({"layer": layer})
            report = lz.kernelize(holder, quiet=True)
            assert "layer" not in report.left, report
            for count in (1, 64):
                rows = torch.randn(count, SIZE)
                own = (lambda x, layer=layer: type(layer).forward(layer, x)) if is_real else None
                one = {"layerzero_us": median_us(layer, rows), "float32_us": median_us(plain, rows)}
                if own is not None:
                    own(rows)
                    one["own_us"] = median_us(own, rows)
                found.setdefault(name, {})[str(count)] = one
    speeds = [
        f"{name}, rows {count}: {each['own_us'] / each['layerzero_us']:.2f} of its own"
        if "own_us" in each
        else f"{name}, rows {count}: {each['float32_us'] / each['layerzero_us']:.2f} of float32"
        for name, counts in found.items()
        for count, each in counts.items()
    ]
    row = {
        "version": f"torch {torch.__version__}",
        "run": f"linear layers of {SIZE} by {SIZE}, float32 activations",
        "result": "weights equal bit for bit where the library unpacks them, outputs within the dtype's tolerance",
        "speed": "; ".join(speeds),
    }
    print(json.dumps({"size": SIZE, "rounds": ROUNDS, "layers": found, "integration": row}))


if __name__ == "__main__":
    main()
