"""layerzero bench models."""

from typing import Annotated

import typer

from layerzero.cli._output import Json, finish, print_table, progress
from layerzero.errors import one_of
from layerzero.host.optional import need


def command(
    families: Annotated[str | None, typer.Option(help="families, comma-separated; default: all")] = None,
    rounds: Annotated[int, typer.Option(help="interleaved rounds of each timing", min=1)] = 31,
    threads: Annotated[int | None, typer.Option(help="threads of torch and of LayerZero", min=1)] = None,
    json: Json = False,
) -> None:
    """Checks and times small models of each family.

    Each is compared with Transformers alone. Exit code 1 if an output is wrong or a bar is missed.
    """
    need("torch", "transformers", what="bench models")
    import torch

    from layerzero.bench import family_bench
    from layerzero.models.families import FAMILIES

    known = {family.name: family for family in FAMILIES}
    names = [name.strip() for name in families.split(",")] if families else list(known)
    for name in names:
        one_of("--families", name, known)
    if threads:
        torch.set_num_threads(threads)
    with progress("families of models", total=len(names)) as step:
        report = family_bench.run([known[name] for name in names], rounds, on_step=step)
    finish(report, json, _print)


def _print(report: dict) -> None:
    kinds = next(iter(report["families"].values()))["sites"]
    rows = [
        [name, *(_share(row["sites"][kind]) for kind in kinds), *_times(row), "; ".join(row["wrong"]) or row["crash"]]
        for name, row in report["families"].items()
    ]
    columns = ["family", *kinds, "own us", "LayerZero us", "ratio", "A/A spread", "wrong"]
    print_table("Replaced of the replaceable sites, and time of a forward", columns, rows)
    ways = list(report["totals"]["geomean_generation"])
    rows = [[name, *(_ratio(row["generation"].get(way)) for way in ways)] for name, row in report["families"].items()]
    rows.append(["geomean", *(f"{ratio:.2f}" for ratio in report["totals"]["geomean_generation"].values())])
    print_table("Greedy generation: time of Transformers alone / LayerZero", ["family", *ways], rows)
    totals, bars = report["totals"], report["bars"]
    print(f"replaced {totals['replaced']} of {totals['replaceable']}: {totals['share_replaced']:.0%}", end="")
    print(f" (at least {bars['share_replaced']:.0%}); wrong {totals['wrong']}, crashes {totals['crashes']}")
    if totals["geomean_decoders"]:
        print(f"geomean of decoders {totals['geomean_decoders']:.2f} (at least {bars['geomean_decoders']})")
    if totals["slower"]:
        print(f"slower than Transformers beyond the spread: {', '.join(totals['slower'])}")
    if totals["slower_generation"]:
        print(f"slower to generate beyond the spread: {'; '.join(totals['slower_generation'])}")


def _ratio(times: dict | None) -> str:
    return "" if times is None else f"{times['ratio']:.2f}"


def _share(site: dict) -> str:
    return f"{site['replaced']}/{site['replaceable']}" if site["listed"] else ""


def _times(row: dict) -> list[str]:
    if row["ratio"] is None:
        return [""] * 4
    return [f"{row['own_us']:.0f}", f"{row['layerzero_us']:.0f}", f"{row['ratio']:.2f}", f"{row['aa_spread']:.2f}"]
