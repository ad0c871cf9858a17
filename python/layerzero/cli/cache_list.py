"""layerzero cache list."""

import datetime

from layerzero.cli._output import Json, Verbose, print_json, print_table, size_text


def command(verbose: Verbose = False, json: Json = False) -> None:
    """Lists the files that LayerZero keeps on disk.

    These are converted models, packed weights, compiled kernels and findings of kernelize, the least recently used
    first. They are in $LAYERZERO_CACHE_DIR, else in `cache_dir` of the policy, else in layerzero in $XDG_CACHE_HOME or
    ~/.cache.
    """
    from layerzero.jit import store
    from layerzero.models import disk_cache

    found = sorted(disk_cache.entries() + store.entries(), key=lambda entry: entry["used_at"])
    total = sum(entry["bytes"] for entry in found)
    if json:
        print_json({"folder": str(disk_cache.cache_dir()), "entries": found, "bytes": total})
        return
    rows = [
        [
            e["model"] if verbose else e["model"][:12],
            e["kind"],
            size_text(e["bytes"]),
            datetime.datetime.fromtimestamp(e["used_at"]).date(),
            e["path"],
        ]
        for e in found
    ]
    print_table(f"{disk_cache.cache_dir()}: {size_text(total)}", ["model", "kind", "size", "used", "path"], rows)
