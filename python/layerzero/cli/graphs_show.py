"""layerzero graphs show."""

import layerzero as lz
from layerzero.cli._output import Json, print_json, print_table


def command(json: Json = False) -> None:
    """Shows which kernels are proven safe in CUDA graphs.

    Kernels that failed the proof on this machine are listed too.
    """
    rows = lz.graphs.proofs()
    if json:
        print_json({"proofs": rows})
        return
    columns = ["kernel", "operation", "verdict", "calls", "device", "version", "detail"]
    table = [
        [
            row["kernel"],
            row["operation"],
            row["outcome"] if row["in_force"] else "of another version",
            row["calls"],
            row.get("device", ""),
            row.get("version", ""),
            row["detail"],
        ]
        for row in rows
    ]
    print_table("Kernels in CUDA graphs", columns, table, ["calls", "detail"])
