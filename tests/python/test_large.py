"""Calls over 2^31 elements, of every operation: what is computed for one batch is computed for each of so many."""

import functools
import math
import re
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.contracts import condition, contracts, present_outputs  # noqa: E402
from operation_cases import NAMES, as_tuple, cases, same, tensors_of  # noqa: E402

MORE_THAN = 2**31
MOST_BYTES = 13 << 30

# Operations whose cases have no axis of independent batches: tests of their own below.
WITHOUT_BATCHES = [
    "convert_layout",
    "kv_append_paged",
    "kv_block_table_update",
    "kv_compact",
    "kv_page_table",
    "kv_rope_append_paged",
    "linear_gguf_prepack",
    "linear_panels_prepack",
]


def available():
    with open("/proc/meminfo", encoding="ascii") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def need(size):
    if size > min(available() * 0.8, MOST_BYTES):
        pytest.skip(f"needs {size >> 20} MiB")


def dims(shape):
    return [part.strip() for part in re.split(r",(?![^\[{(]*[\]})])", shape)]


class Batches:
    """A call whose tensors with axis `axis` hold one batch, to be repeated; "...": axes in front."""

    def __init__(self, name, arguments, axis):
        self.name, self.axis, self.contract = name, axis, contracts()[name]
        self.one = dict(arguments)
        self.repeated = {}
        for param in self.contract["params"]:
            tensor = arguments.get(param["name"])
            if param["kind"] != "tensor" or tensor is None or axis not in dims(param["shape"]):
                continue
            at = 0 if axis == "..." else dims(param["shape"]).index(axis)
            if param["broadcast"]:  # may lack leading axes; of one batch it serves all
                at -= len(dims(param["shape"]))
                if axis != "..." and tensor.dim() + at >= 0:
                    self.one[param["name"]] = tensor.narrow(at, 0, 1)
                continue
            self.repeated[param["name"]] = at
            if axis != "...":
                self.one[param["name"]] = tensor.narrow(at, 0, 1)
        # Formulas in torch hold whole intermediates: their C++ reference serves where nothing else does.
        report = lz.explain(name, **self.repeat(3))
        self.by_formula = report.kernel_id.startswith("torch.ref.")
        self.by_torch = report.kernel_id.startswith("torch.")
        self.reference = f"ref.{report.operation}"
        if self.by_formula:
            self.one["kernel"] = self.reference

    def shape(self, name, count):
        shape, at = list(self.one[name].shape), self.repeated[name]
        return [*shape[:at], count, *(shape if self.axis == "..." else shape[at + 1 :])]

    def repeat(self, count, materialize=False):
        """Views whose batches share memory, or tensors with memory for each."""
        call = dict(self.one)
        for name, at in self.repeated.items():
            tensor = self.one[name].unsqueeze(at) if self.axis == "..." else self.one[name]
            view = tensor.expand(self.shape(name, count))
            call[name] = view.contiguous() if materialize else view
        return call

    @functools.cached_property
    def wanted(self):
        """The results of one batch, each with the axis of the batches."""
        results = as_tuple(getattr(lz, self.name)(**self.one))
        described = present_outputs(self.contract, self.one.get(condition(self.contract) or ""))
        axes = [0 if self.axis == "..." else dims(o["shape"]).index(self.axis) for o in described]
        return list(zip(results, axes, strict=True))

    def agree(self, results, at):
        """Whether the batches numbered `at` of the results are the result of one."""
        for (want, axis), got in zip(self.wanted, results, strict=True):
            want = want if self.axis == "..." else want.select(axis, 0)
            for i in at:
                same(got.select(axis, i), want)

    def sizes(self, count):
        """(largest number of elements, bytes of the outputs, bytes of the inputs)."""
        inputs = {n: (math.prod(self.shape(n, count)), self.one[n].dtype.itemsize) for n in self.repeated}
        outputs = [(count * want.numel(), want.dtype.itemsize) for want, _ in self.wanted]
        total = [sum(n * size for n, size in group) for group in (outputs, inputs.values())]
        return max(n for n, _ in [*inputs.values(), *outputs]), *total


def batches_of(name):
    """The cheapest call of `name` with independent batches, and how many of them pass 2^31 elements."""
    contract, best = contracts()[name], None
    if any(p.get("mutated") for p in contract["params"]):
        return None
    for _, arguments in cases(name):
        tensors = tensors_of(arguments)
        if arguments.get("layout") not in (None, next(iter(contract["layouts"]), None)) or any(
            t.numel() == 0 or (t.is_floating_point() and t.float().isnan().any()) for t in tensors.values()
        ):
            continue
        shapes = [p["shape"] for p in contract["params"] if p["name"] in tensors and not p["broadcast"]]
        for axis in dict.fromkeys(d for shape in shapes for d in dims(shape) if d == "..." or d.isidentifier()):
            try:
                call = Batches(name, arguments, axis)
                results = getattr(lz, name)(**call.repeat(3))
                call.agree(as_tuple(results), range(3))
                elements = call.sizes(1)[0]
            except (lz.LayerZeroError, AssertionError, ValueError, IndexError, RuntimeError):
                continue  # its batches are not independent, or such a call is refused
            count = MORE_THAN // elements + 2
            _, outputs, inputs = call.sizes(count)
            cost = (call.by_formula, outputs + inputs, count)
            if best is None or cost < best[0]:
                best = cost, call, count
    return best and best[1:]


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in NAMES if n not in WITHOUT_BATCHES])
def test_every_batch_is_right_beyond_2_to_the_31(name):
    call, count = batches_of(name)
    elements, outputs, inputs = call.sizes(count)
    assert elements > MORE_THAN
    need(outputs)
    materialize = outputs + 2 * inputs < min(available() * 0.8, MOST_BYTES)
    arguments = call.repeat(count, materialize)
    # torch makes what shares memory dense first, and some of its functions hold float32 values of all elements.
    if call.by_torch and outputs + 2 * inputs + 8 * elements > available() * 0.8:
        arguments["kernel"] = call.reference
    start = time.monotonic()
    results = as_tuple(getattr(lz, name)(**arguments))
    print(f"{name}: {count} of {call.axis}, {time.monotonic() - start:.1f} s, memory of its own: {materialize}")
    around = [n for n in range(MORE_THAN * count // elements - 2, count) if n >= 0]
    at = torch.randint(count, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    call.agree(results, [0, 1, count // 2, *at, *around])


# ---- operations without an axis of batches


def cache(d):
    """Blocks of one byte an element, beyond 2^31 of them; a last block of its own numbers."""
    need(MORE_THAN * 5 // 4)
    blocks = torch.zeros(MORE_THAN // (128 * 8 * d) + 3, 128, 8, d, dtype=torch.int8)
    assert blocks.numel() > MORE_THAN
    return blocks


def small_cache(like):
    return torch.zeros(*like.shape[:3], 1, dtype=torch.int8)


@pytest.mark.full
@pytest.mark.parametrize("wide", ["key", "value"])
def test_kv_caches_beyond_2_to_the_31(wide):
    large = cache(128)
    small, last = small_cache(large), large.shape[0] - 1
    caches = (large, small) if wide == "key" else (small, large)
    rows = torch.randint(-9, 9, (2, 8, 128)).float(), torch.randint(-9, 9, (2, 8, 1)).float()
    slots = torch.tensor([last * 128 + 5, 3])
    units = {"k_scale": torch.ones(8), "v_scale": torch.ones(8)}
    lz.kv_append_paged(*caches, *(rows if wide == "key" else rows[::-1]), slots, layout="NHD", **units)
    assert torch.equal(large[last, 5], rows[0][0].to(torch.int8)) and torch.equal(
        large[0, 3], rows[0][1].to(torch.int8)
    )
    assert torch.equal(small[last, 5], rows[1][0].to(torch.int8)) and large[last, 6].abs().max() == 0
    assert torch.equal(lz.kv_gather(large, slots), torch.stack([large[last, 5], large[0, 3]]))
    if wide == "key":  # rows at the angle 0
        tables, more = (torch.ones(2, 64), torch.zeros(2, 64)), slots + 1
        lz.kv_rope_append_paged(rows[0], *rows, *tables, *caches, more, layout="NHD", **units)
        assert torch.equal(lz.kv_gather(large, more), lz.kv_gather(large, slots))
    lz.kv_compact(*caches, torch.tensor([[last, last - 1], [0, 1]]))
    for moved in caches:
        assert torch.equal(moved[last - 1], moved[last]) and torch.equal(moved[1], moved[0])
    assert large[last - 1].abs().max() > 0 and large[1].abs().max() > 0


def reads_pages(name):
    params = contracts()[name]["params"]
    return {"kv_indices", "block_tables"} & {p["name"] for p in params} and not any(p.get("mutated") for p in params)


def untouched(shape, dtype):
    """Zeros whose memory exists where it is touched: NumPy asks the system for it, torch would write it."""
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in NAMES if reads_pages(n)])
def test_pages_beyond_2_to_the_31(name):
    """The pages of a case at the end of a cache whose other pages are never touched, so they cost no memory."""
    ran = set()
    for _, arguments in cases(name):
        caches = {k: v for k, v in tensors_of(arguments).items() if k.endswith("_cache")}
        numbers = {k: arguments[k] for k in ("kv_indices", "block_tables") if k in arguments}
        pages = {t.shape[0] for t in caches.values()}
        report = lz.explain(name, **arguments)
        if any(t.numel() == 0 for t in caches.values()) or report.kernel_id in ran:
            continue
        count = MORE_THAN // max(t[0].numel() for t in caches.values()) + max(pages)
        large = {k: untouched((count, *t.shape[1:]), t.dtype) for k, t in caches.items()}
        for k, t in caches.items():
            large[k][-t.shape[0] :] = t
        moved = {k: torch.where((t >= 0) & (t < max(pages)), t + count - max(pages), t) for k, t in numbers.items()}
        for kernel in (report.kernel_id, f"ref.{report.operation}"):
            call = arguments | {"kernel": kernel}
            try:
                want = getattr(lz, name)(**call)
            except lz.LayerZeroError:
                continue
            same(getattr(lz, name)(**call | large | moved), want)
            ran.add(kernel)
    assert len(ran) > 1 and max(t.numel() for t in large.values()) > MORE_THAN


# Weights by name whose first axis holds that many rows or experts of which the last one is asked for, other arguments of
# `count` of them, and where the answer is.
WEIGHTS = {
    "embedding": ({"weight": (256,)}, lambda count: {"input": torch.tensor([count - 1])}, ...),
    "linear": ({"weight": (256,)}, lambda count: {"input": torch.ones(1, 256).bfloat16()}, (..., [-1])),
    "linear of rows": ({"weight": (256,)}, lambda count: {"input": torch.ones(6, 256).bfloat16()}, (..., [-1])),
    "grouped_gemm": (
        {"weight": (512, 512)},
        lambda count: {
            "input": torch.ones(4, 512).bfloat16(),
            "offsets": torch.tensor([0] * count + [4], dtype=torch.int32),
        },
        ...,
    ),
    "fused_moe": (
        {"gate_weight": (1024, 256), "down_weight": (256, 512)},
        lambda count: {
            "input": torch.ones(2, 256).bfloat16(),
            "expert_ids": torch.full((2, 1), count - 1),
            "expert_weights": torch.ones(2, 1),
        },
        ...,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_beyond_2_to_the_31(case):
    """The last of so many rows or experts gives what it gives alone, by every kernel."""
    shapes, others, at = WEIGHTS[case]
    name, count = case.split()[0], MORE_THAN // max(map(math.prod, shapes.values())) + 3
    large = {key: untouched((count, *shape), torch.bfloat16) for key, shape in shapes.items()}
    for weight in large.values():
        weight[-1] = (torch.randn(weight.shape[1:]) / 16).bfloat16()
    call, alone = large | others(count), {key: weight[-1:].clone() for key, weight in large.items()} | others(1)
    kernels = [c.kernel_id for c in lz.explain(name, **call).candidates if c.admissible]
    want = getattr(lz, name)(**alone, kernel=next(k for k in kernels if k.startswith("ref.")))
    for kernel in kernels:
        if not kernel.startswith(
            ("torch.ref.", "ref.mlp")
        ):  # formulas hold intermediates of every row, or take minutes
            got = getattr(lz, name)(**call, kernel=kernel)[at]
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.full
def test_block_tables_beyond_2_to_the_31():
    need(9 << 30)
    table = torch.empty(2**10 + 1, 2**21, dtype=torch.int32)
    table[[0, 1024], -2:] = 0
    lz.kv_block_table_update(table, torch.tensor([[1024, 2**21 - 1, 77], [0, 2**21 - 1, 78]]))
    assert table[1024, -2:].tolist() == [0, 77] and table[0, -2:].tolist() == [0, 78]


@pytest.mark.full
def test_gguf_prepack_beyond_2_to_the_31():
    need(MORE_THAN * 9 // 4)
    group = torch.randint(0, 256, (16, 576), dtype=torch.uint8)  # columns that are packed together, 1,024 weights each
    count = MORE_THAN // group.numel() + 2
    call = {"k": 1024, "format": "q4_0"}
    got = lz.linear_gguf_prepack(group.expand(count, 16, 576).reshape(-1, 576), **call)
    assert got.numel() > MORE_THAN
    (want,) = lz.linear_gguf_prepack(group, **call)
    for at in (0, 1, count // 2, count - 2, count - 1):
        assert torch.equal(got[at], want)


@pytest.mark.full
def test_panels_prepack_beyond_2_to_the_31():
    need(9 << 30)
    weight = torch.randn(64, 1024).to(torch.bfloat16)  # one panel
    count = MORE_THAN // weight.numel() + 2
    got = lz.linear_panels_prepack(weight.expand(count, 64, 1024).reshape(-1, 1024))
    (want,) = lz.linear_panels_prepack(weight)
    for at in (0, 1, count // 2, count - 2, count - 1):
        assert torch.equal(got[at], want)


@pytest.mark.full
@pytest.mark.parametrize(("source", "target"), [("BSHD", "BHSD"), ("BHSD", "BSHD"), ("NHD", "HND")])
def test_layouts_beyond_2_to_the_31(source, target):
    need(MORE_THAN * 2)
    count = MORE_THAN // (8 * 128) + 3
    tokens = torch.arange(count)[:, None, None]
    pattern = (tokens % 113).to(torch.int8) + torch.arange(8, dtype=torch.int8)[:, None]
    x = pattern.expand(count, 8, 1).expand(count, 8, 128)  # (tokens, heads, d): strides 0 along d
    x = x.transpose(0, 1) if source == "BHSD" else x
    batched = x[None] if len(source) == 4 else x
    y = lz.convert_layout(batched, source, target)
    assert y.numel() > MORE_THAN
    y = y[0] if len(target) == 4 else y
    y = y if target == "BSHD" else y.transpose(0, 1)
    for i in (0, 1, count // 2, 2**31 // 1024, count - 1):
        assert torch.equal(y[i], pattern[i].expand(8, 128))


@pytest.mark.full
def test_sample_minp_beyond_2_to_the_31():
    need(MORE_THAN * 2 + (1 << 28))
    logits = torch.zeros(MORE_THAN // 2**15 + 2, 2**15, dtype=torch.bfloat16)
    best = torch.arange(logits.shape[0]) * 31 % 2**15
    logits[torch.arange(len(best)), best] = 9.0  # scatter_ would hold float32 of all
    assert torch.equal(lz.sample_minp(logits, 1.0), best)


@pytest.mark.full
def test_attention_partials_beyond_2_to_the_31():
    need(9 << 30)
    batch = MORE_THAN // 64 + 3
    q, k, v = (torch.randn(1, s, 1, 64, dtype=torch.bfloat16) for s in (1, 2, 2))
    call = {"num_splits": 1, "layout": "BSHD", "kernel": "ref.attention.standard.partials"}
    want = lz.attention_partials(q, k, v, **call)
    got = lz.attention_partials(*(t.expand(batch, *t.shape[1:]) for t in (q, k, v)), **call)
    assert got[0].numel() > MORE_THAN
    for at in (0, 1, batch // 2, batch - 2, batch - 1):
        same(tuple(t[:, at] for t in got if t is not None), tuple(t[:, 0] for t in want if t is not None))


def test_what_has_no_batches_has_none():
    assert not [name for name in WITHOUT_BATCHES if batches_of(name)]
