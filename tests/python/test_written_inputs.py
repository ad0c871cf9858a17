"""Operations that write their inputs: no other kernel answers over what a failed one may have written.

Every operation whose contract mutates, by every way in: the function, torch.ops, a prepared call, a program.
"""

import json

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.program import ProgramBuilder, Rows  # noqa: E402
from operation_cases import arguments_of  # noqa: E402

CASES = {
    "causal_conv1d": "input=f32[2,5,6] weight=f32[6,4] state=f32[2,6,4]",
    "gated_delta_rule": "query=f32[1,3,2,4] key=f32[1,3,2,4] value=f32[1,3,2,4] g=f32[1,3,2] beta=f32[1,3,2] "
    "state=f32[1,2,4,4]",
    "kv_append_paged": "key_cache=f32[4,8,2,16] value_cache=f32[4,8,2,16] key=f32[5,2,16] value=f32[5,2,16] "
    "slots=i64[5]{0,1,9,31,16}",
    "kv_rope_append_paged": "query=f32[2,2,16] key=f32[2,2,16] value=f32[2,2,16] cos=f32[2,16] sin=f32[2,16] "
    "key_cache=f32[4,8,2,16] value_cache=f32[4,8,2,16] slots=i64[2]{0,9}",
    "kv_compact": "key_cache=f32[4,2,1,4] value_cache=f32[4,2,1,4] moves=i64[2,2]{0,3,1,2}",
    "kv_block_table_update": "block_tables=i32[2,3] updates=i64[2,3]{0,1,7,1,2,5}",
}
MUTATING = {name for name, c in contracts().items() if any(p.get("mutated") for p in c["params"])}


def operation_id(name):
    return contracts()[name]["operations"][0]["id"]


def mutated(name):
    return [p["name"] for p in contracts()[name]["params"] if p.get("mutated")]


def tensors_of(name, arguments):
    return [
        arguments[p["name"]] for p in contracts()[name]["params"] if p["kind"] == "tensor" and p["name"] in arguments
    ]


def test_every_operation_that_mutates_has_a_case():
    assert set(CASES) == MUTATING


# ---- the ways in: each calls `name` on `arguments` and gives its outputs


def by_function(name, arguments):
    return getattr(lz, name)(**arguments)


def by_torch_ops(name, arguments):
    return getattr(torch.ops.layerzero, name)(**arguments)


def by_prepared(name, arguments):
    copies = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    return lz.prepare(name, **copies)(*tensors_of(name, arguments))


def by_program(name, arguments):
    make = ProgramBuilder()
    tensors = {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor)}
    rest = {k: v for k, v in arguments.items() if k not in tensors and k != "layout"}
    values = {k: make.input() for k in tensors}
    wide = contracts()[name]["outputs"]
    if wide:  # (batch, length, ...) of floats
        first = arguments.get("value", arguments.get("input"))
        axes = tuple(first.shape[2:])
        y = make.output(first[0, 0].numel(), "float32")
        make.add(name, [Rows(y, axes)], **values, **rest)
        out = torch.zeros(*first.shape[:2], first[0, 0].numel())
        make.build().run(tuple(tensors.values()), (out,))
        return out.view(first.shape)
    x, y = make.input(), make.output(4, "float32")
    make.add(name, [], **values, **rest)
    make.add("cast", [Rows(y, (4,))], input=x, dtype="float32")
    make.build().run((*tensors.values(), torch.zeros(1, 1, 4)), (torch.zeros(1, 1, 4),))
    return None


WAYS = {"function": by_function, "torch_ops": by_torch_ops, "prepared": by_prepared, "program": by_program}


# ---- planted kernels


@pytest.fixture
def planted(request):
    """plant(name, failure, writes): a kernel of the highest priority that writes the first element, or not, and raises."""
    made = []

    def plant(name, failure, writes):
        contract, op = contracts()[name], operation_id(name)
        first = next(p["name"] for p in contract["params"] if p["kind"] == "tensor")
        dtype = str(arguments_of(name, CASES[name])[first].dtype).removeprefix("torch.")

        def kernel(**given):
            if writes:
                given[mutated(name)[0]].view(-1)[0] = 77
            raise failure

        kernel_id = f"tests.written.{name}"
        lz.register_kernel(op, kernel_id, supported_dtypes=[dtype], priority=100)(kernel)
        made.append((op, kernel_id))
        return kernel_id

    yield plant
    for op, kernel_id in made:
        lz.unregister_kernel(op, kernel_id)


def fallbacks():
    return json.loads(lz._layerzero.stats())["fallbacks"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_kernel_that_wrote_and_raised_is_an_error(name, way, planted):
    arguments = arguments_of(name, CASES[name])
    before, kept = fallbacks(), {n: arguments[n].clone() for n in mutated(name)}
    kernel_id = planted(name, RuntimeError("halfway"), writes=True)
    assert lz.which(name, **arguments)["kernel_id"] == kernel_id
    with pytest.raises(RuntimeError, match=f"{mutated(name)[0]}.* may have been written") as caught:
        WAYS[way](name, arguments)
    assert kernel_id in str(caught.value) and "halfway" in str(caught.value)
    if way != "torch_ops":  # the dispatcher has one type of exception
        assert isinstance(caught.value, lz.KernelExecutionError)
    assert fallbacks() == before
    for n, was in kept.items():  # nothing ran over it: what the kernel left is there
        changed = arguments[n].view(-1) != was.view(-1)
        assert changed.nonzero().view(-1).tolist() == ([0] if n == mutated(name)[0] else [])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_kernel_that_does_not_say_that_it_wrote_nothing_is_an_error(name, way, planted):
    arguments, before = arguments_of(name, CASES[name]), fallbacks()
    planted(name, ValueError("not today"), writes=False)
    with pytest.raises(RuntimeError, match="may have been written"):
        WAYS[way](name, arguments)
    assert fallbacks() == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_kernel_that_refuses_before_it_writes_is_answered_for(name, way, planted):
    arguments, right = arguments_of(name, CASES[name]), arguments_of(name, CASES[name])
    wanted = by_function(name, right)
    planted(name, lz.KernelRefusedError("not this call"), writes=False)
    before = fallbacks()
    got = WAYS[way](name, arguments)
    assert fallbacks() == before + 1
    for n in mutated(name):
        torch.testing.assert_close(arguments[n], right[n])
    if wanted is not None:
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", [lz.InvalidRequestError("the caller's fault"), KeyboardInterrupt()], ids=repr)
def test_what_is_no_failure_of_the_kernel_stays_what_it_is(way, failure, planted):
    if isinstance(failure, KeyboardInterrupt) and way in ("torch_ops", "program"):
        pytest.skip("interrupts reach C++ as failures there")
    planted("causal_conv1d", failure, writes=False)
    with pytest.raises((type(failure), RuntimeError)) as caught:
        WAYS[way]("causal_conv1d", arguments_of("causal_conv1d", CASES["causal_conv1d"]))
    assert "may have been written" not in str(caught.value)
    assert way == "torch_ops" or type(caught.value) is type(failure)


def test_a_locked_kernel_says_so_too(planted):
    kernel_id = planted("causal_conv1d", RuntimeError("halfway"), writes=True)
    arguments = arguments_of("causal_conv1d", CASES["causal_conv1d"])
    with pytest.raises(lz.KernelExecutionError, match="state may have been written") as caught:
        lz.causal_conv1d(**arguments, kernel=kernel_id)
    assert isinstance(caught.value.__cause__, RuntimeError) and str(caught.value.__cause__) == "halfway"


def test_a_locked_kernel_that_refuses_raises_the_refusal(planted):
    kernel_id = planted("causal_conv1d", lz.KernelRefusedError("not this call"), writes=False)
    arguments = arguments_of("causal_conv1d", CASES["causal_conv1d"])
    with pytest.raises(lz.KernelRefusedError, match="not this call"):
        lz.causal_conv1d(**arguments, kernel=kernel_id)


@pytest.mark.parametrize("way", ["function", "torch_ops", "prepared", "program"])
def test_a_wrong_result_after_a_write_is_an_error(way, planted):
    name = "causal_conv1d"
    arguments, before = arguments_of(name, CASES[name]), fallbacks()

    def kernel(**given):
        given["state"].zero_()
        return given["input"][:1]

    lz.register_kernel(operation_id(name), "tests.written.wrong", supported_dtypes=["float32"], priority=100)(kernel)
    try:
        with pytest.raises(RuntimeError, match="state may have been written"):
            WAYS[way](name, arguments)
    finally:
        lz.unregister_kernel(operation_id(name), "tests.written.wrong")
    assert fallbacks() == before


@pytest.mark.parametrize("way", ["function", "torch_ops", "prepared"])
def test_operations_that_write_outputs_alone_fall_back_as_before(way):
    x = torch.randn(2, 9)

    @lz.register_kernel("sampling.softmax", "tests.written.softmax", supported_dtypes=["float32"], priority=100)
    def kernel(logits, temperature):
        raise RuntimeError("halfway")

    try:
        before = fallbacks()
        arguments = {"logits": x}
        torch.testing.assert_close(WAYS[way]("softmax", arguments), torch.softmax(x, -1))
        assert fallbacks() == before + 1
    finally:
        lz.unregister_kernel("sampling.softmax", "tests.written.softmax")
