"""lz.PagedCache: what Transformers' own cache does, over blocks that sequences share."""

import copy
import gc
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import DECODERS, GREEDY, TOLERANCE, build, error, ids_of, plan_of  # noqa: E402
from layerzero.integrations.transformers.caches.padding import OTHER_MASK  # noqa: E402
from transformers.cache_utils import DynamicCache  # noqa: E402

HEADS, DIM, LAYERS = 2, 8, 3


def manager(num_blocks=256, block_size=4, **options):
    return lz.KVCacheManager(num_blocks=num_blocks, block_size=block_size, **options)


def paged(**options):
    return lz.PagedCache(manager(**options))


def normal(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def padded(ids, *pads):
    mask = torch.ones_like(ids)
    for row, pad in zip(mask, pads, strict=True):
        row[:pad] = 0
    return mask


def generate(model, ids, cache=None, **options):
    with torch.inference_mode():
        return model.generate(ids, past_key_values=cache, **GREEDY | options)


def pair(name="qwen2 mixed"):
    model, own = build(name), build(name)
    lz.kernelize(model)
    return model, own


@pytest.fixture(params=DECODERS)
def name(request):
    return request.param


# ---- models


def forward_in_pieces(model, ids, cache, mask, pieces):
    logits, begin = [], 0
    for length in pieces:
        end = begin + length
        given = {} if mask is None else {"attention_mask": mask[:, :end]}
        with torch.inference_mode():
            logits.append(model(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True, **given).logits)
        begin = end
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("padding", [None, (3, 0), (0, 9)])
def test_a_program_over_blocks(name, padding):
    """Prompt, pieces and tokens; padding that ends within the prompt, and within the second piece."""
    (model, own), ids = pair(name), ids_of(2, 22)
    mask = None if padding is None else padded(ids, *padding)
    cache, pieces = paged(), (7, 5, 1, 1, 8)
    expected = forward_in_pieces(own, ids, DynamicCache(), mask, pieces)
    actual = forward_in_pieces(model, ids, cache, mask, pieces)
    visible = torch.ones_like(ids).bool() if mask is None else mask.bool()
    assert error(actual[visible], expected[visible]) <= TOLERANCE
    assert not plan_of(model).why_aside
    assert cache.manager.stats()["num_allocated_tokens"] == int(visible.sum())


@pytest.mark.parametrize("kernelized", [False, True])
def test_generation(name, kernelized):
    model, own = build(name), build(name)
    if kernelized:
        lz.kernelize(model)
    shared, ids = manager(), ids_of()
    for options in ({}, {"num_beams": 3}, {"attention_mask": padded(ids, 4, 0)}):
        assert torch.equal(generate(model, ids, lz.PagedCache(shared), **options), generate(own, ids, **options))
    gc.collect()
    assert shared.stats()["num_free"] == shared.num_blocks
    assert not kernelized or not plan_of(model).why_aside


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    model, own, exact = build("gemma2", dtype), build("gemma2", dtype), build("gemma2").double()
    lz.kernelize(model)
    ids, pieces = ids_of(2, 22), (14, 1, 7)
    wanted = forward_in_pieces(exact, ids, DynamicCache(), None, pieces)
    expected = forward_in_pieces(own, ids, DynamicCache(), None, pieces)
    actual = forward_in_pieces(model, ids, paged(), None, pieces)
    assert error(actual, wanted) <= 1.25 * error(expected, wanted)
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("kernelized", [True, False])
def test_storage_in_units(dtype, kernelized):
    """Close to exact rows, and the program gives what the model's own code gives over the same blocks."""
    (model, own), ids, pieces = pair("gemma2"), ids_of(2, 22), (14, 1, 7)
    exact, config = DynamicCache(), own.config
    expected = forward_in_pieces(own, ids, exact, None, pieces)
    heads, most = config.num_key_value_heads, 127 if dtype is torch.int8 else torch.finfo(dtype).max
    keys, values = (max(getattr(layer, name).abs().max() for layer in exact.layers) for name in ("keys", "values"))
    store = manager()
    store.allocate_storage(
        num_layers=config.num_hidden_layers,
        num_kv_heads=heads,
        head_dim=config.head_dim,
        dtype=dtype,
        k_scale=keys.reshape(1) / most,
        v_scale=values.expand(heads) / most,
    )
    cache = lz.PagedCache(store)
    actual = forward_in_pieces(model if kernelized else own, ids, cache, None, pieces)
    assert not kernelized or not plan_of(model).why_aside
    assert cache.layers[0].keys.dtype is torch.float32
    other = forward_in_pieces(own, ids, lz.PagedCache(store), None, pieces)
    assert 0 < error(actual, expected) <= 0.05
    assert error(actual, other) <= 100 * TOLERANCE


def test_storage_in_units_comes_later():
    """A layer that no model of the cache has makes the next step one with scales."""
    (model, own), ids = pair(), ids_of(2, 22)
    cache, one = paged(), torch.ones(1)
    actual = [forward_in_pieces(model, ids[:, :14], cache, None, (14,))]
    cache.manager.allocate_storage(num_kv_heads=HEADS, head_dim=DIM, dtype=torch.int8, k_scale=one, v_scale=one)
    with torch.inference_mode():
        actual.append(model(ids[:, 14:], past_key_values=cache).logits)
    expected = forward_in_pieces(own, ids, DynamicCache(), None, (14, 8))
    assert error(torch.cat(actual, 1), expected) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_storage_without_scales_is_of_the_models_dtype():
    model, _ = pair()
    store = manager()
    store.allocate_storage(num_kv_heads=model.config.num_key_value_heads, head_dim=16, dtype=torch.int8)
    with pytest.raises(lz.InvalidRequestError, match=r"storage of layer 0: .* got .*int8 .* has both scales"):
        model(ids_of(), past_key_values=lz.PagedCache(store))


def test_a_llama():
    """Its forward is ours as a whole, masks included."""
    from small_llama import plan_of, tiny

    own, model, ids = tiny(), tiny(), ids_of(2, 22)
    lz.kernelize(model)
    for mask in (None, padded(ids, 6, 0)):
        pieces = (9, 1, 12)
        expected = forward_in_pieces(own, ids, DynamicCache(), mask, pieces)
        actual = forward_in_pieces(model, ids, paged(), mask, pieces)
        visible = torch.ones_like(ids).bool() if mask is None else mask.bool()
        assert error(actual[visible], expected[visible]) <= TOLERANCE
    hidden_keys = torch.ones(2, 22, dtype=torch.long)
    hidden_keys[:, 5] = 0  # more than padding: the operations run one by one over gathered rows
    expected = forward_in_pieces(own, ids, DynamicCache(), hidden_keys, pieces)
    assert error(forward_in_pieces(model, ids, paged(), hidden_keys, pieces), expected) <= TOLERANCE
    assert not plan_of(model).why_aside


@pytest.mark.filterwarnings("ignore")
def test_drafts_cut_it_back():
    (model, own), draft, ids = pair("gemma"), build("gemma"), ids_of(1)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(1.02)
    expected = generate(own, ids, assistant_model=draft)
    assert torch.equal(generate(model, ids, paged(), assistant_model=draft), expected)
    assert not plan_of(model).why_aside


def test_contiguous_storage():
    (model, own), ids = pair(), ids_of()
    cache = paged(strategy="contiguous", num_blocks=12, block_size=64)
    assert torch.equal(generate(model, ids, cache, num_beams=3), generate(own, ids, num_beams=3))


def test_a_window_keeps_all_positions_and_sees_its_own():
    (model, own), ids = pair("mistral"), ids_of(2, 90)
    pieces = (60, 1, 29)
    expected = forward_in_pieces(own, ids, DynamicCache(config=own.config), None, pieces)
    assert error(forward_in_pieces(model, ids, paged(), None, pieces), expected) <= TOLERANCE


# ---- masks


def test_a_mask_of_something_else_steps_aside():
    """Padding at the right, holes: the model's own code over gathered keys."""
    (model, own), ids = pair(), ids_of(2, 22)
    mask = torch.ones_like(ids)
    mask[0, 4:6] = 0
    pieces = (12, 1, 9)
    expected = forward_in_pieces(own, ids, DynamicCache(), mask, pieces)
    actual = forward_in_pieces(model, ids, paged(), mask, pieces)
    assert error(actual[mask.bool()], expected[mask.bool()]) <= TOLERANCE
    assert set(plan_of(model).why_aside) == {OTHER_MASK}


@pytest.mark.parametrize("llama", [False, True])
def test_a_mask_that_shows_what_was_left_out_is_refused(llama):
    from small_llama import tiny

    model = tiny() if llama else build("gpt_neox")
    lz.kernelize(model)
    ids, cache = ids_of(2, 22), paged()
    forward_in_pieces(model, ids[:, :10], cache, padded(ids, 3, 0), (10,))
    for mask in (None, torch.ones(2, 11), padded(ids[:, :11], 1, 0)):
        with (
            pytest.raises(lz.InvalidRequestError, match=r"zeros at the first \[3, 0\] positions"),
            torch.inference_mode(),
        ):
            model(input_ids=ids[:, 10:11], attention_mask=mask, past_key_values=cache)
    assert cache.get_seq_length() == 10
    with torch.inference_mode():
        model(input_ids=ids[:, 10:11], attention_mask=padded(ids[:, :11], 3, 0).float(), past_key_values=cache)
    assert cache.get_seq_length() == 11


# ---- prompts that begin alike


def test_a_prompt_that_was_there_before_is_not_computed_again():
    (model, own), shared, ids = pair(), manager(), ids_of(2, 22)
    expected = generate(own, ids)
    for known in (0, 20):
        cache = lz.PagedCache(shared)
        assert cache.begin(ids) == cache.get_seq_length() == known
        assert torch.equal(generate(model, ids, cache), expected)
        cache.end()
    assert shared.stats()["num_free"] + shared.stats()["num_idle"] == shared.num_blocks
    other = ids.clone()
    other[1, 6] += 1
    cache = lz.PagedCache(shared)
    assert cache.begin(other) == 4, "one block of the second row"
    assert torch.equal(generate(model, other, cache), generate(own, other))
    cache.end()
    assert lz.PagedCache(shared).begin(ids, salt=1) == 0


def test_prompts_that_are_padded():
    (model, own), shared, ids = pair(), manager(), ids_of(2, 22)
    mask = padded(ids, 5, 0)
    expected = generate(own, ids, attention_mask=mask)
    for known in (0, 20):
        cache = lz.PagedCache(shared)
        assert cache.begin(ids, mask) == known
        assert torch.equal(generate(model, ids, cache, attention_mask=mask), expected)
        cache.end()
    cache = lz.PagedCache(shared)
    assert cache.begin(ids, padded(ids, 0, 5)) == 0, "no row has those ids in those places"


def test_without_a_program_padding_is_stored_and_not_made_known():
    """The model's own code does not tell a cache of padding: blocks that hold some are of no use for others."""
    own, shared, ids = build("qwen2 mixed"), manager(), ids_of(2, 22)
    mask = padded(ids, 5, 0)
    cache = lz.PagedCache(shared)
    cache.begin(ids, mask)
    assert torch.equal(generate(own, ids, cache, attention_mask=mask), generate(own, ids, attention_mask=mask))
    cache.end()
    assert lz.PagedCache(shared).begin(ids, mask) == 0


def test_a_cache_without_begin_leaves_nothing_known():
    model, shared, ids = pair()[0], manager(), ids_of(2, 22)
    cache = lz.PagedCache(shared)
    generate(model, ids, cache)
    cache.end()
    assert shared.stats()["num_free"] == shared.num_blocks


def test_ids_behind_what_was_cut_off_are_not_those_of_the_prompt():
    (model, own), shared, ids = pair(), manager(), ids_of(1, 22)
    other = ids.clone()
    other[0, 9:] += 1
    cache = lz.PagedCache(shared)
    cache.begin(ids)
    forward_in_pieces(model, ids, cache, None, (22,))
    cache.crop(-13)
    forward_in_pieces(model, other[:, 9:], cache, None, (13,))
    cache.end()
    cache = lz.PagedCache(shared)
    assert cache.begin(ids) == 8
    assert torch.equal(generate(model, ids, cache), generate(own, ids))


# ---- the same to both: PagedCache and DynamicCache


class Pair:
    def __init__(self, batch=2, **options):
        self.paged, self.own, self.seed, self.batch = paged(**options), DynamicCache(), 0, batch

    def append(self, length):
        self.seed += 1
        new = normal(LAYERS, 2, self.batch, HEADS, length, DIM, seed=self.seed)
        for index, states in enumerate(new):
            expected = self.own.update(*states, index)
            for mine, theirs in zip(self.paged.update(*states, index), expected, strict=True):
                assert torch.equal(mine, theirs)
        return self

    def both(self, action):
        action(self.paged)
        action(self.own)
        self.check()

    def check(self):
        assert self.paged.get_seq_length() == self.own.get_seq_length()
        for layer, expected in zip(self.paged.layers, self.own.layers, strict=True):
            assert layer.get_mask_sizes(3) == expected.get_mask_sizes(3)
            assert torch.equal(layer.keys, expected.keys) and torch.equal(layer.values, expected.values)


def test_rows_are_chosen_and_repeated():
    caches = Pair(3).append(6)
    caches.both(lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])))
    caches.append(1)
    caches.both(lambda cache: cache.batch_repeat_interleave(2))
    caches.batch = 6
    caches.append(5)
    caches.both(lambda cache: cache.batch_select_indices(torch.tensor([5, 1])))
    caches.batch = 2
    caches.append(2)
    assert caches.paged.batch_size == 2


def test_forks_take_blocks_as_they_are_written():
    caches = Pair(1).append(8)
    free = caches.paged.manager.stats()["num_free"]
    caches.both(lambda cache: cache.batch_repeat_interleave(4))
    assert caches.paged.manager.stats()["num_free"] == free
    caches.batch = 4
    caches.append(1)
    assert caches.paged.manager.stats()["num_free"] == free - 4


@pytest.mark.parametrize("removed", [0, -1, -6, -9, -50])
def test_positions_are_dropped(removed):
    caches = Pair().append(5).append(4)
    caches.both(lambda cache: cache.crop(removed)) if removed > -9 else caches.paged.crop(removed)
    assert caches.paged.get_seq_length() == max(9 + removed, 0)
    if removed > -9:
        caches.append(3)


def test_a_copy_goes_its_own_way():
    caches = Pair().append(6)
    before = caches.paged.manager.stats()["num_free"]
    for copied in (copy.deepcopy(caches.paged), copy.copy(caches.paged)):
        assert caches.paged.manager.stats()["num_free"] == before
        copied.update(*normal(2, 2, HEADS, 3, DIM, seed=77), 0)
        assert copied.get_seq_length() == 9
        caches.check()
        copied.end()


def test_an_empty_cache():
    cache = paged()
    assert cache.get_seq_length() == 0 and cache.batch_size == -1 and len(cache) == 0
    assert cache.get_mask_sizes(4, 0) == (4, 0) and not cache.is_compileable
    cache.crop(-3)
    cache.end()
    cache.reset()
    copy.deepcopy(cache).update(*normal(2, 1, HEADS, 3, DIM), 0)


def test_a_cache_that_is_collected_gives_its_blocks_back():
    caches = Pair().append(9)
    held = caches.paged.manager
    assert held.stats()["num_sequences"] == 2
    del caches
    gc.collect()
    assert held.stats()["num_sequences"] == 0 and held.stats()["num_free"] == held.num_blocks


# ---- refusals, and what is left after them


def test_a_full_manager_changes_nothing():
    model, ids = pair()[0], ids_of(2, 22)
    cache = paged(num_blocks=13)
    logits = forward_in_pieces(model, ids, cache, None, (20,))
    with pytest.raises(lz.KVCacheFullError, match="num_blocks"):
        forward_in_pieces(model, ids, cache, None, (22,))
    assert cache.get_seq_length() == 20 and cache.manager.stats()["num_free"] == 3
    expected = forward_in_pieces(model, ids, paged(), None, (20, 1, 1))
    rest = forward_in_pieces(model, ids[:, 20:], cache, None, (1, 1))
    assert torch.equal(torch.cat([logits, rest], dim=1), expected)


def test_a_full_manager_refuses_a_prompt():
    cache = paged(num_blocks=5)
    with pytest.raises(lz.KVCacheFullError):
        cache.begin(ids_of(2, 22))
    for options in ({}, {"strategy": "contiguous", "block_size": 64}):
        cache = paged(num_blocks=5, **options)
        with pytest.raises(lz.KVCacheFullError):
            cache.update(*normal(2, 6, HEADS, 22, DIM), 0)
        assert cache.manager.stats()["num_free"] == 5 and cache.batch_size == -1
        cache.update(*normal(2, 1, HEADS, 3, DIM), 0)


def test_a_run_that_fails_leaves_the_cache_as_it_was(monkeypatch):
    model, ids, cache = pair()[0], ids_of(2, 22), paged()
    forward_in_pieces(model, ids, cache, None, (10,))
    program = plan_of(model).program()._paged[False]

    def fails(*_):
        raise lz.KernelExecutionError("planted")

    monkeypatch.setattr(program, "run", fails)
    with pytest.raises(lz.KernelExecutionError, match="planted"):
        forward_in_pieces(model, ids[:, 10:], cache, None, (5,))
    monkeypatch.undo()
    rest = forward_in_pieces(model, ids[:, 10:], cache, None, (5,))
    assert torch.equal(rest, forward_in_pieces(model, ids, paged(), None, (10, 5))[:, 10:])


def test_what_is_refused():
    caches = Pair().append(4)
    cache = caches.paged
    one = normal(2, 3, HEADS, 1, DIM)
    refused = {
        "batch: wanted 2 rows": lambda: cache.update(*one, 0),
        "begin: wanted an empty cache": lambda: cache.begin(ids_of()),
        "crop: wanted 0 or a negative number": lambda: cache.crop(2),
        "pickle": lambda: pickle.dumps(cache),
        "storage of layer 0: wanted 1 heads of 8": lambda: cache.update(*one[:, :2, :1], 0),
        "storage of layer 0: .*float64": lambda: cache.update(*one[:, :2].double(), 0),
        "wanted a change of the whole cache": lambda: cache.layers[0].crop(-1),
        "layer: wanted a change of the whole": lambda: setattr(cache.layers[0], "keys", None),
        "attention_mask: wanted zeros followed by ones": lambda: paged().begin(ids_of(), torch.ones(2, 3)),
        "got another mask; pad at the left": lambda: paged().begin(ids_of(), 1 - padded(ids_of(), 2, 2)),
    }
    for message, call in refused.items():
        with pytest.raises(lz.InvalidRequestError, match=message):
            call()
        caches.check()


def test_a_layer_of_a_cache_that_is_gone():
    layer = Pair().append(2).paged.layers[0]
    gc.collect()
    with pytest.raises(ReferenceError):
        _ = layer.keys


def test_threads_share_a_manager():
    (model, own), shared = pair(), manager(num_blocks=512)
    prompts = [ids_of(1, 17 + seed) for seed in range(6)]
    expected = [generate(own, ids) for ids in prompts]
    failures = []

    def work(index):
        for _ in range(3):
            cache = lz.PagedCache(shared)
            cache.begin(prompts[index])
            if not torch.equal(generate(model, prompts[index], cache), expected[index]):
                failures.append(index)
            cache.end()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and shared.stats()["num_sequences"] == 0
