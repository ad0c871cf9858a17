"""Proofs that kernels are safe in CUDA graphs, without a device: what a capture records is run again at each replay.
tests/gpu/test_graph_proofs.py captures."""

import types
import warnings

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")

from layerzero import cli, graphs  # noqa: E402
from layerzero.torch import captures  # noqa: E402

X, W = torch.arange(32, dtype=torch.float32).view(4, 8) + 1, torch.linspace(1, 2, 8)
MIB = 2**20


@pytest.fixture(autouse=True)
def fresh(tmp_path):
    before = lz.policy_in_force()["keys"]["cache_dir"]["value"]
    lz.configure(cache_dir=str(tmp_path))
    lz.reset_health()
    yield
    lz.reset_health()
    lz.configure(cache_dir=before)


@pytest.fixture
def device(monkeypatch):
    """Takes the CPU for a CUDA device; counts warm-ups and captures, and has its free memory."""
    state = types.SimpleNamespace(capturing=False, captures=0, runs=0, free=100 * MIB)

    def record(run, iterations):
        for _ in range(iterations):
            run()
        state.capturing, state.captures, state.runs = True, state.captures + 1, iterations
        try:
            result = run()
        finally:
            state.capturing = False

        def replay():
            again = run()
            for own, new in zip(graphs._tensors(result), graphs._tensors(again), strict=True):
                own.copy_(new)

        return captures.Recorded(replay, result, 0)

    for name, value in (("record", record), ("wait", lambda: None), ("free_bytes", lambda: state.free)):
        monkeypatch.setattr(captures, name, value)
    monkeypatch.setattr(captures, "DEVICE", "cpu")
    return state


@pytest.fixture
def planted():
    """Registers kernels of norm.rms that are selected before all others."""
    names = []

    def plant(name, function, priority=100, **facts):
        lz.register_kernel("norm.rms", name, supported_dtypes=["float32"], priority=priority, **facts)(function)
        names.append(name)

    yield plant
    for name in names:
        lz.unregister_kernel("norm.rms", name)


def right(input, weight, eps, weight_offset=None):
    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)


def verdicts(found):
    return {proof.kernel_id: proof.verdict for proof in found}


def captured_choice():
    return lz.explain("rms_norm", X, W, capturing=True).kernel_id


def reasons_of(kernel):
    candidates = lz.explain("rms_norm", X, W, capturing=True).candidates
    return {r.code: r.message for c in candidates if c.kernel_id == kernel for r in c.reasons}


def test_verdicts_decide_in_captures(device, planted):  # proves: graph_strict_mode
    kept = []

    def stale(input, weight, eps, weight_offset=None):
        """What a kernel does that has read values on the host while it was captured."""
        if device.capturing:
            kept.append(right(input, weight, eps))
        return kept[0].clone() if kept else right(input, weight, eps)

    def waits(input, weight, eps, weight_offset=None):
        if device.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return right(input, weight, eps)

    planted("tests.good", right, 97)
    planted("tests.stale", stale, 98, is_cuda_graph_safe=True)
    planted("tests.waits", waits, 99, is_cuda_graph_safe=True)
    planted("tests.says_no", right, 100, is_cuda_graph_safe=False)
    assert captured_choice() == "tests.waits"
    assert "CUDA_GRAPH_UNSAFE" in reasons_of("tests.good")
    with lz.policy(graph_strict_mode=True):
        assert captured_choice() is None
        assert "wants a proof on this device" in reasons_of("tests.waits")["CUDA_GRAPH_UNSAFE"]

    found = {proof.kernel_id: proof for proof in lz.graphs.verify("rms_norm", X, W)}
    assert found["tests.good"].verdict == "graph_safe" and found["tests.good"].why == ""
    assert found["tests.stale"].verdict == "wrong" and "replay 2 with other values: off by" in found["tests.stale"].why
    assert found["tests.waits"].verdict == "failed_before_write" and "not permitted" in found["tests.waits"].why
    assert found["tests.says_no"] == ("norm.rms", "tests.says_no", "not_tried", "it is declared unsafe", 0)
    assert captured_choice() == "tests.good"  # a proof admits what said nothing, and the others failed theirs
    assert "replay 2 with other values" in reasons_of("tests.stale")["QUARANTINED"]
    with lz.policy(graph_strict_mode=True):
        assert captured_choice() == "tests.good"
        assert (
            lz.explain("rms_norm", X.double(), W.double(), capturing=True).kernel_id is None
        )  # another class of calls
    assert lz.which("rms_norm", X, W).kernel_id == "tests.says_no"  # outside of captures nothing has changed
    rows = {row["kernel"]: row["outcome"] for row in lz.graphs.proofs()}
    assert (rows["tests.good"], rows["tests.stale"]) == ("graph_safe", "wrong")
    again = {proof.kernel_id: proof for proof in lz.graphs.verify("rms_norm", X, W)}
    assert "`layerzero health reset`" in again["tests.stale"].why


def test_unknown_kernels_by_policy(planted):  # proves: graph.default_graph_safe
    planted("tests.good", right, 99)
    planted("tests.says_no", right, 100, is_cuda_graph_safe=False)
    assert not captured_choice().startswith("tests.")
    with lz.policy(graph={"default_graph_safe": True}):
        assert captured_choice() == "tests.good"
    assert "graph.default_graph_safe" in reasons_of("tests.good")["CUDA_GRAPH_UNSAFE"]


def test_warm_ups_come_first(device, planted):  # proves: graph.warmup_iterations
    planted("tests.good", right)
    for runs in (3, 5):
        with lz.policy(graph={"warmup_iterations": runs}):
            assert verdicts(lz.graphs.verify("rms_norm", X, W, kernel="tests.good")) == {"tests.good": "graph_safe"}
        assert device.runs == runs
    assert device.captures == 2


def test_memory_is_watched(device, planted):  # proves: graph.memory_delta_warning_mb
    def greedy(input, weight, eps, weight_offset=None):
        device.free -= MIB
        return right(input, weight, eps)

    planted("tests.greedy", greedy)
    with pytest.warns(lz.LayerZeroGraphMemoryWarning, match=r"tests.greedy: .* takes 3.0 MiB"):
        (proof,) = lz.graphs.verify("rms_norm", X, W, kernel="tests.greedy")
    assert (proof.verdict, proof.extra_bytes) == ("graph_safe", 3 * MIB)
    with warnings.catch_warnings(), lz.policy(graph={"memory_delta_warning_mb": 4}):
        warnings.simplefilter("error")
        lz.graphs.verify("rms_norm", X, W, kernel="tests.greedy")


def test_every_call_of_a_function(device):
    table, ids = torch.randn(16, 8), torch.tensor([3, 1])

    def program():
        rows = lz.embedding(ids, table)
        for _ in range(2):
            rows = lz.rms_norm(rows, W)
        return lz.attention(*[rows.view(1, 2, 2, 4)] * 3, causal=True, layout="BSHD")

    found = lz.graphs.verify(program)
    assert {proof.operation for proof in found} == {"embedding.lookup", "norm.rms", "attention.standard.prefill"}
    assert {proof.verdict for proof in found} <= {"graph_safe", "not_tried"}
    assert len({(p.operation, p.kernel_id) for p in found}) == len(found)  # equal calls once
    with lz.policy(graph_strict_mode=True):
        assert lz.explain("rms_norm", torch.randn(2, 8), W, capturing=True).kernel_id is not None


@pytest.mark.parametrize("operation", ["kv_append_paged", "sample_topk", "fused_add_rms_norm"])
def test_written_arguments_and_random_numbers(device, operation):
    torch.manual_seed(0)
    cache = torch.randn(4, 16, 2, 8)
    calls = {
        "kv_append_paged": lambda: dict(
            key=torch.randn(3, 2, 8), value=torch.randn(3, 2, 8), key_cache=cache, value_cache=cache.clone(),
            slots=torch.tensor([1, 17, 40]),
        ),
        "sample_topk": lambda: dict(logits=torch.randn(3, 64), k=8),
        "fused_add_rms_norm": lambda: dict(input=torch.randn(3, 8), residual=torch.randn(3, 8), weight=W),
    }  # fmt: skip
    before = cache.clone()
    found = verdicts(lz.graphs.verify(operation, **calls[operation]()))
    assert found and set(found.values()) <= {"graph_safe", "not_tried"} and "graph_safe" in found.values()
    assert torch.equal(cache, before)  # proofs have memory of their own


def test_what_is_no_call_to_prove(device, planted):
    with pytest.raises(lz.WrongTypeError, match="an operation or a function"):
        lz.graphs.verify(3)
    with pytest.raises(lz.InvalidRequestError, match="out"):
        lz.graphs.verify("rms_norm", X, W, out=torch.empty(4, 8))
    with pytest.raises(lz.NoKernelFoundError, match=r"tests.none"):
        lz.graphs.verify("rms_norm", X, W, kernel="tests.none")
    planted("tests.good", right)
    (proof,) = lz.graphs.verify("rms_norm", X.double(), W.double(), kernel="tests.good")
    assert proof.verdict == "not_tried"


def test_a_cpu_has_no_graphs():
    with pytest.raises(lz.InvalidRequestError, match="tensors of a CUDA device"):
        lz.graphs.verify("rms_norm", X, W)


def test_the_command(device, planted, monkeypatch, capsys):
    from layerzero.cli import bench_ops

    monkeypatch.setattr(bench_ops, "cuda_device", lambda name: "cpu")
    assert cli.run(["graphs", "verify", "--operations", "rms_norm"]) == 0
    assert "hwy.norm.rms" in capsys.readouterr().out
    assert cli.run(["graphs", "show"]) == 0
    assert "graph_safe" in capsys.readouterr().out


@pytest.fixture
def abandoned(monkeypatch):
    """torch.cuda without a device: captures whose end fails as an invalidated one's does; what was put back after it."""
    left = []

    class Graph:
        def __init__(self, graph, **options):
            self.fails = graph == "bad"

        def __enter__(self):
            return self

        def __exit__(self, *error):
            if self.fails:
                raise RuntimeError("capture was invalidated")
            left.append("a capture that works")

    stream = types.SimpleNamespace(device=torch.device("cuda", 0))
    for name, value in {
        "graph": Graph,
        "CUDAGraph": object,
        "current_stream": lambda: stream,
        "set_stream": lambda given: left.append(given),
        "synchronize": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(captures, "DEVICE", "cpu")
    return left, stream


@pytest.mark.parametrize("own", [None, ValueError("of the call")])
def test_a_capture_that_fails_puts_back_stream_and_generator(own, abandoned):
    left, stream = abandoned
    with (
        pytest.raises(type(own or RuntimeError()), match="of the call" if own else "invalidated"),
        captures.capture("bad"),
    ):
        if own:
            raise own
    assert left == [stream, "a capture that works"]


def test_a_call_that_raises_in_a_capture_that_ends_puts_back_nothing(abandoned):
    with pytest.raises(ValueError, match="of the call"), captures.capture("good"):
        raise ValueError("of the call")
    assert abandoned[0] == ["a capture that works"]
