"""The page on what ran with each integration, docs/guide/integrations.md, from the results in bench/results.

python scripts/integrations_table.py            writes the page
python scripts/integrations_table.py --check    exit code 1 if it is not up to date
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUSY = 4.0  # the load of a machine of two cores above which a time says nothing
FILE = "docs/guide/integrations.md"
PAGE = """# What ran with each integration

Made by `scripts/integrations_table.py` from the files in `bench/results`; nothing here is written by hand. A speed is
LayerZero's over that of the best other way in the same run, above 1 where LayerZero is faster. Where no result is
stored the row says so: tests may cover the integration, but nothing was measured.

| integration | version | what was run | result | speed | data |
|---|---|---|---|---|---|
{rows}
"""


class Row(NamedTuple):
    version: str
    run: str
    result: str
    speed: str


def transformers(found: dict[str, Any]) -> Iterator[Row]:
    versions = found.get("measured_on", {}).get("versions", found)
    version = (
        f"{versions.get('transformers', found.get('transformers'))}, torch {versions.get('torch', found.get('torch'))}"
    )
    if "families" in found:
        families = found["families"]
        wrong = [name for name, family in families.items() if family.get("wrong") or family.get("crash")]
        ratios = [family["ratio"] for family in families.values() if family.get("ratio")]
        yield Row(
            version,
            f"small models of {len(families)} families, forward and generate",
            f"wrong or crashed: {', '.join(wrong)}" if wrong else "logits agree in all",
            f"{statistics.geometric_mean(ratios):.2f} (geometric mean)",
        )
    for each in found.get("results", ()):
        measured = each["measured"]
        ratio = {name: measured[name].get("ratio") for name in ("prefill_tok_s", "decode_tok_s") if name in measured}
        speeds = [f"{name.split('_')[0]} {value:.2f}" for name, value in ratio.items() if value]
        yield Row(
            version,
            f"{found['model']} in {each['dtype']}, prompt of {each['prompt_tokens']}, {each['decode_tokens']} tokens",
            "errors within the bar" if each["check"]["ok"] else "errors above the bar",
            ", ".join(speeds),
        )


# How an engine ran, by what follows "@" in its name (bench/serving/vllm_backends.py).
MODES = {"": "decode steps as CUDA graphs", "default": "vLLM's own settings, compiled", "eager": "eager"}


def vllm(found: dict[str, Any]) -> Iterator[Row]:
    """Engines that ran in one mode are compared: compiled code rounds otherwise. Their throughput is shown next to the fastest of any mode too."""
    engines = {engine["engine"]: engine for engine in found["engines"]}
    theirs = [name for name in engines if not name.startswith("layerzero")]

    def mode_of(name: str) -> str:
        return name.partition(",")[0].partition("@")[2]

    def over(own: dict[str, Any], others: list[str]) -> str:
        rates = {
            b: max(engines[o]["batches"].get(b, {}).get("tokens_per_s", 0) for o in others) for b in own["batches"]
        }
        return ", ".join(f"batch {b}: {own['batches'][b]['tokens_per_s'] / r:.2f}" for b, r in rates.items() if r)

    for name in [name for name in engines if name.startswith("layerzero")]:
        own, mode = engines[name], mode_of(name)
        versions = own["versions"]
        others = [other for other in theirs if mode_of(other) == mode]
        against = ", ".join(others) or "no other engine"
        pairs = [
            zip(own["first_logprobs"], engines[other]["first_logprobs"], strict=True)
            for other in others
            if "first_logprobs" in own and "first_logprobs" in engines[other]
        ]
        differs = max((abs(a - b) for pair in pairs for a, b in pair), default=None)
        whole = [
            pair["equal_answers"] for pair in found["compared"] if pair["engine"] == name and pair["against"] in others
        ]
        result = [] if differs is None else [f"first tokens: {_difference(differs)}"]
        result += [f"later tokens: {_equality(min(whole))}"] if whole else []
        speed = f"throughput over {against}: {over(own, others)}" if others else ""
        if theirs != others and over(own, theirs) != over(own, others):
            speed += f"; over the fastest of {', '.join(theirs)}: {over(own, theirs)}"
        yield Row(
            f"{versions['vllm']}, torch {versions['torch']}",
            f"a model of {own['parameters'] / 1e9:.1f}B with random weights as {name}, next to {against} "
            f"({MODES.get(mode, mode)}); {found['device']}",
            "; ".join(result) or "not compared",
            speed,
        )


def _difference(largest: float) -> str:
    return f"log-probabilities differ by at most {largest:.2g}" if largest else "same log-probabilities"


def _equality(least: float) -> str:
    return "the same" if least == 1 else f"the same in {least:.0%} of the answers of the worst batch"


def diffusers(found: dict[str, Any]) -> Iterator[Row]:
    models = found["models"]
    yield Row(
        f"{found['diffusers']}, torch {found['torch']}",
        f"small random {', '.join(models)} in {found['dtype']} on {found['device']}",
        f"largest relative error {max(model['relative_error'] for model in models.values()):.1e}",
        ", ".join(f"{name} {model['ratio']:.2f}" for name, model in models.items()),
    )


def any_ratio(found: dict[str, Any]) -> Iterator[Row]:
    """A result whose file states the row itself: "integration": {version, run, result, speed}; no speed of a busy machine."""
    if "integration" not in found:
        return
    row = Row(**{name: str(found["integration"][name]) for name in Row._fields})
    load = found.get("measured_on", {}).get("load", 0)
    yield row._replace(speed=f"not shown: measured at a load of {load:g}") if load > BUSY else row


INTEGRATIONS: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], Iterator[Row]]]] = {
    "Transformers": (("models-*.json", "e2e-[!p]*.json"), transformers),
    "Transformers, generate_batch": (("transformers-batches-*.json",), any_ratio),
    "vLLM": (("vllm-backends-*.json",), vllm),
    "SGLang": (("sglang-backends-*.json",), any_ratio),
    "diffusers": (("diffusers-*.json",), diffusers),
    "tokenizers": (("tokenization-*.json",), any_ratio),
    "kernels of the Hub": (("hub-*.json",), any_ratio),
    "torch.compile, AOTInductor": (("inductor-*.json",), any_ratio),
    "NumPy, JAX": (("arrays-*.json",), any_ratio),
    "quantized checkpoints": (("quantized-checkpoints-*.json",), any_ratio),
}


def rows_of(folder: Path) -> list[str]:
    lines = []
    for name, (patterns, read) in INTEGRATIONS.items():
        files = sorted(path for pattern in patterns for path in folder.glob(pattern))
        found = [(path, row) for path in files for row in read(json.loads(path.read_text()))]
        lines += [
            f"| {name} | {row.version} | {row.run} | {row.result} | {row.speed} | [{path.stem}](../../bench/results/{path.name}) |"
            for path, row in found
        ]
        if not found:
            lines.append(f"| {name} | | nothing: no result is stored | | | |")
    return lines


def page(folder: Path = ROOT / "bench/results") -> str:
    return PAGE.format(rows="\n".join(rows_of(folder)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    text = page()
    if parser.parse_args().check:
        if (ROOT / FILE).read_text() == text:
            return 0
        print(f"{FILE} is not up to date: run scripts/integrations_table.py")
        return 1
    (ROOT / FILE).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
