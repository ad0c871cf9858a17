"""The ways in which Transformers generates, for each family: caches, beams, drafts. Greedy, eight tokens."""

import dataclasses
import functools
from typing import Any

import torch

from layerzero.kv_cache import KVCacheManager
from layerzero.models.families import Family

# A family whose layers have windows has windowed caches in the first two. "paged" compares lz.PagedCache with
# Transformers' default cache.
WAYS = ("dynamic", "static", "paged", "beams", "assisted")
# Ways that fail with Transformers alone too, or that need a cache of keys and values.
WITHOUT = {
    "qwen3_next": ("paged", "assisted"),  # some of its layers keep a state instead
}
_GREEDY = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "disable_compile": True}
_BEAMS = 3
_DRAFT_IS_OFF_BY = 1.02  # so that some of its tokens are rejected


def ways_of(family: Family) -> list[str]:
    if not family.generates:
        return []
    left_out = WITHOUT.get(family.name, ())
    if family.inputs != "ids":
        left_out = (*left_out, "paged")  # these have a cache of two stacks
    return [way for way in WAYS if way not in left_out]


@dataclasses.dataclass
class Generation:
    """One way of one family; `run` runs it with a model, kernelized or not."""

    family: Family
    way: str

    @functools.cached_property
    def draft(self) -> Any:
        model = self.family.build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(_DRAFT_IS_OFF_BY)
        return model

    def run(self, model: Any, ours: bool) -> torch.Tensor:
        """Returns the ids generated after the family's example."""
        example = self.family.example()
        example.pop("decoder_input_ids", None)
        options: dict[str, Any] = dict(_GREEDY)
        if self.way in ("dynamic", "static"):
            options["cache_implementation"] = self.way
        elif self.way == "beams":
            options["num_beams"] = _BEAMS
        elif self.way == "assisted":
            options["assistant_model"] = self.draft
            example = {name: given[:1] for name, given in example.items()}
        elif ours:
            from layerzero.integrations.transformers.arguments import cache_argument
            from layerzero.integrations.transformers.caches.paged_cache import PagedCache

            options |= cache_argument(model, PagedCache(KVCacheManager(num_blocks=64, block_size=16)))
        with torch.inference_mode():
            return model.generate(**example, **options)
