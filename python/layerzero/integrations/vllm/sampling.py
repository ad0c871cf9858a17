"""Sampling by LayerZero's operations in both of vLLM's model runners, for engines whose `ops` name the sampler.

Neither runner has a table of samplers: a subclass takes the name that vLLM looks up. The newer runner's is put there when
vLLM imports it, since most processes import one runner.
"""

import sys
from types import ModuleType
from typing import Any

import torch
from vllm.v1.sample import sampler as samplers
from vllm.v1.sample.ops import topk_topp_sampler

from layerzero import _layerzero
from layerzero.host.import_hook import when_imported
from layerzero.integrations.vllm.options import wanted

NEWER = "vllm.v1.worker.gpu.sample.sampler"
_NEWER_USER = "vllm.v1.worker.gpu.model_runner"


def drawn(logits: torch.Tensor, k: Any, p: Any, uniform: torch.Tensor) -> torch.Tensor:
    """logits (rows, vocabulary) after temperatures; k (rows) int, p (rows) float, or None; uniform (rows) in [0, 1).
    Returns (rows) int64."""
    if k is not None and p is not None:
        token = _layerzero.ops["sample_topk_topp"](logits, row_k=k, row_p=p, uniform=uniform)
    elif k is not None:
        token = _layerzero.ops["sample_topk"](logits, row_k=k, uniform=uniform)
    else:
        kept = {"p": 1.0} if p is None else {"row_p": p}
        token = _layerzero.ops["sample_topp"](logits, uniform=uniform, **kept)
    return token.clamp_(min=0)  # -1: a row without a distribution, which no embedding has


class LayerZeroSampler(topk_topp_sampler.TopKTopPSampler):
    """Of the older model runner. A step that has to return processed logits takes vLLM's way."""

    def __init__(self, logprobs_mode: Any = "raw_logprobs", use_fp64_gumbel: bool = False) -> None:
        super().__init__(logprobs_mode, use_fp64_gumbel)
        if wanted("sampler") and not str(logprobs_mode).startswith("processed") and not use_fp64_gumbel:
            self.forward = self.layerzero_forward

    def layerzero_forward(
        self, logits: torch.Tensor, generators: dict[int, torch.Generator], k: Any, p: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """logits (rows, vocabulary) after temperatures; k (rows) int, p (rows) float, or None."""
        uniform = torch.rand(len(logits), device=logits.device)
        for row, generator in generators.items():
            uniform[row : row + 1] = torch.rand(1, device=logits.device, generator=generator)
        return drawn(logits, k, p, uniform), None


def seeded(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A number of [0, 1) for each row, float32, from its request's seed and its position alone (rows, int64 both), so that a
    request with a seed gets the same tokens in every batch. By integer operations on the device: nothing waits."""
    mixed = seeds + positions * -0x61C8864680B583EB  # SplitMix64: steps of the golden ratio, then its two products
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 40).float() * 2.0**-24


def _shifted(bits: torch.Tensor, count: int) -> torch.Tensor:
    """To the right, with zeros from the left: torch's shift of int64 repeats the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def newer(theirs: ModuleType) -> type:
    """The subclass of the newer model runner's Sampler; theirs: its module."""
    base: Any = theirs.Sampler

    class LayerZeroRunnerSampler(base):
        """Greedy steps, float64 noise and processed log-probabilities stay vLLM's."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.own = wanted("sampler") and not self.use_fp64_gumbel

        def sample(
            self,
            logits: torch.Tensor,
            expanded_idx_mapping: torch.Tensor,
            idx_mapping_np: Any,
            pos: torch.Tensor,
            input_ids: torch.Tensor,
            expanded_local_pos: torch.Tensor,
            return_logprobs: bool = False,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """logits (rows, vocabulary); pos (rows) int64. Returns tokens (rows) int64 and the logits after penalties and
            temperatures, float32."""
            states, rows = self.sampling_states, expanded_idx_mapping
            given = logits, rows, idx_mapping_np, pos, input_ids, expanded_local_pos
            temperatures = states.temperature.np[idx_mapping_np]
            processed = return_logprobs and self.logprobs_mode == "processed_logprobs"
            if not self.own or processed or not temperatures.any():
                return super().sample(*given, return_logprobs=return_logprobs)
            scaled = self.apply_sampling_params(*given, skip_top_k_top_p=True)
            k, p = states.get_top_k_top_p(rows, idx_mapping_np)
            if not temperatures.all():  # a greedy request keeps its largest logit
                k = states.top_k.gpu[rows] if k is None else k
                k = torch.where(states.temperature.gpu[rows] == 0, 1, k)
            if states.any_explicit_seed(idx_mapping_np):
                uniform = seeded(states.seeds.gpu[rows], pos.long())
            else:
                uniform = torch.rand(len(logits), device=logits.device)
            return drawn(scaled, k, p, uniform), scaled

    return LayerZeroRunnerSampler


def _take_name(theirs: ModuleType) -> None:
    ours = newer(theirs)
    theirs.Sampler = ours  # type: ignore[attr-defined]
    if (user := sys.modules.get(_NEWER_USER)) is not None and hasattr(
        user, "Sampler"
    ):  # imported it before the plugin ran
        user.Sampler = ours  # type: ignore[attr-defined]


def register() -> None:
    """Puts the classes where vLLM looks for them, once."""
    if samplers.TopKTopPSampler is not LayerZeroSampler:
        samplers.TopKTopPSampler = LayerZeroSampler
        when_imported(NEWER, _take_name)
