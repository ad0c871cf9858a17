"""Attention by libraries on the device: each row that is installed, against the reference in FP64, and their signatures.

`pytest tests/gpu/test_attention_libraries.py` proves every library that can be imported; the others are skipped by name.
"""

import functools
import importlib
import inspect
import itertools

import layerzero as lz
import pytest
import torch
from layerzero import _layerzero
from layerzero.errors import CudaGraphUnsafeError
from library_rows import rows
from library_signatures import SIGNATURES

BACKENDS = (
    "flash_attn", "flash_attn_3", "flash_attn_4", "vllm_fa2", "vllm_fa3", "flash_mla", "vllm_flash_mla", "flashinfer",
)  # fmt: skip
HEADS = (8, 2)
DENSE = [(1, 64, 64), (2, 64, 64), (1, 130, 300), (2, 33, 257), (1, 1, 700), (3, 1, 129), (1, 300, 300)]
OPTIONS = [
    {},
    {"window": 37},
    {"softcap": 5.0},
    {"return_lse": True},
    {"sinks": 1},
    {"alibi_slopes": 1},
    {"causal": False},
]
FP8 = [{"cache": "float8_e4m3fn"}, {"cache": "float8_e5m2", "softcap": 5.0}]
PAGED_OPTIONS = [{}, {"window_left": 36}, {"softcap": 5.0}, {"return_lse": True}, {"sinks": 1}, {"alibi_slopes": 1}]
PAGE_SIZES = (16, 256)


def random(*shape, dtype):
    return torch.randn(shape, device="cuda").to(dtype)


def with_extras(options, dtype):
    found = {n: v for n, v in options.items() if n != "cache"}
    if "sinks" in found:
        found["sinks"] = random(HEADS[0], dtype=dtype)
    if "alibi_slopes" in found:
        found["alibi_slopes"] = torch.linspace(0.05, 0.5, HEADS[0], device="cuda")
    return found


def dense(dtype, d, options, cross=False):
    for b, s_q, s_kv in DENSE:
        q, k, v = (random(b, s, h, d, dtype=dtype) for s, h in ((s_q, HEADS[0]), (s_kv, HEADS[1]), (s_kv, HEADS[1])))
        given = with_extras(options, dtype)
        yield {"query": q, "key": k, "value": v, "layout": "BSHD", **given}
        turned = {n: t.transpose(1, 2).contiguous() for n, t in (("query", q), ("key", k), ("value", v))}
        yield {**turned, "layout": "BHSD", **given}


def index(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def offsets(lengths):
    return index([0, *torch.tensor(lengths).cumsum(0).tolist()])


def ragged(dtype, d, options):
    for n_q, n_kv in (([5, 64, 1], [5, 64, 9]), ([130, 3], [300, 40]), ([1], [40]), ([0, 1, 0], [3, 40, 5])):
        q = random(sum(n_q), HEADS[0], d, dtype=dtype)
        k, v = (random(sum(n_kv), HEADS[1], d, dtype=dtype) for _ in range(2))
        both = {"cu_seqlens_q": offsets(n_q), "cu_seqlens_kv": offsets(n_kv)}
        yield {"query": q, "key": k, "value": v, **both, **with_extras(options, dtype)}


def pages(dtype, d, size, lengths):
    """Caches whose unused slots hold NaN, and a CSR list of pages in a random order."""
    counts = [-(-n // size) for n in lengths]
    total = sum(counts)
    caches = [random(total, size, HEADS[1], d, dtype=dtype) for _ in range(2)]
    order = torch.randperm(total).tolist()
    first = offsets(counts).tolist()
    for s, n in enumerate(lengths):
        for cache in caches:
            cache[order[first[s + 1] - 1], n - (counts[s] - 1) * size :] = torch.nan
    last = [n - (c - 1) * size for n, c in zip(lengths, counts, strict=True)]
    return caches, {"kv_indptr": index(first), "kv_indices": index(order), "kv_last_page_len": index(last)}


LENGTHS = [700, 1, 64, 129, 256]


def paged_decode(dtype, d, options):
    for size in PAGE_SIZES:
        caches, tables = pages(dtype, d, size, LENGTHS)
        k, v = (t.to(getattr(torch, options["cache"])) if "cache" in options else t for t in caches)
        q = random(len(LENGTHS), HEADS[0], d, dtype=dtype)
        yield {"q": q, "paged_k_cache": k, "paged_v_cache": v, **tables, **with_extras(options, dtype)}


def paged_prefill(dtype, d, options):
    for size, n_q in itertools.product(PAGE_SIZES, ([130, 1, 64, 7, 200], [0, 0, 0, 1, 0])):
        (k, v), tables = pages(dtype, d, size, LENGTHS)
        query = {"query": random(sum(n_q), HEADS[0], d, dtype=dtype), "qo_indptr": offsets(n_q)}
        yield {**query, "paged_k_cache": k, "paged_v_cache": v, **tables, **with_extras(options, dtype)}


def paged_cross(dtype, d, options):
    for size in PAGE_SIZES:
        (k, v), tables = pages(dtype, d, size, LENGTHS)
        q = random(len(LENGTHS), 3, HEADS[0], d, dtype=dtype)
        yield {"query": q, "paged_k_cache": k, "paged_v_cache": v, **tables, **with_extras(options, dtype)}


def block_table(dtype, d, options):
    for size in PAGE_SIZES:
        (k, v), csr = pages(dtype, d, size, LENGTHS)
        first, listed = csr["kv_indptr"].tolist(), csr["kv_indices"].tolist()
        width = max(b - a for a, b in zip(first, first[1:], strict=False)) + 1
        table = [[*listed[a:b], *[-1] * (width - (b - a))] for a, b in zip(first, first[1:], strict=False)]
        q = random(len(LENGTHS), 1, HEADS[0], d, dtype=dtype)
        given = {"block_tables": index(table), "context_lens": index(LENGTHS), **with_extras(options, dtype)}
        yield {"query": q, "key_cache": k, "value_cache": v, **given}


def mla(dtype, d, options):
    total, size, lengths = 20, 64, [200, 64, 3, 700]
    counts = [-(-n // size) for n in lengths]
    both = random(total, size, 576, dtype=dtype)
    ckv, kpe = both[..., :512], both[..., 512:]  # FlashMLA reads one tensor, FlashInfer two
    if not options.get("joined"):
        ckv, kpe = ckv.contiguous(), kpe.contiguous()
    last = index([n - (c - 1) * size for n, c in zip(lengths, counts, strict=True)])
    tables = {
        "kv_indptr": offsets(counts),
        "kv_indices": index(torch.randperm(total).tolist()),
        "kv_last_page_len": last,
    }
    q_nope, q_pe = (random(len(lengths), 16, w, dtype=dtype) for w in (512, 64))
    yield {"q_nope": q_nope, "q_pe": q_pe, "ckv_cache": ckv, "kpe_cache": kpe, **tables, "sm_scale": 0.07}


def merge(dtype, d, options):
    v_a, v_b = (random(37, 8, d, dtype=dtype) for _ in range(2))
    s_a, s_b = (random(37, 8, dtype=torch.float32) * 5 for _ in range(2))
    s_a[3], s_a[5], s_b[5] = -torch.inf, -torch.inf, -torch.inf
    yield {"v_a": v_a, "s_a": s_a, "v_b": v_b, "s_b": s_b}


def merge_partials(dtype, d, options):
    yield {
        "partials": random(5, 37, 8, d, dtype=dtype),
        "part_lse": random(5, 37, 8, dtype=torch.float32),
        "dtype": "bfloat16",
    }


CALLS = {
    "attention": (dense, OPTIONS),
    "cross_attention": (dense, [{}, {"softcap": 5.0}, {"return_lse": True}, {"sinks": 1}]),
    "ragged_attention": (ragged, OPTIONS),
    "paged_decode_attention": (paged_decode, [*PAGED_OPTIONS, *FP8]),
    "paged_prefill_attention": (paged_prefill, [*PAGED_OPTIONS, {"causal": False}]),
    "paged_cross_attention": (paged_cross, [{}, {"softcap": 5.0}, {"return_lse": True}, {"sinks": 1}]),
    "paged_attention": (block_table, [{"window": 37} if "window_left" in o else o for o in PAGED_OPTIONS]),
    "mla_decode_paged": (mla, [{}, {"joined": True}]),
    "merge_attention": (merge, [{}]),
    "merge_partials": (merge_partials, [{}]),
}


def proven_row(backend, name, kernel):
    """The row as data; skips where its library is not installed in the version that it needs."""
    row = next(k for k in lz.list_kernels(name) if k.kernel_id == kernel)
    if not row.installed:
        pytest.skip(row.detail)
    why = _layerzero.prove_backend(backend)
    assert not why, why
    return row


def know(arguments):
    """FlashInfer's plans need the values of the tables on the host."""
    from layerzero.backends.flashinfer import plans

    plans.read_tables(*(t for t in arguments.values() if isinstance(t, torch.Tensor) and t.dtype == torch.int32))


def in_fp64(name, arguments):
    wide = {n: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in arguments.items()}
    for s in ("s_a", "s_b", "part_lse"):
        if s in wide:
            wide[s] = wide[s].float()
    if "dtype" in wide:
        wide["dtype"] = "float64"
    reference = f"torch.ref.{lz.explain(name, **arguments).operation}"
    found = getattr(lz, name)(**wide, kernel=reference)
    return found if isinstance(found, tuple) else (found,)


def cases(name):
    make, options = CALLS[name]
    for dtype in (torch.bfloat16, torch.float16):
        for d in (64, 128):
            for option in options:
                for arguments in make(dtype, d, option):
                    yield (
                        f"{name} {dtype} d={d} {option} {[tuple(t.shape) for t in arguments.values() if hasattr(t, 'shape')]}",
                        arguments,
                    )


def wrong(found, wanted, dtype):
    found = found if isinstance(found, tuple) else (found,)
    loose = 2**-6 if dtype == torch.bfloat16 else 2**-8
    texts = []
    for at, (a, b) in enumerate(zip(found, wanted, strict=True)):
        bound = 1e-3 * (1 + b.abs().nan_to_num(0, 0, 0)) if at else loose * (1 + b.abs())
        same = (a.double() == b.double()) | ((a.double() - b.double()).abs() <= bound)
        if not bool(same.all()):
            texts.append(f"output {at}: {int((~same).sum())} of {same.numel()} wrong, NaN: {int(a.isnan().sum())}")
    return texts


OPERATIONS = [
    pytest.param(backend, name, row["kernel_id"], id=f"{row['kernel_id']}-{name}")
    for backend in BACKENDS
    for name, row in rows(backend, CALLS)
]


@pytest.mark.parametrize(("backend", "name", "kernel"), OPERATIONS)
def test_a_row_agrees_with_fp64(backend, name, kernel):
    proven_row(backend, name, kernel)
    torch.manual_seed(0)
    failures, ran = [], 0
    for text, arguments in cases(name):
        if backend == "flashinfer":
            know(arguments)
        if "flash_mla" in backend and arguments["ckv_cache"].is_contiguous():
            continue
        try:
            with torch.no_grad():
                found = getattr(lz, name)(**arguments, kernel=kernel)
        except (lz.NoKernelFoundError, lz.KernelRefusedError):
            continue
        except Exception as error:
            failures.append(f"{text}: {type(error).__name__}: {error}")
            continue
        ran += 1
        dtype = next(iter(arguments.values())).dtype
        failures += [f"{text}: {t}" for t in wrong(found, in_fp64(name, arguments), dtype)]
    assert not failures, f"{len(failures)} of {ran}\n" + "\n".join(failures[:30])
    assert ran, f"no call admits {kernel}"


@pytest.mark.parametrize(("backend", "name", "kernel"), OPERATIONS)
def test_a_row_says_truly_whether_it_may_be_captured(backend, name, kernel):
    row = proven_row(backend, name, kernel)
    arguments = an_admitted_call(backend, name, kernel)
    call = functools.partial(getattr(lz, name), **arguments, kernel=kernel)
    with torch.no_grad():
        wanted = call()  # built and warm
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            if not row.cuda_graph_safe:
                with pytest.raises(CudaGraphUnsafeError, match=kernel):
                    call()
                return
            found = call()
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def admits(backend, name, kernel, arguments):
    if backend == "flashinfer":
        know(arguments)
    try:
        getattr(lz, name)(**arguments, kernel=kernel)
    except (lz.NoKernelFoundError, lz.KernelRefusedError):
        return False
    return True


def an_admitted_call(backend, name, kernel):
    for _, arguments in cases(name):
        if admits(backend, name, kernel, arguments):
            return arguments
    return pytest.fail(f"no call admits {kernel}")


@pytest.mark.parametrize(("backend", "name", "kernel"), OPERATIONS)
def test_a_row_does_not_wait_for_the_device(backend, name, kernel):
    proven_row(backend, name, kernel)
    arguments = an_admitted_call(backend, name, kernel)
    torch.cuda.set_sync_debug_mode("error")
    try:
        getattr(lz, name)(**arguments, kernel=kernel)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("place", SIGNATURES)
def test_the_recorded_signature_is_the_librarys(place):
    """Every recorded parameter is there; positional ones in the recorded order."""
    module, _, path = place.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} is not installed: {error}")
    for part in path.split("."):
        found = getattr(found, part)
    names = [p for p in inspect.signature(found).parameters if p != "self"]
    recorded = {}
    exec(f"def function({SIGNATURES[place]}): pass", recorded)
    wanted = [n for n, p in inspect.signature(recorded["function"]).parameters.items() if p.kind not in (2, 4)]
    required = [
        n for n in wanted if inspect.signature(recorded["function"]).parameters[n].default is inspect.Parameter.empty
    ]
    open_ended = any(p.kind == inspect.Parameter.VAR_KEYWORD for p in inspect.signature(found).parameters.values())
    assert open_ended or names[: len(required)] == required
    assert open_ended or set(wanted) <= set(names), set(wanted) - set(names)
