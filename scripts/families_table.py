"""The page on families of models, docs/guide/families.md, from a result of `layerzero bench models`.

python scripts/families_table.py          measures first and writes the result to bench/results/models-<machine>.json
python scripts/families_table.py FILE     uses an existing result
python scripts/families_table.py --threads 1
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = """# Families of models

What `lz.kernelize` replaces in a model of each family, and what it leaves to the model's own code.

`scripts/families_table.py` makes this page from a measurement, and `tests/python/test_families.py` compares every row
with the model's own logits. How to read the columns:

* **sites** are the norms, rotations, gated MLPs and attentions of a forward that an operation could compute
  (`python/layerzero/models/family_sites.py`). The column counts how many of them are replaced.
* **ratio** is the time of the model's own forward over that of the kernelized one. The models are small (hidden size
  64, two layers, random weights), so it shows the cost of calls more than of arithmetic. For large models use
  `layerzero bench e2e`.

Measured on {machine}, threads: {threads}.

Every row is tested with Transformers {versions}: f32 and bf16, left and right padding,
and greedy generation in the ways below. With other versions attention is replaced if one call agrees with the model's
own attention. The rest of a model is identified by its structure and a trial on every version.

| family | through LayerZero | left | sites | ratio |
|---|---|---|---|---|
"""
GENERATION = """
## Ways to generate

Each way generates eight greedy tokens, which equal the model's own. The ratio is as above, but of a whole `generate`.
Around such small models most of that time is Transformers' own code.

* Under `dynamic` and `static`, models with windows have caches of windows.
* `paged` compares [`lz.PagedCache`](kv-cache.md) with Transformers' default cache.
* `beams` uses three beams, and `assisted` a draft that is sometimes wrong.
* An empty cell is a way that the family does not support.

| family | {ways} |
|---|{rule}
"""
QUANTISED = """
## Models quantized by others

If the layout of a quantized layer fits, `linear_quantized` multiplies it with the same weights. The weights are equal bit
for bit where the library has code that unpacks them (torchao, compressed-tensors, gptqmodel's layers). Elsewhere, as with
AWQ, the outputs agree with the layer's own within the dtype's rounding. Other layers keep their own code and are listed
under `report.left` with the reason. Norms, rotations and attention around them are replaced.

`tests/python/test_kernelize_quantized.py` compares weights and logits with the quantized model's own
([what fits and why](../design/0045-quantized-checkpoints.md)).

| format | served | tested with |
|---|---|---|
| torchao | int8, int4 and less, FP8, where activations are not rounded | the package |
| compressed-tensors | integers of up to 8 bits, FP8, where activations are not rounded | the package |
| GPTQ | 4 and 8 bits, groups of adjacent rows | layers in this format. Not the packages: gptqmodel 7.7.0 wants torch 2.14.1 or newer, auto-gptq 0.7.1 does not import with Transformers 5 |
| AWQ | 4 bits | layers in this format. Not the package: the layers of autoawq 0.2.7 raise on a CPU |
| bitsandbytes (8 and 4 bits), quanto, torch's dynamic quantization | left | the packages |
"""


def measure(threads: int | None) -> Path:
    import torch
    from layerzero.bench import family_bench
    from stamp_result import measured_on

    if threads:
        torch.set_num_threads(threads)
    about = measured_on()
    result = {"measured_on": about, **family_bench.run(on_step=lambda name: print(name, flush=True))}
    path = ROOT / f"bench/results/models-{about['machine']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def kind(name: str) -> str:
    """model.layers.0.mlp -> mlp: layers of one kind share the reason for which they are left."""
    return next((part for part in reversed(name.split(".")) if not part.isdigit()), name)


def line(name: str, row: dict) -> str:
    through = ", ".join(f"{part} (`{operation}`)" for part, operation in row["replaced"].items())
    left = "; ".join(sorted({f"{kind(part)}: {reason}" for part, reason in row["left"].items()})) or "nothing"
    replaced, replaceable = (sum(site[key] for site in row["sites"].values()) for key in ("replaced", "replaceable"))
    return f"| {name} | {through} | {left} | {replaced} of {replaceable} | {row['ratio']:.2f} |\n"


def generation(families: dict, geomeans: dict) -> str:
    ways = list(geomeans)
    text = GENERATION.format(ways=" | ".join(ways), rule="---|" * len(ways))
    for name, row in families.items():
        if row["generation"]:
            cells = (f"{row['generation'][way]['ratio']:.2f}" if way in row["generation"] else "" for way in ways)
            text += f"| {name} | {' | '.join(cells)} |\n"
    return text + f"| geometric mean | {' | '.join(f'{ratio:.2f}' for ratio in geomeans.values())} |\n"


def main() -> int:
    from layerzero.integrations.transformers.probe import TESTED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    path = options.file or measure(options.threads)
    result = json.loads(path.read_text())
    crashed = [name for name, row in result["families"].items() if row["crash"]]
    if crashed:
        print(f"{path}: crashed: {', '.join(crashed)}; no page is written", file=sys.stderr)
        return 1
    versions = f"{', '.join(TESTED[:-1])} and {TESTED[-1]}"
    head = PAGE.format(machine=result["measured_on"]["machine"], threads=result["threads"], versions=versions)
    (ROOT / "docs/guide/families.md").write_text(
        head
        + "".join(line(*item) for item in result["families"].items())
        + generation(result["families"], result["totals"]["geomean_generation"])
        + QUANTISED
    )
    print(f"written: docs/guide/families.md from {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
