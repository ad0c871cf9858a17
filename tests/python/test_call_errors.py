"""What a wrong call says: short, the nearest name, the argument that is missing, numbers as they were given."""

import ast
import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.contracts.arguments import names_of  # noqa: E402

X, W = torch.ones(4, 8), torch.ones(8)
Q = torch.ones(1, 4, 2, 8)
every_operation = pytest.mark.parametrize("name", sorted(contracts()))


def message(call, kind=TypeError):
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, lz.InvalidRequestError) and caught.value.field and caught.value.wanted
    return str(caught.value)


@every_operation
def test_no_mistake_prints_the_docstring(name):
    function = getattr(lz, name)
    names = names_of(name)
    texts = [
        message(lambda: function(**{f"{names[0]}s_": X})),
        message(lambda: function(*[X] * 40)),
        message(lambda: function()),
    ]
    if not contracts()[name]["params"][0]["keyword_only"]:
        texts.append(message(lambda: function(X, **{names[0]: X})))
    for text in texts:
        assert text.startswith(f"{name}: ") and "--" not in text and len(text) < 900
        assert function.__doc__[:60] not in text
    assert names[0] in texts[0] and texts[2].startswith(f"{name}: missing argument {names[0]}: wanted ")


@every_operation
def test_the_nearest_argument_is_named(name):
    for argument in names_of(name):
        if len(argument) > 4:
            wrong = argument[:-2] + argument[-1]
            if wrong not in names_of(name):
                text = message(lambda: getattr(lz, name)(**{wrong: 1}))  # noqa: B023
                assert "did you mean" in text, (wrong, text)


@pytest.mark.parametrize(
    ("call", "means"),
    [
        (lambda: lz.attention(Q, Q, Q, is_causal=True), "did you mean causal?"),
        (lambda: lz.attention(q=Q, k=Q, v=Q), "did you mean query?"),
        (lambda: lz.attention(Q, Q, Q, enable_gqa=True), "leave it out"),
        (lambda: lz.rms_norm(X, W, epsilon=1e-6), "did you mean eps?"),
        (lambda: lz.softmax(X, dim=-1), "last axis"),
        (lambda: lz.layer_norm(X, 8, gamma=W), "did you mean weight?"),
        (lambda: lz.rope(X, X, X, positions=X), "did you mean position_ids?"),
        (lambda: lz.rope(X, X, X, is_neox=True), "interleaved=False is NeoX's form"),
    ],
)
def test_torchs_names_are_known(call, means):
    assert means in message(call)


def test_positional_calls_say_what_goes_by_name():
    text = message(lambda: lz.attention(Q, Q, Q, None, 0.0, True))
    assert re.search(r"at most 3 positional .query, key, value., got 6; pass by name: .*causal", text)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: lz.attention(Q, Q),
            "attention: missing argument value: wanted a tensor [b, s_kv, h_kv, d_v], got nothing",
        ),
        (lambda: lz.rope(Q), "rope: missing argument cos: wanted a tensor of any shape, got nothing"),
        (lambda: lz.layer_norm(X), "layer_norm: missing argument normalized_shape: wanted an integer, got nothing"),
        (lambda: lz.rms_norm(), "rms_norm: missing argument input: wanted a tensor [..., hidden], got nothing"),
    ],
)
def test_a_missing_argument_is_named(call, text):
    assert message(call) == text


def test_arrays_and_other_ways_say_the_same():
    np = pytest.importorskip("numpy")
    array = np.ones((1, 4, 2, 8), np.float32)
    assert message(lambda: lz.attention(array, array)) == message(lambda: lz.attention(Q, Q))
    for question in (lz.which, lz.explain, lz.prepare):
        assert message(lambda: question("attention", Q, Q)) == message(lambda: lz.attention(Q, Q))  # noqa: B023
        assert message(lambda: question("attention", Q, Q, Q, is_causal=True)) == message(  # noqa: B023
            lambda: lz.attention(Q, Q, Q, is_causal=True)
        )


@pytest.mark.parametrize("value", [2.0, 0.25, 1e-30, 1e30, -3.5])
def test_numbers_are_as_they_were_given(value):
    with pytest.raises(lz.InvalidRequestError) as caught:
        lz.attention(Q, Q, Q, softcap=-abs(value))
    assert float(caught.value.got) == -abs(value) and not caught.value.got.endswith("00")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("rmsnorm", "rms_norm"), ("rms_nrm", "rms_norm"), ("norm.rm", "norm.rms"), ("atention", "attention")],
)
def test_the_nearest_operation_is_named(wrong, right):
    for question in (lz.which, lz.explain, lz.prepare, lz.run):
        with pytest.raises(lz.UnknownNameError, match=f"did you mean {right}[?]"):
            question(wrong, X, W)
    with pytest.raises(lz.UnknownNameError, match=f"did you mean {right}[?]"):
        lz.list_kernels(wrong)


@pytest.mark.parametrize("wrong", ["hwy.rms", "hwy.norm.rm", "hwy.nrm.rms"])
def test_the_nearest_kernel_is_named(wrong):
    with pytest.raises(lz.NoKernelFoundError, match="did you mean hwy.norm.rms"):
        lz.rms_norm(X, W, kernel=wrong)
    with pytest.raises(lz.UnknownNameError, match="did you mean hwy.norm.rms"):
        lz.validate(wrong, X, W)


def test_the_grouped_call_of_a_kernel_without_groups_says_so():
    q, k = torch.ones(1, 4, 4, 8), torch.ones(1, 4, 2, 8)
    own = {
        k.kernel_id
        for k in lz.list_kernels("attention")
        if "attention.standard.prefill" in k.operations and "attention.gqa.prefill" not in k.operations
    }
    for kernel in own:
        ok, reasons = lz.validate(kernel, q, k, k, operation="attention")
        assert not ok and "GQA_UNSUPPORTED" in {r.code for r in reasons}, kernel
    assert own


# ---- questions take what the function takes


CACHE = (torch.ones(2, 1, 4, 8), torch.ones(3, 4, 4, 8), torch.ones(3, 4, 4, 8))
TABLES = (torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32))


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_attention_paged_takes_the_arguments_of_both_forms():
    want = lz.which("paged_attention", *CACHE, *TABLES)
    for question in (lz.which, lz.explain):
        assert question("attention.paged", *CACHE, *TABLES).kernel_id == want.kernel_id
        named = dict(
            zip(("query", "key_cache", "value_cache", "block_tables", "context_lens"), (*CACHE, *TABLES), strict=True)
        )
        assert question("attention.paged", **named).kernel_id == want.kernel_id
    assert lz.validate(want.kernel_id, *CACHE, *TABLES, operation="attention.paged") == (True, [])
    assert torch.equal(lz.run("attention.paged", *CACHE, *TABLES), lz.paged_attention(*CACHE, *TABLES))


def test_which_takes_a_simulated_device():
    assert lz.which("rms_norm", X, W, device="h100").kernel_id == lz.explain("rms_norm", X, W, device="h100").kernel_id


# ---- kernels that fail


@pytest.fixture
def failing():
    @lz.register_kernel("norm.rms", "tests.failing", supported_dtypes=["float32"], accepts=["weight"], priority=100)
    def kernel(input, weight, eps, weight_offset):
        raise ZeroDivisionError("no such thing")

    yield
    lz.unregister_kernel("norm.rms", "tests.failing")


def test_a_failing_kernel_without_a_fallback_is_our_error_with_the_cause(failing):
    with lz.policy(fallback_enabled=False, prefer_sources=["tests"]):
        assert lz.which("rms_norm", X, W).kernel_id == "tests.failing"
        with pytest.raises(lz.KernelExecutionError, match="tests.failing.*no such thing") as caught:
            lz.rms_norm(X, W)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(lz.KernelExecutionError, match="no such thing"):
            torch.ops.layerzero.rms_norm(X, W)
    with pytest.raises(lz.KernelExecutionError) as caught:
        lz.rms_norm(X, W, kernel="tests.failing")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_no_kernel_without_a_fallback_is_our_error_too():
    with lz.policy(fallback_enabled=False, rules=[{"deny": ["*.*"]}]), pytest.raises(lz.NoKernelFoundError):
        lz.rms_norm(X, W)


@pytest.mark.parametrize("error", [lz.UntrustedFileError, lz.NotInstalledError, lz.KernelRefusedError])
def test_a_kernel_that_may_not_run_is_replaced_or_its_error_keeps_its_type(error):
    @lz.register_kernel("norm.rms", "tests.refused", supported_dtypes=["float32"], accepts=["weight"], priority=100)
    def kernel(input, weight, eps, weight_offset):
        raise error("kernel.so", "a signature", "none", "sign it")

    try:
        assert lz.which("rms_norm", X, W).kernel_id == "tests.refused"
        torch.testing.assert_close(lz.rms_norm(X, W), torch.nn.functional.rms_norm(X, (8,), W, 1e-6))
        lz.reset_health("tests.refused")
        with pytest.raises(error, match="kernel.so: wanted a signature, got none; sign it"):
            lz.rms_norm(X, W, kernel="tests.refused")
    finally:
        lz.unregister_kernel("norm.rms", "tests.refused")


def test_each_error_has_the_number_of_its_status():
    """include/layerzero/c_abi.h names each number that an exception's class has."""
    header = (Path(__file__).resolve().parents[2] / "include/layerzero/c_abi.h").read_text()
    status = {int(number): name for name, number in re.findall(r"^  LZ_(\w+) = (\d+)", header, re.MULTILINE)}
    assert list(status) == list(range(len(status)))
    names = {one.code: one.__name__ for one in vars(lz).values() if isinstance(one, type) and vars(one).get("code")}
    words = {"CONTEXT_LOST": "ContextLostError", "CONFIG": "ConfigError", "CACHE_FULL": "KVCacheFullError"}
    words |= {"UNTRUSTED_FILE": "UntrustedFileError", "OUT_OF_MEMORY": "OutOfMemoryError"}
    assert (
        set(names) <= set(status)
        and {status[code]: name for code, name in names.items() if status[code] in words} == words
    )


# ---- prepared calls


def test_a_prepared_call_says_what_it_runs():
    prepared = lz.prepare("rms_norm", X, W)
    assert prepared.operation == "rms_norm"
    assert prepared.kernel_id == lz.which("rms_norm", X, W).kernel_id
    assert prepared.explain().kernel_id == prepared.kernel_id
    assert repr(prepared) == str(prepared) == f'<layerzero.prepare("rms_norm"): {prepared.kernel_id}>'
    for call in (lambda: prepared(X, W), lambda: prepared(*[X, W])):
        assert torch.equal(call(), lz.rms_norm(X, W))
    import functools

    assert torch.equal(functools.partial(prepared, X)(W), lz.rms_norm(X, W))
    with pytest.raises(TypeError, match="by position"):
        prepared(X, weight=W)
    with pytest.raises(TypeError):
        prepared(X, W, X)


def test_many_prepared_calls_are_freed():
    import sys

    before = sys.getrefcount(_layerzero.ops["rms_norm"])
    kind = type(lz.prepare("rms_norm", X, W))
    references = sys.getrefcount(kind)
    for _ in range(100):
        lz.prepare("rms_norm", X, W)(X, W)
    assert abs(sys.getrefcount(kind) - references) <= 1
    assert abs(sys.getrefcount(_layerzero.ops["rms_norm"]) - before) <= 1


# ---- errors as values


def test_errors_are_made_of_parts_and_survive_pickling():
    error = lz.InvalidRequestError("op: x", "a number", "'y'", "leave it out")
    assert str(error) == "op: x: wanted a number, got 'y'; leave it out"
    for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (one.field, one.wanted, one.got, one.fix) == ("op: x", "a number", "'y'", "leave it out")
        assert type(one) is lz.InvalidRequestError and str(one) == str(error)
    plain = lz.KernelRefusedError("no memory left")
    assert str(plain) == "no memory left" and (plain.field, plain.wanted, plain.got, plain.fix) == ("",) * 4


def without_parts(text):
    """Lines that raise an error of LayerZero's without field, wanted and got."""
    kinds = {name for name in lz.__all__ if inspect.isclass(getattr(lz, name)) and name.endswith("Error")}
    kinds -= {
        "NoKernelFoundError",
        "VersionMismatchError",
        "KernelRefusedError",
    }  # with other parts, or a library's text
    for node in ast.walk(ast.parse(text)):
        call = node.exc if isinstance(node, ast.Raise) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in kinds
            and len(call.args) < 3
        ):
            yield node.lineno


def test_python_code_raises_errors_with_their_parts():
    root = Path(__file__).resolve().parents[2] / "python/layerzero"
    files = list(root.rglob("*.py"))
    assert len(files) > 150
    assert [(p.name, line) for p in files for line in without_parts(p.read_text())] == []
    assert list(without_parts("raise ConfigError('x: wanted 1, got 2')")) == [1]
