"""layerzero bench host."""

from typing import Annotated

import typer

from layerzero.cli._call import operation_names
from layerzero.cli._output import Json, finish, print_table, progress
from layerzero.errors import InvalidRequestError, known_name, one_of
from layerzero.host.optional import need


def command(
    operation: Annotated[
        str | None, typer.Option(help="only this operation, by flat name", autocompletion=operation_names)
    ] = None,
    rounds: Annotated[int, typer.Option(help="interleaved rounds of each measurement")] = 41,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    json: Json = False,
) -> None:
    """Compares the host time of calls with that of torch.

    Each operation's Python call is timed next to the torch expression that it replaces.
    """
    if operation is not None:
        known_name("--operation", "a known operation", operation, operation_names(), "see `layerzero list`")
    one_of("--device", device, ("cpu", "cuda"))
    need("torch", what="bench host")
    import torch

    from layerzero.bench.host import host_costs

    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("wanted a CUDA device, got none; `layerzero doctor` says why", param_hint="--device")
    with progress("operations next to torch") as step:
        report = host_costs(operation, rounds, device, on_step=step)
    if not report["results"]:
        raise InvalidRequestError("--operation", "one that is measured next to a torch expression", repr(operation))
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
