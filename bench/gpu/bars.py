"""The ratios that LayerZero's kernels are held to on a GPU, all in one run: which calls, which peer, and what was reached.

    python bench/gpu/bars.py > result.json            # --rounds 21 --only attention,sampling

Every pair of calls is timed in turns, the peer twice (A/A), as CUDA graphs of calls, so that the host's time is left out; a pair
that cannot be captured is timed as calls ("graphs": false). Medians in us; a ratio is peer / ours with its 95 % interval. Where both
sides compute the same, their results are compared first. The value of a bar is one number of its ratios. Exit code 1: a bar is missed.
"""

import argparse
import itertools
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import layerzero as lz
import torch
from layerzero.tuning.core import Clock, Side, in_rounds
from layerzero.tuning.sides import call_of, captured
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parent / "no_harm"))
import case  # noqa: E402
import draws  # noqa: E402
import products  # noqa: E402

CALLS = 8  # in a graph
BOUND = 3e-2  # difference of both results, relative to the largest value of a row
HEADS, KV_HEADS = case.H_Q, case.H_KV


@dataclass
class Pair:
    """A call of LayerZero's and what it is compared with. `turns`: the tensors of calls that follow each other, for both sides."""

    label: str
    ours: Callable[..., Any]
    peer: Callable[..., Any]
    named: str
    checked: bool = True
    turns: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """`value` makes a number of the ratios peer / ours of all pairs."""

    name: str
    what: str
    least: float
    pairs: Callable[[], Iterator[Pair]]
    value: Callable[[list[float]], float] = min


def graph_of(run: Callable[..., Any], turns: list[Any]) -> Side | None:
    """Returns a graph of calls, one with the tensors of each turn; None if they cannot be captured."""
    turn = itertools.cycle(turns or [()])
    graph = captured(lambda: run(*next(turn)), count := len(turns) or CALLS)
    return Side(graph.replay, calls=count) if graph else None


def difference(ours: Any, theirs: Any) -> float:
    """Returns the largest difference of two results, relative to the largest value of each row; of tuples, of the first."""
    a, b = (t[0] if isinstance(t, tuple) else t for t in (ours, theirs))
    a, b = a.float().reshape(-1, a.shape[-1]), b.float().reshape(-1, a.shape[-1])
    return ((a - b).abs().amax(-1) / b.abs().amax(-1).clamp(min=1e-3)).max().item()


def compare(pair: Pair, clock: Clock, rounds: int) -> dict[str, Any]:
    """Returns the row of a pair."""
    ours, peer = pair.turns.get("ours", []), pair.turns.get("peer", [])
    found: dict[str, Any] = {"call": pair.label, "peer": pair.named}
    if pair.checked:
        found["difference"] = difference(pair.ours(*(ours or [()])[0]), pair.peer(*(peer or [()])[0]))
        if not found["difference"] <= BOUND:
            return found | {"error": "the results differ"}
    in_graphs = [graph_of(pair.ours, ours), graph_of(pair.peer, peer)]
    found["graphs"] = all(in_graphs)
    if not found["graphs"]:
        in_graphs = [Side(pair.ours, tuple(ours) or ((),)), Side(pair.peer, tuple(peer) or ((),))]
    sides = dict(zip(("ours", "peer"), in_graphs, strict=True))
    for one in sides.values():
        clock.prepare(one)
    times = in_rounds(clock, sides, rounds, twice="peer")
    ratio = times.ratio("peer", "ours")
    found |= {"ours_us": times.us("ours"), "peer_us": times.us("peer")}
    return found | {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "aa_spread": times.spread("peer")}


# The calls of each bar.


def prefill() -> Iterator[Pair]:
    for b, s, d in (
        (1, 512, 64),
        (1, 2048, 64),
        (1, 8192, 64),
        (1, 512, 128),
        (1, 2048, 128),
        (1, 8192, 128),
        (8, 1024, 128),
    ):
        for causal in (True, False):
            q, k, v = case.qkv(b, s, s, d)
            yield Pair(
                f"{b} x {s}, d {d}, {'causal' if causal else 'all keys'}",
                lambda q=q, k=k, v=v, c=causal: lz.attention(q, k, v, causal=c, layout="BHSD"),
                lambda q=q, k=k, v=v, c=causal: case.sdpa(q, k, v, is_causal=c),
                "torch's scaled_dot_product_attention",
            )


def decode() -> Iterator[Pair]:
    for b, s, d in (
        (1, 1024, 64),
        (1, 8192, 64),
        (1, 4096, 128),
        (16, 1024, 128),
        (16, 8192, 128),
        (64, 1024, 128),
        (64, 4096, 128),
    ):
        q, k, v = case.qkv(b, 1, s, d)
        yield Pair(
            f"{b} x 1 over {s}, d {d}",
            lambda q=q, k=k, v=v: lz.attention(q, k, v, layout="BHSD"),
            lambda q=q, k=k, v=v: case.sdpa(q, k, v),
            "torch's scaled_dot_product_attention",
        )


def dense() -> Iterator[Pair]:
    yield from prefill()
    yield from decode()


def options() -> Iterator[Pair]:
    sinks, slopes = torch.randn(HEADS, device="cuda"), torch.rand(HEADS, device="cuda") * 0.1
    given = {"window": {"window": 512}, "softcap": {"softcap": 30.0}, "sinks": {"sinks": sinks}}
    given |= {"alibi": {"alibi_slopes": slopes}, "lse": {"return_lse": True}}
    for b, s_q, s in ((1, 2048, 2048), (8, 1024, 1024), (1, 1, 4096), (16, 1, 4096)):
        q, k, v = case.qkv(b, s_q, s)
        for name, more in given.items():
            yield Pair(
                f"{name}, {b} x {s_q} over {s}",
                lambda q=q, k=k, v=v, more=more: lz.attention(q, k, v, layout="BHSD", **more),
                lambda q=q, k=k, v=v: lz.attention(q, k, v, layout="BHSD"),
                "the same call without",
                checked=False,
            )


PAGED = ((1, 1024), (1, 8192), (16, 1024), (16, 4096), (64, 1024), (64, 4096))


def paged(b: int, s: int) -> tuple[torch.Tensor, ...]:
    k, v, table, *_ = case.pages(b, s)
    return case.r(b, 1, HEADS, case.D), k, v, table, torch.full((b,), s, device="cuda", dtype=torch.int32)


def paged_libraries() -> Iterator[Pair]:
    names = ("query", "key_cache", "value_cache", "block_tables", "context_lens")
    for b, s in PAGED:
        given = paged(b, s)
        for kernel in call_of("paged_attention", dict(zip(names, given, strict=True))).kernels:
            if not kernel.startswith("cuda."):
                yield Pair(
                    f"{b} x {s}",
                    lambda g=given: lz.paged_attention(*g),
                    lambda g=given, kernel=kernel: lz.paged_attention(*g, kernel=kernel),
                    kernel,
                )


def copied(size: int, turns: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns tensors for a copy that reads and writes `size` bytes together."""
    return [tuple(torch.empty(size // 2, device="cuda", dtype=torch.uint8) for _ in range(2)) for _ in range(turns)]


def paged_rate() -> Iterator[Pair]:
    b, s = 64, 4096
    given = paged(b, s)
    yield Pair(
        f"{b} x {s}",
        lambda: lz.paged_attention(*given),
        lambda to, of: to.copy_(of),
        "a copy of as many bytes",
        checked=False,
        turns={"peer": copied(given[1].nbytes + given[2].nbytes)},
    )


def logits() -> torch.Tensor:
    return torch.randn(64, 128256, device="cuda") * 3


def sort_path() -> Iterator[Pair]:
    x, peer = logits(), "torch.sort and multinomial"
    yield Pair("64 x 128256, p 0.9", lambda: lz.sample_topp(x, 0.9), lambda: draws.topp(x), peer, checked=False)


def topk_path() -> Iterator[Pair]:
    x, peer = logits(), "torch.topk and multinomial"
    yield Pair("64 x 128256, k 50", lambda: lz.sample_topk(x, 50), lambda: draws.topk(x), peer, checked=False)


def row_rates() -> Iterator[Pair]:
    """Norm, rotation and activation of 128 MiB and more; the peer copies the bytes that the call reads and writes."""
    x, w = case.r(16384, 4096), case.r(4096)
    q, c, s = case.r(1, 16384, HEADS, 128), case.r(16384, 128), case.r(16384, 128)
    gate = case.r(4096, 2 * 14336)
    calls = {
        "rms_norm, 16384 x 4096": (2 * x.nbytes, lambda: lz.rms_norm(x, w)),
        "rope, 16384 tokens": (2 * q.nbytes + 2 * c.nbytes, lambda: lz.rope(q, c, s, layout="BSHD")),
        "silu_and_mul, 4096 x 2 x 14336": (gate.nbytes * 3 // 2, lambda: lz.silu_and_mul(gate)),
    }
    for label, (size, ours) in calls.items():
        copy = {"peer": copied(size)}
        yield Pair(label, ours, lambda to, of: to.copy_(of), "a copy of as many bytes", checked=False, turns=copy)


def four_bits() -> Iterator[Pair]:
    """One row, weights that no cache holds."""
    for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)):
        x = torch.randn(1, k, device="cuda", dtype=torch.bfloat16)
        turns = {}
        for side_name, tensors in (("peer", products.bf16(n, k)[0]), ("ours", products.int4(n, k)[0])):
            count = -(-products.CACHE // products.size_of(tensors))
            turns[side_name] = [tensors, *(tuple(t.clone() for t in tensors) for _ in range(count - 1))]
        yield Pair(
            f"{n} x {k}, groups of 128",
            lambda w, scale, x=x: lz.linear_quantized(x, w, scale, "int4"),
            lambda w, x=x: F.linear(x, w),
            "torch's bf16 product",
            checked=False,
            turns=turns,
        )


BARS = (
    Bar("attention", "geometric mean over the dense grid", 1.3, dense, statistics.geometric_mean),
    Bar("attention_prefill", "geometric mean over its prefills", 1.0, prefill, statistics.geometric_mean),
    Bar("attention_options", "worst: window, soft-cap, sinks, ALiBi, lse", 1 / 1.3, options),
    Bar("paged_libraries", "worst against each library's kernel", 1 / 1.15, paged_libraries),
    Bar("paged_rate", "64 x 4096: share of the copy rate", 0.85, paged_rate),
    Bar("sampling_sort", "top-p of 64 x 128k", 10.0, sort_path),
    Bar("sampling_topk", "top-k of 64 x 128k", 2.5, topk_path),
    Bar("rows_rate", "worst share of the copy rate", 0.93, row_rates),
    Bar("four_bits", "worst of one row with 4-bit weights", 2.0, four_bits),
)


def failed(call: str, peer: str, error: Exception) -> dict[str, Any]:
    return {"call": call, "peer": peer, "error": f"{type(error).__name__}: {str(error)[:200]}"}


def measure_pair(pair: Pair, clock: Clock, rounds: int) -> dict[str, Any]:
    try:
        row = compare(pair, clock, rounds)
    except Exception as error:
        row = failed(pair.label, pair.named, error)
    times = f"{row['ratio']:6.2f}  {row['ours_us']:9.1f} {row['peer_us']:9.1f} us" if "ratio" in row else row["error"]
    print(f"  {times}  {row['call']} / {row['peer']}", file=sys.stderr, flush=True)
    return row


def measure(bar: Bar, clock: Clock, rounds: int) -> dict[str, Any]:
    rows = []
    try:
        for pair in bar.pairs():
            rows.append(measure_pair(pair, clock, rounds))
    except Exception as error:  # of making the tensors
        rows.append(failed("those that follow", "", error))
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    value = bar.value(ratios) if ratios else None
    met = value is not None and value >= bar.least and len(ratios) == len(rows)
    return {"bar": bar.name, "what": bar.what, "least": bar.least, "value": value, "met": met, "calls": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="names of bars, comma-separated")
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    if unknown := only - {bar.name for bar in BARS}:
        parser.error(f"--only: wanted names of {', '.join(bar.name for bar in BARS)}; got {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        sys.exit("bars: wanted a CUDA device, got none")
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "layerzero": lz.__version__}
    results = []
    with torch.no_grad(), lz.policy(allow_jit_compile=True):
        for bar in BARS:
            if not only or bar.name in only:
                print(bar.name, file=sys.stderr)
                results.append(measure(bar, Clock.of("cuda:0"), args.rounds))
                torch.cuda.empty_cache()
    for found in results:
        value = "none" if found["value"] is None else f"{found['value']:.2f}"
        mark = "met" if found["met"] else "MISSED"
        print(f"{found['bar']:20} {value:>6}, wanted {found['least']:.2f}: {mark}  ({found['what']})", file=sys.stderr)
    json.dump(about | {"rounds": args.rounds, "bars": results}, sys.stdout, indent=1)
    print()
    return 0 if all(found["met"] for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
