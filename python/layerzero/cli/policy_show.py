"""layerzero policy show."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, Verbose, print_json, print_table


def command(
    all_keys: Annotated[
        bool, typer.Option("--all", help="also keys that have their default value; --verbose does the same")
    ] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Shows the policy in force, and where each key was set."""
    policy = lz.policy_in_force()
    keys = {k: v for k, v in policy["keys"].items() if all_keys or verbose or v["origin"] != "default"}
    if json:
        print_json({"hash": policy["hash"], "keys": keys})
        return
    rows = [[key, entry["value"], entry["origin"]] for key, entry in keys.items()]
    print_table(f"policy {policy['hash']}", ["key", "value", "origin"], rows)
