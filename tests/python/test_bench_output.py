"""`layerzero bench ops` and `bench regret`: calls with sizes by name, and rows that are shown and written as they come."""

import csv
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

from layerzero.bench import operations, ranking  # noqa: E402
from layerzero.cli import _bench  # noqa: E402

NORM = "rms_norm --input f32[rows,2*width] --weight f32[2*width]"
SIZES = ["--size", "rows=1,3", "--size", "width=32"]


def test_calls_have_every_combination_of_sizes():
    cases = _bench.cases_of([NORM], ["rows=1,3", "width=32,64"], True)
    assert [case.line for case in cases] == [
        f"input=f32[{rows},{2 * width}] weight=f32[{2 * width}]" for rows in (1, 3) for width in (32, 64)
    ]
    assert all(case.operation == "rms_norm" and case.cold for case in cases)
    assert not _bench.cases_of(None, None, False)


def test_lengths_and_tables_are_filled():
    text = "ragged_attention --query f32[tokens,2,8] --key f32[tokens,2,8] --value f32[tokens,2,8]"
    offsets = " --cu-seqlens-q i32[3] --cu-seqlens-kv i32[3]"
    (case,) = _bench.cases_of([text + offsets], ["tokens=8"], False)
    assert "cu_seqlens_q=i32[3]~steps(0,4)" in case.line


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--size", "rows=1"], "--size"),
        (["--cold"], "--cold"),
        (["--call", NORM, "--size", "rows=1"], "--size"),
        (["--call", NORM, *SIZES, "--size", "other=1"], "--size"),
        (["--call", NORM, "--size", "rows=one", "--size", "width=1"], "--size"),
        (["--call", NORM, *SIZES, "--operations", "cast"], "--call"),
        (["--call", NORM, *SIZES, "--output", "rows.txt"], "--output"),
    ],
)
@pytest.mark.parametrize("command", ["ops", "regret"])
def test_what_cannot_be_measured_is_refused(run, command, arguments, field):
    code, out, _ = run("bench", command, *arguments, "--json")
    assert code == 2 and json.loads(out)["error"]["field"] == field


def test_rows_are_shown_and_written_as_they_come(run, tmp_path, monkeypatch):
    table, text, document = tmp_path / "rows.csv", tmp_path / "rows.md", tmp_path / "report.json"
    so_far = []
    monkeypatch.setattr(operations, "roofs", lambda: {"stream_gb_s": 1.0, "f32_gflop_s": 1.0, "weights_g_s": {}})
    selection = operations.selection

    def judged(cases):
        so_far.append(table.read_text())  # all calls are measured, the report is not made yet
        return selection(cases)

    monkeypatch.setattr(operations, "selection", judged)
    files = [word for path in (table, text, document) for word in ("--output", str(path))]
    code, out, err = run("bench", "ops", "--call", NORM, *SIZES, "--rounds", "4", "--json", *files)
    report = json.loads(out)
    assert code == 0 and json.loads(document.read_text()) == report
    rows = list(csv.DictReader(table.open()))
    kernels = [(call["call"], kernel) for call in report["calls"] for kernel in call["us"]]
    assert sorted((row["call"], row["kernel"]) for row in rows) == sorted(kernels)
    assert so_far[0].count("\n") == len(rows) + 1
    for call in report["calls"]:
        own = [row for row in rows if row["call"] == call["call"]]
        assert float(own[0]["us"]) == call["us"][call["best"]] and own[0]["over_best"] == "1.0"
        assert [row["kernel"] for row in own if row["chosen"] == "true"] == [call["chosen"]]
        assert f"rms_norm {call['call']} (eager, warm): {call['best']}" in err
    lines = text.read_text().splitlines()
    assert len(lines) == len(rows) + 2 and {line.count("|") for line in lines} == {len(_bench.TIMES) + 1}
    assert run("bench", "ops", "--call", NORM, *SIZES, "--rounds", "4", "--json", "--quiet")[2] == ""


def test_cells_of_regret_are_rows(tmp_path):
    cell = {"operation": "cast", "call": "input=f32[8]", "execution": "eager", "cache_state": "warm", "kernels": 2}
    cell |= {"chosen": {"priorities": "a", "records": "b"}, "regret": {"priorities": 1.5, "records": 1.0}}
    path = tmp_path / "regret.csv"
    with _bench.Rows([path], _bench.REGRETS) as rows:
        rows.add(_bench.regret_of(cell))
        assert path.read_text().endswith("cast,input=f32[8],eager,warm,2,a,b,1.5,1.0\n"), "written before the end"


def test_a_file_that_cannot_be_written_is_an_error(run, tmp_path):
    path = str(tmp_path / "missing" / "rows.csv")
    code, out, _ = run("bench", "ops", "--call", NORM, *SIZES, "--json", "--output", path)
    assert code == 2 and "can be written" in json.loads(out)["error"]["wanted"]


def test_the_99th_percentile_of_few_values_is_the_largest():
    assert ranking.p99([1.0] * 11 + [9.0]) == 9.0
    assert ranking.p99([float(i) for i in range(1, 201)]) == 198.0
    assert operations._summary([1.0, 2.0, 9.0])["p99"] == 9.0
