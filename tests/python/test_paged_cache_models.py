"""PagedCache under models whose layers keep other things than keys and values, or read their cache in other ways."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import GREEDY, ids_of  # noqa: E402
from layerzero.errors import InvalidRequestError  # noqa: E402
from layerzero.integrations.transformers.arguments import cache_argument  # noqa: E402


def generate(model, ids, cache=None):
    with torch.inference_mode():
        return model.generate(ids, **GREEDY, **({} if cache is None else cache_argument(model, cache)))


def manager():
    return lz.KVCacheManager(num_blocks=256, block_size=4)


_SMALL = {"vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_LATENT = {"q_lora_rank": 32, "o_lora_rank": 16, "o_groups": 2, "qk_rope_head_dim": 16, "sliding_window": 8}
_INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4, "num_key_value_heads": 1, "head_dim": 32}
_SPARSE = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
_RECURRENT = {
    "num_key_value_heads": 1,
    "lru_width": 64,
    "attention_window_size": 8,
    "head_dim": 16,
    "intermediate_size": 96,
}
OTHERS = {
    "GPTNeoXJapanese": (_SMALL | {"intermediate_multiple_size": 2}, True),
    "RecurrentGemma": (_SMALL | _RECURRENT, False),
    "DeepseekV4": (_SMALL | _LATENT | _INDEX | _SPARSE, False),
}


@pytest.mark.parametrize("kernelized", [False, True])
@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other_models_are_served_or_refused_by_type(name, kernelized):
    settings, served = OTHERS[name]
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip("this release has no such model")
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**settings)).eval()
    ids = ids_of()
    expected = generate(model, ids)
    if kernelized:
        lz.kernelize(model)
    cache = lz.PagedCache(manager())
    if served:
        assert torch.equal(generate(model, ids, cache), expected)
    else:
        with pytest.raises(InvalidRequestError, match="keep keys and values alone.*use its own cache"):
            generate(model, ids, cache)
