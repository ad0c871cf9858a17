"""Run as a program by test_triton_kernels.py: prints what kernels in Triton do, layerzero's and Liger's, as JSON. It needs
Triton, no GPU.

results   every conformance case that a row admits, in Triton's interpreter, against FP64; with `planted`, results are scaled
kinds     of every case of a library's rows: its kind of calls, and the specializations that Triton would compile for it
compiled  what is compiled for a GPU of the given architecture, and the bytes of shared memory
refused   lines of calls and the codes of the reasons that refuse them
"""

import json
import os
import sys

if __name__ == "__main__" and sys.argv[1] in ("results", "refused"):
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import conformance_calls as calls
import layerzero as lz
import library_stand_ins as stand_ins
import torch
from layerzero import _layerzero, backends
from layerzero.bench.cases import arguments_of
from layerzero.contracts import contracts
from operation_cases import lines, tensors_of

NAMES = {op["id"]: name for name, contract in contracts().items() for op in contract["operations"]}


def registered(kept=(), library="triton"):
    """Registers the rows as kernels of the CPU, and returns their ids with the names of their operations' functions."""
    lz.list_kernels()
    document, _ = stand_ins.on_cpu(library, kept)
    backends.register(document)
    return {row["kernel_id"]: (NAMES[op], row) for op, rows in document["ops"].items() for row in rows}


def admitted(name, row, call, more=()):
    """(line, result of `call`) of each case, and of `more` lines, that the row admits. A row that says that a hidden NaN may
    show is left out by strict mode where a case has one."""
    for line in (*lines(name), *more):
        special = "masked_v_nan" in row and any(text in line for text in ("nan", "inf"))
        with lz.policy(strict_mode=special):
            try:
                yield line, call(line)
            except lz.NoKernelFoundError:
                continue


def results(planted):
    multiply_bfloat16()
    found = {}
    for kernel, (name, row) in registered().items():
        written = []

        def call(line, name=name, kernel=kernel, written=written):
            arguments = arguments_of(name, line)
            before = {k: t.clone() for k, t in tensors_of(arguments).items()}
            result = getattr(lz, name)(**arguments, kernel=kernel)
            written += [f"{line}: {k}" for k, t in before.items() if not same_bits(t, arguments[k])]
            if planted:
                first = result[0] if isinstance(result, tuple) else result
                first.mul_(1.05)
            return result

        texts, count = [], 0
        for line, result in admitted(name, row, call):
            count += 1
            texts += [f"{line}\n    {text}" for text in calls.problems(name, line, result)]
        found[kernel.removeprefix("stand_in.")] = {"cases": count, "problems": texts, "written": written}
    return found


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) if a.dim() else bool(a == b)


def multiply_bfloat16():
    """The interpreter of Triton 3.8 has bfloat16 as uint16, and tl.dot multiplies these numbers."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def wide(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    dot = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(self, wide(a), wide(b), *rest)


def refused(pairs):
    kernels, found = registered(), []
    for kernel, line in pairs:
        name, _ = kernels[f"stand_in.{kernel}"]
        try:
            calls.call_door(name, line, f"stand_in.{kernel}")
            found.append([])
        except lz.NoKernelFoundError as error:
            found.append([reason.code for reason in error.failures[f"stand_in.{kernel}"]])
    return found


# ---- without a GPU: what a launch would be compiled for


def target_of(architecture):
    """Makes Triton compile for a GPU that is not there."""
    import triton
    from triton.backends.compiler import GPUTarget

    class Driver:
        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_current_target(self):
            return GPUTarget("cuda", architecture, 32)

    triton.runtime.driver.set_active(Driver())


def launches(make):
    """Has kernels compiled instead of launched: make(form, values, options) is called for each launch."""
    from triton.runtime.jit import JITFunction

    def run(self, *values, grid, warmup, **options):
        make(self, values, options | {"grid": grid})

    JITFunction.run = run


def kinds(library, more):
    """{kernel: [[kind, specializations], ...]} of the cases and of further lines {kernel: [line, ...]}."""
    target_of(80)
    seen = []
    launches(lambda form, values, options: seen.append(specialization(form, values, options)))
    found = {}
    with lz.policy(allow_jit_compile=True):
        for kernel, (name, row) in registered(("jit",), library).items():
            own = kernel.removeprefix("stand_in.")
            rows = admitted(name, row, lambda line, n=name, k=kernel: kind_of(n, line, k, seen), more[own])
            found[own] = [one for _, one in rows]
    return found


def kind_of(name, line, kernel, seen):
    seen.clear()
    arguments = arguments_of(name, line)
    report = json.loads(_layerzero.explain(_layerzero.ops[name], (), arguments | {"kernel": kernel}))
    getattr(lz, name)(**arguments, kernel=kernel)
    return report["plan"]["jit_kind"], list(seen), line


def specialization(form, values, options):
    """The key of Triton's own cache for a launch."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    bind = create_function_from_signature(form.signature, form.params, make_backend(GPUTarget("cuda", 80, 32)))
    _, key, rest = bind(*values, **{k: v for k, v in options.items() if k != "grid"}, debug=False)
    return f"{form.fn.__name__} {key} {sorted(rest.items())}"


def compiled(architecture):
    target_of(architecture)
    made = []

    def make(form, values, options):
        made.append([form.fn.__name__, form.warmup(*values, **options).metadata.shared])

    launches(make)
    from layerzero.backends.triton import activations, attention, norms, positions, sampling

    for dtype in (torch.bfloat16, torch.float32):
        x = torch.ones(2, 8, 4, 128, dtype=dtype)
        row, table = x[0, 0, 0], torch.ones(8, 128)
        norms.rms_norm(x, None, 1e-6)
        norms.fused_add_rms_norm(x, x, row, 1e-6)
        norms.fused_add_layer_norm(x, x, 128, row, row, 1e-6)
        activations.silu_and_mul(x)
        for name in ("gelu", "tanh"):
            activations.gated_activation(x, name, 7.0, 1.0, 1.0, True)
        positions.rope(x, table, table, False, None, False, 128, "BSHD")
        positions.rope(x, table[:, :64], table[:, :64], True, None, True, 64, "BHSD")
        sampling.softmax(x, 0.7)
        for d in (64, 128):
            q = torch.ones(1, 8, 4, d, dtype=dtype)
            for window, softcap, sinks in ((None, None, None), (4, 30.0, torch.ones(4))):
                how = (True, d**-0.5, None, 0.0, window, softcap, sinks, None, True, "BSHD")
                attention.attention(q, q[:, :, :2], q[:, :, :2], *how)
    return made


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*(json.loads(text) for text in sys.argv[2:]))))
