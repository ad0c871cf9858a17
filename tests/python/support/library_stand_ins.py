"""Stand-ins for libraries that only run on a GPU: modules and operators with the recorded signatures that compute on the
CPU what the library's function is documented to compute, in float64, and write where it writes.

The signatures are in library_signatures.json, one for each function that an adapter calls; tests/gpu/test_libraries.py
compares them with those of the installed library.
"""

import functools
import importlib.util
import inspect
import json
import sys
import types
from pathlib import Path

import torch
from layerzero import backends

SIGNATURES = json.loads(Path(__file__).with_name("library_signatures.json").read_text())


def signature(text):
    return inspect.signature(eval(f"lambda {text}: None"))  # of this file's own data


def _rms(x, weight, eps, offset=0.0):
    y = x.double()
    y = y / (y.square().mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * (weight.double() + offset)


def _layer(x, weight, bias, eps):
    y = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], eps=eps) * weight.double()
    return y if bias is None else y + bias.double()


def _normalise(output, input, weight, eps, enable_pdl=False):
    assert output.dim() == input.dim() == 2 and output.data_ptr() != input.data_ptr()
    output.copy_(_rms(input, weight, eps))


def _add_and_normalise(input, residual, weight, eps, enable_pdl=False):
    residual.add_(input)
    input.copy_(_rms(residual, weight, eps))


_ACTIVATIONS = {
    "silu_and_mul": torch.nn.functional.silu,
    "gelu_and_mul": torch.nn.functional.gelu,
    "gelu_tanh_and_mul": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
}


def _gated(name, out, input):
    gate, up = input.double().chunk(2, -1)
    out.copy_(_ACTIVATIONS[name](gate) * up)


def _append(key, value, key_cache, value_cache, slots, kind, k_scale, v_scale):
    assert slots.dtype == torch.int64 and k_scale.shape == v_scale.shape == (1,)
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        for rows, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
            place = cache[slot // cache.shape[1], slot % cache.shape[1]]
            if kind == "auto":
                assert rows.dtype == cache.dtype
                place.copy_(rows[row])
            else:
                assert kind == "fp8_e4m3" and cache.dtype == torch.uint8
                place.copy_((rows[row].float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


def _route(scores, weights, ids, logits, renormalize, bias):
    assert weights.dim() == ids.dim() == logits.dim() == 2
    s = scores(logits.double())
    order = (s if bias is None else s + bias.double()).sort(dim=-1, descending=True, stable=True).indices
    ids.copy_(order[:, : ids.shape[1]])
    chosen = s.gather(-1, ids.long())
    weights.copy_(chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen)


def _softmax(x):
    return x.softmax(-1)


def _vllm_route(scores):
    def route(weights, ids, token_expert_indices, logits, renormalize, bias):
        assert token_expert_indices.dtype == torch.int32 and token_expert_indices.shape == ids.shape
        _route(scores, weights, ids, logits, renormalize, bias)

    return route


def _sgl_route(weights, ids, logits, renormalize, softcapping, bias):
    assert softcapping == 0.0 and bias is None, "the library adds the bias before the softmax"
    experts = logits.shape[-1]
    assert experts & (experts - 1) == 0, "for other numbers the library gives the higher of two equal experts"
    _route(_softmax, weights, ids, logits, renormalize, None)


OPERATORS = {
    ("_C", "rms_norm"): _normalise,
    ("_C", "fused_add_rms_norm"): _add_and_normalise,
    ("_C_cache_ops", "reshape_and_cache_flash"): _append,
    ("_moe_C", "topk_softmax"): _vllm_route(_softmax),
    ("_moe_C", "topk_sigmoid"): _vllm_route(torch.sigmoid),
    ("sgl_kernel", "rmsnorm"): _normalise,
    ("sgl_kernel", "fused_add_rmsnorm"): _add_and_normalise,
    ("sgl_kernel", "topk_softmax"): _sgl_route,
    ("sgl_kernel", "topk_sigmoid"): functools.partial(_route, torch.sigmoid),
}
OPERATORS |= {(space, name): functools.partial(_gated, name) for space in ("_C", "sgl_kernel") for name in _ACTIVATIONS}


def _liger_rms(X, W, eps, offset, casting_mode, row_mode):
    assert casting_mode == "gemma"
    return _rms(X, W, eps, offset).to(X.dtype), X, None, 0, 0, casting_mode


def _liger_add(X, R, W, eps, offset, casting_mode):
    assert casting_mode == "gemma"
    total = X + R
    return _rms(total, W, eps, offset).to(X.dtype), total, None, 0, 0, 0, casting_mode


def _liger_swiglu(a, b, gate_multiplier):
    assert gate_multiplier == 1.0
    return a, b, (torch.nn.functional.silu(a.double()) * b.double()).to(a.dtype)


def _liger_geglu(a, b):
    return a, b, (_ACTIVATIONS["gelu_tanh_and_mul"](a.double()) * b.double()).to(a.dtype)


def _apex_rms(input, normalized_shape, weight, eps):
    assert list(weight.shape) == normalized_shape and weight.dtype == input.dtype and input.is_contiguous()
    return _rms(input, weight, eps).to(input.dtype), None


def _apex_layer(input, normalized_shape, weight, bias, eps):
    assert list(weight.shape) == normalized_shape and weight.dtype == bias.dtype == input.dtype
    return _layer(input, weight, bias, eps).to(input.dtype), None, None


def _quack_rms(x, weight, bias, residual, out_dtype, residual_dtype, eps, store_rstd):
    assert x.dim() == 2 and bias is out_dtype is residual_dtype is None and not store_rstd
    total = x if residual is None else x + residual
    return _rms(total, weight, eps).to(x.dtype), total, None


def _quack_layer(x, weight, bias, eps, return_rstd, return_mean):
    assert x.dim() == 2 and weight.dtype == torch.float32 and (bias is None or bias.dtype == torch.float32)
    return _layer(x, weight, bias, eps).to(x.dtype)


def _deep_gemm(a, b, d, c, compiled_dims):
    assert a.dim() == b.dim() == d.dim() == 2 and c is None
    d.copy_(a.double() @ b.double().t())


def _flashinfer_rms(input, weight, eps, out, enable_pdl):
    assert enable_pdl is None
    _normalise(out, input, weight, eps)
    return out


def _flashinfer_layer(input, gemma, beta, eps):
    assert input.dtype == torch.bfloat16 and gemma.dtype == beta.dtype == torch.float32 and input.dim() == 2
    return _layer(input, gemma, beta, eps).to(input.dtype)


def _flashinfer_gated(name, input, out, enable_pdl):
    assert input.shape[-1] * input.itemsize % 16 == 0 and enable_pdl is None
    _gated(name, out, input)


def _flashinfer_softmax(logits, temperature, enable_pdl):
    assert logits.dtype == torch.float32 and logits.dim() == 2 and temperature is None
    return logits.double().softmax(-1).float()


FUNCTIONS = {
    **{f"flashinfer.activation:{name}": functools.partial(_flashinfer_gated, name) for name in _ACTIVATIONS},
    "flashinfer.norm:rmsnorm": _flashinfer_rms,
    "flashinfer.norm:fused_add_rmsnorm": _add_and_normalise,
    "flashinfer.norm:layernorm": _flashinfer_layer,
    "flashinfer.sampling:softmax": _flashinfer_softmax,
    "liger_kernel.ops.rms_norm:rms_norm_forward": _liger_rms,
    "liger_kernel.ops.fused_add_rms_norm:fused_add_rms_norm_forward": _liger_add,
    "liger_kernel.ops.layer_norm:layer_norm_forward": lambda X, W, B, eps: (_layer(X, W, B, eps).to(X.dtype), X),
    "liger_kernel.ops.swiglu:swiglu_forward": _liger_swiglu,
    "liger_kernel.ops.geglu:geglu_forward": _liger_geglu,
    "liger_kernel.ops.softmax:_softmax_forward": lambda x: (x.double().softmax(-1).to(x.dtype), 0, 0, False),
    "fused_layer_norm_cuda:forward_affine": _apex_layer,
    "fused_layer_norm_cuda:rms_forward_affine": _apex_rms,
    "quack.rmsnorm:rmsnorm_fwd": _quack_rms,
    "quack.rmsnorm:layernorm_fwd": _quack_layer,
    "quack.softmax:_softmax_fwd": lambda x, out: out.copy_(x.double().softmax(-1)),
    "deep_gemm:bf16_gemm_nt": _deep_gemm,
    "vllm.third_party.deep_gemm:bf16_gemm_nt": _deep_gemm,
}


def bound(name, work):
    """`work` behind the recorded signature: a call that the library would refuse is a TypeError here."""
    recorded = signature(SIGNATURES["functions"][name])

    def function(*args, **kwargs):
        arguments = recorded.bind(*args, **kwargs)
        arguments.apply_defaults()
        return work(**arguments.arguments)

    return function


class Planted:
    """The stand-ins of all libraries; `close` takes them out again."""

    def __init__(self):
        self.libraries, self.modules = [], []
        for space, schemas in SIGNATURES["torch_ops"].items():
            library = torch.library.Library(space, "FRAGMENT")
            for schema in schemas:
                name = library.define(schema).split("(")[0].split("::")[-1]
                library.impl(name, OPERATORS[space, name], "CPU")
            self.libraries.append(library)
        self.module("sgl_kernel")
        for name, work in FUNCTIONS.items():
            module, function = name.split(":")
            setattr(self.module(module), function, bound(name, work))

    def module(self, name):
        """The module `name`, with the packages above it."""
        parent, _, child = name.rpartition(".")
        if name not in sys.modules:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = []
            self.modules.append(name)
            if parent:
                setattr(self.module(parent), child, sys.modules[name])
        return sys.modules[name]

    def close(self):
        for library in self.libraries:
            library._destroy()
        for name in self.modules:
            del sys.modules[name]


def descriptor(library):
    return backends.descriptor_of(library)


def rows_of(library):
    """(operation, row) of each row whose adapter's functions have stand-ins."""
    named = {"flashinfer": ("flashinfer.rows:",)}.get(library, ("",))
    for operation, rows in descriptor(library)["ops"].items():
        yield from ((operation, row) for row in rows if any(name in row["adapter"] for name in named))


def on_cpu(library, kept=()):
    """The library's descriptor for this machine: the same rules without those on the device; ids begin with stand_in. Its
    adapters are modules of their own, so that taking it out again leaves the library's rows alone."""
    document = descriptor(library)
    document |= {"backend": f"stand_in_{library}", "platform": "cpu"}
    del document["requires"], document["probe"]
    document["ops"], modules = {}, {}
    for operation, row in rows_of(library):
        document["ops"].setdefault(operation, []).append(row)
    for row in (*document["templates"].values(), *(row for rows in document["ops"].values() for row in rows)):
        for fact in {"min_sm", "max_sm", "requires", "jit"}.difference(kept):
            row.pop(fact, None)
        if "kernel_id" in row:
            row["kernel_id"] = "stand_in." + row["kernel_id"]
            module, _, function = row["adapter"].partition(":")
            modules.setdefault(module, "stand_in_" + module.removeprefix("layerzero.backends.").replace(".", "_"))
            row["adapter"] = f"{modules[module]}:{function}"
    for module, name in modules.items():
        path = backends.FOLDER.joinpath(*module.split(".")[2:]).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return document, list(modules.values())
