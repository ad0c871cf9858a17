"""Tests that need a CUDA device; where there is none each is skipped and says so."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
layerzero = pytest.importorskip("layerzero")
layerzero.configure(allow_jit_compile=True)  # tests name kernels of libraries that compile at their first call


def pytest_addoption(parser):
    parser.addoption(
        "--kernel", action="append", default=[], help="glob of kernel ids that conformance tests run; all without it"
    )


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent not in Path(item.fspath).parents:
            continue
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
