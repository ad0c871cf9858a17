"""layerzero policy check."""

from pathlib import Path
from typing import Annotated, Any

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json


def command(
    file: Annotated[Path, typer.Argument(help="a policy file")] = Path("layerzero.yaml"), json: Json = False
) -> None:
    """Checks a policy file as the engine reads it.

    Names of kernels and libraries are checked too. Exit code 1 if the file is refused; the message names the line.
    """
    try:
        lz.load_config(file)
    except lz.ConfigError as error:
        if json:
            print_json({"file": str(file), "ok": False, "error": str(error), "not_installed": []})
        else:
            print(error)
        raise typer.Exit(1) from None
    not_installed = _not_installed(lz.policy_in_force()["keys"])
    if json:
        print_json({"file": str(file), "ok": True, "error": None, "not_installed": not_installed})
        return
    print(f"{file}: ok")
    for name in not_installed:
        print(f"{name} is not installed here: settings that name it have no effect; see `layerzero backends`")


def _not_installed(keys: dict[str, Any]) -> list[str]:
    """Returns libraries that the policy names and that have no usable kernel here."""
    named = [*keys["locks"]["value"].values()]
    for key in ("prefer_sources", "avoid_sources", "allow_sources"):
        named += keys[key]["value"]
    for rule in keys["rules"]["value"]:
        named += [name for action in ("prefer", "avoid", "deny", "allowlist") for name in rule.get(action, ())]
        named += [rule["lock"]] if "lock" in rule else []
    installed: dict[str, bool] = {}
    for kernel in lz.list_kernels():
        installed[kernel.source] = installed.get(kernel.source, False) or kernel.installed
    return sorted(name for name in {n.partition(".")[0] for n in named} if installed.get(name) is False)
