"""layerzero readiness."""

import json as jsonlib
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from layerzero.cli._output import Json, print_json, print_table
from layerzero.errors import InvalidRequestError


def command(
    url: Annotated[
        str, typer.Option(help="ask a running process that serves metrics, such as http://127.0.0.1:9464")
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="treat warnings as failures")] = False,
    json: Json = False,
) -> None:
    """Checks whether a process is ready for traffic.

    It checks policy, libraries, compiled kernels, warm-up, memory and health. Without --url the checks run in a new
    process, which knows what is on the disk but no warm-up. Exit code 1 if the process is not ready.
    """
    if url:
        data = _asked(url)
    else:
        from layerzero.jit.readiness import readiness_check

        data = readiness_check().to_dict()
    ready = data["ready"] and not (strict and any(check["state"] == "warn" for check in data["checks"]))
    if json:
        print_json(data | {"ready": ready})
    else:
        columns = ["name", "state", "code", "detail", "fix"]
        rows = [[check[column] for column in columns] for check in data["checks"]]
        print_table("ready" if ready else "not ready", columns, rows, wraps=("detail", "fix"))
    raise typer.Exit(0 if ready else 1)


def _asked(url: str) -> dict[str, Any]:
    """Returns the answer of a process's /readyz, which is 200 or 503."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequestError("--url", "http://host:port", repr(url), "as lz.serve_metrics() prints it")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/readyz", timeout=10) as answer:  # noqa: S310 - checked above
            return jsonlib.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return jsonlib.load(error)
        raise InvalidRequestError("--url", "a process that serves /readyz", f"{url}: {error}") from None
    except (OSError, ValueError) as error:
        raise InvalidRequestError("--url", "a process that serves /readyz", f"{url}: {error}") from None
