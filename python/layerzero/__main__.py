"""The command line: `python -m layerzero`, installed as `layerzero`."""

import io
import os
import sys


def main() -> int:
    """Runs the command line with the process's arguments and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where the locale has no lines for tables
    nowhere = open(os.devnull, "w")  # noqa: SIM115  for a process that was started without them
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    try:
        from layerzero.cli import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print(f"layerzero: the command line needs {error.name}; pip install rich typer", file=sys.stderr)
        return 1

    code = run(sys.argv[1:])
    from layerzero.cli._output import reader_has_gone

    reader_has_gone()  # what is left is written now: at the end of the process an error would be a message of Python
    return code


if __name__ == "__main__":
    sys.exit(main())
