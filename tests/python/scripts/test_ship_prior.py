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
        "device_id": "a CPU",
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
    rows = [row("hwy.mlp.linear.gemm", 1, 2.0), row("openblas.mlp.linear", 1, 1.0), row("torch.linear", 1, 3.0)]
    assert [r["kernel_id"] for r in shipped(tmp_path, monkeypatch, rows)] == ["hwy.mlp.linear.gemm", "torch.linear"]


def test_a_call_that_its_neighbour_already_says_is_left_out(tmp_path, monkeypatch):
    rows = [
        row(kernel, n, us) for n in (1, 2, 512) for kernel, us in (("hwy.mlp.linear.gemm", 1.0), ("torch.linear", 2.0))
    ]
    rows[-2]["median_us"] = 9.0  # far away another one is best
    kept = shipped(tmp_path, monkeypatch, rows)
    assert [r["axes"]["rows"] for r in kept] == [1, 1, 512, 512]
    assert "note" not in kept[0]


def gpu_row(kernel: str, rows: int, median: float, execution: str, blocks: int = 64) -> dict:
    axes = {"b": rows, "blocks": blocks}
    gpu = {"device_id": "NVIDIA H200, sm_90, 132 multiprocessors", "sm_version": 90, "execution": execution}
    return row(kernel, rows, median) | {"operation": "norm.rms", "axes": axes} | gpu


def test_a_gpu_has_a_file_of_its_own_with_every_operation_and_both_modes(tmp_path, monkeypatch):
    rows = [
        gpu_row(kernel, n, us, execution, blocks=64 * n)
        for execution, best in (("eager", 1.0), ("graph", 9.0))
        for n in (1, 2)
        for kernel, us in (("cuda.norm.rms", best), ("torch.rms_norm", 3.0))
    ]
    kept = shipped(tmp_path, monkeypatch, rows)
    assert [(r["execution"], r["axes"]["b"]) for r in kept] == [("eager", 1)] * 2 + [("graph", 1)] * 2
    assert [path.name for path in (tmp_path / "devices/priors").iterdir()] == ["nvidia-h200.json"]
