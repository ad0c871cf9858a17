"""Calls of a model that could tell whether a kernelized copy computes the same, and how far the copy is away.

Each call is made of the original and of the copy with the same seed. What is compared is everything that a call returns: all
tensors but rows of padding, and which values are missing. A call that the original itself refuses tells nothing.
"""

import contextlib
import copy
import dataclasses
import inspect
import math
from collections.abc import Mapping

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache

ROUNDING = 1e-3  # relative L2 error of a tensor in float32, above which a copy is wrong
PADS = 3


@dataclasses.dataclass
class Outcome:
    """errors: call -> largest relative error. wrong: call -> what differs. refused: calls that the original refuses."""

    errors: dict = dataclasses.field(default_factory=dict)
    wrong: dict = dataclasses.field(default_factory=dict)
    refused: dict = dataclasses.field(default_factory=dict)

    @property
    def error(self):
        return max(self.errors.values(), default=0.0)

    def without(self, calls):
        """The same of all but these calls."""
        kept = (
            {name: value for name, value in each.items() if name not in calls} for each in (self.errors, self.wrong)
        )
        return Outcome(*kept, self.refused)


# ---- results


def flat(result, path=""):
    """(path, leaf) of all that a call gave; of caches nothing, the step that follows reads them."""
    if isinstance(result, (Cache, EncoderDecoderCache)):
        yield path, "a cache"
    elif isinstance(result, Mapping):
        for name, value in result.items():
            yield from flat(value, f"{path}.{name}")
    elif isinstance(result, (tuple, list)):
        yield f"{path}.length", len(result)
        for index, value in enumerate(result):
            yield from flat(value, f"{path}.{index}")
    elif dataclasses.is_dataclass(result):
        yield from flat(vars(result), path)
    else:
        yield path, result


def _visible(tensor, mask):
    """Without rows of padding; of attention weights those queries."""
    if mask is None:
        return tensor
    kept = mask.bool()
    if tensor.shape[:2] == mask.shape:
        return tensor[kept]
    if tensor.dim() == 4 and tensor.shape[0] == mask.shape[0] and tensor.shape[2] == mask.shape[1]:
        return tensor.transpose(1, 2)[kept]
    return tensor


def distance(actual, expected):
    """Relative L2 error of two tensors of one shape where `expected` is a number; infinite where they are finite in other places."""
    actual, expected = actual.detach(), expected.detach()
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if torch.equal(actual, expected) else math.inf
    a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (actual, expected))
    a, b = a.double(), b.double()
    defined = ~b.isnan()  # eager attention makes NaN of a row that sees no key, the operation zeros
    a, b = a[defined], b[defined]
    finite = b.isfinite() & (b.abs() < 1e30)
    if not torch.equal(a.isfinite() & (a.abs() < 1e30), finite):
        return math.inf
    a, b = a[finite], b[finite]
    return float((a - b).norm() / (b.norm() + 1e-6 * max(b.numel(), 1) ** 0.5))


def compare(actual, expected, mask=None):
    """(the largest relative error, None or what differs) of two results. mask: rows where it is 0 do not count."""
    mine, theirs = dict(flat(actual)), dict(flat(expected))
    if mine.keys() != theirs.keys():
        return math.inf, f"other parts: {sorted(mine.keys() ^ theirs.keys())[:6]}"
    largest, worst = 0.0, ""
    for path, value in theirs.items():
        other = mine[path]
        if not _alike(other, value):
            return math.inf, f"{path}: wanted {_shown(value)}, got {_shown(other)}"
        if isinstance(value, torch.Tensor):
            found = distance(_visible(other, mask), _visible(value, mask))
            if not found <= largest:
                largest, worst = found, path
    return largest, (f"{worst}: relative error {largest:.2e}" if not largest <= ROUNDING else None)


def _alike(actual, expected):
    """Of one type, shape and dtype; of numbers and texts the value too."""
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        return actual.shape == expected.shape and actual.dtype == expected.dtype
    if isinstance(expected, float):
        return math.isclose(actual, expected, rel_tol=ROUNDING)
    return actual == expected if isinstance(expected, (int, str)) else True


def _shown(value):
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, torch.Tensor) else repr(value)[:80]


# ---- calls


def _masks(given):
    length = given["input_ids"].shape[1]
    ones = torch.ones(2, length, dtype=torch.long)
    left, right = ones.clone(), ones.clone()
    left[0, :PADS], right[1, -PADS:] = 0, 0
    return ones, left, right


def _changed(given):
    """The last token, or the last part of an image or a sound, is another one."""

    def other(name, value):
        if name in ("input_ids", "decoder_input_ids", "inputs"):
            value = value.clone()
            value[:, -1] = (value[:, -1] + 17) % 90 + 5
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value.clone()
            value[..., -(value.shape[-1] // 4 or 1) :] += 1.5
        return value

    return {name: other(name, value) for name, value in given.items()}


def calls_of(model, given):
    """(call -> its arguments, call -> the mask whose rows count) of a model that runs on `given`."""
    taken = inspect.signature(type(model).forward).parameters
    calls, masks = {"plain": given, "changed": _changed(given)}, {}
    text = isinstance(given.get("input_ids"), torch.Tensor) and given["input_ids"].dim() == 2
    if "attention_mask" in taken:
        more, masks = _padded_texts(given, taken) if text else (_padded_sounds(given), {})
        calls |= more
    for name in ("output_attentions", "output_hidden_states"):
        calls[name] = given | {name: True}
        if "left padding" in calls:
            calls[f"{name}, left padding"] = calls["left padding"] | {name: True}
            masks |= {f"{name}, left padding": masks["left padding"]} if "left padding" in masks else {}
    calls["return_dict=False"] = given | {"return_dict": False}
    if "use_cache" in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        calls["use_cache=False"] = given | {"use_cache": False}
    return calls | (_further_texts(model, given, taken) if text else {}), masks


def _padded_texts(given, taken):
    ones, left, right = _masks(given)
    calls = {
        "ones": given | {"attention_mask": ones},
        "ones, changed": _changed(given) | {"attention_mask": ones},
        "left padding": given | {"attention_mask": left},
        "right padding": given | {"attention_mask": right},
    }
    if "decoder_input_ids" not in given:
        return calls, {"left padding": left, "right padding": right}
    if "decoder_attention_mask" not in taken:
        return calls, {}
    calls["decoder, ones"] = given | {"decoder_attention_mask": torch.ones_like(given["decoder_input_ids"])}
    calls["decoder, right padding"] = given | {"decoder_attention_mask": right}
    return calls, {"decoder, right padding": right}


def _padded_sounds(given):
    name = next((name for name in ("input_values", "input_features") if name in given), None)
    if name is None:
        return {}
    shape = given[name].shape
    ones = torch.ones(2, shape[1] if name == "input_values" else max(shape[1:]), dtype=torch.long)
    right = ones.clone()
    right[1, -(ones.shape[1] // 3) :] = 0
    return {"ones": given | {"attention_mask": ones}, "right padding": given | {"attention_mask": right}}


def _further_texts(model, given, taken):
    length, calls = given["input_ids"].shape[1], {}
    if "position_ids" in taken:
        calls["position_ids"] = given | {"position_ids": torch.arange(length)[None].expand(2, -1) + 2}
        packed = torch.cat([torch.arange(5), torch.arange(length - 5)])[None].expand(2, -1)
        calls["packed"] = given | {"position_ids": packed}
    embedding = None
    if "inputs_embeds" in taken:
        with contextlib.suppress(NotImplementedError):
            embedding = model.get_input_embeddings()
    if isinstance(embedding, torch.nn.Embedding):
        with torch.no_grad():
            rows = embedding(given["input_ids"])
        calls["inputs_embeds"] = {n: v for n, v in given.items() if n != "input_ids"} | {"inputs_embeds": rows}
    if "labels" in taken:
        calls["labels"] = given | {"labels": given.get("decoder_input_ids", given["input_ids"])}
        calls["labels of rows"] = given | {"labels": torch.tensor([0, 1])}
    if "logits_to_keep" in taken:
        calls["logits_to_keep"] = given | {"logits_to_keep": 2}
    if "encoder_hidden_states" in taken and getattr(model.config, "add_cross_attention", False):
        rows = torch.randn(2, 7, model.config.hidden_size, generator=torch.Generator().manual_seed(9))
        calls["encoder rows"] = given | {"encoder_hidden_states": rows}
    return calls


def _run(model, call, grad=False):
    torch.manual_seed(11)
    call = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in call.items()}
    with torch.set_grad_enabled(grad):
        return model(**call)


def _refused(error):
    return f"{type(error).__name__}: {str(error)[:160]}"


def _both(outcome, name, original, other, run, mask=None):
    """Runs both and records; gives both results, or None."""
    try:
        expected = run(original)
    except Exception as error:
        outcome.refused[name] = _refused(error)
        return None
    try:
        actual = run(other)
    except Exception as error:
        outcome.wrong[name] = f"raised {_refused(error)}"
        return None
    if _is_undefined(expected):
        outcome.refused[name] = "no number in it is finite"
        return None
    error, why = compare(actual, expected, mask)
    outcome.errors[name] = error
    if why:
        outcome.wrong[name] = why
    return actual, expected


def _is_undefined(result):
    """Whether some tensor of a result has no finite number."""
    tensors = [t for _, t in flat(result) if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()]
    return any(not t.isfinite().any() for t in tensors)


def _gradients(model, given):
    result = _run(model, given, grad=True)
    tensors = [t for _, t in flat(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors:
        raise RuntimeError("nothing has gradients")
    generator = torch.Generator().manual_seed(5)
    total = 0.0
    for tensor in tensors:
        rows = torch.where(tensor.abs() < 1e30, tensor, 0.0)
        total = total + (rows * torch.randn(rows.shape, generator=generator) / max(rows.numel(), 1) ** 0.5).sum()
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    found = torch.autograd.grad(total, [p for _, p in named], allow_unused=True)
    return result, {n: g for (n, _), g in zip(named, found, strict=True) if g is not None}


def _compare_gradients(outcome, original, other, given):
    try:
        expected, own = _gradients(original, given)
    except Exception as error:
        outcome.refused["gradients"] = _refused(error)
        return
    if _is_undefined(expected):
        outcome.refused["gradients"] = "no number in it is finite"
        return
    try:
        actual, theirs = _gradients(other, given)
    except Exception as error:
        outcome.wrong["gradients"] = f"raised {_refused(error)}"
        return
    error, why = compare(actual, expected)
    whole = sum(float(g.double().square().sum()) for g in own.values()) ** 0.5
    if own.keys() != theirs.keys():
        why = why or f"other parameters have gradients: {sorted(own.keys() ^ theirs.keys())[:4]}"
    else:
        for name, gradient in own.items():
            distance_ = float((gradient.double() - theirs[name].double()).norm())
            relative = distance_ / (float(gradient.double().norm()) + 1e-2 * whole + 1e-12)
            error = max(error, relative)
            if not relative <= ROUNDING:
                why = why or f"gradient of {name}: relative error {relative:.2e}"
    outcome.errors["gradients"] = error
    if why:
        outcome.wrong["gradients"] = why


def _steps(outcome, original, other, given):
    """A prompt and a token more over the cache that the prompt left; left padding too."""
    key = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"

    def run(model, mask=None):
        further = {} if mask is None else {"attention_mask": mask}
        first = _run(model, given | {"use_cache": True} | further)
        cache = getattr(first, "past_key_values", None)
        if cache is None:
            raise RuntimeError("no cache")
        more = {} if mask is None else {"attention_mask": torch.cat([mask, mask[:, -1:]], 1)}
        rows = [first]
        for step in range(2):
            if step and mask is not None:
                more["attention_mask"] = torch.cat([more["attention_mask"], mask[:, -1:]], 1)
            rows.append(
                _run(
                    model,
                    given | more | {"use_cache": True, "past_key_values": cache, key: given[key][:, step : step + 1]},
                )
            )
        return rows[1:]

    _both(outcome, "steps", original, other, run)
    if key == "input_ids":
        _, left, _ = _masks(given)
        _both(outcome, "steps, left padding", original, other, lambda model: run(model, left))


def _generates(outcome, original, other, given):
    def run(model):
        torch.manual_seed(11)
        return model.generate(
            **given,
            max_new_tokens=4,
            min_new_tokens=4,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            disable_compile=True,
        )

    _both(outcome, "generate", original, other, run)


def rounded(model):
    """A copy whose weights differ in their last digits: what it changes much no kernel computes in a defined way."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + 1e-7 * torch.randn(parameter.shape, generator=generator))
    return other


def held_against(original, other, given, quick=False):
    """The Outcome of all calls of two models that are to be the same."""
    outcome = Outcome()
    calls, masks = calls_of(original, given)
    for name, call in calls.items():
        _both(outcome, name, original, other, lambda model, call=call: _run(model, call), masks.get(name))
    if quick:
        return outcome
    if "input_ids" in given and given["input_ids"].dim() == 2:
        _steps(outcome, original, other, given)
        if original.can_generate():
            _generates(outcome, original, other, given)
    _compare_gradients(outcome, original, other, given)
    return outcome
