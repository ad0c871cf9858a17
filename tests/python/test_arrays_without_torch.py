"""Arrays of other libraries in a process where torch cannot be imported: calls on host memory, by the C ABI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

import layerzero as lz  # noqa: E402

BLOCKED = """
import sys
sys.modules["torch"] = None  # an import of it fails
import numpy as np
import layerzero as lz
rng = np.random.default_rng(0)
x = rng.normal(size=(3, 16)).astype("f4")
want = x / np.sqrt((x.astype("f8") ** 2).mean(-1, keepdims=True) + 1e-6)
"""


def run(code):
    environment = os.environ | {"PYTHONPATH": str(Path(lz.__file__).parents[1])}
    before = f"SUPPORT = {str(Path(__file__).parent / 'support')!r}"
    done = subprocess.run(
        [sys.executable, "-c", before + BLOCKED + code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_numpy():
    assert "done" in run("""
w = rng.normal(size=16).astype("f4")
got = lz.rms_norm(x, w)
np.testing.assert_allclose(got, want * w, rtol=1e-5, atol=1e-6)
for view in (x[::-1], x[:, ::-1], x.T.copy().T, x[::2], np.broadcast_to(x[:1], x.shape), x[:0]):  # any strides
    np.testing.assert_allclose(lz.rms_norm(view), view / np.sqrt((view ** 2).mean(-1, keepdims=True) + 1e-6), rtol=1e-4)

# Layouts, several outputs, options with and without defaults.
q = rng.normal(size=(2, 5, 4, 8)).astype("f4")
output, lse = lz.attention(q, q, q, causal=False, return_lse=True, layout="BSHD")
scores = np.einsum("bihd,bjhd->bhij", q, q) / np.sqrt(8)
top = np.exp(scores - scores.max(-1, keepdims=True))
np.testing.assert_allclose(output, np.einsum("bhij,bjhd->bihd", top / top.sum(-1, keepdims=True), q), rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-4)
again = lz.attention(q, q, q, causal=np.bool_(False), layout="BSHD")  # booleans of NumPy are options
np.testing.assert_array_equal(again, output)
other = lz.attention(*[q.swapaxes(1, 2)] * 3, causal=False, layout="BHSD")
np.testing.assert_allclose(other.swapaxes(1, 2), output, rtol=1e-5, atol=1e-6)
few = rng.normal(size=(1, 2, 300, 8)).astype("f4")  # a layout that is not named is found as for tensors
np.testing.assert_array_equal(lz.attention(few, few, few), lz.attention(few, few, few, layout="BHSD"))
with lz.policy(locks={"rms_norm": "torch.rms_norm"}):  # a scope's policy holds: torch is not there
    try:
        lz.rms_norm(x)
    except lz.LayerZeroError:
        pass
    else:
        raise AssertionError("a scope's policy was not read")

# Choices, integers, dtypes.
codes = rng.integers(-127, 128, size=(6, 16)).astype("i1")
scales = rng.random((6, 1)).astype("f4")
np.testing.assert_allclose(lz.linear_quantized(x, codes, scales, "int8"), x @ (codes * scales).T, rtol=1e-4, atol=1e-4)
assert lz.dequantize(codes, scales, "int8", dtype="float16").dtype == np.float16
assert lz.rms_norm(x.astype("f8")).dtype == np.float64

# Errors are those of a call with torch.
for call, kind, said in (
    (lambda: lz.rms_norm(x, x), lz.InvalidRequestError, "weight"),
    (lambda: lz.rms_norm(x.astype("c8")), lz.WrongTypeError, "complex64"),
    (lambda: lz.rms_norm(x.astype(">f4")), lz.WrongTypeError, ">f4"),
    (lambda: lz.rms_norm(np.ma.masked_array(x, mask=True)), lz.WrongTypeError, "mask would be lost"),
    (lambda: lz.attention(q, q, q, layout="SBHD"), lz.InvalidRequestError, "layout"),
    (lambda: lz.dequantize(codes, scales, "int9"), lz.InvalidRequestError, "format"),
    (lambda: lz.rms_norm(x, kernel="ref.norm.rms"), lz.NotInstalledError, "torch"),
    (lambda: lz.rms_norm([[1.0]]), lz.WrongTypeError, "list"),
):
    try:
        call()
    except lz.LayerZeroError as error:
        assert isinstance(error, kind) and said in str(error), (type(error), str(error))
    else:
        raise AssertionError(said)

# Arrays of DLPack alone.
import ctypes
sys.path.append(SUPPORT)
import array_stand_in
got = lz.rms_norm(array_stand_in.array(x))
assert type(got) is array_stand_in.ndarray
np.testing.assert_allclose(array_stand_in.asnumpy(got), want, rtol=1e-5, atol=1e-6)
tables = array_stand_in.array(np.zeros((2, 3), "i4"))
try:
    lz.kv_block_table_update(tables, array_stand_in.array(np.array([[1, 2, 7]], "i4")))
except lz.WrongTypeError as error:
    assert "a NumPy array to write into" in str(error) and not array_stand_in.asnumpy(tables).any(), error
else:
    raise AssertionError("nobody sees what was written")


class Bfloat16(array_stand_in.ndarray):  # which NumPy does not read
    def __dlpack__(self, **options):
        capsule = self._values.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = 4  # the dtype's code
        return capsule


try:
    lz.rms_norm(Bfloat16(np.ones((2, 8), "f2")))
except lz.WrongTypeError as error:
    assert "rms_norm: input: wanted" in str(error) and "Bfloat16 that NumPy cannot read (Unsupported dtype" in str(error)
else:
    raise AssertionError("bfloat16 was read")

# In place, and numbers that are drawn.
tables = np.zeros((2, 3), "i4")
lz.kv_block_table_update(tables, np.array([[1, 2, 7]], "i4"))
assert tables.tolist() == [[0, 0, 0], [0, 0, 7]]
tables.flags.writeable = False
try:
    lz.kv_block_table_update(tables, np.array([[1, 2, 7]], "i4"))
except lz.WrongTypeError as error:
    assert "wanted a writeable array" in str(error) and "got one that is read-only" in str(error), error
else:
    raise AssertionError("read-only memory was written")
try:
    lz.kv_block_table_update(np.zeros((2, 3), "i4")[::-1], np.array([[1, 2, 7]], "i4"))
except lz.WrongTypeError as error:
    assert "got one with strides (-12, 4)" in str(error), error
else:
    raise AssertionError("a copy was written")
try:
    lz.rms_norm(np.ones((2, 8), "f4"), out=np.ones((2, 8), "f4"))
except lz.WrongTypeError as error:
    assert "no out= with arrays" in str(error) and "torch" not in str(error), error
else:
    raise AssertionError("out= was taken")
logits = np.zeros((64, 32), "f4")
assert len(set(lz.sample_topk(logits, 32).tolist())) > 8
assert (lz.sample_topk(logits, 32, seed=3) == lz.sample_topk(logits, 32, seed=3)).all()
assert sys.modules["torch"] is None
print("done")
""")


def test_jax():
    pytest.importorskip("jax.numpy")
    assert "done" in run("""
import jax.numpy as jnp
for dtype, bound in (("float32", 1e-5), ("bfloat16", 2e-2)):
    given = jnp.asarray(x, dtype=dtype)
    got = lz.rms_norm(given)
    assert type(got) is type(given) and got.dtype == given.dtype
    np.testing.assert_allclose(np.asarray(got.astype("float32")), want, rtol=bound, atol=bound)
try:
    lz.rms_norm(jnp.asarray(x), np.ones(16, "f4"))
except lz.WrongTypeError as error:
    assert "one kind" in str(error)
else:
    raise AssertionError("mixed kinds were taken")
print("done")
""")
