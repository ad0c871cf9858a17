"""What bench/quantized_checkpoints.py says of times."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
FILE = Path(__file__).resolve().parents[2] / "bench/quantized_checkpoints.py"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "support"))
    spec = importlib.util.spec_from_file_location("quantized_checkpoints", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_speeds_are_those_of_the_layers_own_forward_where_it_was_timed(bench):
    times = {"layerzero_us": 20.0, "layerzero_least_us": 10.0, "float32_us": 30.0, "float32_least_us": 25.0}
    assert bench.speed(times) == "2.50 of float32 by least times, 1.50 by medians"
    own = times | {"own_us": 80.0, "own_least_us": 5.0}
    assert bench.speed(own) == "0.50 of its own by least times, 4.00 by medians"


def test_times_leave_the_first_call_out(bench, monkeypatch):
    clock = iter([0.0] + [number * 1e-6 for number in (0, 3, 10, 12, 20, 27)])  # a first call, then 3, 2 and 7 us
    monkeypatch.setattr(bench, "ROUNDS", 3)
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    found = bench.times_us({"one": lambda rows: None}, None)
    assert found == {"one_us": pytest.approx(3.0), "one_least_us": pytest.approx(2.0)}
