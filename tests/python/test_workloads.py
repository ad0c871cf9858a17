"""Workloads (`lz.record`, `layerzero record`), samples of serving, and tuning without being asked."""

# ruff: noqa: F811  (fixtures are imported)

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
import planted_kernels  # noqa: E402
from layerzero import _layerzero, cli, perf_records  # noqa: E402
from layerzero.errors import ConfigError, InvalidRequestError, WrongTypeError  # noqa: E402
from layerzero.tuning import fills, workload  # noqa: E402
from tuning_fixtures import CALL, LINE, only_planted, own_database  # noqa: E402, F401

SUPPORT = Path(planted_kernels.__file__).parent
WITH_SUPPORT = os.environ | {"PYTHONPATH": f"{Path(lz.__file__).parent.parent}{os.pathsep}{SUPPORT}"}


# ---- recording


def test_a_recording_has_classes_with_counts_and_no_contents(tmp_path):
    secret = torch.full((4, 64), 1234.5)
    with lz.record(tmp_path / "w.json") as recording:
        for _ in range(5):
            lz.rms_norm(secret, CALL["weight"])
        lz.rms_norm(torch.ones(2, 64), CALL["weight"], eps=0.25)
    first, second = recording.workload.calls
    assert (first.count, second.count) == (5, 1)
    assert first.line.startswith(LINE) and first.axes == {"...": 4, "hidden": 64} and first.device == "cpu"
    assert sum(first.kernels.values()) == 5
    assert "eps=0.25" in second.line
    assert "1234" not in (tmp_path / "w.json").read_text()
    assert [e.line for e in workload.read(tmp_path / "w.json").calls] == [first.line, second.line]


def key_of(report):
    """What a workload keeps of a call: where the allocator has put a tensor is not in it, nor are the strides of a view,
    except for a transposed last pair of axes, as a weight has them."""
    left_out = (".alignment", "query.contiguous")
    return {name: value for name, value in report.key.to_dict().items() if not name.endswith(left_out)}


def test_a_recorded_line_is_the_call(tmp_path):
    from layerzero.tuning.draw import described

    q, k = torch.randn(1, 4, 16, 64).transpose(1, 2), torch.randn(1, 16, 4, 64)
    calls = {
        "linear": {"input": torch.randn(3, 32), "weight": torch.randn(32, 16).T},
        "attention": {"query": q, "key": k, "value": k, "causal": True, "layout": "BSHD"},
    }
    for name, call in calls.items():
        with lz.record() as recording:
            getattr(lz, name)(**call)
        entry = next(e for e in recording.workload.calls if e.name == name)
        again = lz.explain(name, **described(name, fills.filled(entry.line, entry.axes)))
        assert key_of(again) == key_of(lz.explain(name, **call)), entry.line


def test_tables_are_filled_by_name():
    axes = {"blocks": 64, "block_size": 16, "h_q": 4}
    line = "query=f32[2,1,4,64] key_cache=f32[64,16,4,64] block_tables=i32[2,8] context_lens=i32[2] alive=bool[2]"
    words = dict(word.split("=") for word in fills.filled(line, axes).split())
    assert words["block_tables"] == "i32[2,8]~distinct(0,64)"
    assert words["context_lens"] == "i32[2]{128}"
    assert words["query"] == "f32[2,1,4,64]" and words["alive"] == "bool[2]{1}"
    offsets = fills.filled("q=f32[12,4,64] cu_seqlens_q=i32[4]", {"total_q": 12})
    assert offsets.endswith("cu_seqlens_q=i32[4]~steps(0,4)")


def test_a_damaged_workload_is_an_error(tmp_path):
    path = tmp_path / "w.json"
    for text in (
        "[",
        "{}",
        '{"schema_version": "1.0", "calls": 1}',
        '{"schema_version": "1.0", "calls": [{"name": 1}]}',
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match="layerzero record"):
            lz.tune(path)
    bad = {"schema_version": "1.0", "calls": [{"name": "rms_norm", "line": LINE, "count": -1}]}
    path.write_text(json.dumps(bad))
    with pytest.raises(ConfigError, match="whole number"):
        lz.tune(path)
    with pytest.raises(InvalidRequestError):
        lz.tune(tmp_path / "none.json")
    with pytest.raises(WrongTypeError):
        lz.tune(3)
    with pytest.raises(InvalidRequestError, match="kernelize"):
        lz.tune(lambda: None)


def test_a_function_is_called_once_to_see_its_operations(only_planted):
    only_planted("slow", "fast")
    calls = []

    def model(x, scale):
        calls.append(1)
        return lz.rms_norm(x * scale, CALL["weight"])

    options = {"imports": ["planted_kernels"], "caches": ["warm"], "samples": 6, "ignore_environment": True}
    report = lz.tune(model, CALL["input"], scale=2.0, **options)
    assert calls == [1] and report.calls == 1
    (result,) = report.results
    assert result.axes.to_dict() == {"...": 4, "hidden": 64}
    assert {k.kernel_id for k in result.kernels} == {"planted.slow", "planted.fast"}


def test_sizes_make_calls():
    from layerzero.tuning.grid import lines_of_grid

    lines = lines_of_grid(
        "attention.causal", {"dtype": torch.float32, "head_dim": 64, "seq_lens": [16], "batch_sizes": [1, 2]}
    )
    assert len(lines) == 4 and sum("causal=true" in line for line in lines) == 2
    assert lines_of_grid("linear", {"dtype": "f32", "rows": [1, 4], "features": [(8, 16)]}) == [
        "input=f32[1,16] weight=f32[8,16]",
        "input=f32[4,16] weight=f32[8,16]",
    ]
    with pytest.raises(InvalidRequestError):
        lines_of_grid("rms_norm", {"rows": 1})


# ---- commands


def test_record_and_tune_are_commands(tmp_path, monkeypatch, capfd):
    program = "import torch, layerzero as lz\nfor _ in range(3): lz.rms_norm(torch.ones(4, 64), torch.ones(64))"
    path = tmp_path / "w.json"
    assert cli.run(["record", "-o", str(path), "--json", "--", sys.executable, "-c", program]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["classes"], found["calls"], found["exit_code"]) == (1, 3, 0)
    tune = ["tune", str(path), "--samples", "6", "--ignore-environment", "--json"]
    assert cli.run(tune) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["measured"] == 1 and report["results"][0]["count"] == 3
    assert cli.run(tune) == 0
    assert json.loads(capfd.readouterr().out)["known"] == 1
    assert cli.run(["tune", str(path), "--shard", "3/2"]) == 2
    assert cli.run(["tune"]) == 2
    assert cli.run(["record", "-o", str(path), "--", sys.executable, "-c", "raise SystemExit(3)"]) == 2


# ---- while serving


# proves: perfdb.sample_rate, perfdb.min_samples
def test_samples_of_serving_become_records_that_decide_nothing():
    before = lz.which("rms_norm", **CALL).kernel_id
    lz.configure(perfdb={"sample_rate": 1.0, "min_samples": 5})
    for _ in range(12):
        lz.rms_norm(**CALL)
    _layerzero.flush_served_calls(5.0)
    perf_records.flush()
    lz.configure(perfdb={"sample_rate": 0.0})
    rows = [row for row in perf_records.read_database() if row["protocol"] == 2]
    assert rows and sum(row["samples"] for row in rows) <= 12 and all(row["samples"] >= 5 for row in rows)
    assert rows[0]["kernel_id"] == before and rows[0]["axes"] == {"...": 4, "hidden": 64} and rows[0]["median_us"] > 0
    _layerzero.use_prior()
    assert lz.explain("rms_norm", **CALL).kernel_id == before
    sampled = json.loads(_layerzero.served_calls())["sampled"]
    lz.rms_norm(**CALL)
    assert json.loads(_layerzero.served_calls())["sampled"] == sampled  # off: no observer


# proves: perfdb.auto_tune
def test_a_process_tunes_what_it_calls_often(only_planted, monkeypatch):
    from layerzero.tuning import auto

    only_planted("slow", "fast")
    program = f"""
import os, torch, layerzero as lz, planted_kernels
lz.configure(allow_sources=["planted"])
from layerzero.tuning import auto, session
run = session.run
session.run = lambda entries, options: run(entries, session.replace(options, imports=("planted_kernels",), samples=40,
                                           caches=("warm",), ignore_environment=True, nice=0))
x, w = torch.ones(4, 64), torch.ones(64)
assert not auto.is_running()
lz.configure(perfdb={{"auto_tune": True}})
assert auto.is_running() and auto.once() is None
for _ in range({auto.OFTEN}): lz.rms_norm(x, w)
report = auto.once()
assert report.records == 2
assert auto.once() is None
print(report.results[0].winner, lz.which("rms_norm", x, w).kernel_id)
lz.configure(perfdb={{"auto_tune": False}})
assert not auto.is_running()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=WITH_SUPPORT | {"PLANT": "slow,fast", "LAYERZERO_CACHE_DIR": os.environ["LAYERZERO_CACHE_DIR"]},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.split() == ["planted.fast", "planted.fast"], done.stderr


def _warmed():
    return lz.warmup("norm.rms", shapes=[(4, 64)], dtype="float32", device="cpu", options={"weight": True})


# proves: auto_tune_on_warmup
def test_a_warm_up_tunes_what_it_calls_if_the_policy_says_so(only_planted):
    # The child measures kernels of the library; the planted ones are of this process alone.
    assert _warmed().tuned == 0 and not perf_records.read_database()
    lz.configure(auto_tune_on_warmup=True)
    report = _warmed()
    assert report.tuned == 1 and report.complete and len(report.calls) == 1
    assert {row["operation"] for row in perf_records.read_database()} == {"norm.rms"}
    assert _warmed().tuned == 1, "known calls are looked at again, not measured"


def test_a_warm_up_inside_of_a_recording_tunes_its_own_calls_alone(only_planted, monkeypatch):
    from layerzero.tuning import auto

    lz.configure(auto_tune_on_warmup=True)
    asked = []
    monkeypatch.setattr(auto, "tuned", lambda entries, budget_s: asked.append((entries, budget_s)) or [])
    with lz.record() as recording:
        lz.rms_norm(**CALL)
        with auto.warming_up(budget_s=20):
            lz.layer_norm(torch.ones(2, 32), 32)
    ((entries, budget),) = asked
    assert [(e.name, e.count) for e in entries] == [("layer_norm", 1)] and 0 < budget <= 20
    assert {e.name for e in recording.workload.calls} == {"rms_norm", "layer_norm"}


def test_a_warm_up_goes_on_where_nothing_can_be_tuned(only_planted, monkeypatch, caplog):
    from layerzero.tuning import auto

    def full(entries, budget_s):
        raise lz.ConfigError("database", "room on the disk", "none", "")

    lz.configure(auto_tune_on_warmup=True)
    monkeypatch.setattr(auto, "tuned", full)
    assert _warmed().complete
    assert "room on the disk" in caplog.text
