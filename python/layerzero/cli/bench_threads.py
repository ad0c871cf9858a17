"""layerzero bench threads."""

from typing import Annotated

import typer

from layerzero.cli._output import Json, finish, print_table


def command(
    rounds: Annotated[int, typer.Option(help="repetitions of each measurement", min=1)] = 21, json: Json = False
) -> None:
    """Measures the overhead of a parallel loop.

    The loop runs in torch's thread pool, in a program of LayerZero, and in LayerZero without torch.
    """
    from layerzero.bench.threads import fork_join

    finish(fork_join(rounds), json, _print)


def _print(report: dict) -> None:
    rows = [
        [row["way"], f"{row['us']:.2f}", f"{row['least_us']:.2f} to {row['most_us']:.2f}", f"{row['bar_us']:g}"]
        for row in report["ways"]
    ]
    print_table(f"A loop with a barrier, on {report['threads']} threads", ["way", "us", "spread", "bar"], rows)
