"""Writes the files generated from the engine's data: from the operations' contracts type stubs, a page for each
operation and the support matrix; from the table of reason codes their page; from all kernels the coverage of
operations, dtypes and devices; from the tree the folders of ARCHITECTURE.md.

    python scripts/generate_api.py           writes the files
    python scripts/generate_api.py --check   exit code 1 if one of them is out of date

Needs the built package (`make build`).
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import architecture
from layerzero import _layerzero, coverage
from layerzero.contracts import condition, contracts, is_seeded, no_derivative, present_outputs
from layerzero.inspection import kernel_rows
from layerzero.inspection.report import priority_text

ROOT = TREE = Path(__file__).resolve().parent.parent  # written to; read from
STUB = "python/layerzero/_operations.pyi"
MADE = "Made by scripts/generate_api.py from the contracts in ops/. Do not edit."
PYTHON = {"int": "int", "float": "float", "bool": "bool"}
SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32"}
# Constraints with a separate column in the matrix, or common to a whole kind of kernels.
# Every kernel has rows on the facts of the policy, which docs/guide/policy.md describes.
OF_POLICY = re.compile(r"policy\.(tp|kv_cache|quant|forbid_numerics)\b")
IN_COLUMNS = {"dtype", "device.platform", "capturing", "requires_grad", "policy.deterministic"}

Contract = dict[str, Any]


# ---- stubs

WIDTH = 120


def python_type(param: dict[str, Any]) -> str:
    if param["kind"] == "tensor":
        return "T"
    if param["kind"] == "choice":
        return "Literal[" + ", ".join(f'"{choice}"' for choice in param["choices"]) + "]"
    return "int | Sequence[int]" if param.get("folds") else PYTHON[param["kind"]]


def parameters(contract: Contract, replaced: dict[str, str] | None = None) -> list[str]:
    """Returns the stub's parameters; `replaced`: parameters by name that override the contract's."""
    texts = []
    keyword_only = False
    for param in contract["params"]:
        if param["keyword_only"] and not keyword_only:
            texts.append("*")
            keyword_only = True
        text = f"{param['name']}: {python_type(param)}"
        if param.get("has_default"):
            default = param["default"]
            text += " = " + (f'"{default}"' if isinstance(default, str) else repr(default))
        elif param["optional"]:
            text += " | None = None"
        texts.append((replaced or {}).get(param["name"], text))
    if not keyword_only:
        texts.append("*")
    if contract["layouts"]:
        names = ", ".join(f'"{name}"' for name in contract["layouts"])
        texts.append(f"layout: Literal[{names}] | None = None")
    texts += ["generator: torch.Generator | None = None"] * is_seeded(contract)
    return [*texts, "kernel: str | None = None", "out: T | tuple[T, ...] | None = None"]


def result(contract: Contract, value: bool) -> str:
    number = len(present_outputs(contract, value))
    return ("T" if number == 1 else f"tuple[{', '.join(['T'] * number)}]") if number else "None"


def signatures(contract: Contract) -> Iterator[tuple[list[str], str]]:
    """Yields (parameters, result) of each overload."""
    name = condition(contract)
    if name is None:
        yield parameters(contract), result(contract, False)
        return
    (kind,) = (param["kind"] for param in contract["params"] if param["name"] == name)
    off, on = ("None = None", "T") if kind == "tensor" else ("Literal[False] = False", "Literal[True]")
    yield parameters(contract, {name: f"{name}: {off}"}), result(contract, False)
    yield parameters(contract, {name: f"{name}: {on}"}), result(contract, True)


def argument_lines(param: str) -> list[str]:
    """Formats a parameter like the formatter: a long list of choices on separate lines."""
    if len(param) + 5 <= WIDTH:
        return [f"    {param},"]
    head, _, rest = param.partition("Literal[")
    items, _, tail = rest.rpartition("]")
    inner = [f"        {items}"] if len(items) + 8 <= WIDTH else [f"        {i}," for i in items.split(", ")]
    return [f"    {head}Literal[", *inner, f"    ]{tail},"]


def stub() -> str:
    lines = [
        f'"""The operations as functions of `layerzero`. {MADE}"""',
        "",
        "from collections.abc import Sequence",
        "from typing import Literal, TypeVar, overload",
        "",
        "import torch",
        "",
        "# A torch.Tensor, or an array of another library with __dlpack__; outputs are of the inputs' kind.",
        'T = TypeVar("T")',
    ]
    for contract in contracts().values():
        overloads = list(signatures(contract))
        for params, returned in overloads:
            lines += ["", "@overload"] if len(overloads) > 1 else [""]
            arguments = [line for param in params for line in argument_lines(param)]
            lines += [f"def {contract['name']}(", *arguments, f") -> {returned}:"]
            lines += [f'    """{contract["summary"]}"""']
    return "\n".join(lines) + "\n"


# ---- pages


def shape(text: str) -> str:
    return "any shape" if text == "*" else f"`({text})`" if text else "scalar"


def dtypes(names: list[str]) -> str:
    return ", ".join(SHORT.get(name, name) for name in names)


def parameter_row(param: dict[str, Any]) -> str:
    if param["kind"] == "tensor":
        kind = f"tensor {shape(param['shape'])}, " + (
            f"dtype of `{param['same_dtype_as']}`" + (" (others are cast)" if param["promotes"] else "")
            if param["same_dtype_as"]
            else dtypes(param["dtypes"])
        )
    elif param["kind"] == "choice":
        kind = " or ".join(f'`"{choice}"`' for choice in param["choices"])
    else:
        kind = param["kind"]
    if param.get("has_default"):
        default = f"`{param['default']!r}`"
    else:
        default = "not given" if param["optional"] else "required"
    return f"| `{param['name']}` | {cell(kind)} | {default} | {cell(param['doc'])} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def signature(contract: Contract) -> str:
    texts = []
    for param in contract["params"]:
        if param["keyword_only"] and "*" not in texts:
            texts.append("*")
        default = f"={param['default']!r}" if param.get("has_default") else "=None" if param["optional"] else ""
        texts.append(param["name"] + default)
    texts += ["*"] * ("*" not in texts) + ["layout=None"] * bool(contract["layouts"])
    texts += ["generator=None"] * is_seeded(contract) + ["kernel=None", "out=None"]
    return f"layerzero.{contract['name']}({', '.join(texts)})"


def page(contract: Contract) -> str:
    tolerance = contract["tolerance"]
    bounds = ", ".join(f"{SHORT[d]} {tolerance[d]:g}" for d in ("float32", "float16", "bfloat16", "float64"))
    lines = [
        f"<!-- {MADE} -->",
        f"# {contract['name']}",
        "",
        contract["summary"],
        "",
        f"    {signature(contract)}",
        "",
        f"Definition: {contract['definition'].rstrip('.')}.",
        "",
        "| parameter | kind | default | meaning |",
        "|---|---|---|---|",
        *(parameter_row(param) for param in contract["params"]),
        "",
        "| output | shape | dtype | meaning |",
        "|---|---|---|---|",
    ]
    for output in contract["outputs"]:
        dtype = output["dtype_choice"] or output["dtype"]
        negated, name = output["only_if"].startswith("!"), output["only_if"].removeprefix("!")
        given = f" ({'without' if negated else 'with'} `{name}`)" if name else ""
        lines.append(f"| `{output['name']}`{given} | {shape(output['shape'])} | `{dtype}` | {cell(output['doc'])} |")
    lines += ["", f"Replaces `{contract['replaces']}`." if contract["replaces"] else "Replaces no function of torch."]
    if contract["layouts"]:
        lines += [
            "",
            f"Layouts: {', '.join(contract['layouts'])}; the first is that of the shapes above. Without `layout` it is "
            "[found](../guide/adaptation.md#layout).",
        ]
    if contract["aliases"]:
        lines += ["", "Deprecated names: " + ", ".join(f"`{alias}`" for alias in contract["aliases"]) + "."]
    lines += [
        "",
        "Operations: " + ", ".join(f"`{operation['id']}`" for operation in contract["operations"]) + ".",
        "",
        f"Tolerance against FP64 ({tolerance['compare'].replace('_', ' ')}): {bounds}."
        + ("" if contract["differentiable"] else f" It has no derivative: {no_derivative(contract)}."),
        "",
        f"Source: {contract['source'].rstrip('.')}.",
        "",
        f"Files: `ops/{contract['path']}.h`. Kernels: [support matrix](../support-matrix.md#{contract['name']}).",
    ]
    return "\n".join(lines) + "\n"


# ---- support matrix


def kernel_row(kernel: dict[str, Any]) -> str:
    rules = [
        f"{rule['field']} {'' if rule['relation'] == 'in' else rule['relation'] + ' '}{rule['wanted']}".replace(
            f"{rule['relation']} {rule['relation']} ", f"{rule['relation']} "
        )
        for rule in kernel["constraints"]
        if rule["field"] not in IN_COLUMNS and not OF_POLICY.search(f"{rule['field']} {rule['wanted']}")
    ]
    if kernel["jit"] == "recorded":
        rules.append("only calls that `compile_references` has recorded")
    elif kernel["jit"] == "first_call":
        rules.append("only kinds of calls that it was compiled for")
    marks = [
        cell(priority_text(kernel)),
        *("yes" if kernel[key] else "" for key in ("requires_grad", "deterministic", "cuda_graph_safe")),
    ]
    cells = [f"`{kernel['kernel_id']}`", kernel["operation"], kernel["platform"], dtypes(kernel["dtypes"]), *marks]
    return "| " + " | ".join(cells) + f" | {cell('; '.join(dict.fromkeys(rules)))} |"


def matrix() -> str:
    lines = [
        f"<!-- {MADE} -->",
        "# Support matrix",
        "",
        "Every kernel that this version knows, installed or not, and its rules: a call that breaks one is refused with",
        'the rule as the reason. Priorities rank what is not measured, "60; 5 where rows >= 1024": the first condition that',
        "holds decides; a reference runs where nothing else may.",
        "Own CUDA kernels are part of the build where it had nvcc: `layerzero list` shows them.",
    ]
    for name in contracts():
        lines += [
            "",
            f"## {name}",
            "",
            f"[{contracts()[name]['summary']}](operations/{name}.md)",
            "",
            "| kernel | operation | platform | dtypes | priority | gradients | deterministic | CUDA graphs | rules |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        # Own CUDA kernels exist only if the build had nvcc; the page must be the same everywhere.
        kernels = [k for k in kernel_rows(name) if k["source"] != "cuda"]
        lines += [
            kernel_row(k) for k in sorted(kernels, key=lambda k: (k["operation"], k["reference"], k["kernel_id"]))
        ]
    return "\n".join(lines) + "\n"


# ---- reason codes


def reasons() -> str:
    lines = [
        "<!-- Made by scripts/generate_api.py from src/core/reason.cpp. Do not edit. -->",
        "# Reasons",
        "",
        "Every kernel that a selection refuses keeps all its reasons, whichever kernel wins: `layerzero.explain` and",
        "`NoKernelFoundError.failures` show them, each with code, field, what was wanted and what was got. Codes are",
        "stable: dashboards and databases may rely on them.",
    ]
    for reason in json.loads(_layerzero.reason_codes()):
        lines += ["", f"## {reason['code']}", "", f"Cause: {reason['cause']}.", "", f"Fix: {reason['fix']}."]
    return "\n".join(lines) + "\n"


# ---- coverage

OLDEST_SM = 80  # of own CUDA kernels: cmake/lz_cuda.cmake refuses older targets, which have no cp.async


def coverage_text(own_cuda: bool) -> str:
    """Returns operation to dtype to the kernels of each simulated device, with equal devices grouped.

    `own_cuda`: only own CUDA kernels, for any architectures of this build, on devices that they can be compiled for;
    otherwise all others, so that the file is the same if the build had no nvcc.
    """
    own = {k["kernel_id"] for k in kernel_rows(constraints=False) if k["source"] == "cuda"}
    devices = json.loads(_layerzero.devices())["simulated"]
    simulated = [d["name"] for d in devices if not own_cuda or d["facts"].get("sm", 0) >= OLDEST_SM]
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for entry in coverage(*simulated):
        served = [*entry.kernels, *entry.not_built, *entry.references]
        kernels = [k for k in served if (k in own) == own_cuda]
        if kernels:
            of_dtype = found.setdefault(entry.operation, {}).setdefault(str(entry.dtype), {})
            of_dtype.setdefault(", ".join(kernels), []).append(entry.device)
    lines = []
    for operation, dtypes_of in sorted(found.items()):
        rows = []
        for dtype, served_by in dtypes_of.items():
            cells = [
                "      " + json.dumps({"devices": devices, "kernels": kernels.split(", ")})
                for kernels, devices in served_by.items()
            ]
            rows.append(f"    {json.dumps(dtype)}: [\n" + ",\n".join(cells) + "\n    ]")
        lines.append(f"  {json.dumps(operation)}: {{\n" + ",\n".join(rows) + "\n  }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def files() -> dict[str, str]:
    """Maps paths in the repository to texts."""
    pages = {f"docs/operations/{name}.md": page(contract) for name, contract in contracts().items()}
    covered = {"docs/coverage.json": coverage_text(own_cuda=False)}
    if json.loads(_layerzero.devices())["cuda_library"] == "loaded":
        covered["docs/coverage-cuda.json"] = coverage_text(own_cuda=True)
    return {
        STUB: stub(),
        "ARCHITECTURE.md": architecture.text_of(TREE),
        "docs/support-matrix.md": matrix(),
        "docs/reasons.md": reasons(),
        **covered,
        **pages,
    }


def outdated() -> list[str]:
    """Returns generated files that are out of date, and pages of operations that no longer exist."""
    wanted = files()
    wrong = [path for path, text in wanted.items() if not (ROOT / path).is_file() or (ROOT / path).read_text() != text]
    pages = (str(p.relative_to(ROOT)) for p in (ROOT / "docs/operations").glob("*.md"))
    return wrong + [path for path in pages if path not in wanted]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for path in outdated():
            print(f"{path}: out of date; run scripts/generate_api.py")
        return int(bool(outdated()))
    for path in outdated():
        target = ROOT / path
        if path not in (wanted := files()):
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(wanted[path])
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
