"""A machine on which nothing was measured, and planted kernels as the only ones of norm.rms."""

import layerzero as lz
import planted_kernels
import pytest
import torch
from layerzero import _layerzero
from layerzero.tuning import core

CALL = {"input": torch.ones(4, 64), "weight": torch.ones(64)}
LINE = "input=f32[4,64] weight=f32[64]"


@pytest.fixture(autouse=True)
def own_database(tmp_path, monkeypatch):
    """An empty cache directory, and nothing measured before."""
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    lz.configure(cache_dir=str(tmp_path / "cache"))
    _layerzero.use_prior()
    yield tmp_path / "cache"
    monkeypatch.undo()
    _layerzero.use_prior()


@pytest.fixture
def only_planted(monkeypatch):
    """The planted kernels are the only ones, here and in the process that measures."""
    monkeypatch.setattr(core, "SAMPLE_US", {"cpu": 600.0, "cuda": 600.0})
    planted = []

    def plant(*names, **how):
        planted.extend(names)
        planted_kernels.plant(*names, **how)
        lz.configure(allow_sources=["planted"])
        monkeypatch.setenv("PLANT", ",".join(names))

    yield plant
    lz.configure(allow_sources=[])
    planted_kernels.unplant(*planted)
