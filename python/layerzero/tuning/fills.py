"""What the tensors of a recorded call are filled with when it is measured: a workload has shapes and no contents.

Floating point is drawn from a normal distribution. Tables and lengths are what a service has on average: sequences of equal
length, pages in any order, caches that are full.
"""

import math
import re
from typing import Any

_WORD = re.compile(r"(?P<name>\w+)=(?P<dtype>\w+)\[(?P<sizes>[\d,]*)\](?P<mark>@transposed)?")
_SIGNED = {"i64", "i32", "i16"}


def filled(line: str, axes: dict[str, int]) -> str:
    """Returns the line of a recorded call with a fill for each tensor whose contents matter. `axes`: of the record."""
    words = line.split()
    matches = {w: m for w in words if (m := _WORD.fullmatch(w))}
    shapes = {m["name"]: tuple(int(n) for n in m["sizes"].split(",") if n) for m in matches.values()}

    def with_fill(word: str) -> str:
        match = matches.get(word)
        if match is None:
            return word
        fill = _fill(match["name"], match["dtype"], shapes, axes)
        return f"{match['name']}={match['dtype']}[{match['sizes']}]{fill}{match['mark'] or ''}"

    return " ".join(map(with_fill, words))


def _fill(name: str, dtype: str, shapes: dict[str, tuple[int, ...]], axes: dict[str, int]) -> str:
    shape = shapes[name]
    numel = math.prod(shape)
    if dtype in _SIGNED:
        return _indices(name, shape, numel, shapes, axes)
    if dtype == "bool":
        return "{1}"  # a mask that hides nothing: what it hides changes no kernel's time by much
    if dtype == "u8":
        return "~int(120,130)" if "scale" in name else "~int(0,256)"
    if dtype == "i8":
        return "~int(-127,128)"
    if name.endswith("probs"):
        return "~probs"
    if name == "uniform":
        return "~uniform(0,0.999)"
    if name.endswith(("_sum", "scale", "scales")):
        return "~uniform(0.1,1)"
    return ""


def _first(axes: dict[str, int], *names: str) -> int | None:
    return next((axes[name] for name in names if axes.get(name)), None)


def _total(name: str, shapes: dict[str, tuple[int, ...]], axes: dict[str, int]) -> int:
    """Returns how many elements an array of offsets divides."""
    if "indptr" in name and name.startswith(("kv", "paged_kv")):
        indices = next((s for n, s in shapes.items() if n.endswith("indices")), None)
        return math.prod(indices) if indices else _first(axes, "total_kv", "pages", "s_kv") or 1
    wants_keys = any(word in name for word in ("kv", "_k", "key"))
    total = _first(axes, "total_kv") if wants_keys else None
    first = next(iter(shapes.values()))
    return total or _first(axes, "total_q", "tokens") or (first[0] if first else 1)


def _indices(
    name: str, shape: tuple[int, ...], numel: int, shapes: dict[str, tuple[int, ...]], axes: dict[str, int]
) -> str:
    if any(word in name for word in ("indptr", "cu_seq", "offsets", "cu_seqlens")):
        steps: Any = _total(name, shapes, axes) / max(1, numel - 1)
        return f"~steps(0,{steps:g})" if steps == int(steps) else f"~steps(0,{int(steps)})"
    page = _first(axes, "block_size", "page_size", "page") or 1
    if "last_page_len" in name:
        return f"{{{page}}}"
    if "lens" in name or "lengths" in name or name.endswith("_len"):
        table = next((s for n, s in shapes.items() if "table" in n), None)
        pages = table[-1] if table else None
        return f"{{{pages * page if pages else _first(axes, 's_kv', 'total_kv', 'seq') or 1}}}"
    pool = _first(axes, "blocks", "pages", "num_blocks", "num_pages")
    if any(word in name for word in ("table", "indices", "slot", "page", "block")) and pool:
        pool *= page if "slot" in name else 1
        return f"~distinct(0,{pool})" if numel <= pool else f"~int(0,{pool})"
    if "position" in name:
        return f"~int(0,{_first(axes, 'positions', 'max_positions', 'rows', 'table', 'max_seq', 's') or 1})"
    if "expert" in name:
        return f"~int(0,{_first(axes, 'experts', 'e', 'num_experts') or 1})"
    return f"~int(0,{_first(axes, 'vocab', 'v', 'num_embeddings', 'n') or 2})"
