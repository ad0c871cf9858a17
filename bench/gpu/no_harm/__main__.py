"""Checks that no call through LayerZero is slower on a GPU than the torch expression that it replaces, beyond noise.

    python bench/gpu/no_harm > result.json            # --rounds 15 --only attention,rope --label "FlashInfer on the path"

Each case runs three sides in turns: LayerZero's call, torch's expression, torch's expression again (A/A). A side's time
is that of a run of calls between two CUDA events, so it is the larger of host and device time, as a program sees it. If
both sides can be captured, runs of one CUDA graph of each side are timed in the same way, which excludes the host.
Results are compared before anything is timed.

A ratio is above 1 if the lower quartile of the paired ratios ours / theirs is above 1 by more than the A/A ratios' own
quartiles are, and by more than 2 %. A case is slower if its graphs' ratio is above 1, or if its calls' ratio is and the
difference exceeds the host cost of a call that ends in torch's own function: 6 us, on hosts where torch's relu takes
10.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import warnings

import candidates
import layerzero as lz
import torch
from layerzero.tuning import sides

RUN_SECONDS = 0.004  # duration of one side in one round
LEAST = 0.02  # smaller differences are ignored
HOST_US = 6.0  # allowed host cost of a LayerZero call over torch's own function
CAPTURED = 8  # calls in a graph
captured = functools.partial(sides.captured, calls=CAPTURED)  # of a call: its graph, None if that cannot be captured
BOUND = 3e-2  # difference of both results, relative to the largest value of a row


def difference(ours, theirs):
    """Returns the largest difference of two results, relative to the largest value of each row."""
    ours = ours if isinstance(ours, tuple) else (ours,)
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a is None:
            continue
        a, b = a.float().reshape(-1, a.shape[-1]), b.float().reshape(-1, a.shape[-1])
        scale = b.abs().amax(-1, keepdim=True).clamp(min=1e-3)
        worst = max(worst, ((a - b).abs() / scale).max().item())
    return worst


def seconds(call, count):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / count


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return {"low": low, "median": middle, "high": high}


def kernel_of(case):
    """Returns the kernel of the case's call; None if it calls no operation."""
    return next((kernel for _, kernel in candidates.called(case)), None)


def measure(case, rounds):
    found = {"operation": case.operation, "case": case.label}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found["kernel"] = kernel_of(case)
            result, wanted = case.ours(), case.theirs()
            if case.checked and result is not None:
                found["difference"] = difference(result, wanted)
            torch.cuda.synchronize()
    except Exception as error:
        return found | {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    sides = {"ours": case.ours, "theirs": case.theirs, "again": case.theirs}
    found |= compared(sides, rounds)
    excess = found["above"] and found["ours_us"] - found["theirs_us"] > HOST_US
    graphs = {name: captured(call) for name, call in sides.items()}
    if all(graphs.values()):
        found["graph"] = compared({name: graph.replay for name, graph in graphs.items()}, rounds)
        for name in ("ours_us", "theirs_us"):
            found["graph"][name] /= CAPTURED
        excess = excess or found["graph"]["above"]
    return found | {"slower": excess}


def compared(sides, rounds):
    """Returns median times of two sides, the quartiles of their paired ratios and of the A/A control."""
    counts = {}
    for name, call in sides.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        counts[name] = max(1, min(2000, int(RUN_SECONDS / max(seconds(call, 2), 1e-6))))
    samples = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        for name in order:
            samples[name].append(seconds(sides[name], counts[name]))
    ratio = quartiles([a / b for a, b in zip(samples["ours"], samples["theirs"], strict=True)])
    control = quartiles([a / b for a, b in zip(samples["again"], samples["theirs"], strict=True)])
    noise = max(control["high"] - 1, 1 - control["low"], LEAST)
    times = {f"{name}_us": statistics.median(samples[name]) * 1e6 for name in ("ours", "theirs")}
    return times | {"ratio": ratio, "control": control, "above": ratio["low"] > 1 + noise}


def installed():
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("flashinfer-python", "liger-kernel", "vllm", "flash-attn", "triton", "kernels"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def groups_of(dtype):
    """Returns the functions that make the cases, with tensors of `dtype`, which their modules read when they are imported."""
    os.environ["NO_HARM_DTYPE"] = dtype
    import attention
    import draws
    import latents
    import memory
    import rows

    return (
        *(rows.rows, rows.products),
        *(attention.dense_attention, attention.paged_attention, attention.packed_attention),
        *(latents.latent, latents.merges, latents.sparse),
        draws.sampling,
        *(memory.quantisation, memory.kv, memory.experts, memory.convolutions, memory.shapes, memory.delta_rule),
    )


def every_kernel(args, only):
    cases = (case for group in groups_of(args.dtype) for case in group() if not only or case.operation in only)
    how = {"rounds": args.rounds, "difference": difference, "captured": captured, "seconds": seconds, "calls": CAPTURED}
    with torch.no_grad():
        found = candidates.all_cases(cases, **how)
    json.dump(about(args) | {"results": found}, sys.stdout, indent=1)
    print()
    return 1 if any("error" in row for row in found) else 0


def about(args):
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "layerzero": lz.__version__,
        "label": args.label,
        "dtype": args.dtype,
        "installed": installed(),
        "rounds": args.rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="operations, comma-separated")
    parser.add_argument("--match", default="", help="a text that the cases' labels have")
    parser.add_argument("--label", default="", help="what is installed, in words")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--kernels", action="store_true", help="time every installed kernel of each call instead")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no_harm: wanted a CUDA device, got none")
    torch.manual_seed(0)
    only, results = set(filter(None, args.only.split(","))), []
    if args.kernels:
        return every_kernel(args, only)
    with torch.no_grad():
        for group in groups_of(args.dtype):
            try:
                for case in group():
                    if only and case.operation not in only or args.match not in case.label:
                        continue
                    row = measure(case, args.rounds)
                    results.append(row)
                    ratio = row["ratio"]["median"] if "ratio" in row else float("nan")
                    mark = "ERROR" if "error" in row else "SLOWER" if row["slower"] else ""
                    graph = row["graph"]["ratio"]["median"] if "graph" in row else float("nan")
                    text = f"{ratio:7.2f} {row.get('ours_us', 0):9.1f} {row.get('theirs_us', 0):9.1f} us, graph {graph:5.2f}"
                    text += f"  {row['operation']}: {row['case']} [{row.get('kernel')}] {mark}"
                    print(text, row.get("error", ""), file=sys.stderr, flush=True)
            except Exception as error:
                results.append(
                    {"operation": group.__name__, "case": "all", "error": f"{type(error).__name__}: {error}"}
                )
                print(f"ERROR {group.__name__}: {error}", file=sys.stderr, flush=True)
            torch.cuda.empty_cache()
    timed = [row for row in results if "ratio" in row]
    wrong = [row for row in timed if row.get("difference", 0) > BOUND]
    slower = [row for row in timed if row["slower"]]
    summary = about(args) | {
        "calls": len(timed),
        "operations": len({row["operation"] for row in timed}),
        "captured": sum("graph" in row for row in timed),
        "behind_by_host_cost": sum(row["above"] and not row["slower"] for row in timed),
        "slower": [f"{row['operation']}: {row['case']}" for row in slower],
        "differ": [f"{row['operation']}: {row['case']}" for row in wrong],
        "errors": [f"{row['operation']}: {row['case']}" for row in results if "error" in row],
    }
    json.dump(summary | {"results": results}, sys.stdout, indent=1)
    print()
    return 1 if slower or wrong or len(timed) < len(results) else 0


if __name__ == "__main__":
    sys.exit(main())
