"""layerzero policy freeze."""

from pathlib import Path
from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, note, print_json
from layerzero.cli._program import Script, check_program, run_program, takes_program
from layerzero.errors import InvalidRequestError
from layerzero.host.files import check_writable, replaced
from layerzero.telemetry.frozen import frozen, policy_text


@takes_program
def command(
    context: typer.Context,
    script: Script,
    output: Annotated[Path, typer.Option("--output", "-o", help="the policy file to write")] = Path(
        "layerzero-frozen.yaml"
    ),
    json: Json = False,
) -> None:
    """Runs a program and writes its kernels as a policy.

    Example: layerzero policy freeze -o frozen.yaml script.py. An operation that always ran one kernel is locked to it;
    for the others each class of calls that was seen has a rule. With the file as LAYERZERO_CONFIG the same kernels run
    after an upgrade, or the call says why one cannot. Exit code 1 if no kernel ran, else the program's. With --json the
    program's output goes to standard error.
    """
    check_program(script)
    check_writable("--output", output)
    with lz.report() as recording:
        code = run_program(script, context.args, json)
    data = recording.to_dict()
    if data["left_out"]:
        raise InvalidRequestError(
            "script", "at most 2000 classes of calls", f"{data['left_out']} more", "shorten the run"
        )
    policy = frozen(data["decisions"])
    if policy["locks"] or policy["rules"]:
        head = f"The kernels of {script}, LayerZero {data['version']} on {', '.join(data['machine'])}, {data['time']}."
        with replaced(output) as file:
            file.write(policy_text(policy, head).encode())
    if json:
        print_json({"output": str(output), **policy})
    else:
        note(False)(f"{len(policy['locks'])} locks and {len(policy['rules'])} rules are in {output}")
    raise typer.Exit(code if policy["locks"] or policy["rules"] else 1)
