"""Every kernel that serves a prefill, timed in one run: dense, ragged and paged, plain and with each option.

    python bench/gpu/attention_rows.py > result.json     # --rounds 11 --forms dense,paged --without torch.flex

The result of each kernel is compared with the reference's first. Kernels run as CUDA graphs of calls in turns, the chosen one
twice (A/A). Medians in us and TFLOP/s of the pairs of query and key that the call asks for; priorities are set from this.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import layerzero as lz
import torch
from bars import BOUND, difference, graph_of
from layerzero.tuning.core import Clock, Side, in_rounds
from layerzero.tuning.sides import call_of

sys.path.append(str(Path(__file__).parent / "no_harm"))
import case  # noqa: E402

MOST_LOGITS = 1 << 31  # of a reference, which holds all logits
FORMS = ("dense", "ragged", "paged")
SLOW = 4.0  # a kernel that takes this many times the best is timed once
Given = dict[str, Any]
Size = tuple[int, int, int, int]


def shapes(form: str) -> Iterator[Size]:
    """Yields sequences, queries and keys of each, and head dimension."""
    for b, s, d in ((1, 512, 128), (1, 2048, 128), (1, 8192, 128), (8, 1024, 128), (1, 2048, 64)):
        yield b, s, s, d
    if form == "dense":
        yield from ((1, 512, 512, 64), (1, 8192, 8192, 64), (1, 2048, 2048, 256))
    yield from ((1, 64, 8192, 128), (8, 256, 2048, 128))
    if form == "paged":
        yield from ((64, 1, 1024, 128), (16, 16, 2048, 128))


def options() -> dict[str, Given]:
    slopes, sinks = torch.rand(case.H_Q, device="cuda") * 0.1, torch.randn(case.H_Q, device="cuda")
    given: dict[str, Given] = {"all keys": {"causal": False}, "causal": {"causal": True}}
    given |= {"window": {"causal": True, "window": 512}, "softcap": {"causal": True, "softcap": 30.0}}
    given |= {"alibi": {"causal": True, "alibi_slopes": slopes}, "sinks": {"causal": True, "sinks": sinks}}
    return given | {"lse": {"causal": True, "return_lse": True}}


def arguments(form: str, b: int, s_q: int, s: int, d: int) -> tuple[str, Given]:
    """Returns the operation and the tensors of its call."""
    starts = torch.arange(b + 1, device="cuda", dtype=torch.int32)
    if form == "dense":
        q, k, v = case.qkv(b, s_q, s, d)
        return "attention", {"query": q, "key": k, "value": v, "layout": "BHSD"}
    q = case.r(b * s_q, case.H_Q, d)
    if form == "ragged":
        k, v = case.r(b * s, case.H_KV, d), case.r(b * s, case.H_KV, d)
        return "ragged_attention", {
            "query": q,
            "key": k,
            "value": v,
            "cu_seqlens_q": starts * s_q,
            "cu_seqlens_kv": starts * s,
        }
    k, v, _, indptr, indices, last = case.pages(b, s, d)
    pages = {
        "paged_k_cache": k,
        "paged_v_cache": v,
        "kv_indptr": indptr,
        "kv_indices": indices,
        "kv_last_page_len": last,
    }
    return "paged_prefill_attention", {"query": q, "qo_indptr": starts * s_q} | pages


def checked(call: Any, kernels: list[str], size: Size) -> dict[str, str]:
    """Returns the kernels whose results differ from the reference's, each with the reason."""
    b, s_q, s, _ = size
    if b * s_q * s * case.H_Q > MOST_LOGITS:
        return {}
    reference = next(
        c.kernel_id for c in lz.explain(call.name, **call.arguments).candidates if c.reference and c.admissible
    )
    expected, wrong = call.run(reference, call.arguments), {}
    for kernel in kernels:
        try:
            off = difference(call.run(kernel, call.arguments), expected)
            if not off <= BOUND:
                wrong[kernel] = f"differs from the reference by {off:.3g}"
        except Exception as error:
            wrong[kernel] = f"{type(error).__name__}: {str(error)[:200]}"
    return wrong


def measure(
    form: str, size: Size, label: str, more: Given, clock: Clock, rounds: int, without: list[str]
) -> dict[str, Any]:
    b, s_q, s, d = size
    name, given = arguments(form, *size)
    if "window" in more and form == "paged":
        more = {"causal": True, "window_left": more["window"] - 1}
    call = call_of(name, given | more)
    row: dict[str, Any] = {"form": form, "call": f"{b} x {s_q} over {s}, d {d}, {label}", "chosen": call.chosen}
    kernels = [k for k in call.kernels if k == call.chosen or not any(fnmatchcase(k, glob) for glob in without)]
    row["wrong"] = checked(call, kernels, size)
    runs = {k: lambda k=k: call.run(k, call.arguments) for k in kernels if k not in row["wrong"]}
    once = {kernel: clock.prepare(Side(run, ((),)), sample_us=1) for kernel, run in runs.items()}
    row["slow_us"] = {k: us for k, us in once.items() if us > SLOW * min(once.values()) and k != call.chosen}
    sides = {k: graph_of(run, []) or Side(run, ((),)) for k, run in runs.items() if k not in row["slow_us"]}
    for side in sides.values():
        clock.prepare(side)
    times = in_rounds(clock, sides, rounds, twice=call.chosen)
    pairs = s_q * s if label == "all keys" else s_q * s - s_q * (s_q - 1) // 2
    row["us"] = dict(sorted(((k, times.us(k)) for k in sides), key=lambda item: item[1]))
    row["tflops"] = {k: 4e-6 * b * pairs * case.H_Q * d / us for k, us in row["us"].items()}
    return row | {"aa_spread": times.spread(call.chosen)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument(
        "--without", default="", help="globs of kernels that are left out, as those that compile for minutes"
    )
    args = parser.parse_args()
    forms, without = args.forms.split(","), [glob for glob in args.without.split(",") if glob]
    if unknown := set(forms) - set(FORMS):
        parser.error(f"--forms: wanted names of {', '.join(FORMS)}; got {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        sys.exit("attention_rows: wanted a CUDA device, got none")
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    clock, rows = Clock.of("cuda:0"), []
    with torch.no_grad(), lz.policy(allow_jit_compile=True):
        for form in forms:
            for size in shapes(form):
                for label, more in options().items():
                    try:
                        row = measure(form, size, label, more, clock, args.rounds, without)
                    except Exception as error:
                        row = {
                            "form": form,
                            "call": f"{size}, {label}",
                            "error": f"{type(error).__name__}: {str(error)[:300]}",
                        }
                    rows.append(row)
                    best = ", ".join(f"{k} {us:.0f}" for k, us in list(row.get("us", {}).items())[:5])
                    print(
                        form, row["call"], row.get("error") or best, row.get("wrong") or "", file=sys.stderr, flush=True
                    )
                torch.cuda.empty_cache()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "layerzero": lz.__version__}
    json.dump(about | {"rounds": args.rounds, "without": without, "calls": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
