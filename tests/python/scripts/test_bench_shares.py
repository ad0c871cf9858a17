"""Shares of long measurements that bench/perfdb_kill.py and bench/tuning.py add up: each counts once, and only with its like."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from layerzero import _layerzero, perf_records  # noqa: E402

BENCH = Path(__file__).parents[3] / "bench"


def share(path, **others):
    facts = {"sqlite": perf_records.database_state()["sqlite"], "writers": 4, "builds": ["another"]}
    counts = {"cycles": 5, "kills": 20, "acknowledged": 9, "most_rows": 3, "seconds": 1.0, "bad": [], "ok": True}
    path.write_text(json.dumps(facts | counts | others))
    return str(path)


@pytest.fixture
def added(monkeypatch, tmp_path):
    """Adds shares up into all.json, without any cycle."""
    monkeypatch.syspath_prepend(str(BENCH))
    import perfdb_kill

    monkeypatch.setattr(perfdb_kill, "run", lambda *_: None)

    def add(*words):
        path = tmp_path / "all.json"
        monkeypatch.setattr(sys, "argv", ["perfdb_kill.py", "--cycles", "0", "--json", str(path), *words])
        assert perfdb_kill.main() == 0
        return json.loads(path.read_text())

    return add


def test_shares_of_killed_writers_count_once(added, tmp_path, capsys):
    one, two = share(tmp_path / "one.json"), share(tmp_path / "two.json")
    sums = added("--add", one, two)
    assert (sums["cycles"], sums["builds"], sums["added"]) == (10, ["another"], ["one.json", "two.json"])
    third = share(tmp_path / "three.json")
    assert added("--resume", "--add", third)["cycles"] == 15
    whole = str(tmp_path / "all.json")
    for words in (["--add", one, one], ["--resume", "--add", two], ["--resume", "--add", whole], ["--add", one, whole]):
        with pytest.raises(SystemExit):
            added(*words)
        assert "is counted already" in capsys.readouterr().err
    assert json.loads(Path(whole).read_text())["cycles"] == 15


@pytest.fixture
def tuning(monkeypatch):
    """The program, whose twins are not measured."""
    monkeypatch.setenv("PYTHONPATH", "")  # which it changes, as it does sys.path
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_tuning", BENCH / "tuning.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "twins", lambda *_: {"ok": True})
    return module


def test_shares_of_tunings_are_of_one_build_and_as_many_rounds(tuning, monkeypatch, tmp_path, capsys):
    device, build = _layerzero.device_id("cpu"), _layerzero.build_id()[1]
    facts = {"device_id": device, "layerzero": build, "torch": torch.__version__, "samples": 20}

    def judged(*others):
        paths = [tmp_path / f"{number}.json" for number in range(len(others))]
        for path, other in zip(paths, others, strict=True):
            path.write_text(
                json.dumps(facts | {"runs": [[]], "warm_start": {"warm_s": 1.0, "times_faster": 1}} | other)
            )
        words = ["--tunings", "0", "--json", str(tmp_path / "all.json"), "--add", *map(str, paths)]
        monkeypatch.setattr(sys, "argv", ["tuning.py", *words])
        tuning.main()
        return json.loads((tmp_path / "all.json").read_text())

    assert judged({}, {"warm_start": {"warm_s": 0.5, "times_faster": 2}}, {})["warm_start"]["warm_s"] == 0.5
    for other in ({"samples": 6}, {"layerzero": "another"}, {"torch": "1.0"}):
        with pytest.raises(SystemExit):
            judged({}, other)
        assert f"1.json is of {other}, this would be of" in capsys.readouterr().err


def test_a_warm_start_is_the_fastest_of_all_tunings(tuning, monkeypatch, tmp_path):
    starts = iter([{"warm_s": 1.0, "times_faster": 1}, {"warm_s": 3.0, "times_faster": 1}])
    monkeypatch.setattr(tuning, "tuned", lambda *_, **__: ([], next(starts)))
    out = tmp_path / "all.json"
    monkeypatch.setattr(sys, "argv", ["tuning.py", "--tunings", "2", "--json", str(out)])
    tuning.main()
    assert json.loads(out.read_text())["warm_start"]["warm_s"] == 1.0
