"""The command line: `python -m layerzero`, installed as `layerzero`."""

import sys


def main() -> int:
    """Runs the command line with the process's arguments and returns its exit code."""
    from layerzero.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
