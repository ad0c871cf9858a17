"""Models of any shape, long contexts, large batches and many threads: a program's logits and caches are the model's own."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from small_llama import GREEDY, TOLERANCE, error, plan_of, tiny  # noqa: E402

LONG = 8192


def odd_shape(seed):
    """Sizes that no kernel is made for: odd counts of heads and groups, widths that no vector divides."""
    draw = random.Random(seed)
    kv_heads, group = draw.choice([1, 2, 3, 5]), draw.choice([1, 2, 3, 7])
    return {
        "hidden_size": kv_heads * group * draw.randrange(1, 25, 2),  # Transformers wants a multiple
        "intermediate_size": draw.randrange(3, 150),
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * draw.randrange(1, 50),  # a rotation turns pairs
        "num_hidden_layers": draw.randrange(1, 4),
        "vocab_size": draw.randrange(11, 300),
        "initializer_range": 0.2,
        "attention_bias": draw.random() < 0.5,
        "mlp_bias": draw.random() < 0.5,
        "tie_word_embeddings": draw.random() < 0.5,
    }


def both(dtype=torch.float32, **changes):
    """(kernelized, as it was); the first one's layers are one program."""
    model = tiny(dtype, **changes)
    own = copy.deepcopy(model)
    assert lz.compile(model).block, changes
    return model, own


def ids_of(model, batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.config.vocab_size, (batch, length), generator=generator)


def assert_runs(model):
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("seed", range(12))
def test_shapes_that_no_kernel_is_made_for(seed):
    model, own = both(**odd_shape(seed))
    ids = ids_of(model, 1 + seed % 3, 5 + 7 * seed, seed)
    with torch.inference_mode():
        assert error(model(ids).logits, own(ids).logits) <= TOLERANCE
    assert model.generate(ids, **GREEDY).tolist() == own.generate(ids, **GREEDY).tolist()
    assert_runs(model)


@pytest.mark.parametrize("seed", range(4))
def test_odd_shapes_in_bf16_are_as_near_to_the_truth_as_the_model(seed):
    model, own = both(torch.bfloat16, **odd_shape(100 + seed))
    exact = copy.deepcopy(own).double()
    ids = ids_of(model, 2, 33, seed)
    with torch.inference_mode():
        truth = exact(ids).logits
        assert error(model(ids).logits, truth) <= 1.25 * error(own(ids).logits, truth)
    assert_runs(model)


@pytest.mark.parametrize("batch", [1, 2, 7, 33, 64])
def test_batches(batch):
    model, own = both()
    ids = ids_of(model, batch, 19)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, : row % 17] = 0  # as much padding as the tokenizer of a real batch
    given = {"input_ids": ids, "attention_mask": mask}
    with torch.inference_mode():
        seen = mask.bool()
        assert error(model(**given).logits[seen], own(**given).logits[seen]) <= TOLERANCE
    assert model.generate(**given, **GREEDY).tolist() == own.generate(**given, **GREEDY).tolist()
    assert_runs(model)


def rows_of_a_long_context(model):
    """Logits of the last position of a prompt of 8192, and of three tokens behind it; the cache they left."""
    cache = transformers.DynamicCache(config=model.config)
    steps = [ids_of(model, 1, LONG), *ids_of(model, 1, 3, seed=1).split(1, dim=1)]
    with torch.inference_mode():
        return torch.cat([model(ids, past_key_values=cache, logits_to_keep=1).logits for ids in steps]), cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_context_of_8192_positions(dtype):
    model, own = both(dtype, max_position_embeddings=2 * LONG, num_hidden_layers=2)
    actual, cache = rows_of_a_long_context(model)
    expected, _ = rows_of_a_long_context(own)
    if dtype == torch.float32:
        assert error(actual, expected) <= TOLERANCE
    else:
        truth, _ = rows_of_a_long_context(own.float())
        assert error(actual, truth) <= 1.25 * error(expected, truth)
    assert cache.get_seq_length() == LONG + 3
    assert_runs(model)


@pytest.mark.parametrize("threads", [2, 5, 16])
def test_threads_with_prompts_and_caches_of_their_own(threads):
    model, own = both()
    prompts = [ids_of(model, 1 + n % 3, 3 + n, n) for n in range(2 * threads)]
    wanted = [own.generate(ids, **GREEDY).tolist() for ids in prompts]
    with ThreadPoolExecutor(threads) as pool:
        got = list(pool.map(lambda ids: model.generate(ids, **GREEDY).tolist(), prompts))
    assert got == wanted
    assert_runs(model)
