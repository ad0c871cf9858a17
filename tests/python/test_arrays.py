"""Arrays of other libraries: NumPy always, JAX and CuPy where they are installed."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import array_stand_in  # noqa: E402
import layerzero as lz  # noqa: E402
from torch.nn import functional as F  # noqa: E402

RNG = np.random.default_rng(0)


def want_of(x, w):
    return F.rms_norm(torch.tensor(np.ascontiguousarray(x)), (x.shape[-1],), torch.tensor(w), 1e-6).numpy()


# ---- NumPy


def test_booleans_of_numpy_are_options():
    q = RNG.normal(size=(1, 3, 2, 8)).astype(np.float32)
    for causal in (True, False):
        mine, theirs = (lz.attention(q, q, q, causal=kind(causal), layout="BSHD") for kind in (np.bool_, bool))
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1],
        lambda x: x[:, ::-1],
        lambda x: x[::2, 1:9],
        lambda x: np.broadcast_to(x[:1], (4, 16)),  # read-only, stride 0
        lambda x: np.asfortranarray(x),
        lambda x: x[:0],
    ],
    ids=["negative rows", "negative columns", "strided", "broadcast", "fortran", "empty"],
)
def test_every_memory_layout_has_its_values(view):
    x = view(RNG.normal(size=(4, 16)).astype(np.float32))
    w = RNG.normal(size=x.shape[-1]).astype(np.float32)
    got = lz.rms_norm(x, w)
    np.testing.assert_allclose(got, want_of(x, w), rtol=1e-5, atol=1e-6)
    assert got.flags.writeable and not np.shares_memory(got, x)
    assert lz.which("rms_norm", x, w)["kernel_id"] == lz.which("rms_norm", torch.tensor(x.copy()), None)["kernel_id"]


def test_scalars_of_numpy_are_numbers():
    x = RNG.normal(size=(2, 8)).astype(np.float32)
    np.testing.assert_array_equal(lz.rms_norm(x, eps=np.float32(1e-3)), lz.rms_norm(x, eps=float(np.float32(1e-3))))
    np.testing.assert_array_equal(lz.layer_norm(x, np.int64(8)), lz.layer_norm(x, 8))


def test_bfloat16_arrays():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = RNG.normal(size=(2, 8)).astype(ml_dtypes.bfloat16)
    got = lz.rms_norm(x)
    assert got.dtype == ml_dtypes.bfloat16
    want = lz.rms_norm(torch.tensor(x.astype(np.float32)).bfloat16()).float().numpy()
    np.testing.assert_array_equal(got.astype(np.float32), want)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: np.ones((2, 8), "complex64"), "complex64"),
        (lambda: np.ones((2, 8), ">f4"), "cannot read.*convert it to a torch.Tensor|byte order"),
        (lambda: np.array([[None] * 8]), "object"),
        (lambda: np.ones((2, 8), "i4"), "int32"),
        (lambda: np.ma.masked_array(np.ones((2, 8), "f4"), mask=True), "mask would be lost"),
    ],
    ids=["complex", "swapped", "object", "int", "masked"],
)
def test_arrays_without_a_reading_are_refused(make, text):
    with pytest.raises(lz.InvalidRequestError, match=f"rms_norm: input: wanted .*({text})"):
        lz.rms_norm(make())


def test_arrays_beside_tensors_and_out_are_refused():
    x, w = np.ones((2, 8), np.float32), torch.ones(8)
    with pytest.raises(lz.WrongTypeError, match="one kind, got Tensor and ndarray"):
        lz.rms_norm(x, w)
    with pytest.raises(lz.WrongTypeError, match="out: wanted no out=.* use the array that the call returns"):
        lz.rms_norm(x, out=np.empty_like(x))
    tables = np.zeros((2, 3), "i4")
    tables.flags.writeable = False
    with pytest.raises(lz.WrongTypeError, match="wanted a writeable array .*, got one that is read-only"):
        lz.kv_block_table_update(tables, np.array([[1, 2, 7]], "i4"))
    with pytest.raises(lz.InvalidRequestError, match="out: wanted .* got ndarray"):
        lz.rms_norm(torch.ones(2, 8), out=np.empty_like(x))


def test_arrays_need_no_gradient():
    x = np.ones((2, 8), np.float32)
    with torch.enable_grad():
        assert type(lz.rms_norm(x)) is np.ndarray


def test_options_hold_for_arrays():
    x = RNG.normal(size=(2, 8)).astype(np.float32)
    np.testing.assert_allclose(lz.rms_norm(x, kernel="ref.norm.rms"), lz.rms_norm(x), rtol=1e-6)
    with pytest.raises(lz.NoKernelFoundError):
        lz.rms_norm(x, kernel="zentorch.rms_norm")
    q = RNG.normal(size=(1, 2, 5, 8)).astype(np.float32)
    got = lz.attention(q, q, q, layout="BHSD")
    np.testing.assert_array_equal(got, lz.attention(*[torch.tensor(q)] * 3, layout="BHSD").numpy())
    assert [type(t) for t in lz.attention(q, q, q, return_lse=True, layout="BHSD")] == [np.ndarray] * 2


# ---- other libraries


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax(dtype):
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.arange(16, dtype=dtype).reshape(2, 8)
    got = lz.rms_norm(x)
    assert type(got) is type(x) and got.dtype == x.dtype
    want = lz.rms_norm(torch.arange(16, dtype=getattr(torch, dtype)).reshape(2, 8)).float().numpy()
    np.testing.assert_array_equal(np.asarray(got.astype("float32")), want)


def test_arrays_of_dlpack_alone():
    values = np.arange(16, dtype="f4").reshape(2, 8)
    got = lz.rms_norm(array_stand_in.array(values), array_stand_in.array(np.ones(8, "f4")))
    assert type(got) is array_stand_in.ndarray
    np.testing.assert_allclose(array_stand_in.asnumpy(got), want_of(values, np.ones(8, "f4")), rtol=1e-5)
    with pytest.raises(lz.WrongTypeError, match="one kind"):
        lz.rms_norm(array_stand_in.array(values), np.ones(8, "f4"))
    with pytest.raises(lz.WrongTypeError, match="a NumPy array to write into, got ndarray"):
        lz.kv_block_table_update(
            array_stand_in.array(np.zeros((2, 3), "i4")), array_stand_in.array(np.array([[1, 2, 7]], "i4"))
        )


def test_cupy():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("its arrays need a GPU")
    x = cupy.arange(16, dtype="float32").reshape(2, 8)
    got = lz.rms_norm(x)
    assert type(got) is type(x)
    np.testing.assert_allclose(cupy.asnumpy(got), want_of(cupy.asnumpy(x), np.ones(8, "f4")), rtol=1e-5)
