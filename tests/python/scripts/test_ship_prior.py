"""What a machine measured becomes what the library carries for its kind: without C libraries, thinned."""

import json

import ship_prior


def row(kernel: str, rows: int, median: float) -> dict:
    axes = {"rows": rows, "k": 64, "n": 64}
    return {
        "operation": "mlp.linear",
        "dtype": "float32",
        "axes": axes,
        "kernel_id": kernel,
        "median_us": median,
        "cache_state": "warm",
        "note": None,
    }


def shipped(tmp_path, monkeypatch, rows: list[dict]) -> list[dict]:
    records = tmp_path / "records.json"
    records.write_text(json.dumps({"records": rows}))
    monkeypatch.setattr(ship_prior, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["ship_prior.py", str(records)])
    (tmp_path / "devices").mkdir()
    ship_prior.main()
    (path,) = (tmp_path / "devices/priors").iterdir()
    return json.loads(path.read_text())["records"]


def test_kernels_of_c_libraries_stay_where_they_were_measured(tmp_path, monkeypatch):
    rows = [row("hwy.mlp.linear.gemv", 1, 2.0), row("openblas.mlp.linear", 1, 1.0), row("torch.linear", 1, 3.0)]
    assert [r["kernel_id"] for r in shipped(tmp_path, monkeypatch, rows)] == ["hwy.mlp.linear.gemv", "torch.linear"]


def test_a_call_that_its_neighbour_already_says_is_left_out(tmp_path, monkeypatch):
    rows = [
        row(kernel, n, us) for n in (1, 2, 512) for kernel, us in (("hwy.mlp.linear.gemv", 1.0), ("torch.linear", 2.0))
    ]
    rows[-2]["median_us"] = 9.0  # far away another one is best
    kept = shipped(tmp_path, monkeypatch, rows)
    assert [r["axes"]["rows"] for r in kept] == [1, 1, 512, 512]
    assert "note" not in kept[0]
