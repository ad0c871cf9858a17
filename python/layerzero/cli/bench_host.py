"""layerzero bench host."""

from typing import Annotated

import typer

from layerzero.cli._output import Json, finish, print_table, progress


def command(
    operation: Annotated[str | None, typer.Option(help="one operation alone, by flat name")] = None,
    rounds: Annotated[int, typer.Option(help="interleaved rounds of each measurement")] = 41,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    json: Json = False,
) -> None:
    """Host time of each operation's Python call beside the torch expression that it replaces."""
    import torch

    from layerzero._host_bench import host_costs

    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"wanted cpu or cuda, got {device!r}", param_hint="--device")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("wanted a CUDA device, got none; `layerzero doctor` says why", param_hint="--device")
    with progress("operations beside torch") as step:
        report = host_costs(operation, rounds, device, on_step=step)
    finish(report, json, _print)


def _print(report: dict) -> None:
    columns = ["operation", "call", "kernel", "lz ns", "torch ns", "ratio", "A/A spread"]
    for kind, title in (("own", "Own kernels"), ("torch", "Calls that end in torch's kernel")):
        rows = [
            [r["operation"], r["call"], r["kernel_id"], round(r["lz_ns"]), round(r["torch_ns"])]
            + [f"{r['ratio']:.2f}", f"{r['aa_spread']:.2f}"]
            for r in report["results"]
            if r["kind"] == kind
        ]
        print_table(title, columns, rows)
