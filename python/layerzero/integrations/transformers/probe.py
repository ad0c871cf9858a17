"""Small made-up inputs that show whether a model computes the same before and after a part of it was replaced."""

import contextlib
import functools
import inspect
import warnings
from typing import NamedTuple

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

from layerzero.integrations.modules import TOLERANCE
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.arguments import (
    USE_CACHE,
    cache_argument,
    cache_of,
    signature_of,
    without_cache,
)

# What a layer may be given besides rows without computing anything else.
_OPTIONAL = {"attention_mask", "output_attentions"}
# The versions that the tests run. Of others only what agrees with the original in a call is replaced.
TESTED = ("5.17", "5.23", "5.24")


def _is_tested(version):
    return ".".join(version.split(".")[:2]) in TESTED


def why_untested(model):
    """None, or why the tests do not cover how this model uses Transformers' attention interface."""
    version = transformers.__version__
    if not _is_tested(version):
        return f"Transformers {version} is none of the tested versions {', '.join(TESTED)}"
    for part in model.modules():
        if not hasattr(part, "set_attn_implementation"):
            continue
        if not type(part).__module__.startswith("transformers."):
            return f"{type(part).__name__} is no model of Transformers itself"
        if not getattr(part, "_supports_sdpa", False):
            return f"{type(part).__name__} says that it does not support sdpa, whose meaning the operation has"
    return None


_warned: set[str] = set()


def warn_of_untested_version():
    """Warns once for each version of Transformers that the tests do not run."""
    version = transformers.__version__
    if version in _warned or _is_tested(version):
        return
    _warned.add(version)
    warnings.warn(
        f"layerzero is tested with Transformers {', '.join(TESTED)}, and this is {version}: attention is replaced only where "
        "a trial returns what the model's own code returns, and the report of kernelize says what is left and why",
        stacklevel=2,
    )


PADDED = 2  # positions of padding


def tokens(embedding):
    """(ids, mask) of two texts, the first with left padding."""
    ids = torch.arange(3, 15, device=embedding.weight.device).reshape(2, 6) % embedding.weight.shape[0]
    mask = torch.ones_like(ids)
    mask[0, :PADDED] = 0
    return ids, mask


def with_other_last(ids):
    """The same ids with another last one. Earlier rows of the output change only if attention sees later tokens."""
    return torch.cat([ids[:, :-1], ids[:, :1]], dim=1)


@contextlib.contextmanager
def undisturbed(model):
    """Restores what a forward changes in a model's modules, such as a choice of attention for short inputs."""
    before = [(module, dict(module.__dict__), dict(module._modules)) for module in model.modules()]
    try:
        yield
    finally:
        for module, members, parts in before:
            for name, value in members.items():
                if module.__dict__.get(name) is not value:
                    module.__dict__[name] = value
            if module._modules != parts:
                module._modules.clear()
                module._modules.update(parts)


@contextlib.contextmanager
def trial(model):
    """Within it a model runs for inference, in evaluation mode; what that changes in its modules is restored afterwards."""
    with torch.inference_mode(), undisturbed(model), structure.evaluating(model):
        yield


def inputs_of(model, without_encoder=False):
    """Arguments of a forward, or None for models whose input is neither text nor an image.

    without_encoder: if the encoder takes something else (half a minute of sound), made-up rows replace its result.
    """
    kind, config = getattr(model, "main_input_name", None), model.config
    two = "decoder_input_ids" in signature_of(type(model).forward).names
    if kind == "input_ids":
        ids, mask = tokens(model.get_input_embeddings())
        given = {"input_ids": ids, "attention_mask": mask}
        return given | {"decoder_input_ids": ids} if two else given
    if without_encoder and two:
        embedding = model.get_input_embeddings()
        rows = structure.normal(2, 7, getattr(config, "encoder", config).hidden_size).to(embedding.weight)
        return {"encoder_outputs": BaseModelOutput(rows), "decoder_input_ids": tokens(embedding)[0]}
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if kind == "pixel_values" and isinstance(size, int) and isinstance(channels, int):
        pixels = structure.normal(1, channels, size, size)
        return {"pixel_values": pixels.to(model.device, model.dtype)}
    return None


def shapes_with_weights(model):
    """Returns the shapes of all outputs of a model that is asked for attention weights; None if no input can be made.

    Some models do not pass the request on to their attention, and take weights that eager attention returns in any case.
    """
    try:
        given = inputs_of(model) or inputs_of(model, without_encoder=True)
        if given is None:
            return None
        with trial(model):
            return [tensor.shape for tensor in structure.tensors_of(model(**given, output_attentions=True))]
    except Exception:  # what a model of unknown code raises
        return None


def base_of(model):
    """The model without its head; the model itself if the base takes another input, such as embedded patches."""
    base = getattr(model, "base_model", model)
    takes = getattr(base, "main_input_name", None) in signature_of(type(base).forward).names
    return base if takes else model


class Runs(NamedTuple):
    """A model's outputs in trials, without padding; `moved` has pairs of outputs whose inputs differ in the last token."""

    rows: list[torch.Tensor]
    moved: list[tuple[torch.Tensor, torch.Tensor]]


def run_model(model):
    """Runs of small inputs that show what a mask means to the model; None if no input can be made.

    A text is run with padding, without a mask, and with a mask of ones.
    """
    try:
        given = inputs_of(model)
        if given is None:
            return None
        with trial(model):
            runs = _runs_of(model, given)
        return runs if runs.rows else None
    except Exception:  # what a model of unknown code raises on such an input
        return None


def _runs_of(model, given):
    mask, key = given.get("attention_mask"), "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    first = model(**given)[0]
    if mask is None:  # a backbone's first output is several tensors
        return Runs(structure.tensors_of(first), [])
    # An output for a whole text, such as its class, has no padding.
    padded = key == "input_ids" and first.shape[:2] == mask.shape
    rows, moved = [first[mask.bool()] if padded else first], []
    for seen in ({}, {"attention_mask": torch.ones_like(mask)}):
        call = {name: value for name, value in given.items() if name != "attention_mask"} | seen
        rows.append(model(**call)[0])
        moved.append((rows[-1], model(**call | {key: with_other_last(call[key])})[0]))
    return Runs(rows, moved)


def observed_call(model, head=False):
    """The result of one call on a small padded input, with a cache if the model takes one; None if no input can be made. head: with
    the model's head.
    """
    base = model if head else base_of(model)
    given = inputs_of(base, without_encoder=True)
    if given is None:
        return None
    if USE_CACHE in signature_of(type(base).forward).names:
        given["use_cache"] = True
    with trial(model):
        return base(**given)


def run_held(model, holder):
    """All outputs of the module `holder` for a padded prompt, and for one more token if there is a cache.

    Unlike `run_base` it makes no call without a mask: PaliGemma's text is not causal without one.
    """
    base = base_of(model)
    given = inputs_of(base)
    mask, rows = given["attention_mask"], []

    def keep(_, arguments, result):
        for tensor in structure.tensors_of(result):
            rows.append((tensor[mask.bool()] if tensor.shape[:2] == mask.shape else tensor).flatten())

    with holder.register_forward_hook(keep), trial(model):
        cache = cache_of(base(**given))
        if cache is not None:
            base(**_one_more(given, base, cache))
    return torch.cat(rows)


def _one_more(given, base, cache):
    """The arguments of a call for one more token of each text."""
    mask, ids = given["attention_mask"], given["input_ids"]
    longer = torch.cat([mask, mask[:, -1:]], dim=1)
    return given | {"input_ids": ids[:, :1], "attention_mask": longer} | cache_argument(base, cache)


def run_alone(holder, layers, around=lambda forward: forward()):
    """The result of an encoder's layers, one after the other, for made-up rows; for layers that no small input reaches.

    None if they take more than rows and a mask. around: a function that calls the given forward, or replaces it.
    """
    taken = [inspect.signature(type(layer).forward).parameters for layer in layers]
    if any(p.name not in _OPTIONAL and p.kind is not p.VAR_KEYWORD for each in taken for p in [*each.values()][2:]):
        return None
    parameter = next(layers.parameters())
    config = getattr(holder, "config", None) or layers[0].config
    first = structure.normal(2, 7, config.hidden_size).to(parameter)

    def forward():
        rows = first
        for layer, parameters in zip(layers, taken, strict=True):
            given = layer(rows, **{"attention_mask": None} if "attention_mask" in parameters else {})
            rows = given[0] if isinstance(given, tuple) else given
        return rows

    with torch.inference_mode(), structure.evaluating(holder):
        return around(forward)


@contextlib.contextmanager
def without_modes():
    """Turns off torch's function modes, such as a default device: programs do not run under one."""
    with contextlib.ExitStack() as modes:
        while torch._C._len_torch_function_stack():
            modes.enter_context(torch.overrides._pop_mode_temporarily())
        yield


def run_base(model, forward=None):
    """Last hidden states of a model without its head, computed by `forward` if that is given; None if no input can be made.

    The calls are a padded prompt, one more token if there is a cache, and a prompt without a mask.
    """
    base = base_of(model)
    given, call = inputs_of(base, without_encoder=True), base if forward is None else functools.partial(forward, base)
    if given is None:
        return None
    mask = given.get("attention_mask")
    with trial(model):
        if "decoder_input_ids" in given:
            return _run_two_stacks(base, given)
        if USE_CACHE in signature_of(type(base).forward).names:
            given["use_cache"] = True
        first = call(**given)
        if mask is None:
            return first[0]
        rows = [first[0][mask.bool()]]
        cache = cache_of(first)
        if cache is not None:
            rows.append(call(**_one_more(given, base, cache))[0][:, 0])
        del given["attention_mask"]
        # Of the last call only the row without padding: what padding computes depends on rounding.
        return torch.cat([*rows, call(**given | without_cache(base))[0][1]])


def _run_two_stacks(base, given):
    """The last hidden states of a decoder: of a prompt, of one token more, and of a prompt with padding."""
    first = base(**given, use_cache=True, return_dict=True)
    rows = given["encoder_outputs"][0] if "encoder_outputs" in given else first.encoder_last_hidden_state
    encoded = {"encoder_outputs": BaseModelOutput(rows), "return_dict": True}
    if "attention_mask" in given:
        encoded["attention_mask"] = given["attention_mask"]
    ids, (_, mask) = given["decoder_input_ids"], tokens(base.get_input_embeddings())
    one = base(**encoded, decoder_input_ids=ids[:, :1], **cache_argument(base, cache_of(first)))
    padded = base(**encoded, decoder_input_ids=ids, decoder_attention_mask=mask, use_cache=False)
    return torch.cat([first[0].flatten(0, 1), one[0].flatten(0, 1), padded[0][mask.bool()]])


# Slack in float32 where a part is compared that has little influence on a model's result, as attention has.
CLOSELY = 0.2


def same(actual, expected, slack=1.0, in_float32=CLOSELY):
    """Whether two Runs of one model agree, with this slack in 16 bits."""
    if actual is None or len(actual.rows) != len(expected.rows):
        return False
    slack = in_float32 if expected.rows[0].dtype in (torch.float32, torch.float64) else slack
    agree = all(structure.agrees(a, b, slack) for a, b in zip(actual.rows, expected.rows, strict=True))
    return agree and all(move_alike(*pairs) for pairs in zip(actual.moved, expected.moved, strict=True))


def move_alike(actual, expected):
    """Whether the same rows of two results change with a token. actual, expected: pairs, before and after it changed.

    A row that does not see the token is the same bit for bit, so this shows in any dtype which rows see later tokens, however
    small the effect. How far other rows move is compared within the rounding of a whole model, which is large in 16 bits.
    """
    mine, theirs = ((after.double() - before.double()).norm(dim=-1) for before, after in (actual, expected))
    dtype, size = expected[0].dtype, expected[0].double().norm(dim=-1)
    # Products of experts depend in their last digits on how many tokens each has: 1e-6 of a row was seen in float32.
    still = max(torch.finfo(dtype).eps / 2, 1e-5) * size
    rounding = 3 * TOLERANCE[dtype] * size

    def explained_by(other):
        return 4 * other + torch.where(other > 1e-5 * size, rounding, still)

    return bool(((mine <= explained_by(theirs)) & (theirs <= explained_by(mine))).all())


def run_moved(model, forward=None):
    """(last hidden states of a text without a mask, the same with another last token); None if no text can be made."""
    base = base_of(model)
    given, call = inputs_of(base, without_encoder=True), base if forward is None else functools.partial(forward, base)
    key = next((name for name in ("decoder_input_ids", "input_ids") if name in (given or ())), None)
    if key is None:
        return None
    given = {name: value for name, value in given.items() if name != "attention_mask"} | without_cache(base)
    with trial(base):
        return tuple(call(**each)[0] for each in (given, given | {key: with_other_last(given[key])}))
