"""What `kernelize` recognises of the layers of each model family, as JSON: every part of a layer, or why it is refused.

python scripts/recognise_families.py                  prints the JSON; --family NAME and --model FOLDER choose
python scripts/recognise_families.py --write FILE     writes it
python scripts/recognise_families.py --against FILE   prints which lists of layers agree with it and which differ, and fails if one does

tests/python/test_recognise.py compares some of them with tests/python/support/recognised.json, which was first written
by a recogniser that inferred data flow from equal numbers: both agreed for all families.
"""

import argparse
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any


def described(model: Any) -> dict[str, Any]:
    """What a report calls a list of layers -> the parts of each, or why they are not recognised."""
    from layerzero.integrations.transformers.recognise import observe
    from layerzero.integrations.transformers.recognise.findings import Findings, encoded

    found = observe.layers_of(model, Findings())
    return {
        called: layers if isinstance(layers, str) else [encoded(layer) for layer in layers.stack.layers]
        for called, layers in found.items()
    }


def models(families: list[str], folders: list[str]) -> Any:
    """(name, function that builds the model) of the families, all unless some are named, and of models on disk."""
    from layerzero.models.families import FAMILIES

    for family in FAMILIES:
        if family.name in families or not (families or folders):
            yield family.name, family.build
    for folder in folders:
        yield folder, lambda folder=folder: _loaded(folder)


def _loaded(folder: str) -> Any:
    import transformers

    return transformers.AutoModel.from_pretrained(folder).eval()


def collected(families: list[str], folders: list[str] | None = None) -> dict[str, Any]:
    import torch

    result: dict[str, Any] = {}
    for name, build in models(families, folders or []):
        with torch.device("cpu"):
            result[name] = described(build())
    return result


def differences(actual: Any, expected: Any) -> dict[str, Any]:
    """Family and list of layers -> how often the same layers agree, or both descriptions where they differ."""
    found = {}
    for family, lists in actual.items():
        for called, layers in lists.items():
            before = expected.get(family, {}).get(called)
            same = json.loads(json.dumps(layers)) == before
            found[f"{family} {called}"] = "agree" if same else {"now": layers, "before": before}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", default=[])
    parser.add_argument("--model", action="append", default=[], help="a folder that from_pretrained reads")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    start = time.perf_counter()
    result = collected(options.family, options.model)
    seconds = round(time.perf_counter() - start, 1)
    if options.write:
        lines = (f" {json.dumps(name)}: {json.dumps(lists)}" for name, lists in result.items())
        options.write.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    if options.against is None:
        print(json.dumps(result, indent=1))
        return 0
    found = differences(result, json.loads(options.against.read_text()))
    differ = {name: each for name, each in found.items() if each != "agree"}
    print(json.dumps({"seconds": seconds, "agree": sorted(found.keys() - differ.keys()), "differ": differ}, indent=1))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
