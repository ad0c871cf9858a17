"""The command line: `python -m layerzero`, installed as `layerzero`."""

import sys


def main() -> int:
    """Runs the command line with the process's arguments and returns its exit code."""
    try:
        from layerzero.cli import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print(f"layerzero: the command line needs {error.name}; pip install rich typer", file=sys.stderr)
        return 1

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
