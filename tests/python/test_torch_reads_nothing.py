"""Adapters of attention read no value of a tensor that is not on the CPU: they run on tensors that have no values."""

import importlib
import json

import pytest

torch = pytest.importorskip("torch")
from adapter_calls import values_of  # noqa: E402
from layerzero.backends import FOLDER  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from operation_cases import cases  # noqa: E402

MODULES = ("partials", "paged", "latent", "sparse", "varlen")


def rows():
    """(operation, its name, row) of the rows whose adapters are expressions; those of flash have a kernel of their own."""
    names = {o["id"]: c["name"] for c in contracts().values() for o in c["operations"]}
    descriptor = json.loads((FOLDER / "torch" / "capabilities.json").read_text())
    for operation, kernels in descriptor["ops"].items():
        for row in kernels:
            module, _, function = row["adapter"].partition(":")
            if module.rpartition(".")[2] in MODULES:
                yield pytest.param(names[operation], row, module, function, id=f"{row['kernel_id']}-{operation}")


def flash(query, key, value, cu_q, cu_k, *rest, **options):
    output = query.new_empty(*query.shape[:2], value.shape[2])
    return output, query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32), None, None, None


@pytest.mark.parametrize(("name", "row", "module", "function"), list(rows()))
def test_reads_nothing(name, row, module, function, monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    adapter, ran = getattr(importlib.import_module(module), function), 0
    for _, arguments in cases(name):
        values = values_of(name, arguments, row.get("accepts", ()), lambda tensor: tensor.to("meta"))
        empty = any(isinstance(v, torch.Tensor) and v.numel() == 0 for v in arguments.values())
        if values is None or empty:
            continue
        adapter(*values)  # a read of a meta tensor raises
        ran += 1
    assert ran


def test_a_read_would_be_seen():
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.ones(3, device="meta").any())
