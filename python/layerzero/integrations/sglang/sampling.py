"""Tokens by LayerZero's sampling operations in SGLang. Penalties, grammars, log-probabilities and the synchronization of
ranks stay SGLang's."""

from typing import Any

import torch
from sglang.srt.layers import sampler as theirs

from layerzero import _layerzero

_topk_topp = _layerzero.ops["sample_topk_topp"]
_topk = _layerzero.ops["sample_topk"]
_topp = _layerzero.ops["sample_topp"]
_minp = _layerzero.ops["sample_minp"]
MOST_SUMMED = 1024  # a larger top-k leaves out a mass that no float32 sum shows


class LayerZeroSampler(theirs.Sampler):
    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: Any,
        token_ids_logprobs: Any,
        positions: torch.Tensor,
        **further: Any,
    ) -> torch.Tensor:
        """Returns (requests) tokens. A step that needs logits alone makes no probabilities."""
        plain = not return_logprob and not any(value is not None for value in further.values())
        if not plain or sampling_info.is_all_greedy or self._is_seeded(sampling_info) or _wants_masks(sampling_info):
            return super().forward(
                logits_output,
                sampling_info,
                return_logprob,
                top_logprobs_nums,
                token_ids_logprobs,
                positions,
                **further,
            )
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        tokens = sample(logits, sampling_info, sampling_info.temperatures.view(-1))
        self._sync_token_ids_across_tp(tokens, sampling_info)
        return tokens

    def _sample_from_probs(
        self, probs: torch.Tensor, sampling_info: Any, positions: torch.Tensor, simple_sampling_case: bool
    ) -> Any:
        """probs (requests, vocabulary), which SGLang made for log-probabilities."""
        if simple_sampling_case and (self._is_seeded(sampling_info) or _wants_masks(sampling_info)):
            return super()._sample_from_probs(probs, sampling_info, positions, simple_sampling_case)
        capture = None
        if self._is_seeded(sampling_info) or _wants_masks(sampling_info):
            tokens, capture = _by_torch(probs, sampling_info, positions)
        else:
            tokens = sample(probs.log(), sampling_info, None)
        # Releases with masks return what they captured too.
        return (tokens, capture) if hasattr(theirs, "_SamplingMaskCapture") else tokens

    def _is_seeded(self, sampling_info: Any) -> bool:
        return self.enable_deterministic or sampling_info.sampling_seed is not None


def _wants_masks(sampling_info: Any) -> bool:
    return getattr(sampling_info, "sampling_mask_batch_indices", None) is not None


def _by_torch(probs: torch.Tensor, info: Any, positions: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """SGLang's own operations, which draw by seeds and return what was kept."""
    given = probs, info.top_ks, info.top_ps, info.min_ps, info.need_min_p_sampling, info.sampling_seed, positions
    if not _wants_masks(info):
        return theirs.top_k_top_p_min_p_sampling_from_probs_torch(*given), None
    tokens, *kept = theirs.top_k_top_p_min_p_sampling_from_probs_torch(
        *given, return_filtered_probs=True, max_top_k=info.max_top_k
    )
    rows = info.sampling_mask_batch_indices
    return tokens, theirs._SamplingMaskCapture(*(part.index_select(0, rows) for part in kept), rows)


def sample(logits: torch.Tensor, info: Any, temperatures: torch.Tensor | None) -> torch.Tensor:
    """logits (rows, vocabulary); info: SGLang's SamplingBatchInfo; temperatures (rows) float32 or None. Returns (rows)
    int64. A row's top-k, top-p and min-p are each of the whole distribution, as in SGLang: what all of them keep is kept."""
    draw: dict[str, Any] = {"uniform": torch.rand(len(logits), device=logits.device)}
    if temperatures is not None:
        draw["row_temperature"] = temperatures
    by_k, by_p, by_min_p = info.need_top_k_sampling, info.need_top_p_sampling, info.need_min_p_sampling
    if by_k + by_p + by_min_p > 1:
        token = _joint(logits, info, temperatures, draw)
    elif by_k:
        token = _topk(logits, row_k=info.top_ks, **draw)
    elif by_min_p:
        token = _minp(logits, row_min_p=info.min_ps, **draw)
    elif by_p:
        token = _topp(logits, row_p=info.top_ps, **draw)
    else:
        token = _topp(logits, p=1.0, **draw)
    return token.clamp_(min=0)  # -1: a row without a distribution, which no embedding has


def _joint(logits: torch.Tensor, info: Any, temperatures: torch.Tensor | None, draw: dict[str, Any]) -> torch.Tensor:
    """Each rule keeps the most probable tokens up to some rank, so all keep the shortest list. The operation counts top-p
    from what top-k keeps; SGLang from the whole: p is divided by the mass that the other rules keep."""
    scaled = logits.float() if temperatures is None else logits.float() / temperatures[:, None]
    probs = scaled.softmax(-1)
    least = probs.amax(-1, keepdim=True) * info.min_ps[:, None] if info.need_min_p_sampling else None
    kept_logits = logits if least is None else logits.masked_fill(probs < least, -torch.inf)
    kept_p = info.top_ps
    if info.need_top_p_sampling:
        kept_p = (info.top_ps / _kept_mass(probs, info, least)).clamp_(max=1.0)
    return _topk_topp(kept_logits, row_k=info.top_ks, row_p=kept_p, **draw)


def _kept_mass(probs: torch.Tensor, info: Any, least: torch.Tensor | None) -> torch.Tensor:
    """Of what top-k and min-p keep, (rows). A row that keeps more than MOST_SUMMED tokens counts as whole."""
    kept = probs if least is None else probs.masked_fill(probs < least, 0.0)
    whole = kept.sum(-1)
    if not info.need_top_k_sampling:
        return whole
    most = min(MOST_SUMMED, probs.shape[-1])
    sums = kept.topk(most).values.cumsum(-1)
    at = info.top_ks.long().clamp(1, most) - 1
    return torch.where(info.top_ks <= most, sums.gather(1, at[:, None])[:, 0], whole)
