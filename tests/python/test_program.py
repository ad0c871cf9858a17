"""Programs from Python: what they compute, under which policy, and what they refuse."""

import gc
import logging
import threading

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import layerzero as lz  # noqa: E402
from layerzero.program import ProgramBuilder, Rows  # noqa: E402

WIDTH = 32


def normal(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def norm_program(dtype=torch.float32, weight=None):
    """y = rms_norm(x + x) * 1, with a value between."""
    name = str(dtype).removeprefix("torch.")
    make = ProgramBuilder()
    x = make.input()
    twice, y = make.rows(WIDTH, name), make.output(WIDTH, name)
    make.add("elementwise", [Rows(twice, (WIDTH,))], input=x, other=x, function="add")
    make.add("rms_norm", [Rows(y, (WIDTH,))], input=Rows(twice, (WIDTH,)), weight=make.weight(weight), eps=1e-6)
    return make.build()


def norm_of(x, weight=None):
    return torch.nn.functional.rms_norm(x + x, (WIDTH,), weight, 1e-6)


def attention_program(heads=2, head_dim=16):
    make = ProgramBuilder()
    q, k, v = (make.input() for _ in range(3))
    keys, values = make.cache("float32"), make.cache("float32")
    y = make.output(heads * head_dim, "float32")
    axes = (heads, head_dim)
    for source, into in ((k, keys), (v, values)):
        make.add("cast", [Rows(into, axes)], input=source, dtype="float32")
    past = {"key": Rows(keys, axes, past=True), "value": Rows(values, axes, past=True)}
    make.add("attention", [Rows(y, axes)], query=q, causal=True, **past)
    return make.build()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 5), (3, 1), (0, 4), (2, 0)])
def test_runs_at_every_size(dtype, sizes):
    weight = normal(WIDTH, dtype=dtype, seed=2)
    program = norm_program(dtype, weight)
    assert program.operations == ["elementwise", "rms_norm"]
    for seed in (3, 4):
        x = normal(*sizes, WIDTH, dtype=dtype, seed=seed)
        y = torch.empty_like(x)
        program.run((x,), (y,))
        torch.testing.assert_close(y, norm_of(x, weight))


def test_inputs_may_be_strided_and_of_any_position():
    program = norm_program()
    for x in (
        normal(3, 2, WIDTH).transpose(0, 1),
        normal(2, 3, 2 * WIDTH)[..., ::2],
        normal(2, 3, 1).expand(2, 3, WIDTH),
    ):
        y = torch.empty(2, 3, WIDTH)
        program.run((x,), (y,))
        torch.testing.assert_close(y, norm_of(x))


def test_caches_of_any_strides_grow_piece_by_piece():
    program = attention_program()
    q, k, v = (normal(2, 7, 2, 16, seed=seed) for seed in (1, 2, 3))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True
    ).transpose(1, 2)
    for caches in (torch.zeros(2, 2, 10, 2, 16), torch.zeros(2, 2, 2, 10, 16).transpose(2, 3)):
        past = 0
        for length in (3, 1, 3):
            rows = slice(past, past + length)
            y = torch.empty(2, length, 32)
            program.run((q[:, rows], k[:, rows], v[:, rows]), (y,), tuple(caches), past)
            torch.testing.assert_close(y.view(2, length, 2, 16), expected[:, rows])
            past += length
        torch.testing.assert_close(caches[0][:, :7], k)
        assert not caches[:, :, 7:].any()


def test_kernels_and_explain_name_what_runs():
    program, x, y = norm_program(), normal(1, 2, WIDTH), torch.zeros(1, 2, WIDTH)
    kernels = program.kernels((x,), (y,))
    assert [program.explain(step, (x,), (y,))["kernel_id"] for step in (0, 1)] == kernels
    assert kernels[1] == "hwy.norm.rms" and not y.any()
    with pytest.raises(lz.InvalidRequestError, match="less than 2, got 2"):
        program.explain(2, (x,), (y,))
    with pytest.raises(lz.InvalidRequestError, match="less than 2, got -1"):
        program.explain(-1, (x,), (y,))


def test_policy_scopes_are_honoured():
    program, x, y = norm_program(), normal(1, 2, WIDTH), torch.empty(1, 2, WIDTH)
    for _ in range(2):
        assert program.kernels((x,), (y,))[1] == "hwy.norm.rms"
        with lz.policy(locks={"norm.rms": "ref.norm.rms"}):
            assert program.kernels((x,), (y,))[1] == "ref.norm.rms"
            program.run((x,), (y,))
            torch.testing.assert_close(y, norm_of(x))
    with pytest.raises(lz.LayerZeroError, match=r"no\.such\.kernel"), lz.policy(locks={"norm.rms": "no.such.kernel"}):
        program.run((x,), (y,))


def test_kernels_in_python_run_and_may_keep_what_they_are_lent():
    program = norm_program()
    kept, shapes = [], []

    @lz.register_kernel("norm.rms", "tests.program.keeps", supported_dtypes=["float32"], priority=0)
    def keeps(input, weight, eps, weight_offset):
        kept.append(input)
        shapes.append(tuple(input.shape))
        return torch.nn.functional.rms_norm(input, (WIDTH,), weight, eps)

    with lz.policy(locks={"norm.rms": "tests.program.keeps"}):
        for seed, length in ((1, 2), (2, 40), (3, 1)):
            x, y = normal(1, length, WIDTH, seed=seed), torch.empty(1, length, WIDTH)
            program.run((x,), (y,))
            torch.testing.assert_close(y, norm_of(x))
    del program, x, y
    gc.collect()
    assert shapes == [(1, 2, WIDTH), (1, 40, WIDTH), (1, 1, WIDTH)]
    for seed, rows in zip((1, 2, 3), kept, strict=True):
        x = normal(1, rows.shape[1], WIDTH, seed=seed)
        torch.testing.assert_close(rows, x + x)


def test_a_kernel_in_python_that_raises_falls_back():
    program, x, y = norm_program(), normal(1, 2, WIDTH), torch.empty(1, 2, WIDTH)

    @lz.register_kernel("norm.rms", "tests.program.raises", supported_dtypes=["float32"], priority=100)
    def raises(input, weight, eps, weight_offset):
        raise ValueError("not today")

    assert program.kernels((x,), (y,))[1] == "tests.program.raises"
    program.run((x,), (y,))
    torch.testing.assert_close(y, norm_of(x))
    with lz.policy(locks={"norm.rms": "tests.program.raises"}), pytest.raises(lz.LayerZeroError, match="not today"):
        program.run((x,), (y,))


def test_selections_and_fallbacks_are_logged(caplog):
    program, x, y = norm_program(), normal(1, 2, WIDTH), torch.empty(1, 2, WIDTH)
    with caplog.at_level(logging.INFO, logger="layerzero"):
        program.run((x,), (y,))
        assert not caplog.messages
        with lz.policy(log_selections=True):
            for _ in range(2):
                program.run((x,), (y,))
        assert caplog.messages == ["elementwise.binary: hwy.elementwise.binary", "norm.rms: hwy.norm.rms"]
        caplog.clear()

        @lz.register_kernel("norm.rms", "tests.program.fails", supported_dtypes=["float32"], priority=100)
        def fails(input, weight, eps, weight_offset):
            raise ValueError("not today")

        for _ in range(2):
            program.run((x,), (y,))
        assert len(caplog.messages) == 1 and "tests.program.fails failed" in caplog.messages[0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (normal(1, 2, WIDTH).numpy(), "got ndarray"),
        ([[1.0]], "got list"),
        (torch.empty(1, 2, WIDTH, device="meta"), "got one on meta"),
        (torch.view_as_complex(normal(1, 2, WIDTH, 2)).conj().imag, "resolve_neg"),
        (normal(1, 2, WIDTH).to_sparse(), "torch.sparse_coo"),
        (type("Sub", (torch.Tensor,), {})(), "got Sub"),
    ],
)
def test_what_is_no_plain_tensor_is_refused_by_name(wrong, message):
    program, x, y = norm_program(), normal(1, 2, WIDTH), torch.empty(1, 2, WIDTH)
    with pytest.raises(lz.LayerZeroError, match=f"program: input 0.*{message}"):
        program.run((wrong,), (y,))
    with pytest.raises(lz.LayerZeroError, match=f"program: output 0.*{message}"):
        program.run((x,), (wrong,))
    with pytest.raises(lz.LayerZeroError, match=f"program: weight.*{message}"):
        norm_program(weight=wrong)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((), (torch.empty(1, 2, WIDTH),), "number of inputs: wanted 1, got 0"),
        ((normal(1, 2, WIDTH),), (), "output 0: wanted"),
        ((normal(1, 2, WIDTH),), (torch.empty(2, WIDTH),), "output 0: wanted"),
        ((None,), (torch.empty(1, 2, WIDTH),), "elementwise: missing argument input: wanted a tensor"),
        ((normal(1, 2, WIDTH).double(),), (torch.empty(1, 2, WIDTH),), "elementwise: output: wanted .* of float64"),
        ((normal(1, 2, WIDTH),), (torch.empty(1, 2, WIDTH).double(),), "output 0: wanted .*float32, got .*float64"),
        ((normal(1, 2, WIDTH),), (torch.empty(1, 2, WIDTH + 1),), r"got \[1, 2, 33\]"),
        ((normal(1, 3, WIDTH),), (torch.empty(1, 2, WIDTH),), "elementwise: output"),
        ((normal(1, 2, WIDTH),), (torch.empty(1, 2, 2 * WIDTH)[..., ::2],), "dense"),
        ((normal(1, 2, WIDTH),), (torch.empty(1, 1, WIDTH).expand(1, 2, WIDTH),), "dense"),
        ((torch.empty([1] * 12),), (torch.empty(1, 2, WIDTH),), "input 0: wanted a tensor of at most 8 axes.* 12"),
    ],
)
def test_tensors_that_do_not_fit_are_named(inputs, outputs, message):
    with pytest.raises(lz.InvalidRequestError, match=message):
        norm_program().run(inputs, outputs)


def test_outputs_have_memory_of_their_own():
    x = normal(1, 3, WIDTH)
    with pytest.raises(lz.InvalidRequestError, match="output 0: wanted memory of its own"):
        norm_program().run((x[:, :2],), (x[:, 1:],))


def test_lists_are_not_tuples():
    with pytest.raises(TypeError, match="must be tuple, not list"):
        norm_program().run([normal(1, 2, WIDTH)], (torch.empty(1, 2, WIDTH),))


def test_caches_must_have_room():
    program = attention_program()
    row, y = normal(1, 1, 2, 16), torch.empty(1, 1, 32)
    cache = torch.zeros(1, 4, 2, 16)
    program.run((row,) * 3, (y,), (cache, cache.clone()), 3)
    for past in (4, -1, 2**63 - 1):
        with pytest.raises(lz.InvalidRequestError, match="program: (cache 0|sizes)"):
            program.run((row,) * 3, (y,), (cache, cache.clone()), past)
    with pytest.raises(lz.InvalidRequestError, match="cache 1: wanted .* got nothing"):
        program.run((row,) * 3, (y,), (cache, None))


def test_gradients_are_refused_not_lost():
    x, y = normal(1, 2, WIDTH).requires_grad_(), torch.empty(1, 2, WIDTH)
    weight = torch.nn.Parameter(normal(WIDTH))
    for program, given in ((norm_program(), x), (norm_program(weight=weight), x.detach())):
        with pytest.raises(lz.InvalidRequestError, match="program: gradients.*no_grad"):
            program.run((given,), (y,))
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                program.run((given,), (torch.empty(1, 2, WIDTH),))


def test_modes_are_refused():
    from torch.utils.flop_counter import FlopCounterMode

    program, x, y = norm_program(), normal(1, 2, WIDTH), torch.empty(1, 2, WIDTH)
    for mode in (FlopCounterMode(display=False), torch.autocast("cpu", torch.bfloat16)):
        with mode, pytest.raises(lz.InvalidRequestError, match="program: mode"):
            program.run((x,), (y,))
    program.run((x,), (y,))


def test_autograd_hears_of_writes():
    program, x, y = norm_program(), normal(1, 2, WIDTH), torch.empty(1, 2, WIDTH)
    factor = normal(1, 2, WIDTH).requires_grad_()
    product = factor * y
    program.run((x,), (y,))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_weights_stay_what_they_were():
    weight = torch.nn.Parameter(normal(WIDTH))
    before = weight.detach().clone()
    x, y = normal(1, 2, WIDTH), torch.empty(1, 2, WIDTH)
    program = norm_program(weight=weight)
    weight.data = torch.zeros(WIDTH)
    gc.collect()
    with torch.no_grad():
        program.run((x,), (y,))
        torch.testing.assert_close(y, norm_of(x, before))
        before.add_(1)


def test_threads_run_one_program():
    program = norm_program()
    failures = []

    def work(seed):
        for length in (1, 9, 2, 30) * 10:
            x, y = normal(1, length, WIDTH, seed=seed), torch.empty(1, length, WIDTH)
            program.run((x,), (y,))
            if not torch.allclose(y, norm_of(x), atol=1e-5):
                failures.append((seed, length))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class TestBuilder:
    def refuses(self, message, **arguments):
        make = ProgramBuilder()
        x, y = make.input(), make.output(WIDTH, "float32")
        outputs = arguments.pop("outputs", [Rows(y, (WIDTH,))])
        make.add("rms_norm", outputs, **{"input": x} | arguments)
        with pytest.raises(lz.LayerZeroError, match=message):
            make.build()

    def test_unknown_arguments_are_refused(self):
        for name in ("esp", "layout", "kernel", "out", "bias"):
            self.refuses(f"program: rms_norm: .*, got {name}", **{name: 1})

    def test_scalars_are_those_of_the_operation(self):
        with pytest.raises((lz.LayerZeroError, TypeError), match="eps"):
            make = ProgramBuilder()
            make.add("rms_norm", [Rows(make.output(4, "float32"), (4,))], input=make.input(), eps="much")
            make.build()

    def test_operands_are_those_of_the_operation(self):
        self.refuses("input: wanted a value, got nothing", input=None)
        self.refuses("operands", outputs=[None, None])
        self.refuses("value 1: wanted steps that write all of an output", outputs=[])

    def test_values_are_known(self):
        for value in (7, -1, -2, 2**31, 2**32, 2**40):
            self.refuses("input: wanted", input=Rows(value, (WIDTH,)))
        self.refuses("weight: wanted one of 2 values, got 5", weight=5)

    def test_rows_lie_within_their_value(self):
        for axes, column in (((WIDTH + 1,), 0), ((WIDTH,), 1), ((-4, -8), 0), ((), 0), ((2**62, 4), 0)):
            self.refuses("output: wanted", outputs=[Rows(1, axes, column)])

    def test_unknown_operations_and_dtypes(self):
        make = ProgramBuilder()
        with pytest.raises(KeyError, match="no_such"):
            make.add("no_such", [])
        make.rows(4, "float3")
        with pytest.raises(lz.InvalidRequestError, match="name of a dtype, got float3"):
            make.build()

    def test_absent_weights_stay_absent(self):
        assert ProgramBuilder().weight(None) is None
