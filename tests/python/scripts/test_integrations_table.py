"""The page on integrations is what its script makes of the stored results."""

import json

import integrations_table
import pytest


def test_the_page_is_up_to_date():
    text = (integrations_table.ROOT / integrations_table.FILE).read_text()
    assert text == integrations_table.page(), "run scripts/integrations_table.py"


def test_without_results_every_row_says_so(tmp_path):
    rows = integrations_table.rows_of(tmp_path)
    assert len(rows) == len(integrations_table.INTEGRATIONS) and all(
        "nothing: no result is stored" in row for row in rows
    )


def test_a_result_is_a_row(tmp_path):
    row = {"version": "9.9", "run": "a model", "result": "equal", "speed": "1.50"}
    found = {"measured_on": {"load": 0.5}, "integration": row}
    (tmp_path / "sglang-backends-here.json").write_text(json.dumps(found))
    (tmp_path / "arrays-here.json").write_text(json.dumps(found | {"measured_on": {"load": 12.0}}))
    rows = [row for row in integrations_table.rows_of(tmp_path) if "9.9" in row]
    assert [row.split(" | ")[0] for row in rows] == ["| SGLang", "| NumPy, JAX"]
    assert "1.50" in rows[0] and "1.50" not in rows[1] and "load of 12" in rows[1]
    (tmp_path / "models-here.json").write_text(
        json.dumps({"transformers": "5", "torch": "2", "families": {"a": {"ratio": 2.0, "wrong": ["x"]}}})
    )
    assert any("wrong or crashed: a" in row for row in integrations_table.rows_of(tmp_path))


def test_batches_of_transformers_are_a_row(tmp_path, monkeypatch):
    """Its program is asked for the row that the page takes from its result; subjects with other weights have other tokens."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(integrations_table.ROOT / "bench/serving"))
    import transformers_batches

    one = {
        name: {"tokens_per_s": 1.0, "ratio": ratio, "same": same}
        for name, ratio, same in (("sdpa", 1.0, 1.0), ("layerzero", 1.5, 0.9975), ("layerzero+int8", 2.0, 0.0))
    }
    found = {"requests": {4: one}, "dtype": "f32", "input": 96, "output": 32}
    found |= {"measured_on": {"load": 0.5}, "integration": transformers_batches.integration(found)}
    (tmp_path / "transformers-batches-here.json").write_text(json.dumps(found))
    (row,) = [row for row in integrations_table.rows_of(tmp_path) if "transformers-batches-here" in row]
    assert "tokens equal in at least 99% of the requests" in row
    assert "throughput over sdpa: layerzero, requests 4: 1.50; layerzero+int8, requests 4: 2.00" in row
