"""How one call of `generate` chooses the next token from logits, inside of a captured step.

Transformers' own logits processors run there, and random numbers are drawn as `torch.multinomial` draws them: a seed has the
same tokens as outside, since a graph reads the generator's state at each replay and advances it. Where `kernelize` was given
sampling="layerzero", one operation takes the place of processors and draw.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from transformers.generation import logits_process as process

from layerzero import _layerzero

# Functions of the scores and of the numbers that the processor has alone.
_OF_SCORES = (
    process.TemperatureLogitsWarper,
    process.TopKLogitsWarper,
    process.TopPLogitsWarper,
    process.MinPLogitsWarper,
)
# These hide the end up to a length, and do nothing from there on.
_UNTIL = (process.MinLengthLogitsProcessor, process.MinNewTokensLengthLogitsProcessor)
_OPERATIONS: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {
    (): ("sample_topp", {"p": 1.0}),
    ("k",): ("sample_topk", {}),
    ("p",): ("sample_topp", {}),
    ("k", "p"): ("sample_topk_topp", {}),
    ("min_p",): ("sample_minp", {}),
}
NO_DISTRIBUTION = "probability tensor contains either `inf`, `nan` or element < 0"  # as torch.multinomial says it


def why_not(processors: Any) -> str | None:
    """None, or which logits processor cannot run inside of a step."""
    for own in processors:
        if type(own) not in (*_OF_SCORES, *_UNTIL):
            return f"it has a {type(own).__name__}"
        if type(own) in _OF_SCORES and not all(isinstance(value, int | float) for value in vars(own).values()):
            return f"its {type(own).__name__} is not of numbers alone"
    return None


def _until(processor: Any) -> int:
    """The length of the ids from which on a processor of `_UNTIL` does nothing."""
    if type(processor) is process.MinLengthLogitsProcessor:
        return processor.min_length
    until: int = processor.prompt_length_to_skip + processor.min_new_tokens
    return until


def _operation(filters: list[Any]) -> tuple[Any, dict[str, Any]] | None:
    """The operation, and its settings, that samples as processors of scores alone say; None where there is none."""
    order = [_OF_SCORES.index(type(own)) for own in filters]
    of_all = -float("inf"), 1
    if order != sorted(set(order)):  # another order, or one twice
        return None
    if any((own.filter_value, own.min_tokens_to_keep) != of_all for own in filters if hasattr(own, "filter_value")):
        return None
    names = {"temperature": "temperature", "top_k": "k", "top_p": "p", "min_p": "min_p"}
    given = {names[name]: value for own in filters for name, value in vars(own).items() if name in names}
    found = _OPERATIONS.get(tuple(name for name in given if name != "temperature"))
    return None if found is None else (_layerzero.ops[found[0]], found[1] | given)


class Choice:
    """own: whether LayerZero's operations sample. pad: the token of finished sequences, None where no sequence ends alone.
    head: see head.Head."""

    def __init__(self, head: Any, processors: Any, samples: bool, pad: int | None, own: bool = False) -> None:
        self.head, self.processors, self.samples, self.pad = head, processors, samples, pad
        self.operation = _operation([p for p in processors if type(p) in _OF_SCORES]) if samples and own else None
        self.kinds: list[Any] = []  # of each processor, what its results depend on besides the scores
        for each in processors:
            numbers = each.eos_token_id.tolist() if type(each) in _UNTIL else sorted(vars(each).items())
            self.kinds.append((type(each), tuple(numbers)))
        self.active: list[Any] = []
        self.ids: Any = None  # of which processors read the length alone
        self.key: Any = None
        self.inputs: Any = None  # of the next step, which the last one has written

    def at(self, length: int, batch: int) -> None:
        """Makes ready for a step whose sequences have `length` ids so far, and writes `key`: equal keys, equal graphs."""
        found = [type(own) in _OF_SCORES or length < _until(own) for own in self.processors]
        self.active = [own for own, active in zip(self.processors, found, strict=True) if active]
        if self.operation is not None:
            self.active = [own for own in self.active if type(own) in _UNTIL]
        self.ids = torch.empty(batch, length, dtype=torch.int64, device="meta")
        kinds = [kind for kind, active in zip(self.kinds, found, strict=True) if active]
        self.key = self.head.number, tuple(kinds), self.samples, self.pad, self.operation is not None

    def __call__(self, step: Any, hidden: torch.Tensor) -> torch.Tensor:
        """The tokens (b,), which become the next step's inputs too; -1 for a row without a distribution."""
        step.kept = self.active  # a graph reads their tensors
        scores = self.head(step.inputs.rows, hidden).to(copy=True, dtype=torch.float32)
        for processor in self.active:
            scores = processor(self.ids, scores)
        tokens, failed = self._chosen(scores)
        if self.pad is not None:
            tokens.masked_fill_(step.inputs.unfinished.logical_not(), self.pad)
        step.inputs.rows.copy_(tokens[:, None])
        return tokens if failed is None else tokens.masked_fill(failed, -1)

    def _chosen(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens (b,), and which rows have no distribution and so any token."""
        if self.operation is None:
            return draw(scores) if self.samples else (torch.argmax(scores, dim=-1), None)
        sample, settings = self.operation
        tokens = sample(scores, **settings).long()
        return tokens.clamp(min=0), tokens < 0

    def generator_state(self, device: torch.device) -> Any:
        return _generator(device).get_state() if self.samples else None

    def set_generator_state(self, device: torch.device, state: Any) -> None:
        if self.samples:
            _generator(device).set_state(state)

    @contextlib.contextmanager
    def put_back(self, step: Any) -> Iterator[None]:
        """Trials within, which choose too, change no inputs and draw no numbers."""
        device = step.numbers.device
        held, state = [None if own is None else own.clone() for own in step.inputs], self.generator_state(device)
        yield
        self.set_generator_state(device, state)
        for own, before in zip(step.inputs, held, strict=True):
            if own is not None:
                own.copy_(before)


def choose(scores: torch.Tensor, samples: bool, pad: int | None, unfinished: torch.Tensor) -> torch.Tensor:
    """Tokens (b,) outside of a step, from scores after the processors; -1 for a row without a distribution. pad: see
    Choice."""
    tokens, failed = draw(scores) if samples else (torch.argmax(scores, dim=-1), None)
    if pad is not None:
        tokens = tokens.masked_fill(unfinished.logical_not(), pad)
    return tokens if failed is None else tokens.masked_fill(failed, -1)


def draw(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `torch.multinomial` draws from softmax(scores), with the same numbers from the generator: tokens (b,), and which
    rows have no distribution and so any token. torch checks that on the device, by an assertion after which the process
    can no longer use a CUDA device.
    """
    probs = functional.softmax(scores, dim=-1)
    tokens = torch.argmax(probs / torch.empty_like(probs).exponential_(), dim=-1)
    return tokens, probs.amax(-1).isnan()


def _generator(device: torch.device) -> torch.Generator:
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
