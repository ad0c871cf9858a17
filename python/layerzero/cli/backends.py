"""layerzero backends."""

import typer

from layerzero import backends
from layerzero.backends.report import report
from layerzero.cli._output import Json, print_json, print_table


def command(json: Json = False) -> None:
    """Libraries of kernels: installed or not, what each provides, what is missing and the command that fixes it.

    Exit code 1 if a backend is there and cannot be used as it is.
    """
    found = report()
    problems = list(backends.problems())
    if json:
        print_json({"backends": found, "problems": problems})
    else:
        print_backends(found)
        print()
        for backend in found:
            print(f"{backend['name']}: {backend['description']} Operations: {_operations(backend)}.")
        for problem in problems:
            print(f"problem: {problem}")
    raise typer.Exit(1 if problems else 0)


def print_backends(found: list[dict]) -> None:
    """A row for each, then what is missing: each thing once, with the command on a line of its own."""
    rows = [[b["name"], (b["version"] or "yes") if b["installed"] else "no", b["kernels"], _usable(b)] for b in found]
    print_table("Backends", ["backend", "installed", "kernels", "usable here"], rows)
    wanted: dict[tuple, list[str]] = {}
    for backend in found:
        for item in backend["missing"]:
            if not item["fix"] and item["code"]:
                print(f"\n{backend['name']} cannot be used: {item['code']}: {item['detail']}")
            else:
                wanted.setdefault((item["what"], item["detail"], item["fix"]), []).append(backend["name"])
    for (what, detail, fix), names in wanted.items():
        print(f"\nmissing for {', '.join(names)}: {what} ({detail})")
        print(f"    {fix}" if fix else "    there is nothing to install")


def _usable(backend: dict) -> str:
    return "yes" if backend["usable"] else "no, wants " + ", ".join(item["what"] for item in backend["missing"])


def _operations(backend: dict) -> str:
    """Families of operations: "attention, norm" of attention.standard.decode, norm.rms."""
    return ", ".join(dict.fromkeys(operation.partition(".")[0] for operation in backend["operations"]))
