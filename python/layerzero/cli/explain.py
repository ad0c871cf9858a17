"""layerzero explain."""

import textwrap
from typing import Annotated

import typer

from layerzero.cli._call import Device, Operation, check_device, takes_call
from layerzero.cli._output import Json, Verbose, one_of_option, print_json, print_table
from layerzero.errors import InvalidRequestError, one_of
from layerzero.host.optional import need
from layerzero.inspection import explain_call
from layerzero.inspection.call_text import read_call
from layerzero.inspection.report import SelectionReport
from layerzero.inspection.text import terminal_width
from layerzero.models.options import DTYPES

SCORE = (
    "score: the kernel with the highest score runs. If measured times do not differ beyond noise, the score without the "
    "term `measured` decides. priority: the rank that the kernel declares for these sizes and this device. measured: minus "
    "10 points for each multiple of the fastest time that the kernel takes longer. preferred, avoided: from the policy. "
    "transforms: the cost of copying arguments."
)


@takes_call
def command(
    context: typer.Context,
    operation: Annotated[str | None, Operation] = None,
    device: Annotated[str | None, Device] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="explain a model instead of a call, with the share of each kernel; a folder, a .gguf file or an id"
        ),
    ] = None,
    dtype: Annotated[str, one_of_option(DTYPES, "With --model")] = "bf16",
    prompt_tokens: Annotated[int, typer.Option(help="tokens of the prompt, with --model", min=1)] = 128,
    try_all: Annotated[
        bool,
        typer.Option(
            "--try", help="import and test every library whose kernels may run, not only that of the chosen kernel"
        ),
    ] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Explains which kernel a call runs, and why.

    Example: layerzero explain attention --query 'bf16[1,512,32,128]' --key ... --device h100. Pass each parameter of
    the operation as an option, a tensor as dtype[sizes]; `layerzero explain OPERATION --help` lists them. --verbose has
    each refused kernel on a line of its own. Exit code 1 if no kernel may run.

    With --model a model is kernelized and run: the kernels of a prompt and of one more token, their share of the time,
    and what would be faster.
    """
    if (operation is None) == (model is None):
        got = "neither" if operation is None else "both"
        raise InvalidRequestError("explain", "an operation or --model", got, "see `layerzero explain --help`")
    if model is not None:
        _explain_model(model, dtype, prompt_tokens, context.args, json)
        return
    assert operation is not None
    check_device(device)
    name, arguments = read_call(operation, context.args)
    report = explain_call(name, (), arguments, device, of_chosen=not try_all)
    if json:
        print_json(report.to_dict())
    else:
        _print(report, verbose)
    raise typer.Exit(0 if report.kernel_id else 1)


def _explain_model(name: str, dtype: str, prompt_tokens: int, words: list[str], json: bool) -> None:
    if words:
        raise InvalidRequestError(words[0], "no options of a call with --model", "one", "leave it out")
    one_of("--dtype", dtype, DTYPES)
    need("torch", "transformers", what="explain --model")
    import layerzero as lz
    from layerzero.models import load
    from layerzero.telemetry.profiling import profile_model

    loaded, _ = load(name, dtype)
    lz.kernelize(loaded)
    phases = profile_model(loaded, prompt_tokens)
    if json:
        print_json({"model": name, "dtype": dtype, "phases": {phase: one.to_dict() for phase, one in phases.items()}})
        return
    for phase, one in phases.items():
        print(f"{phase}: {one}\n")


def _print(report: SelectionReport, verbose: bool) -> None:
    chosen = next((c for c in report.candidates if c.kernel_id == report.kernel_id), None)
    absent = ", which is not installed here" if chosen is not None and not chosen.installed else ""
    where = report.device.name + (" (simulated)" if report.device.simulated else "")
    print(f"{report.operation} on {where}: {report.kernel_id or 'no kernel may run'}{absent}")
    if report.locked:
        print(f"locked to {report.locked}")
    may = sorted(
        (c for c in report.candidates if c.admissible),
        key=lambda c: (c.kernel_id != report.kernel_id, c.reference, -c.score),
    )
    timed = any("measured_us" in c for c in may)
    rows = [_row(report, candidate, timed) for candidate in may]
    columns = ["", "kernel", "score", *(["measured us"] if timed else []), "why"]
    if rows:
        print_table("", columns, rows, wraps=["why"])
        print(textwrap.fill(SCORE, min(terminal_width(), 120)))
        if timed:
            print(f"measured us: medians on this kind of device, as measured records have them; {_DECIDES}")
    refused = [c for c in report.candidates if not c.admissible]
    if refused:
        print()
    if verbose:
        rows = [[c.kernel_id, "\n".join(dict.fromkeys(map(str, c.reasons)))] for c in refused]
        print_table(f"Refused: {len(refused)}", ["kernel", "why"], rows, wraps=["why"])
    elif refused:
        rows = [[str(len(names)), why, ", ".join(names)] for why, names in _grouped(refused).items()]
        print_table(
            "Refused (each on a line of its own: --verbose)", ["", "why", "kernels"], rows, wraps=["why", "kernels"]
        )
    for note in report.to_dict().get("notes", []):
        print(f"note: {note}")


_DECIDES = "`layerzero bench ops --write-prior` makes this machine's own"


def _row(report: SelectionReport, candidate, timed: bool) -> list[str]:
    why = " + ".join(f"{term.name} {term.value:g} ({term.source})" for term in candidate.terms)
    if candidate.reference:
        why = "a reference: runs where no other kernel may"
    if ranked := candidate.ranked():
        why += f"; {ranked}"
    if candidate.usable is None and not report.device.simulated:
        why += "; its library is installed and was not tried (--try)"
    if not candidate.installed:
        why += "; not installed here"
    time = [f"{candidate.measured_us:.1f}" if "measured_us" in candidate else ""] if timed else []
    mark = "->" if candidate.kernel_id == report.kernel_id else ""
    return [mark, candidate.kernel_id, f"{candidate.score:g}", *time, why]


def _grouped(refused: list) -> dict[str, list[str]]:
    """Groups kernels by what refuses them: another device, a missing library, or their reasons."""
    found: dict[str, list[str]] = {}
    for candidate in refused:
        codes = {reason.code for reason in candidate.reasons}
        elsewhere = [r for r in candidate.reasons if r.code == "PLATFORM_MISMATCH"]
        if elsewhere:
            why = f"PLATFORM_MISMATCH: another kind of device ({elsewhere[0].wanted})"
        elif codes & {"NOT_INSTALLED", "BACKEND_IMPORT_FAILED"}:
            missing = next(r for r in candidate.reasons if r.code in ("NOT_INSTALLED", "BACKEND_IMPORT_FAILED"))
            why = str(missing)
        elif candidate.only_lacks_compilation:
            why = "JIT_DISABLED: not compiled for this call"
        else:
            why = "\n".join(dict.fromkeys(map(str, candidate.reasons)))
        found.setdefault(why, []).append(candidate.kernel_id)
    return found
