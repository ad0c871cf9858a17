"""What torch.compile makes of LayerZero's operators: copies for auto_functionalized, kernels, and time next to torch's own.

python bench/inductor.py | python scripts/stamp_result.py > bench/results/inductor-<machine>.json
"""

import json
import statistics
import time

import layerzero as lz
import torch
from torch._inductor import metrics
from torch._inductor.utils import run_and_get_code

ROUNDS, WIDTH = 41, 1024


def torch_block(x, residual, weight):
    rows = torch.nn.functional.rms_norm(x + residual, (WIDTH,), weight, 1e-6)
    return torch.nn.functional.silu(rows) * rows + x


def layerzero_block(x, residual, weight):
    """The same with one operation of LayerZero amid what Inductor fuses."""
    rows = lz.rms_norm(x + residual, weight, 1e-6)
    return torch.nn.functional.silu(rows) * rows + x


def compiled(function, arguments):
    """(compiled, facts) of a function."""
    torch._dynamo.reset()
    metrics.reset()
    call = torch.compile(function, fullgraph=True)
    _, code = run_and_get_code(call, *arguments)
    text = "\n".join(code)
    facts = {
        "kernels": metrics.generated_kernel_count,
        "auto_functionalized": text.count("auto_functionalized"),
        "copies": text.count("aten.copy_") + text.count("aten.clone"),
        "layerzero_calls": text.count("torch.ops.layerzero."),
    }
    return call, facts


def main():
    arguments = (torch.randn(64, WIDTH), torch.randn(64, WIDTH), torch.rand(WIDTH))
    calls, result = {}, {}
    with torch.no_grad():
        for name, function in (("torch", torch_block), ("layerzero", layerzero_block)):
            calls[name], result[name] = compiled(function, arguments)
        error = (calls["layerzero"](*arguments) - torch_block(*arguments)).abs().max().item()
        times = {name: [] for name in ("torch", "layerzero", "layerzero uncompiled")}
        calls["layerzero uncompiled"] = layerzero_block
        for _ in range(ROUNDS):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(20):
                    call(*arguments)
                times[name].append((time.perf_counter() - start) / 20)
    median = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    facts = result["layerzero"]
    result |= {"median_us": median, "largest_error": error, "rounds": ROUNDS, "rows": 64, "width": WIDTH}
    result["integration"] = {
        "version": f"torch {torch.__version__}",
        "run": f"torch.compile of a norm amid elementwise work, {64} rows of {WIDTH}",
        "result": f"{facts['auto_functionalized']} auto_functionalized, {facts['copies']} copies, {facts['kernels']} fused "
        f"kernels next to {result['torch']['kernels']} of torch's own expression; largest error {error:.1e}",
        "speed": f"{median['torch'] / median['layerzero']:.2f} of torch's own expression compiled",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
