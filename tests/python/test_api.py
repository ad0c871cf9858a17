"""The names that users rely on: signatures, what is there, and that nothing is there which does nothing."""

import inspect
import re
from pathlib import Path

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")

# Parameters by name, order and default, as users may write them. `...`: required, or with a default.
SIGNATURES = """
attention(query, key, value, *, causal=None, scale=None, layout=None, attn_mask=None, dropout_p=0.0, window=None,
    softcap=None, sinks=None, alibi_slopes=None, return_lse=False, kernel=None)
paged_attention(query, key_cache, value_cache, block_tables, context_lens, scale=None)
rms_norm(input, weight, eps=1e-6)
layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5)
rope(input, cos, sin, interleaved=False)
sample_topk(logits, k)
sample_topp(logits, p)
quantize(input, dtype, scale=None)
tokenize(texts, tokenizer_id, return_offsets=False)
detokenize(tokens, tokenizer_id)
run(operation, *tensors, **params)
prepare(operation, *tensors, **params)
which(op, *tensors)
explain(op, *tensors)
list_kernels(op)
coverage(*devices, shipped=True)
doctor()
readiness_check()
warmup(operation, shapes, dtype)
solve(model, shape_buckets)
tune(operation, *, samples)
prefer(source)
disabled()
validate(kernel_id, *tensors)
load_config(path)
configure(**keys)
lock(op, kernel_id)
unlock(op)
register_kernel(operation, kernel_id, *, platform, supported_dtypes, **facts)
paged_decode_attention(q, paged_k_cache, paged_v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale, *,
    window_left=-1)
mla_decode(q_nope, q_pe, ckv, kpe, sm_scale, *, return_lse=False)
block_sparse_attention(q, k, v, indptr, indices, R, C, sm_scale)
TensorSchema(name, ndim=None, dtype_constraint=None, shape_vars=(), required=True)
OperationSchema(operation, inputs, outputs, params)
OperationSchema.validate(*tensors, **params)
SelectionContextBuilder(schema)
SelectionContextBuilder.build(*tensors, device=None, **params)
SelectionContext.from_tensors(q, k, v, **kw)
KernelRegistry()
KernelRegistry.register_schema(schema)
KernelRegistry.register_kernel(operation, kernel_id, **facts)
KernelRegistry.get_candidates(operation)
KernelRegistry.get_schema(operation)
KernelRegistry.get_fallback(operation)
KernelRegistry.select(ctx)
NoKernelFoundError(operation, failures)
"""
# Parts that this version does not have: absent, not stubs.
NOT_BUILT = {"NoCompatibleKernelPairError"}


def wanted():
    """Name to signature."""
    found = {}
    for text in SIGNATURES.replace("\n    ", " ").split("\n"):
        if text:
            name = text.partition("(")[0]
            scope = {}
            exec(f"def wanted{text.removeprefix(name)}: ...", scope)
            found[name] = inspect.signature(scope["wanted"])
    return found


def signature_of(name):
    """Of a name of the package, or of a method, called on an object."""
    owner, _, method = name.rpartition(".")
    if not owner:
        return inspect.signature(getattr(lz, name))
    have = inspect.signature(getattr(getattr(lz, owner), method))
    return have.replace(parameters=[p for p in have.parameters.values() if p.name != "self"])


def positional(signature):
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in signature.parameters.values() if p.kind in kinds]


@pytest.mark.parametrize("name", wanted())
def test_signature(name):
    want, have = wanted()[name], signature_of(name)
    assert positional(have)[: len(positional(want))] == positional(want)
    for parameter in want.parameters.values():
        ours = have.parameters[parameter.name]
        assert ours.kind == parameter.kind
        if parameter.default is not inspect.Parameter.empty:
            assert ours.default == parameter.default, parameter.name
    # What is there beyond may be left out.
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in have.parameters.values():
        optional = parameter.default is not inspect.Parameter.empty or parameter.kind in variadic
        assert parameter.name in want.parameters or optional, parameter.name


def test_every_operation_has_a_signature_and_a_docstring():
    from layerzero.contracts import contracts

    for name, contract in contracts().items():
        function = getattr(lz, name)
        parameters = inspect.signature(function).parameters
        for param in contract["params"]:
            ours = parameters[param["name"]]
            assert (ours.kind is inspect.Parameter.KEYWORD_ONLY) == param["keyword_only"]
            if param.get("has_default"):
                assert ours.default == param["default"] and type(ours.default) is type(param["default"])
            else:
                assert ours.default is (None if param["optional"] else inspect.Parameter.empty)
            assert f"\n  {param['name']}: " in function.__doc__
        assert ("layout" in parameters) == bool(contract["layouts"]) and {"kernel", "out"} <= set(parameters)
        for part in (contract["summary"], contract["definition"], contract["source"], "Raises:", "Returns"):
            assert part in function.__doc__
        for output in contract["outputs"]:
            assert f"\n  {output['name']}: tensor " in function.__doc__


def functions():
    """(name, function) of what the package offers beside operations: functions, and the methods of classes."""
    for name in set(lz.__all__) - set(lz._operations):
        value = getattr(lz, name)
        if inspect.isclass(value):
            for method, function in vars(value).items():
                if inspect.isfunction(function) and (method == "__init__" or not method.startswith("_")):
                    yield f"{name}.{method}", function
        elif callable(value):
            yield name, value


def test_every_function_has_types_and_a_docstring():
    for name, function in functions():
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        assert all(p.annotation is not p.empty for p in parameters), name
        assert signature.return_annotation is not inspect.Signature.empty, name
        assert function.__doc__ or name.endswith(".__init__"), name


def test_checkers_know_every_name_that_is_imported_late():
    """But for those of Transformers, which a checker would have to read whole."""
    source = Path(lz.__file__).read_text()
    for name, module in lz._LAZY.items():
        if module == "layerzero.integrations.transformers":
            continue
        if module == f"layerzero.{name}":  # a module that is itself the name
            module = "layerzero"
        lines = re.findall(rf"^    from (\S+) import {name} as {name}$", source, re.MULTILINE)
        assert len(lines) == 1 and lines[0].startswith(module), name


def test_calls_as_the_signatures_say(tmp_path):
    x, w = torch.ones(2, 8), torch.ones(8)
    torch.testing.assert_close(lz.rms_norm(input=x, weight=w, eps=1e-6), x)
    assert lz.which("rms_norm", x, w)["kernel_id"] == lz.explain("rms_norm", x, w).kernel_id
    assert lz.list_kernels(op="norm.rms") == lz.list_kernels("norm.rms")
    lz.lock(op="norm.rms", kernel_id="torch.rms_norm")
    try:
        assert lz.which("rms_norm", x, w)["kernel_id"] == "torch.rms_norm"
    finally:
        lz.unlock(op="norm.rms")
    with lz.prefer(source="torch"):
        assert lz.which("rms_norm", x, w)["kernel_id"] != "ref.norm.rms"
    with lz.disabled():
        assert "ref." in lz.which("rms_norm", x, w)["kernel_id"]

    @lz.register_kernel(
        operation="attention.standard.prefill",
        kernel_id="tests.api",
        platform="cuda",
        min_sm=80,
        supported_dtypes=["float16"],
        max_head_dim=128,
        priority=60,
    )
    def kernel(query, key, value):
        raise AssertionError("never called here")

    ok, reasons = lz.validate("tests.api", *[torch.ones(1, 4, 2, 256)] * 3)
    assert not ok and {"PLATFORM_MISMATCH", "DTYPE_UNSUPPORTED"} <= {reason.code for reason in reasons}


def test_exceptions():
    assert issubclass(lz.LayerZeroLayoutWarning, UserWarning)
    for name in (
        "NoKernelFoundError",
        "CudaGraphUnsafeError",
        "KernelExecutionError",
        "KernelRefusedError",
        "ReleasedWeightError",
        "VersionMismatchError",
        "ConfigError",
    ):
        assert issubclass(getattr(lz, name), lz.LayerZeroError) and issubclass(lz.LayerZeroError, Exception)
    with pytest.raises(lz.NoKernelFoundError) as caught:
        lz.rms_norm(torch.ones(2, 8), torch.ones(8), kernel="zentorch.rms_norm")
    assert caught.value.operation == "norm.rms"
    reasons = caught.value.failures["zentorch.rms_norm"]
    assert all(isinstance(reason, lz.Reason) for reason in reasons) and "NOT_INSTALLED" in {r.code for r in reasons}


def test_dir_is_the_public_names():
    assert dir(lz) == sorted(lz.__all__) and len(set(lz.__all__)) == len(lz.__all__)
    for name in lz.__all__:
        assert not name.startswith("_") or name == "__version__"
    for name in (
        *(name.partition(".")[0] for name in wanted()),
        "kernelize",
        "unkernelize",
        "policy",
        "KVCacheManager",
    ):
        assert name in dir(lz)


def test_what_is_not_built_is_absent():
    assert not NOT_BUILT & set(dir(lz))
    for name in NOT_BUILT:
        assert not hasattr(lz, name)


def test_registration_with_transformers():
    pytest.importorskip("transformers")
    from layerzero.integrations.transformers import register_with_transformers

    assert list(inspect.signature(register_with_transformers).parameters) == []
