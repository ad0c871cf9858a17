"""Whether a model that was changed by findings computes what its own code does: one short forward before, one after."""

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from layerzero.integrations.transformers import probe, structure
from layerzero.integrations.transformers.recognise import findings
from layerzero.integrations.transformers.recognise.findings import Findings
from layerzero.integrations.transformers.recognise.structure_key import key_of

_ROWS = 3  # a text with padding on its left, one without, and the same with another last token


class Proof:
    """The model's results before it is changed. reached: ids of the modules that ran."""

    def __init__(self, model: Any, given: dict[str, Any]) -> None:
        self.model, self.base, self.given = model, probe.base_of(model), given
        self.reached: set[int] = set()
        with register_module_forward_pre_hook(lambda module, _: self.reached.add(id(module))):
            self.expected = self._run(given)

    def _run(self, given: dict[str, Any]) -> list[torch.Tensor]:
        with probe.without_modes(), probe.trial(self.model):
            return structure.tensors_of(self.base(**given))

    def holds(self) -> bool:
        """Whether the model returns the same now."""
        mask = self.given.get("decoder_attention_mask" if "decoder_input_ids" in self.given else "attention_mask")
        return _are_alike(self._run(self.given), self.expected, mask)

    def holds_without_mask(self) -> bool:
        """The same for the texts without padding and without a mask, which other kernels may serve than a mask of ones."""
        if not self._has_texts:
            return True
        given = {name: tensor[1:] for name, tensor in self.given.items() if name != "attention_mask"}
        return _are_alike(self._run(given), [tensor[1:] for tensor in self.expected], None)

    @property
    def _has_texts(self) -> bool:
        return all(tensor.shape[0] == _ROWS for tensor in (*self.expected, *self.given.values()))


def _are_alike(actual: list[torch.Tensor], expected: list[torch.Tensor], mask: Any) -> bool:
    """Whether tensors agree except in rows of padding, and the same rows change with the last token."""
    return probe.same(_runs_of(actual, mask), _runs_of(expected, mask), slack=3)


def _runs_of(tensors: list[torch.Tensor], mask: Any) -> probe.Runs:
    seen = [t[mask.bool()] if mask is not None and t.shape[: mask.dim()] == mask.shape else t for t in tensors]
    texts = tensors[0].dim() > 1 and tensors[0].shape[0] == (_ROWS if mask is not None else _ROWS - 1)
    return probe.Runs(seen, [(tensors[0][-2], tensors[0][-1])] if texts else [])


def kept_findings(model: Any) -> Findings:
    """Findings for a model's structure, where some are kept and a proof can be made; else empty ones."""
    small = sum(1 for _ in model.modules()) < findings.LEAST_MODULES
    key = None if small else key_of(model)
    kept = None if key is None else findings.kept_for(key)
    given = None if kept is None else _inputs_of(model)
    try:
        return Findings(key) if given is None else Findings(key, kept, Proof(model, given))
    except Exception:  # whatever a model of unknown code raises on such an input
        return Findings(key)


def tells_something(model: Any) -> bool:
    """Whether a model of these weights returns finite numbers, not all zero: then findings about it are worth keeping."""
    given = _inputs_of(model)
    try:
        with probe.without_modes(), probe.trial(model):
            rows = [] if given is None else structure.tensors_of(probe.base_of(model)(**given))
    except Exception:  # as above
        return False
    return bool(rows and rows[0].isfinite().all() and rows[0].any())


def _inputs_of(model: Any) -> dict[str, Any] | None:
    try:
        given = probe.inputs_of(probe.base_of(model), without_encoder=True)
    except Exception:  # a model has an embedding elsewhere, or none
        return None
    return None if given is None else _with_another_last(given)


def _with_another_last(given: dict[str, Any]) -> dict[str, Any]:
    """Adds a third text: the second one with another last token."""
    if set(given) - {"input_ids", "attention_mask", "decoder_input_ids"}:
        return given
    ids, mask = given["input_ids"], given["attention_mask"]
    longer = torch.cat([ids, probe.with_other_last(ids[1:])])
    found = {"input_ids": longer, "attention_mask": torch.cat([mask, mask[1:]])}
    return found | ({"decoder_input_ids": longer} if "decoder_input_ids" in given else {})
