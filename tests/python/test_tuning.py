"""`lz.tune`, `layerzero tune` and `layerzero record`: what is measured, what decides, and what a bad kernel costs."""

# ruff: noqa: F811  (fixtures are imported)

import itertools
import os
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
import planted_kernels  # noqa: E402
from layerzero import _layerzero, perf_records  # noqa: E402
from layerzero.errors import InvalidRequestError  # noqa: E402
from layerzero.tuning import core, environment, gate, measure, session, states, workload  # noqa: E402
from layerzero.tuning.core import Clock, Rounds, Side  # noqa: E402
from tuning_fixtures import CALL, LINE, only_planted, own_database  # noqa: E402, F401


def tuned(**options):
    how = {"imports": ["planted_kernels"], "caches": ["warm"], "samples": 16, "ignore_environment": True}
    return lz.tune("rms_norm", **CALL, **(how | options))


# ---- decisions, on made-up times


def rounds_of(seed, us, spread=0.01, rounds=20):
    generator = random.Random(seed)
    found = Rounds({name: [] for name in us}, {name: [] for name in us})
    for _ in range(rounds):
        level = generator.gauss(1, 0.05)
        for name, one in us.items():
            found.samples[name].append(one * level * generator.lognormvariate(0, spread))
        found.again.append(us["default"] * level * generator.lognormvariate(0, spread))
    return found


@pytest.mark.parametrize("planted", [100.0, 103.0])
def test_no_twin_ever_replaces_the_default(planted):
    for seed in range(300):
        winner, _, _ = core.decide("default", rounds_of(seed, {"default": 100.0, "twin": planted}))
        assert winner == "default", seed


def test_a_faster_kernel_wins_and_the_fastest_of_them():
    for seed in range(50):
        winner, _, ratios = core.decide("default", rounds_of(seed, {"default": 100.0, "b": 90.0, "c": 80.0}))
        assert winner == "c"
        assert ratios["c"].low < 0.8 < ratios["c"].high or abs(ratios["c"].value - 0.8) < 0.03


class Played(Clock):
    """A clock that plays times by the name of a side instead of running it."""

    def samples(self, sides, order):
        return [(sides[n].run(), 1.0) for n in order]


def side(us, first=None):
    generator, calls = random.Random(str(us)), []

    def run():
        calls.append(1)
        return first if first is not None and len(calls) == 1 else us * generator.lognormvariate(0, 0.003)

    return Side(run)


def test_a_comparison_screens_times_finalists_and_confirms():
    sides = {f"k{n}": side(100.0 + 40 * n) for n in range(20)} | {"default": side(300.0, first=5e6), "best": side(50.0)}
    verdict = core.compare(Played(), sides, "default", 20)
    assert (verdict.winner, verdict.refused) == ("best", "")
    assert verdict.confirmed.high < 1
    assert {"default", "best"} <= verdict.finals.samples.keys() and len(verdict.finals.samples) <= core.FINALISTS + 1
    assert sides["default"].first_us == 5e6  # a first call that compiles is no sample
    assert max(verdict.finals.samples["default"]) < 400
    assert len(verdict.screened["k19"]) >= core.SCREENED and "k19" not in verdict.finals.samples


def noisy(us, noise=0.05):
    generator = random.Random(str(us))
    return Side(lambda: us * generator.lognormvariate(0, noise))


def test_a_gain_that_noise_hides_is_timed_longer_and_no_gain_is_not():
    verdicts = [
        core.compare(Played(), {"default": noisy(100.0 + n / 1e6), "best": noisy(93.0 + n / 1e6)}, "default", 20)
        for n in range(20)
    ]
    rounds = [len(verdict.finals.again) for verdict in verdicts]
    assert set(rounds) <= {20, 40, 60} and max(rounds) > 20
    assert sum(verdict.winner == "best" for verdict in verdicts) >= 18
    for verdict, most in zip(verdicts, rounds, strict=True):
        assert [len(us) for us in verdict.finals.samples.values()] == [most] * 2
    equal = core.compare(Played(), {"default": side(100.0), "twin": side(100.1)}, "default", 20)
    assert equal.winner == "default" and len(equal.finals.again) == 20


@dataclass(frozen=True)
class Slow(Played):
    """A clock whose samples take as long as they say: `passed` has the seconds of each call."""

    passed: list = field(default_factory=list)

    def now(self):
        return sum(self.passed)

    def samples(self, sides, order):
        found = super().samples(sides, order)
        self.passed.append(sum(us for us, _ in found) / 1e6)
        return found


@pytest.mark.parametrize(("until", "rounds"), [(None, 60), (0.0, 20), (45.0, 40)])
def test_longer_finals_give_signs_of_life_and_end_with_the_budget(monkeypatch, until, rounds):
    """Seven kernels of 150 ms, of which one seems faster, and noise of 12 % hides it."""
    clock, signs = Slow(), []
    monkeypatch.setattr(core, "time", SimpleNamespace(monotonic=clock.now))
    sides = {f"k{n}": noisy(150e3 + n, 0.12) for n in range(5)}
    sides |= {"default": noisy(150e3 + 6, 0.12), "best": noisy(144e3, 0.12)}
    verdict = core.compare(clock, sides, "default", 20, about_to=lambda _: signs.append(clock.now()), until=until)
    assert len(verdict.finals.again) == rounds
    assert max(b - a for a, b in itertools.pairwise([*signs, clock.now()])) < 5


@pytest.mark.parametrize(("rounds", "most"), [(390, 400), (400, 400), (450, 450)])
def test_rounds_that_no_comparison_reads_are_not_made(monkeypatch, rounds, most):
    seems_faster = {"default": core.Ratio(1, 1, 1, 0.5), "best": core.Ratio(0.9, 0.7, 1.1, 0.9)}
    monkeypatch.setattr(core, "decide", lambda default, finals: (default, 0.5, seems_faster))
    sides = {"default": noisy(100.0), "best": noisy(90.0)}
    assert len(core.compare(Played(), sides, "default", rounds).finals.again) == most


@pytest.mark.parametrize("planted", [100.0, 103.0])
def test_no_twin_replaces_the_default_however_noisy(planted):
    for seed in range(50):
        sides = {"default": noisy(100.0 + seed / 1e6), "twin": noisy(planted + (seed + 0.5) / 1e6)}
        assert core.compare(Played(), sides, "default", 20).winner == "default", seed


def test_a_gain_that_is_not_confirmed_keeps_the_default():
    calls = []

    def fast_at_first():
        calls.append(1)
        return 50.0 if len(calls) <= 28 else 100.0

    verdict = core.compare(Played(), {"default": side(100.0), "lucky": Side(fast_at_first)}, "default", 20)
    assert verdict.winner == "default" and "reverse order" in verdict.refused


# ---- records that decide as the verdict did


def result_of(us, winner, default, spread=0.01):
    kernels = [
        {
            "kernel_id": k,
            "us": one,
            "samples": [one] * 20,
            "first_us": 1.0,
            "max_error": None,
            "error_bound": None,
        }
        for k, one in us.items()
    ]
    about = {
        "operation": "norm.rms",
        "dtype": "float32",
        "axes": {"...": 4, "hidden": 64},
        "options": {"weight": "given"},
    }
    about |= {"name": "rms_norm", "execution": "eager", "cache_state": "warm", "winner": winner, "default": default}
    return about | {"kernels": sorted(kernels, key=lambda row: row["us"]), "spread": spread}


def chosen(result):
    from layerzero.bench.ranking import choice_of, use
    from layerzero.tuning import records

    use(records.of_result(result, {"device_id": _layerzero.device_id("cpu")}))
    return choice_of("rms_norm", LINE, "cpu")


def test_records_choose_the_winner_and_a_tie_keeps_the_default():
    own, torchs = "hwy.norm.rms", "torch.rms_norm"
    assert (
        chosen(result_of({own: 100.0, torchs: 98.0}, torchs, own)) == torchs
    )  # a gain of 2 % that the finals have shown
    assert chosen(result_of({own: 100.0, torchs: 98.0}, own, own)) == own  # the same medians, and they have not
    assert chosen(result_of({own: 100.0, torchs: 60.0}, own, own, spread=0.5)) == own
    assert chosen(result_of({own: 100.0, torchs: 300.0}, own, own)) == own


# ---- the gate


def test_without_a_reference_only_the_majority_may_win():
    right = [torch.ones(2, 4)]
    agree, why = gate.majority({"a": right, "b": [right[0] * 1.00001], "c": [right[0] * 2]}, torch.float32)
    assert agree == {"a", "b"} and set(why) == {"c"}
    agree, why = gate.majority({"a": right, "b": [right[0] * 2]}, torch.float32)
    assert agree == set() and set(why) == {"a", "b"} and "no majority" in why["a"]


def test_the_majority_decides_where_the_reference_fails(monkeypatch, only_planted):
    only_planted("slow", "fast", "wrong")
    monkeypatch.setattr(gate, "reference", lambda name, arguments: [torch.full((4, 64), float("nan"))])
    (result,) = measure.tune_call("rms_norm", LINE, measure.Settings(rounds=6, caches=("warm",)))
    assert result["checked_by"] == "majority"
    assert set(result["wrong"]) == {"planted.wrong"}
    assert {k["kernel_id"] for k in result["kernels"]} == {"planted.slow", "planted.fast"}


# ---- the whole


def test_tuning_measures_in_another_process_and_the_winner_decides(only_planted):
    only_planted("slow", "fast", "wrong")
    assert lz.which("rms_norm", **CALL).kernel_id == "planted.slow"
    steps = []
    report = tuned(on_step=steps.append, samples=40)  # enough that pauses of a busy machine do not hide the difference
    (result,) = report.results
    assert result.winner == "planted.fast" and result.default == "planted.slow"
    assert result.gain > 0.5 and result.gain_low > 0.3 and result.confidence > 0.99 and result.served < 0.8
    assert "off by" in result.wrong["planted.wrong"]
    assert [step.done for step in steps] == [1] and steps[0].left_s == 0
    assert report.ok and report.winners == 1 and report.expected_gain.share > 0.3
    rows = {row["kernel_id"]: row for row in perf_records.read_database()}
    assert set(rows) == {"planted.slow", "planted.fast"}  # the whole ranking of those that are right
    assert rows["planted.fast"]["samples"] == 40 and rows["planted.fast"]["warmup_runs"] == core.WARM_UPS
    assert lz.which("rms_norm", **CALL).kernel_id == "planted.fast"


def test_a_planted_twin_is_not_chosen_on_this_machine(only_planted):
    only_planted("slow", "twin", "slower")
    (result,) = tuned(samples=20).results
    assert result.winner == "planted.slow"
    assert lz.which("rms_norm", **CALL).kernel_id == "planted.slow"


def test_what_is_in_the_database_is_not_measured_again(only_planted):
    only_planted("slow", "fast")
    assert tuned().measured == 1
    again = tuned()
    assert (again.known, again.measured, again.records) == (1, 0, 0)
    assert tuned(again=True).measured == 1


def test_an_interrupted_tuning_goes_on(only_planted, monkeypatch):
    only_planted("slow", "fast")
    calls = [workload.Entry("rms_norm", f"input=f32[{n},64] weight=f32[64]", drawn=True) for n in (4, 8, 16)]
    options = {"imports": ["planted_kernels"], "caches": ["warm"], "samples": 6, "ignore_environment": True}

    def interrupt(step):
        if step.done == 2:
            raise KeyboardInterrupt

    report = lz.tune(workload.Workload(calls), on_step=interrupt, **options)
    assert report.interrupted and report.measured == 2 and not report.ok
    report = lz.tune(workload.Workload(calls), **options)
    assert (report.known, report.measured) == (2, 1) and report.ok


# proves: perfdb.tune_samples
def test_the_budget_and_the_policys_rounds(only_planted):
    only_planted("slow", "fast")
    lz.configure(perfdb={"tune_samples": 7})
    report = tuned(budget_s=0.0, samples=None)
    assert report.out_of_time and report.measured == 0 and not report.ok
    report = tuned(samples=None)
    assert {row["samples"] for row in perf_records.read_database()} == {7} and report.ok


@pytest.mark.parametrize(("bad", "how"), [("crash", "SIGABRT"), ("hang", "no answer within")])
def test_a_kernel_that_ends_or_stops_its_process_is_left_out(only_planted, monkeypatch, bad, how):
    only_planted("slow", bad, "fast")
    monkeypatch.setattr(session, "HANG_S", 8.0)
    lz.configure(isolation={"timeout_s": 1.0})
    report = tuned(samples=6)
    assert how in report.crashed[f"rms_norm planted.{bad}"]
    (result,) = report.results  # of the call that was measured again without it
    assert {k.kernel_id for k in result.kernels} == {"planted.slow", "planted.fast"}
    assert report.records == 2 and not report.failed.to_dict()


def test_out_of_memory_is_a_state_that_is_seen(only_planted, own_database):
    only_planted("hungry")
    report = tuned(samples=6)
    assert [one.state for one in report.untuned] == ["out of memory"]
    (state,) = states.read()
    assert state["operation"] == "norm.rms" and state["state"] == "out of memory"
    assert lz.doctor().untuned[0].state == "out of memory"
    assert any("untuned: out of memory" in problem for problem in lz.doctor().problems) or lz.doctor().problems
    assert any("untuned: out of memory" in note for note in lz.explain("rms_norm", **CALL).notes)
    planted_kernels.plant("slow", "fast", priority=80)
    os.environ["PLANT"] = "slow,fast"
    try:
        assert tuned(samples=6).records == 2
    finally:
        planted_kernels.unplant("slow", "fast")
    assert states.read() == []


def test_memory_is_a_budget():
    line = "input=f32[4096,8192] weight=f32[8192]"  # 128 MiB each of input and output
    options = {"cases": [line], "samples": 6, "memory_mb": 64, "ignore_environment": True}
    report = lz.tune("rms_norm", **options)
    assert report.failed[f"rms_norm {line}"] == "out of memory"
    assert [one.state for one in report.untuned] == ["out of memory"]


def test_shards_are_parts_of_the_whole():
    entries = [workload.Entry("rms_norm", f"input=f32[{n},64] weight=f32[64]") for n in range(1, 12)]
    parts = [session.sharded(entries, (i, 3)) for i in (1, 2, 3)]
    assert sorted(e.line for part in parts for e in part) == sorted(e.line for e in entries)
    assert session.sharded(entries[::-1], (2, 3))[::-1] == parts[1]
    with pytest.raises(InvalidRequestError):
        session.sharded(entries, (4, 3))


def test_variants_are_few_kernels_for_a_workload():
    def result(count, **us):
        return {"name": "op", "count": count, "kernels": [{"kernel_id": k, "us": v} for k, v in us.items()]}

    results = [result(1, a=11, b=10, c=30), result(1, a=11, b=30, c=10), result(1, a=11, c=10)]
    (one,) = session.best_variants(results, 1)
    assert one["kernels"] == ["a"] and one["loss"] == pytest.approx(0.1) and one["of"] == 3
    assert session.best_variants(results, 2)[0]["kernels"] == ["b", "c"]


# ---- the environment


def test_the_environment_is_buckets_or_nothing():
    found = environment.environment("cpu")
    allowed = {"temperature": {"cold", "warm", "hot"}, "memory_pressure": {"low", "medium", "high"}}
    allowed |= {"power_state": {"boost", "nominal", "throttled"}, "concurrent_work": {True, False}}
    assert set(found) == set(allowed)
    for name, value in found.items():
        assert value is None or value in allowed[name]
    assert (
        environment.unusual({"temperature": "hot", "concurrent_work": True})
        == "above 70 C, at work for other processes"
    )
    assert environment.unusual({"temperature": "cold", "memory_pressure": "low", "power_state": "boost"}) == ""
