"""Whether a program computes what the model's own code does, by numbers: of a padded prompt, of one token more, which reads the
cache, of a text without a mask, and of the text with another last token. Where near ties of routers may explain a
difference, each layer is compared alone (`layerwise`).
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from layerzero.integrations.transformers import probe
from layerzero.integrations.transformers.recognise import layerwise
from layerzero.integrations.transformers.recognise.findings import Findings
from layerzero.integrations.transformers.run.decoder import decoder_forward
from layerzero.integrations.transformers.run.plan import StackPlan


def _agree_one_by_one(layers: Any) -> bool:
    """Whether the layers may differ only by near ties of routers, since each one alone agrees."""
    if not layerwise.may_choose_otherwise(layers.model, layers.expected.rows[0]):
        return False
    own = functools.partial(layers.rows, type(layers.holder).forward)
    alike = layerwise.agree(layers.stack, getattr(layers.holder, layers.stack.name), own)
    layers.holder.__dict__["_layerzero_decoder"].why_aside.clear()
    return alike


def _why_aside_in_a_call(layers: Any, plan: StackPlan) -> str | None:
    """None, or why the program does not serve a call of the whole model with a cache, as `generate` makes it."""
    if layers.alone:
        return None
    with contextlib.suppress(Exception), probe.without_modes():  # of code around the layers that nobody knows
        probe.observed_call(layers.model, head=True)
    reason = next(iter(plan.why_aside), None)
    return reason and f"a call of the model is none for the program of its layers: {reason}"


def why_not_one(layers: Any, plan: StackPlan, install: Callable[[], Any], findings: Findings) -> str | None:
    """None, or why a program is not what the layers compute on small inputs."""
    with probe.without_modes():
        actual = layers.run(decoder_forward)
    reason = next(iter(plan.why_aside), None)
    install()
    reason = reason or _why_aside_in_a_call(layers, plan)
    same = probe.same(actual, layers.expected, slack=3, in_float32=3)
    if not reason and not same and not _agree_one_by_one(layers):
        findings.depend_on_values = True
        reason = "its layers compute something else than the fused forward"
    return reason
