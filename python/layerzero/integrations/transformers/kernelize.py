"""Replaces the parts of a Transformers model that LayerZero computes, and undoes it exactly."""

import functools
import sys
import threading
import traceback
import types

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, ModelStateError, WrongTypeError
from layerzero.host import forks
from layerzero.integrations import weights as weights_of_others
from layerzero.integrations.modules import OWN_FORWARD, bind, forget_copies, watch_copies
from layerzero.integrations.transformers import block_forwards, choices, parts, probe, progress, quantized
from layerzero.integrations.transformers.counts import KernelizeReport, find_parts
from layerzero.integrations.transformers.recognise import observe
from layerzero.integrations.transformers.recognise.findings import Findings, Wrong, log
from layerzero.integrations.transformers.recognise.proof import kept_findings, tells_something
from layerzero.integrations.transformers.recognise.prove import why_not_one
from layerzero.integrations.transformers.run import attention as attention_interface
from layerzero.integrations.transformers.run import captured, deferred, generating
from layerzero.integrations.transformers.run import experts as experts_interface
from layerzero.integrations.transformers.run.decoder import DecoderPlan, decoder_forward
from layerzero.integrations.transformers.run.plan import StackPlan, plans_of
from layerzero.integrations.transformers.run.released import refuse_if_released
from layerzero.integrations.transformers.run.replacing import replace
from layerzero.models.options import check_weights

_OPS = _layerzero.ops
_MARK = "_layerzero_kernelized"
_LOCK = forks.lock()  # one model is changed at a time


_MAX_PERPLEXITY_RATIO = 1.1


class _Mark:
    """Marks a model as kernelized, and keeps the attention and experts that it had, for `unkernelize`."""

    def __init__(self):
        self.report = KernelizeReport()
        self.attention = None
        self.experts = None
        self.asked = None  # what it was kernelized with

    def __setstate__(self, state):
        """A kernelized model that was pickled names our attention and experts."""
        self.__dict__.update(state)
        attention_interface.register()
        experts_interface.register()
        generating.register()


_FORWARDS = (
    *parts.FORWARDS,
    *block_forwards.FORWARDS,
    quantized.quantized_forward,
    decoder_forward,
    deferred.deferring_forward,
    deferred.deferred_layer,
    captured.AUTO_COMPILE,
    experts_interface.apply_gate,
)


def _replace_layers(called, layers, mark, findings):
    """Installs one forward over all layers, if it computes the same on a small input; else reports the reason as `called`."""
    stack, holder = layers.stack, layers.holder
    plan = DecoderPlan(stack) if layers.whole else StackPlan(stack)
    operation = "one fused forward over all layers" if layers.whole else f"block.{stack.kind}"
    entry = mark.report.add_program(stack.kind, operation)
    holder.__dict__["_layerzero_decoder"] = plan
    own = [] if layers.whole else [holder, *getattr(holder, stack.name)]
    for module in own:
        replace(module, deferred.deferring_forward if module is holder else deferred.deferred_layer, entry)
    install = functools.partial(replace, holder, decoder_forward, entry) if layers.whole else lambda: None
    if layers.are_kept:
        install()
    try:
        reason = None if layers.are_kept else why_not_one(layers, plan, install, findings)
    except Exception as error:  # of code around the layers that nobody knows
        findings.depend_on_values = True
        reason = f"its layers could not be run as one: {error}"
    if reason:
        findings.answers[f"layers {called}"] = reason
        for module in (holder, *own):
            for name in ("forward", "_layerzero_decoder", "_layerzero_part", "_layerzero_own"):
                module.__dict__.pop(name, None)
        mark.report.left[called] = reason
        return
    mark.report.replaced[stack.kind] = entry
    entry["count"] += 1
    if layers.whole and hasattr(type(layers.model), captured.AUTO_COMPILE.__name__):
        bind(layers.model, captured.AUTO_COMPILE, captured.AUTO_COMPILE.__name__)
        generating.register()
    find_parts(holder, plan, mark.report.replaced.get("attention"))


def _marked(model):
    """The kernelized modules within a model, perhaps itself. A wrapper around one (PEFT, compile, DDP) has no mark."""
    return [module for module in model.modules() if _MARK in module.__dict__]


def is_kernelized(model):
    return _MARK in model.__dict__


def _refuse_while_running(model, what):
    """Raises RuntimeError if another thread runs the model: one call must not mix old and new masks or forwards."""
    modules = {id(module) for module in model.modules()}
    for thread, innermost in sys._current_frames().items():
        frames = traceback.walk_stack(innermost) if thread != threading.get_ident() else ()
        if any(_runs(frame, modules) for frame, _ in frames):
            got, fix = "another thread is running this model", "wait until its call has returned"
            raise ModelStateError(f"{what}: model", "one that nobody runs", got, fix)


def _runs(frame, modules):
    if frame.f_code.co_name in ("_call_impl", "forward", "generate"):
        return id(frame.f_locals.get("self")) in modules
    # The thread of continuous batching made its masks for the attention that the model has.
    if frame.f_globals.get("__name__", "").startswith("transformers.generation.continuous_batching"):
        return id(getattr(frame.f_locals.get("self"), "model", None)) in modules
    return False


def _use_blocks(model, *options):
    """Makes linear layers use weights in blocks; on an error the model is restored."""
    try:
        block_forwards.use(model, model.__dict__[_MARK], *options)
    except BaseException:
        _restore(model)
        raise


def kernelize(
    model: nn.Module,
    weights: str | None = None,
    *,
    activations: str = "input",
    accuracy_ids: torch.Tensor | None = None,
    max_perplexity_ratio: float = _MAX_PERPLEXITY_RATIO,
    release_originals: bool = False,
    quiet: bool = False,
    sampling: str | None = None,
) -> KernelizeReport:
    """Replaces the parts of a model that LayerZero computes, and returns a report. A second call changes nothing more.

    weights: None, the model's own parameters; "gguf", the blocks of the file that layerzero.models.gguf.load read, as
    they are; "int8" or "int4", the parameters rounded to blocks of 32 values; "bf16", parameters and activations rounded to bf16.
    Linear layers use them until their parameters are replaced or written. activations: "input", or "int8" to allow rounding
    the activations to blocks of 8-bit values too, which is done if a measurement shows that it is clearly faster; the report
    says so. If the perplexity becomes more than max_perplexity_ratio times the model's own, the change is undone and
    InvalidRequestError raised. The perplexity is that of accuracy_ids (1, n), or of text that the model would write; for a
    model without logits it is 1 + the relative error of its output. Layers that this trial does not reach keep their weights.
    quiet: no line of progress. Without it, a terminal shows one on standard error after two seconds.
    sampling: who samples inside of captured steps. None, Transformers' processors, and a seed has Transformers' tokens; "layerzero",
    the operations lz.sample_*, which need no sort: the distribution is the same but for ties of top-k, the tokens of a seed are not.
    release_originals: frees the memory of all parameters that blocks replace. Gradients, state_dict, moving the model and
    unkernelize then raise ReleasedWeightError; to get the parameters back, load the model again.

    Weights, their names, state_dict and saved files stay as they are. On a CUDA device the parameters of linear layers with the
    same input are moved next to each other: a CUDA graph that was captured before has to be captured again. Training,
    gradients and tracing use the model's own code. Raises ModelStateError while another thread runs the model, and for a part of a kernelized model; a wrapper
    around one is kernelized again as a whole.
    """
    if not isinstance(model, nn.Module):
        raise WrongTypeError("kernelize", "a torch.nn.Module", type(model).__name__)
    check_weights(weights, activations)
    if sampling not in (None, "layerzero"):
        raise InvalidRequestError("sampling", 'None or "layerzero"', repr(sampling), "leave it out")
    asked = (weights, activations, release_originals)
    if weights is None:
        _refuse_without_weights(activations, accuracy_ids, max_perplexity_ratio, release_originals)
    modes = torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False)
    with _LOCK, modes[0], modes[1], progress.shown("kernelize", quiet):
        if _MARK not in model.__dict__:
            with probe.without_modes():  # such as another default device of the caller's
                _kernelize(model)
            if weights is not None:  # compared as it will run: under a default device nothing runs as a program
                _use_blocks(model, weights, activations, accuracy_ids, max_perplexity_ratio, release_originals)
                model.__dict__[_MARK].report.start_counting()
            model.__dict__[_MARK].asked = asked
            model.__dict__[generating.SAMPLING] = sampling
        elif sampling is not None and model.__dict__.get(generating.SAMPLING) != sampling:
            raise InvalidRequestError(
                "sampling", "as the model is kernelized with, None", sampling, "unkernelize it first"
            )
        elif weights is not None and model.__dict__[_MARK].asked != asked:
            wanted = f"(weights, activations, release_originals) as the model is kernelized with, {model.__dict__[_MARK].asked}"
            raise InvalidRequestError("weights", wanted, str(asked), "unkernelize it first")
        return model.__dict__[_MARK].report


def _refuse_without_weights(activations, accuracy_ids, max_perplexity_ratio, release_originals):
    given = {
        "activations": activations != "input",
        "accuracy_ids": accuracy_ids is not None,
        "max_perplexity_ratio": max_perplexity_ratio != _MAX_PERPLEXITY_RATIO,
        "release_originals": release_originals,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise InvalidRequestError(name, "weights= as well", "none", f"the model's own parameters need no {name}")


def _kernelize(model):
    _refuse_while_running(model, "kernelize")
    unkernelize(model)
    if any("_layerzero_part" in module.__dict__ for module in model.modules()):
        got, fix = "a part of a kernelized model", "unkernelize that model first"
        raise ModelStateError("kernelize: model", "a whole model", got, fix)
    probe.warn_of_untested_version()
    weights_of_others.prepare(model)
    attention_interface.register()  # before the key: it wraps a method that models have
    findings = kept_findings(model)
    if findings.are_kept:
        try:
            _search(model, findings)
            log.info("%s: changed by the findings of %s", type(model).__name__, findings.key)
            model.__dict__[_MARK].report.start_counting()
            return
        except Exception as error:  # a file that does not fit the model may cause any error
            log.info("%s: findings are not used, %s; searching", type(model).__name__, error)
            findings = Findings(findings.key)
    _search(model, findings)
    if findings.key is not None and tells_something(model):
        findings.write()
    model.__dict__[_MARK].report.start_counting()


def _search(model, findings):
    """Changes the model by findings, and searches for what they lack."""
    mark = _Mark()
    for config, name in choices.chosen(model, "attn"):
        attention_interface.remember((m for m in model.modules() if getattr(m, "config", None) is config), name)
    try:
        layers = observe.layers_of(model, findings)
    except BaseException:
        attention_interface.remember(model.modules(), None)
        raise
    model.__dict__[_MARK] = mark
    watch_copies(model)
    try:
        _replace_parts(model, mark, layers, findings)
        if findings.are_kept:
            _refuse_unproven(model, findings)
    except BaseException:
        _restore(model)
        raise


def _replace_parts(model, mark, layers, findings):
    for replace_all in parts.IN_TURN:
        progress.step(replace_all.__name__.replace("_", " "))
        replace_all(model, mark, findings)
    if mark.attention is None:
        kept = f"attention: {mark.report.left.get('attention')}"
        layers = {called: kept if observe.wants_interface(found) else found for called, found in layers.items()}
    if findings.are_kept and not findings.proof.holds():  # as they run where no program does
        raise Wrong("by them parts of the model compute something else")
    for called, found in layers.items():
        progress.step(f"{called}: a program of its layers")
        if isinstance(found, str):
            mark.report.left[called] = found
        else:
            _replace_layers(called, found, mark, findings)


def _refuse_unproven(model, findings):
    """Raises Wrong where the programs of layers compute something else, or do not run; those that no input reaches were searched."""
    plans = [(holder, plan) for holder, plan in plans_of(model) if not plan.stack.alone]
    if plans and not (findings.proof.holds() and findings.proof.holds_without_mask()):
        raise Wrong("by them a program of its layers computes something else")
    for holder, plan in plans:
        if plan.why_aside or not holder.__dict__["_layerzero_part"]["calls"]:
            raise Wrong(f"a program of its layers was not run: {next(iter(plan.why_aside), 'no call reached it')}")


def unkernelize(model: nn.Module) -> bool:
    """Restores a model as it was before `kernelize`; returns whether there was something to undo.

    Raises ModelStateError while another thread runs the model, and ReleasedWeightError where parameters were released.
    """
    with _LOCK:
        marked = _marked(model)
        if marked:
            _refuse_while_running(model, "unkernelize")
            refuse_if_released(model, "unkernelize")
        for module in marked:
            _restore(module)
        return bool(marked)


def _is_ours(module, name):
    return getattr(module.__dict__.get(name), "func", None) in _FORWARDS


def _restore(model):
    mark = model.__dict__[_MARK]
    for _, plan in plans_of(model):
        if isinstance(plan, DecoderPlan):
            plan.put_back()
    for module in model.modules():
        forget_copies(module)
        for name in ("_apply_gate", captured.AUTO_COMPILE.__name__):
            if _is_ours(module, name):
                del module.__dict__[name]
        own = module.__dict__.get(OWN_FORWARD)
        kept = _is_ours(module, "_old_forward")  # by a hook of accelerate
        if kept:
            module.__dict__["_old_forward"] = own or types.MethodType(type(module).forward, module)
        wrapped = "forward" in module.__dict__ and not _is_ours(module, "forward")
        if not wrapped:
            module.__dict__.pop("forward", None)
            if own is not None:
                module.__dict__["forward"] = own
        for name in [name for name in module.__dict__ if name.startswith("_layerzero_")]:
            if not (wrapped and name == OWN_FORWARD):  # what was set later may call ours, which then needs it
                del module.__dict__[name]
    if mark.attention is not None:
        choices.put_back(mark.attention, "attn")
    if mark.experts is not None:
        choices.put_back(mark.experts, "experts")
