"""layerzero graphs verify."""

from typing import Annotated, Any

import typer

from layerzero.cli._call import operation_names
from layerzero.cli._output import Json, finish, print_table, progress
from layerzero.errors import InvalidRequestError, known_name
from layerzero.host.optional import need


def command(
    operations: Annotated[str | None, typer.Option(help="flat names, comma-separated; default: all")] = None,
    device: Annotated[str, typer.Option(help="cuda or cuda:N")] = "cuda",
    every: Annotated[
        bool, typer.Option("--all", help="every size of the calls, not only one for each dtype and set of options")
    ] = False,
    json: Json = False,
) -> None:
    """Proves which kernels are safe in CUDA graphs.

    Each kernel is captured and replayed on this device, and the outcome is kept on disk. With graph_strict_mode,
    captures use only kernels with a proof. References that cannot be captured are no failures. The calls are those of
    bench/ops/cuda.
    """
    for name in operations.split(",") if operations else ():
        known_name("--operations", "a known operation", name.strip(), operation_names(), "see `layerzero list`")
    need("torch", what="graphs verify")
    from layerzero.bench.operations import all_cases, cases_folder
    from layerzero.cli.bench_ops import cuda_device

    device = cuda_device(device)
    chosen = None if operations is None else [name.strip() for name in operations.split(",")]
    cases = all_cases(chosen, cases_folder() / "cuda")
    if not cases:
        names = sorted({case.operation for case in all_cases(None, cases_folder() / "cuda")})
        raise InvalidRequestError("--operations", f"some of {', '.join(names)}", repr(operations))
    found = []
    calls = cases if every else list({_kind(case): case for case in reversed(cases)}.values())[::-1]
    with progress("calls", total=len(calls)) as step:
        for case in calls:
            found += _verified(case, device)
            step()
    failed = sum(map(_counts, found))
    finish({"device": device, "proofs": found, "failed": failed, "ok": failed == 0}, json, _print)


def _counts(proof: dict[str, Any]) -> bool:
    """A reference of torch may wait for the device, so that no capture takes it: only a wrong replay is a failure of it."""
    is_reference = proof["kernel_id"].startswith("torch.ref.")
    return proof["verdict"] == "wrong" or (proof["verdict"] == "failed_before_write" and not is_reference)


def _kind(case: Any) -> tuple[Any, ...]:
    """The call without sizes: its dtypes, which tensors it has, and its other arguments."""
    words = (word.partition("=") for word in case.line.split())
    return case.operation, *((name, text.partition("[")[0]) for name, _, text in words)


def _verified(case: Any, device: str) -> list[dict[str, Any]]:
    from layerzero import graphs
    from layerzero.tuning.draw import arguments_on

    proofs = graphs.verify(case.operation, **arguments_on(device, case.operation, case.line))
    return [{"call": f"{case.operation} {case.line}", **proof._asdict()} for proof in proofs]


def _print(report: dict[str, Any]) -> None:
    rows = [
        [proof["kernel_id"], proof["verdict"], proof["why"] or f"{proof['extra_bytes']} bytes", proof["call"]]
        for proof in report["proofs"]
    ]
    print_table(f"Kernels in CUDA graphs on {report['device']}", ["kernel", "verdict", "why", "call"], rows, ["why"])
    print(f"{sum(proof['verdict'] == 'graph_safe' for proof in report['proofs'])} proofs, {report['failed']} failed")
