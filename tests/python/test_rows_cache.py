"""The cache of program runs: to Transformers each of its layers is a DynamicLayer, whatever is done to it between."""

import contextlib
import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers.caches import rows_cache  # noqa: E402
from layerzero.integrations.transformers.caches.rows_cache import RowsLayer  # noqa: E402
from small_llama import TOLERANCE, error, ids_of, plan_of, tiny  # noqa: E402
from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache  # noqa: E402

HEADS, DIM, LAYERS = 2, 8, 3
SIZES = [(index, HEADS, DIM, DIM) for index in range(LAYERS)]


def normal(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Pair:
    """A cache as programs write it and Transformers' own, to which the same is done."""

    def __init__(self, batch=2):
        self.batch = batch
        self.rows, self.own = DynamicCache(), DynamicCache()
        self.seed = 0

    def append(self, length, caches=("rows", "own")):
        """What a program does to one, and what the model does to the other."""
        self.seed += 1
        new = normal(LAYERS, 2, self.batch, length, HEADS, DIM, seed=self.seed)
        if "rows" in caches:
            write(self.rows, new)
        if "own" in caches:
            update(self.own, new)

    def both(self, action):
        action(self.rows)
        action(self.own)
        self.check()

    def check(self):
        assert_same(self.rows, self.own)


def write(cache, new):
    length, past = new.shape[3], int(cache.get_seq_length())
    rows = rows_cache.adopt(cache, new[0, 0], SIZES, past, length)
    for memory, part in zip(rows, new.flatten(0, 1), strict=True):
        assert memory.shape[1] >= past + length
        memory[:, past : past + length] = part
    rows_cache.appended(cache, length)


def update(cache, new):
    for index, (keys, values) in enumerate(new):
        cache.update(keys.transpose(1, 2), values.transpose(1, 2), index)


def assert_same(cache, own):
    assert cache.get_seq_length() == own.get_seq_length()
    assert len(cache.layers) == len(own.layers)
    for layer, expected in zip(cache.layers, own.layers, strict=True):
        assert isinstance(layer, DynamicLayer)
        assert layer.is_initialized == expected.is_initialized
        assert layer.get_seq_length() == expected.get_seq_length()
        assert layer.get_mask_sizes(3) == expected.get_mask_sizes(3)
        for mine, theirs in ((layer.keys, expected.keys), (layer.values, expected.values)):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs.numel():
                assert torch.equal(mine, theirs)
        if expected.is_initialized:
            assert layer.device == expected.device and layer.dtype == getattr(expected, "dtype", layer.dtype)


CHANGES = {
    "update": lambda cache: update(cache, normal(LAYERS, 2, 2, 3, HEADS, DIM, seed=99)),
    "crop none": lambda cache: cache.crop(0),
    "crop": lambda cache: cache.crop(-2),
    "crop all": lambda cache: cache.crop(-cache.get_seq_length()),
    "reorder": lambda cache: cache.reorder_cache(torch.tensor([1, 0])),
    "beams that merge": lambda cache: cache.reorder_cache(torch.tensor([1, 1])),
    "repeat and select": lambda cache: (
        cache.batch_repeat_interleave(3),
        cache.batch_select_indices(torch.tensor([4, 0])),
    ),
    "reset": lambda cache: cache.reset(),
    "set": lambda cache: [
        setattr(layer, name, getattr(layer, name) + 1) for layer in cache.layers for name in ("keys", "values")
    ],
    "written in place": lambda cache: [layer.keys.zero_() for layer in cache.layers],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("looks", [False, True])
def test_is_a_dynamic_layer_under(change, looks):
    pair = Pair()
    for length in (4, 1, 1):
        pair.append(length)
    if looks:
        pair.check()
    pair.both(CHANGES[change])
    for length in (1, 5):
        pair.append(length)
    pair.both(CHANGES[change])
    pair.append(2)
    pair.check()


@pytest.mark.parametrize("name", ["deepcopy", "copy of each layer", "pickle", "torch.save"])
def test_copies_are_caches_of_their_own(name):
    def copied(cache):
        if name == "deepcopy":
            return copy.deepcopy(cache)
        if name == "pickle":
            return pickle.loads(pickle.dumps(cache))
        if name == "torch.save":
            buffer = io.BytesIO()
            torch.save(cache, buffer)
            buffer.seek(0)
            return torch.load(buffer, weights_only=False)
        twin = DynamicCache()
        twin.layers = [copy.copy(layer) for layer in cache.layers]
        return twin

    pair = Pair()
    pair.append(4)
    pair.append(1)
    twins = Pair()
    twins.rows, twins.own, twins.seed = copied(pair.rows), copy.deepcopy(pair.own), 40
    twins.check()
    for length in (1, 2, 1):  # in turn
        pair.append(length)
        twins.append(length)
        pair.check()
        twins.check()
    for each in (pair, twins):
        each.both(CHANGES["crop"])
    twins.append(3)
    pair.append(1)
    pair.check()
    twins.check()


def test_a_copy_stays_when_the_original_is_cropped_and_goes_on():
    pair = Pair()
    pair.append(6)
    layer = copy.copy(pair.rows.layers[0])
    expected = pair.own.layers[0].keys
    pair.both(CHANGES["crop"])
    pair.append(2)
    assert torch.equal(layer.keys, expected)


def test_shallow_copies_share_their_layers():
    pair = Pair()
    pair.append(4)
    twin = copy.copy(pair.rows)
    pair.append(1)
    assert_same(twin, pair.own)
    new = normal(LAYERS, 2, 2, 2, HEADS, DIM, seed=50)
    write(twin, new)
    update(pair.own, new)
    pair.check()
    pair.append(1)
    assert_same(twin, pair.own)


def test_who_has_seen_keys_sees_them_stay():
    pair = Pair()
    pair.append(5)
    seen = [(layer.keys, layer.values) for layer in pair.rows.layers]
    expected = [(layer.keys, layer.values) for layer in pair.own.layers]
    pair.append(1)
    pair.both(CHANGES["crop"])
    pair.append(3)
    for mine, theirs in zip(seen, expected, strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
    pair.check()


@pytest.mark.parametrize("order", [[1, 0], [1, 1], [0, 1, 1]])
def test_beams_change_their_order_outside_of_inference_mode(order):
    pair = Pair()
    with torch.inference_mode():
        pair.append(3)
    pair.both(lambda cache: cache.reorder_cache(torch.tensor(order)))
    pair.batch = len(order)
    pair.append(1)
    pair.check()


def test_appends_write_in_place_until_the_memory_is_full():
    pair = Pair()
    pair.append(3)
    memory = pair.rows.layers[0]._memory
    moves = 0
    for _ in range(700):
        pair.append(1)
        moves += pair.rows.layers[0]._memory is not memory
        memory = pair.rows.layers[0]._memory
    assert moves == 2  # room for 256 behind the prompt, then as much as there is
    pair.check()


def test_cropped_positions_are_written_again_in_place():
    pair = Pair()
    pair.append(10)
    memory = pair.rows.layers[0]._memory
    for _ in range(3):
        for cache in (pair.rows, pair.own):
            cache.crop(-4)
        pair.append(4)
    assert pair.rows.layers[0]._memory is memory
    pair.check()


def test_layers_of_other_lengths_are_not_mixed():
    pair = Pair()
    pair.append(4)
    pair.rows.layers[1].crop(-2)
    with pytest.raises(ValueError, match="wanted 4 positions in each layer of the cache, got 2"):
        pair.append(1)


def test_programs_see_only_what_is_in_place():
    pair = Pair()
    pair.append(4)
    update(pair.rows, normal(LAYERS, 2, 2, 1, HEADS, DIM, seed=9))
    update(pair.own, normal(LAYERS, 2, 2, 1, HEADS, DIM, seed=9))
    assert not pair.rows.__dict__["_layerzero_rows"].holds(pair.rows.layers, 5)
    pair.append(1)
    assert pair.rows.__dict__["_layerzero_rows"].holds(pair.rows.layers, 6)
    pair.check()


def test_memory_of_one_call_is_shared_by_layers_of_one_size():
    like = normal(2, 3, 16)
    rows = rows_cache.no_rows(like, [(0, 2, 8, 8), (1, 1, 8, 8), (2, 2, 8, 8)], 3)
    assert [tuple(memory.shape) for memory in rows[::2]] == [(2, 3, 2, 8), (2, 3, 1, 8), (2, 3, 2, 8)]
    assert rows[0] is rows[4] and rows[0] is not rows[1] and rows[2] is not rows[0]
    assert rows_cache.no_rows(like, [], 3) == ()


@pytest.fixture(scope="module")
def models():
    model = tiny()
    lz.kernelize(model)
    return model, tiny()


def run(model, ids, cache):
    with torch.inference_mode():
        return model(ids, past_key_values=cache).logits


@pytest.mark.parametrize("kind", ["dynamic", "static", "none"])
def test_caches_of_a_kernelized_model(models, kind):
    model, reference = models
    plan_of(model).why_aside.clear()

    def cache_for(each):
        match kind:
            case "dynamic":
                return DynamicCache(config=each.config)
            case "static":
                return StaticCache(config=each.config, max_cache_len=16)
        return None

    caches = [cache_for(each) for each in models]
    ids = ids_of(2, 12)
    for begin, end in ((0, 7), (7, 8), (8, 12)):
        ours, theirs = (run(each, ids[:, begin:end], cache) for each, cache in zip(models, caches, strict=True))
        assert error(ours, theirs) <= TOLERANCE
    assert not plan_of(model).why_aside
    if kind == "dynamic":
        assert all(type(layer) is RowsLayer for layer in caches[0].layers)
        for layer, expected in zip(caches[0].layers, caches[1].layers, strict=True):
            assert error(layer.keys, expected.keys) <= TOLERANCE and error(layer.values, expected.values) <= TOLERANCE


def test_offloaded_caches_step_aside(models):
    plan_of(models[0]).why_aside.clear()
    with contextlib.suppress(AssertionError, RuntimeError):  # Transformers itself needs CUDA for them
        run(models[0], ids_of(1, 4), DynamicCache(config=models[0].config, offloading=True))
    assert plan_of(models[0]).why_aside == {"the cache is offloaded": 1}


def test_a_full_static_cache_is_an_error(models):
    cache = StaticCache(config=models[0].config, max_cache_len=4)
    run(models[0], ids_of(1, 4), cache)
    with pytest.raises(lz.InvalidRequestError, match="program: cache 0"):
        run(models[0], ids_of(1, 1), cache)


def test_two_answers_to_one_prompt(models):
    prompt, first, second = ids_of(1, 6), ids_of(1, 3) + 1, ids_of(1, 4) + 2
    for model in models:
        cache = DynamicCache(config=model.config)
        run(model, prompt, cache)
        twin = copy.deepcopy(cache)
        answers = [run(model, first[:, :1], cache), run(model, second[:, :2], twin)]
        answers += [run(model, first[:, 1:], cache), run(model, second[:, 2:], twin)]
        if model is models[0]:
            ours = answers
    for mine, theirs in zip(ours, answers, strict=True):
        assert error(mine, theirs) <= TOLERANCE
