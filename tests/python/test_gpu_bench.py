"""`layerzero bench ops --device cuda` without a GPU: what it draws, checks, times and concludes, over stand-ins for CUDA's
events and graphs, and simulated devices."""

import contextlib
import itertools
import json
import random
from pathlib import Path

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

from layerzero import _layerzero, cli  # noqa: E402
from layerzero.bench import gpu, operations, ranking  # noqa: E402
from layerzero.bench.ranking import Ranking  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.torch.references import call_reference  # noqa: E402
from layerzero.tuning import core, draw, gate, sides  # noqa: E402
from operation_cases import few, tensors_of  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = operations.cases_folder() / "cuda"
H200 = {"device_id": _layerzero.device_id("h200"), "sm_version": 90}


@pytest.fixture(autouse=True)
def no_prior():
    _layerzero.use_prior('{"schema_version": "1.0", "records": []}', "none")
    yield
    _layerzero.use_prior()


# ---- cases


def test_every_shipped_case_is_a_call_that_a_kernel_of_the_device_serves():
    for case in operations.all_cases(folder=FOLDER):
        report = lz.explain(case.operation, device="h200", **draw.described(case.operation, case.line))
        assert any(c.admissible and not c.reference for c in report.candidates), case


def unmeasured(folder=FOLDER):
    """Operations with an own kernel in docs/coverage-cuda.json that have no case."""
    own = {
        operation
        for operation, dtypes in json.loads((ROOT / "docs/coverage-cuda.json").read_text()).items()
        if any(kernel.startswith("cuda.") for rows in dtypes.values() for row in rows for kernel in row["kernels"])
    }
    named = {name for name, contract in contracts().items() if own & {form["id"] for form in contract["operations"]}}
    return named - {case.operation for case in operations.all_cases(folder=folder)}


def test_every_operation_with_an_own_kernel_has_cases(tmp_path):
    assert not unmeasured(), "add bench/ops/cuda/<operation>.cases"
    for path in FOLDER.glob("*.cases"):
        if path.stem != "alibi":
            (tmp_path / path.name).write_text(path.read_text())
    assert unmeasured(tmp_path) == {"alibi"}


def test_every_own_kernel_serves_a_shipped_case():
    own = {(name, kernel.kernel_id) for name in contracts() for kernel in lz.list_kernels(name) if is_own(kernel)}
    if not own:
        pytest.skip("this build has no own CUDA kernels")
    for case, device in itertools.product(operations.all_cases(folder=FOLDER), ("h100", "b200")):
        report = lz.explain(case.operation, device=device, **draw.described(case.operation, case.line))
        own -= {(case.operation, c.kernel_id) for c in report.candidates if c.admissible}
    assert not own, "add a case that the kernel admits"


def is_own(kernel):
    return kernel.source == "cuda"


def test_what_is_described_is_what_is_drawn():
    line = "input=bf16[3,64] weight=bf16[32,64]@transposed bias=bf16[32]~uniform(1,2)"
    drawn, described = draw.arguments_on("cpu", "linear", line), draw.described("linear", line)
    assert drawn.keys() == described.keys()
    for name, tensor in drawn.items():
        description = described[name]
        assert (str(tensor.dtype), tuple(tensor.shape), tensor.stride()) == (
            f"torch.{description.dtype}",
            description.shape,
            description.strides,
        )
    assert drawn["bias"].min() >= 1 and drawn["bias"].max() <= 2
    again = draw.arguments_on("cpu", "linear", line)
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)


def test_tables_have_steps_distinct_pages_and_one_value_for_all():
    line = (
        "q=bf16[2,4,64] paged_k_cache=bf16[8,16,2,64] paged_v_cache=bf16[8,16,2,64] kv_indptr=i32[3]~steps(0,4) "
        "kv_indices=i32[8]~distinct(0,8) kv_last_page_len=i32[2]{16}"
    )
    drawn = draw.arguments_on("cpu", "paged_decode_attention", line)
    assert drawn["kv_indptr"].tolist() == [0, 4, 8]
    assert sorted(drawn["kv_indices"].tolist()) == list(range(8))
    assert drawn["kv_last_page_len"].tolist() == [16, 16]


@pytest.mark.parametrize(
    "word", ["inptu=bf16[3,64]", "input=bf17[3,64]", "input=bf16(3,64)", "input=bf16[3,64]~zipf(1,2)"]
)
def test_a_mistake_in_a_case_is_an_error(word):
    with pytest.raises(lz.InvalidRequestError):
        draw.arguments_on("cpu", "rms_norm", f"{word} weight=bf16[64]")


# ---- measuring, with stand-ins for events and graphs


class Graph:
    def __init__(self, run, calls):
        self.run, self.calls = run, calls

    def replay(self):
        for _ in range(self.calls):
            self.run()


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("P", (), {"L2_cache_size": 4096, "total_memory": 1 << 40})()
    )
    monkeypatch.setattr(sides, "captured", Graph)
    monkeypatch.setattr(core, "SAMPLE_US", {"cpu": 20.0, "cuda": 20.0})


@pytest.fixture
def kernels(monkeypatch):
    """Adds a right and a wrong kernel of norm.rms that may run in graphs."""

    def right(input, weight, eps):
        wide = input.double()
        return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(input.dtype)

    how = {"supported_dtypes": ["float32"], "platform": "any", "is_cuda_graph_safe": True, "priority": 1}
    lz.register_kernel("norm.rms", "tests.right", **how)(right)
    lz.register_kernel("norm.rms", "tests.wrong", **how)(lambda input, weight, eps: right(input, weight, eps) * 1.1)
    yield
    lz.unregister_kernel("norm.rms", "tests.right")
    lz.unregister_kernel("norm.rms", "tests.wrong")


def case(line="input=f32[4,64] weight=f32[64]", cold=False, operation="rms_norm"):
    return operations.Case(operation, line, cold)


def test_eager_and_graph_are_rankings_of_their_own(on_cpu, kernels):
    eager, graph = gpu.measure(case(), rounds=6, device="cpu")
    assert (eager.execution, graph.execution) == ("eager", "graph")
    assert eager.samples.keys() >= {"hwy.norm.rms", "torch.rms_norm", "tests.right"}
    assert "tests.right" in graph.samples and "hwy.norm.rms" not in graph.samples  # which is not safe in graphs
    assert all(len(samples) >= 3 for samples in eager.samples.values())
    assert len(eager.again) == 6 and eager.host.keys() == eager.samples.keys() and not graph.host


def test_a_wrong_kernel_is_reported_and_never_timed(on_cpu, kernels):
    for result in gpu.measure(case(), rounds=6, device="cpu"):
        assert "off by" in result.wrong["tests.wrong"]
        assert "tests.wrong" not in result.samples


def test_cold_calls_rotate_over_twice_the_cache():
    tensors = {"a": torch.ones(64), "table": torch.ones(4, dtype=torch.int32), "b": None}
    size = 64 * 4 + 4 * 4
    real = torch.cuda.get_device_properties
    try:
        torch.cuda.get_device_properties = lambda _: type("P", (), {"L2_cache_size": 10 * size})()
        torch.cuda.current_device, device = lambda: 0, torch.cuda.current_device
        turns = sides.turns_of(tensors, True, "cuda")
    finally:
        torch.cuda.get_device_properties = real
        torch.cuda.current_device = device
    assert len(turns) == 20
    assert len({turn[0].data_ptr() for turn in turns}) == 20
    assert {turn[1].data_ptr() for turn in turns} == {tensors["table"].data_ptr()}  # kernels plan with tables
    assert sides.turns_of(tensors, False, "cuda") == (tuple(tensors.values()),)


def test_the_check_is_of_every_row_and_in_fp64():
    wanted = torch.randn(4096, 64, dtype=torch.float64)
    got = wanted.to(torch.bfloat16)
    assert gate.difference(got, wanted) < 1e-2
    got[7] *= 1.2  # a norm over all rows would not see it
    assert gate.difference(got, wanted) > 0.1
    got[7, 3] = torch.nan
    assert gate.difference(got, wanted) == float("inf")
    assert gate.difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")
    arguments = draw.arguments_on("cpu", "rms_norm", "input=bf16[4,64] weight=bf16[64]")
    assert gate.reference("rms_norm", arguments)[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "kv_append_paged",
            "key_cache=f32[4,4,2,8] value_cache=f32[4,4,2,8] key=f32[3,2,8] value=f32[3,2,8] slots=i64[3]~distinct(0,16)",
        ),
        ("quantize", "input=f32[4,64] dtype=int8 axis=0"),
        ("attention", "query=bf16[1,4,8,16] key=bf16[1,2,8,16] value=bf16[1,2,8,16] layout=BHSD"),
        ("linear_quantized", "input=bf16[2,64] weight=u8[32,32]~int(0,256) weight_scale=f32[32,2] format=int4"),
    ],
)
def test_written_tensors_and_stored_formats_are_compared(on_cpu, name, line):
    with torch.no_grad():
        arguments = draw.arguments_on("cpu", name, line)
        wanted = gate.reference(name, arguments)
        kernels = [c.kernel_id for c in lz.explain(name, **arguments).candidates if c.admissible and not c.reference]
        for kernel in kernels:
            run = lambda given, k=kernel: getattr(lz, name)(**given, kernel=k)  # noqa: E731
            results = gate.results_of(name, arguments, run)
            assert gate.check(name, results, wanted, results[0].dtype) == "", kernel
            results[0].view(torch.uint8).flatten()[::3].fill_(77)
            assert gate.check(name, results, wanted, results[0].dtype) != "", kernel


def test_routing_is_a_call_of_a_kernel_that_does_nothing():
    grouped = "query=bf16[1,4,8,16] key=bf16[1,2,8,16] value=bf16[1,2,8,16] layout=BHSD"
    for one in (case(), case(grouped, operation="attention")):
        assert gpu.routing(one, "cpu", loops=3) > 0
    assert "bench.passthrough" not in {k.kernel_id for k in lz.list_kernels("rms_norm")}


@pytest.mark.parametrize("operation", sorted({one.operation for one in operations.all_cases(folder=FOLDER)}))
def test_every_measured_operation_has_a_routing_cost(operation):
    """The first conformance case that the operation serves, which is small."""
    line = next(line for line, given in few(operation) if all(t.numel() for t in tensors_of(given).values()))
    assert gpu.routing(case(line, operation=operation), "cpu", loops=2) > 0


# ---- what follows, on a simulated device

LINE = "input=bf16[4,4096] weight=bf16[4096]"
ABOUT = {
    "operation": "norm.rms",
    "dtype": "bfloat16",
    "axes": {"...": 4, "hidden": 4096},
    "options": {"weight": "given"},
}


def made_up(us, execution="eager", line=LINE, rows=4, by_part=None):
    """`us`: by kernel; `by_part`: factors by kernel and part of the rounds."""
    draws = random.Random(3)
    factors = by_part or {}
    samples = {
        kernel: {n: t * factors.get((kernel, n % 3), 1) * draws.uniform(0.999, 1.001) for n in range(12)}
        for kernel, t in us.items()
    }
    about = {**ABOUT, "axes": {"...": rows, "hidden": 4096}, "bytes": 1}
    first = next(iter(samples))
    return Ranking("rms_norm", line, execution, about=about, samples=samples, again=dict(samples[first]))


def test_records_of_a_mode_decide_in_that_mode_alone():
    eager = made_up({"cuda.norm.rms": 9.0, "flashinfer.rmsnorm": 2.0, "torch.rms_norm": 20.0})
    graph = made_up({"cuda.norm.rms": 2.0, "flashinfer.rmsnorm": 9.0, "torch.rms_norm": 20.0}, "graph")
    ranking.use(ranking.records([eager], **H200))
    assert ranking.choice(eager, "h200") == "flashinfer.rmsnorm"
    assert ranking.choice(graph, "h200") == "cuda.norm.rms"  # by priority
    ranking.use(ranking.records([eager, graph], **H200))
    assert (ranking.choice(eager, "h200"), ranking.choice(graph, "h200")) == ("flashinfer.rmsnorm", "cuda.norm.rms")
    fast = made_up({"cuda.norm.rms": 9.0, "flashinfer.rmsnorm": 2.0, "torch.rms_norm": 20.0}, "graph")
    ranking.use(ranking.records([fast], **H200))
    assert ranking.choice(eager, "h200") == "cuda.norm.rms"
    call = draw.described("rms_norm", LINE)
    assert lz.explain("rms_norm", device="h200", capturing=True, **call).kernel_id == "flashinfer.rmsnorm"
    assert lz.explain("rms_norm", device="h200", **call).kernel_id == "cuda.norm.rms"


def test_records_of_another_gpu_of_the_generation_are_a_term():
    rows = ranking.records([made_up({"cuda.norm.rms": 9.0, "flashinfer.rmsnorm": 2.0, "torch.rms_norm": 20.0})], **H200)
    ranking.use(rows)
    report = lz.explain("rms_norm", device="h100", **draw.described("rms_norm", LINE))
    terms = {c.kernel_id: {t.name: t.value for t in c.terms} for c in report.candidates if c.admissible}
    assert terms["cuda.norm.rms"]["measured"] == pytest.approx(-15)  # half of what it is on the device itself
    assert report.kernel_id == "cuda.norm.rms"
    other = lz.explain("rms_norm", device="a100", **draw.described("rms_norm", LINE))
    assert all(t.name != "measured" for c in other.candidates for t in c.terms)


def test_a_call_whose_records_choose_something_slower_keeps_to_its_default():
    shaky = made_up(  # faster by the first part of the rounds alone
        {"cuda.norm.rms": 5.0, "flashinfer.rmsnorm": 5.0, "torch.rms_norm": 20.0},
        by_part={("flashinfer.rmsnorm", 0): 0.5, ("flashinfer.rmsnorm", 1): 1.5},
    )
    sure = made_up(
        {"cuda.norm.rms": 9.0, "flashinfer.rmsnorm": 2.0, "torch.rms_norm": 20.0},
        line="input=bf16[4096,4096] weight=bf16[4096]",
        rows=4096,
    )
    ranking.judge([shaky, sure], "h200", **H200)
    assert (shaky.has_entry, sure.has_entry) == (False, True)
    kept = ranking.records([shaky, sure], **H200)
    assert {(r["kernel_id"], r["axes"]["..."]) for r in kept} == {
        ("cuda.norm.rms", 4),
        ("cuda.norm.rms", 4096),
        ("flashinfer.rmsnorm", 4096),
        ("torch.rms_norm", 4096),
    }
    assert (shaky.chosen, sure.chosen) == ("cuda.norm.rms", "flashinfer.rmsnorm")
    assert ranking.row(shaky)["has_entry"] is False
    assert [k["kernel_id"] for k in ranking.row(sure)["kernels"]] == [
        "flashinfer.rmsnorm",
        "cuda.norm.rms",
        "torch.rms_norm",
    ]


@pytest.mark.parametrize("kernel", ["triton.rms_norm", "liger.rms_norm", "quack.rms_norm", "flashinfer.rmsnorm"])
def test_what_compiles_at_its_first_call_has_records(kernel):
    """A capture gets no such kernel before it is compiled, whatever the records say (tests/python/jit/test_first_calls.py)."""
    found = made_up({"cuda.norm.rms": 9.0, kernel: 2.0, "torch.rms_norm": 20.0})
    ranking.judge([found], "h200", **H200)
    assert {row["kernel_id"] for row in ranking.records([found], **H200)} == set(found.samples)
    assert ranking.row(found)["has_entry"]


def test_regret_is_by_mode_and_taken_on_rounds_that_did_not_choose():
    slow_by_priority = made_up({"cuda.norm.rms": 4.0, "flashinfer.rmsnorm": 2.0, "torch.rms_norm": 20.0})
    right_by_priority = made_up({"cuda.norm.rms": 2.0, "flashinfer.rmsnorm": 4.0, "torch.rms_norm": 20.0}, "graph")
    regret = ranking.judge([slow_by_priority, right_by_priority], "h200", **H200)
    assert regret["eager"]["priorities"]["mean"] == pytest.approx(2, rel=0.01)
    assert regret["eager"]["measured"]["mean"] == 1
    assert regret["graph"]["priorities"]["mean"] == regret["graph"]["measured"]["mean"] == 1
    assert regret["eager"]["priorities"]["worst"].startswith("rms_norm input=bf16[4,4096]")
    # The best by the first two parts is twice as slow on the third: the choice is judged there.
    late = made_up({"a": 1.0, "b": 2.0}, by_part={("a", 2): 4.0})
    assert late.regret("a") == 1.0 and late.regret("b") == 1.0


def test_an_interval_holds_the_median():
    result = made_up({"a": 5.0, "b": 6.0})
    low, high = result.interval("a")
    assert low < result.us("a") < high


def test_what_was_measured_elsewhere_stays_in_the_file(tmp_path):
    path = tmp_path / "prior.records.json"
    gpu_rows = ranking.records(
        [made_up({"cuda.norm.rms": 9.0, "flashinfer.rmsnorm": 2.0, "torch.rms_norm": 20.0})], **H200
    )
    cpu_rows = [{**row, "device_id": _layerzero.device_id("cpu"), "sm_version": 0} for row in gpu_rows]
    operations.write_prior(cpu_rows, path)
    operations.write_prior(gpu_rows, path)
    operations.write_prior(gpu_rows, path)
    devices = [row["device_id"] for row in json.loads(path.read_text())["records"]]
    assert sorted(devices) == sorted([_layerzero.device_id("cpu")] * 3 + [H200["device_id"]] * 3)


def test_the_command_says_that_there_is_no_gpu(capfd):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert cli.run(["bench", "ops", "--device", "cuda"]) == 2
    assert "no CUDA device" in capfd.readouterr().err
    assert cli.run(["bench", "ops", "--device", "tpu"]) == 2


def test_the_report_is_printed(on_cpu, capfd, monkeypatch):
    from layerzero.cli import bench_ops

    made = [
        made_up({"cuda.norm.rms": 9.0, "flashinfer.rmsnorm": 2.0, "torch.rms_norm": 20.0}),
        made_up({"cuda.norm.rms": 2.0}, "graph"),
    ]
    made[0].wrong["tests.wrong"] = "off by 0.1"
    regret = ranking.judge(made, "h200", **H200)
    report = {"device_id": "a", "regret": regret, "passthrough_us": {"rms_norm": 3.2, "x": None}, "failed": {"x": "y"}}
    bench_ops._print_rankings(report | {"calls": [ranking.row(r) for r in made]})
    out = capfd.readouterr().out
    assert (
        "flashinfer.rmsnorm" in out
        and "WRONG, not timed: tests.wrong" in out
        and "routing alone, us: rms_norm 3.2" in out
    )
    assert "regret, eager, priorities" in out and "regret, graph" not in out


def test_a_report_follows_its_schema(on_cpu, kernels, monkeypatch):
    jsonschema = pytest.importorskip("jsonschema")
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (0, 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    small = [case(), case("input=f32[64,64] weight=f32[64]", cold=True), case("inptu=f32[3,5]")]
    report, found = gpu.run(small, rounds=6, device="cpu")
    schema = json.loads((ROOT / "schemas/cli/bench_ops.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(report)), schema)
    assert list(report["failed"]) == ["rms_norm inptu=f32[3,5]"]
    assert report["passthrough_us"]["rms_norm"] > 0
    assert len(found) == len(report["calls"]) == 4
    assert [c["cold"] for c in report["calls"]] == [False, False, True, True]
    ended, _ = gpu.run(small, rounds=6, seconds=-1.0, device="cpu")
    assert ended["out_of_time"] == 3 and ended["calls"] == []


def test_references_of_the_bench_are_the_operation_s():
    arguments = draw.arguments_on("cpu", "rms_norm", "input=f32[4,64] weight=f32[64]")
    wide = {k: v.double() for k, v in arguments.items()}
    assert torch.equal(gate.reference("rms_norm", arguments)[0], call_reference("rms_norm", wide))
