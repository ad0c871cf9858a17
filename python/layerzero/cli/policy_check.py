"""layerzero policy check."""

from pathlib import Path
from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json


def command(
    file: Annotated[Path, typer.Argument(help="a policy file")] = Path("layerzero.yaml"), json: Json = False
) -> None:
    """Reads a policy file as the engine would. Exit code 1 if it is refused; the message has the line."""
    try:
        lz.load_config(file)
    except lz.ConfigError as error:
        if json:
            print_json({"file": str(file), "ok": False, "error": str(error)})
        else:
            print(f"{file}: {error}")
        raise typer.Exit(1) from None
    if json:
        print_json({"file": str(file), "ok": True, "error": None})
    else:
        print(f"{file}: ok")
