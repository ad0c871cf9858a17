"""`layerzero bench ops`: cases, what is compared before it is timed, regret, and a prior that decides afterwards."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero, cli  # noqa: E402
from layerzero.bench import operations  # noqa: E402
from layerzero.tuning import records  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]

CASES = """\
# a comment
for T in f32 bf16; for R,D in 1,64 16,96
  input={T}[{R},{D}] weight={T}[{D}]
for D in 128
  cold input=f32[2,{D}]
"""


@pytest.fixture(autouse=True)
def no_prior():
    _layerzero.use_prior('{"schema_version": "1.0", "records": []}', "none")
    yield
    _layerzero.use_prior()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rms_norm.cases").write_text(CASES)
    return tmp_path


def test_cases_are_every_combination(folder):
    cases = operations.all_cases(folder=folder)
    assert [(c.line, c.cold) for c in cases] == [
        ("input=f32[1,64] weight=f32[64]", False),
        ("input=f32[16,96] weight=f32[96]", False),
        ("input=bf16[1,64] weight=bf16[64]", False),
        ("input=bf16[16,96] weight=bf16[96]", False),
        ("input=f32[2,128]", True),
    ]


GGUF = """\
for F,R in q4_0,18 q8_0,34; for B in 2
  cold input=f32[1,64] weight=u8[16,{R}*{B}] packed=u8[1,16*{R}*{B}]~int(0,112) format={F} bias=f32[16]
"""


def test_packed_weights_are_read_in_place_of_rows(tmp_path, monkeypatch):
    (tmp_path / "linear_gguf.cases").write_text(GGUF)
    case, _ = cases = operations.all_cases(folder=tmp_path)
    assert case.line.startswith("input=f32[1,64] weight=u8[16,36] packed=u8[1,576]~int(0,112) format=q4_0")
    with torch.inference_mode():
        operations.measure(case, rounds=4)
    assert case.about["bytes"] == 4 * 64 + 576 + 4 * 16 + 4 * 16  # input, packed, bias, output
    assert len(case.stream) == 4
    options = {"packed": "given", "format": "q4_0", "bias": "given"}
    assert case.about["options"] == options
    case.samples["another"] = case.samples[next(iter(case.samples))]  # records are of calls with rivals
    known = {kernel.kernel_id for kernel in lz.list_kernels()}
    monkeypatch.setattr(
        lz,
        "list_kernels",
        lambda: [SimpleNamespace(kernel_id=k, version=1, library_version=None) for k in {*known, "another"}],
    )
    assert [row["options"] for row in operations.records(cases)] == [options] * len(case.samples)


def test_the_roof_is_what_takes_longer(tmp_path):
    (tmp_path / "linear.cases").write_text("cold input=f32[2,64] weight=f32[32,64]\n")
    (case,) = operations.all_cases(folder=tmp_path)
    with torch.inference_mode():
        operations.measure(case, rounds=4)
    assert len(case.copy) == 4
    case.stream, case.copy = [3.0] * 4, [6.0] * 4
    products = 2 * 2 * 64 * 32  # floating point operations
    slow, fast = ({"f32_gflop_s": products / us / 1e3, "weights_g_s": {}} for us in (12, 1))
    assert operations._shares(case, 24.0, slow) == {
        "share_of_stream": 0.125,
        "share_of_copy": 0.25,
        "share_of_roof": pytest.approx(0.5),
    }
    assert operations._shares(case, 24.0, fast) == {
        "share_of_stream": 0.125,
        "share_of_copy": 0.25,
        "share_of_roof": 0.25,
    }
    case.copy = []  # a call that writes next to nothing
    assert operations._shares(case, 24.0, fast)["share_of_copy"] == 0.125


@pytest.mark.parametrize("written", [0, 3, 8, 16, 24, 28, 61])
def test_a_copy_reads_all_once_and_writes_what_the_call_writes_in_words(written):
    steps = operations._steps([(1000, 16), (2000, 12), (3000, 4)], 5000, written)
    words = written // 8 * 8
    assert all(number % 8 == 0 for step in steps for number in step)
    seen = [address for start, _, size in steps for address in range(start, start + size)]
    assert {*range(1000, 1016), *range(2000, 2008)} == set(seen) and len(seen) == max(24, words)
    targets = [address for _, to, size in steps if to for address in range(to, to + size)]
    assert targets == list(range(5000, 5000 + words))
    assert operations._steps([(3000, 4)], 5000, 16) == []


def test_a_weight_becomes_a_number_once():
    about = {"operation": "mlp.linear.quantized", "dtype": "bf16", "axes": {"...": 3, "n": 100, "k": 100}}
    roof = {"f32_gflop_s": 2, "weights_g_s": {"numbers bf16": 4.0, "half_bytes bf16": 2.0, "half_bytes int8": 8.0}}

    def us(dtype, **options):
        return operations._compute_us(about | {"dtype": dtype, "options": options}, roof)

    assert us("bf16", format="mxfp4") == pytest.approx(10000 / 2e3 + 20000 / 4e3)
    assert us("bf16", format="fp8_e4m3") == us("bf16") == pytest.approx(30000 / 4e3)  # no loop: the products alone
    assert us("f32", format="mxfp4") == us("f16") == pytest.approx(30000 / 1e3)
    assert us("bf16", format="q4_0", activations="int8") <= 30000 / 1e3


def test_roofs_are_of_this_machine():
    roof = operations.roofs(bytes_read=1 << 20, rounds=1)
    assert roof["stream_gb_s"] > 0 and roof["f32_gflop_s"] > 0
    assert all(rate > 0 for rate in roof["weights_g_s"].values())
    assert {name.split()[1] for name in roof["weights_g_s"]} <= {"f32", "bf16", "int8"}


def test_causal_attention_multiplies_half():
    axes = {"b": 1, "h_q": 2, "h_kv": 2, "s_q": 3, "s_kv": 3, "d_qk": 4, "d_v": 4}
    about = {"operation": "attention.standard.prefill", "axes": axes, "options": {"causal": "true"}}
    assert operations._multiply_adds(about) == 2 * (1 + 2 + 3) * 8
    assert operations._multiply_adds(about | {"options": {}}) == 2 * 9 * 8


def test_attention_over_pages_multiplies_all_blocks():
    axes = {"b": 1, "h_q": 2, "h_kv": 1, "blocks": 3, "block_size": 16, "max_blocks": 3, "d_qk": 4, "d_v": 4}
    about = {"operation": "attention.gqa.decode.block_table", "axes": axes, "options": {}}
    assert operations._multiply_adds(about) == 2 * 3 * 16 * 8


def test_every_shipped_case_is_a_call_with_an_own_kernel():
    for case in operations.all_cases():
        if case.line.count(",") and any(len(n) > 4 for n in case.line.replace("]", ",").replace("[", ",").split(",")):
            continue  # the large ones have small neighbours
        report = lz.explain(case.operation, **operations.arguments_of(case.operation, case.line))
        assert any(c.admissible and not c.reference for c in report.candidates), case


def test_a_wrong_kernel_is_not_timed(folder):
    case = operations.all_cases(folder=folder)[0]
    wanted = torch.ones(8)
    with pytest.raises(RuntimeError, match="some.kernel is off by"):
        operations._check(case, {"some.kernel": wanted * 1.1}, wanted)
    operations._check(case, {"some.kernel": wanted.clone()}, wanted)


def measured(samples, again):
    return operations.Case("rms_norm", "", False, samples=samples, again=again)


def test_regret_is_judged_on_the_other_rounds():
    # b is best in the even rounds; in the odd ones it costs twice as much as a.
    case = measured({"a": [2.0, 1.0] * 4, "b": [1.0, 2.0] * 4}, [2.0, 1.0] * 4)
    assert operations._regret(case, "b") == 1.0
    assert operations._regret(case, "a") == 1.0  # faster than the oracle where it is judged: not below 1
    case = measured({"a": [2.0] * 8, "b": [1.0] * 8}, [2.0] * 8)
    assert operations._regret(case, "a") == 2.0
    noisy = measured({"a": [1.1] * 8, "b": [1.0] * 8}, [1.3] * 8)
    assert operations._regret(noisy, "a") == 1.0  # less than a is from itself


def test_records_decide_what_runs(folder):
    case = operations.all_cases(folder=folder)[0]
    operations.measure(case, 4)
    assert set(case.samples) >= {"hwy.norm.rms", "torch.rms_norm"}
    case.samples = {"hwy.norm.rms": [9.0] * 4, "torch.rms_norm": [1.0] * 4}
    assert operations._chosen(case) == "hwy.norm.rms"
    operations.use(operations.records([case]))
    assert operations._chosen(case) == "torch.rms_norm"
    winner = next(c for c in lz.explain("rms_norm", **case.call).candidates if c.kernel_id == "torch.rms_norm")
    assert any(term.name == "measured" for term in winner.terms)
    with lz.policy(perfdb={"enabled": False}):
        assert operations._chosen(case) == "hwy.norm.rms"


def test_a_written_prior_is_read_by_the_next_process(folder, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    code = cli.run(["bench", "ops", "--cases", str(folder), "--rounds", "4", "--json"])
    report = json.loads(capfd.readouterr().out)
    assert code == 0
    assert len(report["calls"]) == 5
    assert report["regret"]["priorities"]["calls"] == 5
    assert report["calls"][-1]["share_of_stream"] > 0
    assert report["calls"][-1]["share_of_copy"] == report["calls"][-1]["share_of_roof"] > 0
    cases = operations.all_cases(folder=folder)
    for case in cases:
        operations.measure(case, 4)
        case.samples = {kernel: [1.0 if kernel.startswith("torch") else 9.0] * 4 for kernel in case.samples}
    assert operations.write_prior(operations.records(cases), tmp_path / "cache/prior.records.json") >= 10
    script = (
        "import torch, layerzero as lz; print(lz.which('rms_norm', torch.ones(1, 64), torch.ones(64))['kernel_id'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.rms_norm"


def test_a_broken_prior_is_a_problem_and_not_an_end(tmp_path):
    (tmp_path / "prior.records.json").write_text("{")
    script = (
        "import torch, layerzero as lz; lz.rms_norm(torch.ones(1, 64), torch.ones(64)); print(lz.doctor().problems)"
    )
    environment = {**__import__("os").environ, "LAYERZERO_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert "prior.records.json" in done.stdout


def test_unknown_operations_are_refused(capfd):
    assert cli.run(["bench", "ops", "--operations", "no_such"]) == 2
    assert "no_such" in capfd.readouterr().err


# ---- what a record must be of to decide

X, W = torch.randn(4, 64), torch.randn(64, 64)


def rows_of(**columns):
    """Records of the call of X and W in which the kernel that priorities leave behind is far the fastest."""
    report = lz.explain("linear", X, W)
    admissible = [c.kernel_id for c in report.candidates if c.admissible and "ref." not in c.kernel_id]
    of_torch = next(k for k in admissible if k.startswith("torch."))
    known = {k.kernel_id: k for k in lz.list_kernels("linear")}
    rows = []
    for kernel in admissible:
        row = {
            "kernel_id": kernel,
            "operation": "mlp.linear",
            "device_id": _layerzero.device_id("cpu"),
            "sm_version": 0,
            "dtype": "float32",
            "head_dim": 0,
            "seq_bucket": 0,
            "batch_bucket": 4,
            "axes": report["key"].get("axes") or {"...": 4, "k": 64, "n": 64},
            "options": dict(report["options"]),
            "cache_state": "warm",
            "execution": "eager",
            "median_us": 1.0 if kernel == of_torch else 100.0,
            "p95_us": 1000.0,
            "samples": 20,
            "variance_us": 0.0,
            "protocol": records.PROTOCOL,
            "warmup_runs": 1,
            "timer": "wall",
            "interleaved": True,
            "kernel_version": str(known[kernel].version),
            "layerzero_version": "0.1.0",
            "build_id": "tests",
            "backend": kernel.partition(".")[0],
            "backend_version": known[kernel].library_version,
            "torch_version": torch.__version__,
            "measured_at": "2026-01-31T12:00:00Z",
        }
        rows.append(row | {key: value(row) if callable(value) else value for key, value in columns.items()})
    return of_torch, rows


def chosen_with(rows):
    operations.use(rows)
    return lz.which("linear", X, W)["kernel_id"]


def test_records_of_this_protocol_and_version_decide():
    of_torch, rows = rows_of()
    assert chosen_with(rows) == of_torch  # the control of the tests below


def test_records_of_another_protocol_do_not():
    by_priority, (_, rows) = chosen_with([]), rows_of(protocol=records.PROTOCOL + 998)
    assert chosen_with(rows) == by_priority
    assert lz.doctor().counters.measured_records == 0


@pytest.mark.parametrize("old", ["1.0", "1.13.1+cpu", "99.0.0", None])
def test_records_of_another_torch_do_not(old):
    by_priority = chosen_with([])
    of_torch, rows = rows_of(backend_version=lambda row: old if row["backend"] == "torch" else None, torch_version=old)
    assert by_priority != of_torch
    assert chosen_with(rows) == by_priority


def test_older_records_have_the_version_of_torch_in_its_own_column():
    of_torch, rows = rows_of(backend_version=None)
    assert chosen_with(rows) == of_torch


def test_cold_times_decide_where_there_are_warm_ones_too():
    of_torch, cold = rows_of(cache_state="cold")
    _, warm = rows_of(median_us=lambda row: 300.0 - row["median_us"])
    assert chosen_with(warm) != of_torch
    for rows in (cold + warm, warm + cold):
        assert chosen_with(rows) == of_torch


def test_the_protocol_of_measuring_is_the_library_s():
    header = (ROOT / "src/perfdb/record.h").read_text()
    assert f"kProtocol = {records.PROTOCOL};" in header
