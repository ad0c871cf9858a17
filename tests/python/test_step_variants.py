"""What a captured step runs besides its layers, and how the kernels of its parts are chosen; without a device."""

# ruff: noqa: F811  (fixtures are imported)

import collections
import ctypes
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from captured_fakes import generated, llama, pair, replayed  # noqa: E402, F401
from layerzero.integrations.transformers.arguments import cache_argument, cache_of  # noqa: E402
from layerzero.integrations.transformers.run import captured, captured_step, decoder, variants  # noqa: E402
from layerzero.integrations.transformers.run.products import Products  # noqa: E402
from layerzero.integrations.transformers.run.rotation import Rotation  # noqa: E402
from layerzero.torch import captures  # noqa: E402

OF_ONE_PART = variants.of_one_part
# What makes another view of a tensor, or memory: on a device no kernel.
_NO_KERNEL = (
    "view reshape slice as_strided expand select unsqueeze squeeze flatten unflatten transpose permute split narrow"
)
_NO_KERNEL += (
    " split_with_sizes t detach alias empty set_ lift_fresh resolve_conj resolve_neg empty_like new_empty result_type"
)
NO_KERNEL = {f"aten::{name}" for name in _NO_KERNEL.split()}


@pytest.fixture
def counted(monkeypatch, replayed):
    """ATen's operations of each replay, but those that no kernel is launched for; LayerZero's own are none of ATen's."""
    replays = []
    record = captures.replay_of

    def recorded(warm_up, run, pool):
        replay = record(warm_up, run, pool)

        def profiled():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                replay()
            names = [event.name for event in profile.events() if event.name.startswith("aten::")]
            replays.append(collections.Counter(name for name in names if name not in NO_KERNEL))

        return profiled

    monkeypatch.setattr(captures, "replay_of", recorded)
    return replays


def steps(model, cache, count=4, length=1, **given):
    """Logits of steps after a prompt; without `given` the model is not told positions."""
    found = []
    with torch.inference_mode():
        out = model(torch.arange(40).view(2, 20), use_cache=True, **cache_argument(model, cache))
        for step in range(count):
            token = torch.full((2, length), 7 + step)
            out = model(token, use_cache=True, **cache_argument(model, cache_of(out)), **given)
            found.append(out.logits)
    return found


def caches(model, kind):
    return transformers.StaticCache(config=model.config, max_cache_len=64) if kind else transformers.DynamicCache()


@pytest.mark.parametrize("kind", [None, "static"])
def test_a_step_launches_nothing_of_torch_but_what_counts_its_positions(kind, counted, pair):
    theirs, ours, _ = pair
    counted.clear()
    for actual, expected in zip(steps(ours, caches(ours, kind)), steps(theirs, caches(theirs, kind)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert len(counted) >= 3
    for found in counted:
        if kind:  # which a CPU does one by one
            assert found.pop("aten::_foreach_add_") == 1
            found = found - collections.Counter(
                {name: found[name] for name in ("aten::item", "aten::_local_scalar_dense")} | {"aten::add_": 2}
            )
        assert found == {"aten::add_": 1}, found


def test_tables_that_a_step_reads_are_the_models_own_numbers(pair):
    theirs, _, _ = pair
    rows = torch.randn(2, 1, 64)
    for dtype in (torch.float32, torch.bfloat16):
        rotation = Rotation(theirs.model.rotary_emb)
        cos, sin = rotation.tables(300, rows.to(dtype))
        for place in (0, 1, 77, 299):
            own = theirs.model.rotary_emb(rows.to(dtype), position_ids=torch.tensor([[place]]))
            assert torch.equal(cos[place], own[0][0, 0]) and torch.equal(sin[place], own[1][0, 0])
        assert rotation.tables(200, rows.to(dtype))[0] is cos
        assert len(rotation.tables(301, rows.to(dtype))[0]) >= 301


class Counting(torch.nn.Module):
    """Its frequencies depend on what it was called with before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.rand(8))
        self.calls = 0

    def forward(self, rows, position_ids):
        self.calls += 1
        angles = position_ids[..., None] * self.frequencies
        return angles.cos(), angles.sin()


class Growing(Counting):
    """They depend on the largest position of a call."""

    def forward(self, rows, position_ids):
        angles = position_ids[..., None] * self.frequencies / position_ids.max().clamp(min=8)
        return angles.cos(), angles.sin()


class Refusing(Counting):
    def forward(self, rows, position_ids):
        raise ValueError("one position at a time")


class Frequencies(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.rand(8))

    def forward(self, rows, position_ids):
        angles = position_ids[..., None] * self.frequencies
        return angles.cos(), angles.sin()


class Parted(Counting):
    """They are a part's, which may be written without a trace in the module itself."""

    def __init__(self):
        super().__init__()
        self.part = Frequencies()

    def forward(self, rows, position_ids):
        return self.part(rows, position_ids)


@pytest.mark.parametrize("kind", [Counting, Growing, Refusing, Parted])
def test_an_embedding_that_is_no_table_is_asked_in_each_step(kind):
    module = kind()
    rotation = Rotation(module)
    assert rotation.tables(100, torch.zeros(1, 1, 16)) is None and rotation.state() is None
    assert module.calls == 0  # it was tried in a copy


def test_tables_for_which_there_was_no_memory_are_made_later(monkeypatch):
    rotation, rows = Rotation(Frequencies()), torch.zeros(1, 1, 16)
    small = rotation.tables(100, rows)
    state = rotation.state()
    with monkeypatch.context() as patched:

        def full(self, rows, position_ids):
            raise torch.OutOfMemoryError("no memory")

        patched.setattr(Frequencies, "forward", full)
        assert rotation.tables(200, rows) is None
        assert rotation.tables(100, rows) is small and rotation.state() == state
    assert len(rotation.tables(200, rows)[0]) == 200


def test_tables_that_a_graph_reads_outlive_those_of_a_larger_cache(replayed, pair):
    """A graph holds addresses alone, and what reads the smaller tables is replayed over its own cache again."""
    _, ours, _ = pair
    # Larger than the memory of kernelize's own trials.
    small, large = (transformers.StaticCache(config=ours.config, max_cache_len=size) for size in (300, 600))
    steps(ours, small)
    own = ours.model.__dict__["_layerzero_decoder"].captured(None)
    (step,) = (step for step in own.steps.values() if step.replay and step.capacity == 300)
    read = weakref.ref(own.forward.rotation.made[3][0])
    assert len(read()) == 300
    steps(ours, large)
    assert len(own.forward.rotation.made[3][0]) == 600
    assert step.replay and read() is not None and step.tables[0] is read()


def test_a_rope_that_grows_gives_the_models_tokens(counted):
    theirs, ours, report = llama(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})
    for model in (theirs, ours):  # soon beyond what it was made for
        model.model.rotary_emb.original_max_seq_len = model.model.rotary_emb.max_seq_len_cached = 24
    assert torch.equal(generated(ours, None), generated(theirs, None)), report


def test_frequencies_that_are_written_or_replaced(replayed, pair):
    theirs, ours, _ = pair
    cache = [caches(model, "static") for model in (theirs, ours)]
    steps(ours, cache[1])

    def compare():
        for own in cache:
            with torch.inference_mode():
                own.reset()
        for actual, expected in zip(steps(ours, cache[1]), steps(theirs, cache[0]), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)

    compare()
    before = replayed.captures
    with torch.no_grad():
        for model in (theirs, ours):
            model.model.rotary_emb.inv_freq.mul_(0.5)
    compare()
    for model in (theirs, ours):
        model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 3
    compare()
    assert replayed.captures >= before + 2


@pytest.mark.parametrize("given", [[[3], [3]], [[20], [21]], [[1000], [2]]])
def test_positions_that_do_not_follow_those_of_the_cache(given, replayed, pair):
    theirs, ours, _ = pair
    further = {"position_ids": torch.tensor(given), "attention_mask": None}
    for actual, expected in zip(
        steps(ours, caches(ours, None), **further), steps(theirs, caches(theirs, None), **further), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_positions_that_generate_counts_are_those_of_the_step(counted, pair):
    """They are compared where the mask is, which waits for the device anyway."""
    theirs, ours, _ = pair
    counted.clear()
    assert torch.equal(generated(ours, "static"), generated(theirs, "static"))
    assert len(counted) >= 8 and not any("aten::cos" in found for found in counted)


def test_positions_beside_padding_are_not_read(replayed, monkeypatch, pair):
    """To read them is to wait for the device, and with a mask in the step they serve nothing."""
    theirs, ours, _ = pair
    monkeypatch.setattr(decoder, "follow", lambda *_: pytest.fail("the positions were read"))
    for cache in (None, "static"):
        assert torch.equal(generated(ours, cache, padded=True), generated(theirs, cache, padded=True))


def test_numbers_of_a_step():
    inputs = captured_step.Inputs(torch.zeros(3, 2, dtype=torch.int64), None, None)
    step = captured_step.Step(inputs, capacity=16)
    for past, new in ((0, 2), (2, 1), (3, 2), (9, 2)):
        step.write(inputs, past, new)
        assert step.places.tolist() == [past, past + 1] * 3
        assert step.slots.tolist() == [16 * b + past + i for b in range(3) for i in range(2)]
        assert step.lengths.tolist() == [past + 2] * 3
        assert step.positions().tolist() == [[past, past + 1]]
        assert step.causal()[0, 0].sum(-1).tolist() == [past + 1, past + 2]
        step.advance([])
        step.advanced(past, new)
    huge = captured_step.Step(inputs._replace(rows=torch.zeros(1 << 16, 1, dtype=torch.int64)), capacity=1 << 15)
    assert huge.slots.dtype == torch.int64 and int(huge.slots[-1]) == ((1 << 16) - 1) << 15


def test_early_launches_are_a_switch_of_the_thread():
    if not captured._CUDA_LIBRARY.exists():
        pytest.skip("built without CUDA")
    switch = ctypes.CDLL(str(captured._CUDA_LIBRARY)).lz_cuda_dependent_launches  # returns what it was
    of_another = []
    with captured.dependent_launches(True):
        other = threading.Thread(target=lambda: of_another.append(switch(1)))
        other.start()
        other.join()
        with captured.dependent_launches(True):
            assert switch(1) == 1
        assert switch(1) == 1
    assert of_another == [0] and switch(0) == 0


NONE, OWN = {"products": "tests.none"}, {"products": "torch.linear"}  # there is no kernel tests.none


@pytest.fixture
def varied(monkeypatch, pair):
    """The pair, whose steps are tried in variants; `seconds` are what each takes, by its name."""
    seconds: dict[str, float] = {}
    monkeypatch.setattr(captured, "_first_variants", lambda step: [{}, NONE, OWN])
    monkeypatch.setattr(variants, "of_one_part", lambda *_: [])
    monkeypatch.setattr(captured, "_times_of", lambda replays: {name: seconds.get(name, 9.0) for name in replays})
    return (*pair, seconds)


def test_the_fastest_products_are_kept(varied, replayed):
    _, ours, report, seconds = varied
    seconds |= {"selected": 8.0, "torch.linear": 12.0}
    generated(ours, None)
    measured = report.replaced["decoder"]["products"]
    assert measured["2 x 1"] == {"us": {"selected": 8.0, "torch.linear": 12.0}, "taken": "selected", "variant": {}}
    seconds["torch.linear"] = 7.0
    with lz.policy(strict_mode=True):  # captured again
        generated(ours, None)
    measured = report.replaced["decoder"]["products"]
    assert measured["2 x 1"]["taken"] == "torch.linear" and measured["2 x 1"]["variant"] == OWN


def test_each_shape_of_products_has_the_kernel_that_makes_the_step_fastest(varied, monkeypatch):
    """Shapes are chosen one after the other, on top of what is kept; a gain within the noise changes nothing."""
    theirs, ours, report, seconds = varied
    monkeypatch.setattr(variants, "FEW_ROWS", ("tests.none", "torch.linear"))
    monkeypatch.setattr(variants, "LOOKUP", "torch.embedding")
    seconds |= {"selected": 8.0, "embedding: torch.embedding": 7.99, "96 x 64: torch.linear": 7.0}
    seconds["96 x 64: torch.linear, 64 x 96: torch.linear"] = 6.0
    monkeypatch.setattr(variants, "of_one_part", OF_ONE_PART)
    kernels = []
    product = Products._product
    monkeypatch.setattr(
        Products,
        "_product",
        lambda self, rows, w, b: kernels.append((tuple(w.shape), dict(self.kernels))) or product(self, rows, w, b),
    )
    assert torch.equal(generated(ours, None), generated(theirs, None))
    found = report.replaced["decoder"]["products"]["2 x 1"]
    assert found["variant"] == {"96 x 64": "torch.linear", "64 x 96": "torch.linear"}, found
    assert kernels[-1][1] == found["variant"]
    assert found["us"]["embedding: torch.embedding"] == 7.99


def test_a_kernel_that_one_part_refuses_is_tried_for_the_others():
    times = {"selected": 9.0, "a: own": 8.0, "a: own, b: own": 7.0}

    def capture(variant):
        if "products" in variant or variant.get("a") == "selected":
            raise ValueError("a product that the kernel does not take")
        return variant

    search = variants.Search(capture, lambda made: {name: times.get(name, 9.0) for name in made})
    search.first([{}, {"products": "own"}])
    search.then([{"a": "selected"}, {"a": "own"}, {"a": "selected"}, {"b": "own"}, {"b": "selected"}])
    assert search.variant == {"a": "own", "b": "own"} and "a: own, b: selected" in search.us


def test_choices_are_kept_while_another_policy_is_in_force(varied, replayed, monkeypatch):
    """Variants are timed once for each policy and shape. Which shapes a turn captures depends on the addresses that memory has."""
    theirs, ours, _, _ = varied
    searches, captures_of = [], []
    capture, times_of = captured.CapturedSteps._capture_fastest, captured._times_of

    def capture_fastest(self, step, *rest):
        captures_of.append((self.stamp[0], tuple(step.inputs.rows.shape[:2])))
        return capture(self, step, *rest)

    monkeypatch.setattr(captured.CapturedSteps, "_capture_fastest", capture_fastest)
    monkeypatch.setattr(captured, "_times_of", lambda made: searches.append(captures_of[-1]) or times_of(made))
    for _ in range(4):
        before = replayed.captures
        for keys in ({}, {"strict_mode": True}):
            with lz.policy(**keys):
                assert torch.equal(generated(ours, None), generated(theirs, None))
        assert replayed.captures >= before + 2
    assert len({policy for policy, _ in searches}) >= 2
    assert len(searches) == len(set(searches)) < len(captures_of), searches


def test_a_variant_that_cannot_be_captured_costs_no_other_one_its_memory(monkeypatch, replayed, varied):
    """A pool is of no use after a capture into it failed."""
    _, ours, report, _ = varied
    pools = iter(range(100))
    record, broken = captures.replay_of, set()

    def record_into(warm_up, run, pool):
        assert pool not in broken
        try:
            return record(warm_up, run, pool)
        except Exception:
            broken.add(pool)
            raise

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(captures, "replay_of", record_into)
    generated(ours, None)
    entry = report.replaced["decoder"]
    assert broken and not entry.get("not_captured"), entry
    assert entry["products"]["2 x 1"]["us"].keys() == {"selected", "torch.linear"}


def test_a_step_whose_known_variant_fails_runs_with_what_calls_select(monkeypatch, varied):
    theirs, ours, report, seconds = varied
    seconds["torch.linear"] = 1.0
    generated(ours, None)
    measured = report.replaced["decoder"]["products"]["2 x 1"]
    assert measured["taken"] == "torch.linear"
    measured["variant"] = NONE
    assert torch.equal(generated(ours, "static"), generated(theirs, "static"))
    assert any("cannot be captured" in reason for reason in report.replaced["decoder"]["not_captured"])
