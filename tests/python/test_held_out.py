"""What tuned times say about calls of other sizes: near ones, inside their regime, and no others (bench/held_out.py)."""

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from layerzero import _layerzero  # noqa: E402
from layerzero.bench.operations import Case  # noqa: E402
from layerzero.bench.ranking import choice_of, use  # noqa: E402
from layerzero.tuning.records import kernel_row, record  # noqa: E402
from layerzero.tuning.session import _described  # noqa: E402
from layerzero.tuning.workload import Entry  # noqa: E402

BENCH = Path(__file__).resolve().parents[2] / "bench"
COLUMNS = {"cache_state": "warm", "execution": "eager", "timer": "wall", "sm_version": 0}


def line(rows):
    return f"input=f32[{rows},64] weight=f32[64,64]"


def chosen(rows):
    return choice_of("linear", line(rows), "cpu")


def times(rows, fastest):
    """Records of all kernels for one call: 10 us for the fastest, 100 for the others."""
    about = _described(Entry("linear", line(rows))) | {"bytes": 1}
    columns = COLUMNS | {"device_id": _layerzero.device_id("cpu")}
    us = {kernel: 10.0 if kernel == fastest else 100.0 for kernel in about["kernels"]}
    return [record(about, kernel_row("linear", kernel), [time] * 20, **columns) for kernel, time in us.items()]


@pytest.fixture
def untuned():
    """The kernels by priority, and another one that none of them is."""
    use([])
    kernels = {rows: chosen(rows) for rows in (1, 2, 64, 128, 512, 2048, 4096, 1 << 17)}
    others = _described(Entry("linear", line(256)))["kernels"]
    yield kernels, next(kernel for kernel in others if kernel not in kernels.values())
    _layerzero.use_prior()


def test_times_serve_near_shapes_of_their_regime(untuned):
    kernels, rival = untuned
    use(times(256, rival))
    assert chosen(256) == chosen(512) == chosen(128) == rival
    assert chosen(1 << 17) == kernels[1 << 17], "nine doublings away nothing is known"
    assert chosen(1) == kernels[1], "one row is another regime"
    use(times(1, rival))
    assert (chosen(1), chosen(2)) == (rival, kernels[2])


def test_between_two_measured_shapes_the_nearer_one_decides(untuned):
    kernels, rival = untuned
    use(times(64, rival) + times(4096, kernels[4096]))
    assert (chosen(128), chosen(2048)) == (rival, kernels[4096])


@pytest.fixture
def held_out(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("held_out", BENCH / "held_out.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "held_out", module)
    spec.loader.exec_module(module)
    return module


def test_shapes_are_held_out_between_and_beyond(held_out):
    tuned, held = held_out.split([Case("linear", line(rows), False) for rows in (4096, 1, 256, 16)])
    assert [c.line for c in tuned] == [line(1), line(256)]
    assert [(h.case.line, h.where) for h in held] == [(line(16), "between"), (line(4096), "beyond")]
    one = [Case("cast", "input=f32[8] dtype=bfloat16", False)]
    assert held_out.split(one) == (one, [])


def test_calls_of_one_key_are_tuned_one_after_the_other(held_out, untuned, monkeypatch):
    _, rival = untuned
    monkeypatch.setattr(held_out.measure, "tune_call", lambda *_: [{"records": times(256, rival)}])
    records, failed = held_out.tune([Case("linear", line(256), False)] * 2, None)
    assert len(records) == len(times(256, rival)) and not failed


def test_a_choice_that_is_slower_beyond_noise_fails(held_out):
    cell = {"operation": "a", "call": "b", "where": "between", "untuned": "x", "tuned": "y"}
    cells = [cell | {"ratio": ratio, "noise": 0.02} for ratio in (0.5, 1.01, 1.05)]
    cells.append(cell | {"ratio": None, "noise": None})
    assert held_out.worse(cells) == [cells[2]]
    found = held_out.summary(cells)
    assert (found["calls"], found["not_timed"], found["worst_ratio"]) == (4, 1, 1.05)


def test_what_could_not_be_timed_is_not_good(held_out, monkeypatch):
    cell = {"operation": "a", "call": "b", "untuned": "x", "tuned": "y"}
    timed = cell | {"where": "between", "ratio": 0.5, "noise": 0.02}
    untimed = cell | {"where": "beyond", "ratio": None, "noise": None}

    def passes(*cells):
        parts = {where: held_out.summary([c for c in cells if c["where"] == where]) for where in held_out.WHERE}
        return held_out.passes({"tuned_calls": 1, "failed": {}, "worse_than_untuned": held_out.worse(cells)} | parts)

    assert passes(timed)
    assert not passes(timed, untimed)
    assert not passes()
    assert held_out.summary([untimed])["mean_ratio"] is None  # and no error of statistics

    def fails(*_):
        raise RuntimeError("planted")

    monkeypatch.setattr(held_out.regret, "again", fails)
    found = held_out.compared(Case("cast", "input=f32[8] dtype=bfloat16", False), "x", "y", 3)
    assert (found["ratio"], found["why"]) == (None, "RuntimeError: planted")
