"""The layers of one model as the fused forwards use them: parameter tables, and checks that nothing was changed since."""

from typing import Any

import torch
from torch.nn import Linear, Parameter
from torch.utils.hooks import RemovableHandle

from layerzero import _layerzero
from layerzero.integrations.transformers.arguments import signature_of
from layerzero.integrations.transformers.layers import Alibi, Experts, Layer, Stack
from layerzero.integrations.transformers.run import experts
from layerzero.integrations.transformers.run.block import BlockProgram
from layerzero.integrations.transformers.run.blocks import GROUP, BlockLinear, join, write_guard
from layerzero.integrations.transformers.run.products import Products
from layerzero.integrations.transformers.run.released import ReleasedParameter
from layerzero.integrations.transformers.run.steps import DTYPES
from layerzero.integrations.transformers.structure import (
    functions_of,
    globals_of,
    has_global_hooks,
    hooks_of,
    replaced_forward,
)

GRADIENTS = "gradients are recorded, or the model is in training mode"
_linear = _layerzero.ops["linear"]
_METHODS = ("forward", "_apply_gate")  # what a module computes, and the gate of experts


def _only_captures(hooks):
    """True if all hooks are those that Transformers leaves after a call with output_hidden_states; they do nothing otherwise."""
    return all(getattr(hook, "__module__", "") == "transformers.utils.output_capturing" for hook in hooks.values())


class BoundLayer:
    """A Layer with the parameter tables of its modules. Tables, not tensors, because `model.to` and loading replace tensors."""

    def __init__(self, shape: Layer, layer: Any) -> None:
        self.shape = shape
        names = [*shape.modules, *(norm.name for norm in shape.norms)]
        self.tables = {name: layer.get_submodule(name)._parameters for name in names}
        self.corrected: Any = None  # (table, name) of what corrects a choice of experts
        found = shape.mlp.route.correction if isinstance(shape.mlp, Experts) else None
        if found is not None:
            module = layer.get_submodule(found[0])
            table = module._buffers if found[1] in module._buffers else module._parameters
            self.corrected = table, found[1]
        rope = shape.attention.rope
        place = None if rope is None else rope.table
        self.table: Any = None  # (table, name) of the layer's own table of positions, if it has one
        if place is not None:
            self.table = layer.get_submodule(place.module)._buffers, place.name

    def __getitem__(self, name: str) -> Any:
        return self.tables[name]

    def correction(self) -> torch.Tensor | None:
        """The correction of the choice of experts, one number for each, or None."""
        return None if self.corrected is None else self.corrected[0][self.corrected[1]].detach().flatten()

    def sizes(self, name: str) -> tuple[int, int]:
        """(outputs, inputs) of a linear layer."""
        outputs, inputs = self.tables[name]["weight"].shape
        return (inputs, outputs) if name in self.shape.transposed else (outputs, inputs)

    def weight(self, name: str) -> torch.Tensor:
        """The weight of a linear layer as [outputs, inputs], without a copy."""
        weight = self.tables[name]["weight"].detach()
        return weight.t() if name in self.shape.transposed else weight


class StackPlan:
    """Everything that a fused forward needs to know about one model; built at the first call, and again for a copy of the model.

    The program of its layers ends with `norm`, if there is one.
    """

    def __init__(self, stack):
        self.stack: Stack = stack
        self.layers: Any = None
        self.hooks_so_far = None
        self.tables_so_far: list[Any] = []  # how often they were written when the guard began
        self.guard = None  # sees whether all of this still holds; with it what was made for these weights: the program,
        # or on a CUDA device the captured steps
        self.linears: dict[int, Any] = {}  # id of a parameter table -> the members of its layer, which has blocks
        self.written = write_guard(())
        self.why_aside = {}  # reason -> how often the model's own forward was taken
        self.norm: Any = None  # (Norm, its table) of the norm after the layers
        self.embedding: Any = None
        self.proven: set[bool] = set()  # of layers that were tried alone: the kinds of calls that were compared
        self.wrong: str | None = None  # why none of them is a program

    def __deepcopy__(self, memo):
        return type(self)(self.stack)

    def __reduce__(self):
        return type(self), (self.stack,)

    def further_modules(self, holder):
        """Returns the modules besides the layers that the fused forward replaces; sets what it needs of them."""
        return []

    def build(self, holder):
        self.take_blocks(holder)
        own = getattr(holder, self.stack.name)
        modules = [*self.further_modules(holder), own]
        layers = [BoundLayer(*pair) for pair in zip(self.stack.layers, own, strict=True)]
        within = [part for layer in own for part in layer.modules()]
        modules += within
        kinds: set[Any] = {*map(type, modules), type(holder)}
        self.kinds = [(kind, name, getattr(kind, name)) for kind in kinds for name in _METHODS if hasattr(kind, name)]
        self.attention_of = {layer.group: layer.attention for layer in self.stack.layers}  # of one layer of each group
        self.heads = next((attention.query.heads for attention in self.stack.attentions), 0)
        self.biases = {
            layer.group: part.get_submodule(layer.bias.name)
            for layer, part in zip(self.stack.layers, own, strict=True)
            if layer.bias is not None
        }
        self.alibis: dict[int, tuple[Alibi, Any, int]] = {}  # group -> (Alibi, its slopes or None, heads)
        for layer in self.stack.layers:
            alibi = layer.attention.alibi
            if alibi is not None:
                slopes = None if alibi.slopes is None else torch.tensor(alibi.slopes)
                self.alibis[layer.group] = alibi, slopes, layer.attention.query.heads
        self.has_experts = any(isinstance(layer.mlp, Experts) for layer in self.stack.layers)
        self.modules, self.expected_types = modules, [*map(type, modules)]
        functions = {kind: functions_of(kind.forward) for kind in kinds}
        facts = [
            f for module in modules if type(module) is not Linear for f in facts_of(module, functions[type(module)])
        ]
        once = {(id(table), name): (table, name, table.get(name)) for table, name in facts}
        self.facts = [*once.values()]
        others = [part for part in within if type(part) is not Linear]
        self.facts += [(part.__dict__, "training", False) for part in others]  # a dropout within
        self.facts += [(p.__dict__, "_apply_gate", _gate_of_ours(p)) for p in others if hasattr(p, "_apply_gate")]
        # The tables are the modules' own objects: a hook, a swapped part or a replaced forward shows in them.
        self.hooks = [table for module in modules for table in hooks_of(module)]
        self.parts = [module._modules for module in [holder, *modules] if module._modules]
        self.expected_parts = [tuple(table.values()) for table in self.parts]
        self.members = [module.__dict__ for module in modules]
        self.expected_forwards = [table.get("forward") for table in self.members]
        self.weights = [table for layer in layers for table in layer.tables.values()]
        self.weights += [self.norm[1]] if self.norm else []
        self.weights += [self.embedding] if self.embedding else []
        # Those of routers that make their logits in float32 may be kept in it.
        mlps = [(layer, layer.shape.mlp) for layer in layers]
        self.wide = {id(layer[mlp.router]) for layer, mlp in mlps if isinstance(mlp, Experts) and mlp.route.wide}
        self.needed = [(table, name) for table in self.weights for name, held in table.items() if held is not None]
        self.held = [held for layer in layers for held in (layer.corrected, layer.table) if held is not None]
        self.position_tables: dict[int, Any] = {}  # group -> (Table, its module's buffers), of its first layer
        self.all_tables: list[Any] = []  # (group, its module's buffers, name) of each layer that has one
        for bound in layers:
            if bound.table is not None:
                rope: Any = bound.shape.attention.rope
                self.position_tables.setdefault(bound.shape.group, (rope.table, bound.table[0]))
                self.all_tables.append((bound.shape.group, *bound.table))
        self.need_masks = {layer.group for layer in self.stack.layers if layer.attention.needs_mask}
        self.places = {id(layer): index for index, layer in enumerate(own)}
        self.signature = signature_of(type(holder).forward)
        configs = (getattr(module, "config", None) for module in [holder, *within])
        self.config = next((config for config in configs if config is not None), None)
        self.layers = layers  # last: another thread takes it for the sign that all is there

    @property
    def dtype(self):
        return self.layers[0][self.layers[0].shape.attention.out]["weight"].dtype

    @property
    def device(self):
        return self.layers[0][self.layers[0].shape.attention.out]["weight"].device

    def take_blocks(self, holder):
        """Uses the weights in blocks that `kernelize` has put into linear layers."""
        self.guard = None
        self.linears = {id(m._parameters): m.__dict__ for m in holder.modules() if "_layerzero_blocks" in m.__dict__}
        self.written = write_guard(self.linears.values())

    def blocks(self, table):
        """The BlockLinear in place of a linear layer's parameter, or None."""
        return BlockLinear.of(self.linears.get(id(table), {}))

    def joined(self, tables):
        """The arguments of one linear_gguf in place of several with the same input; None if they cannot be one."""
        blocks = [found for found in map(self.blocks, tables) if found is not None]
        if len(blocks) < len(tables) or len({(b.weight.format, b.activations) for b in blocks}) > 1:
            return None
        if any(b.weight.as_rows for b in blocks):
            return None
        biases = [table["bias"] for table in tables]
        if any(table["weight"].shape[0] % GROUP for table in tables) or (
            None in biases and any(b is not None for b in biases)
        ):
            return None
        return join([b.weight for b in blocks]) | {
            "activations": blocks[0].activations,
            "bias": None if None in biases else torch.cat([bias.detach() for bias in biases]),
        }

    def multiply(self, rows, table):
        """The product of rows with a linear layer's weight, which is the parameter or in blocks."""
        blocks = self.blocks(table) if self.linears else None
        return _linear(rows, table["weight"], table["bias"]) if blocks is None else blocks(rows, table["bias"])

    def why_changed(self):
        """None, or a change of the modules since kernelize that only their own forward takes into account."""
        # Every hook that is registered anywhere takes a new id: as long as there is none, no table has to be looked at.
        hooks = RemovableHandle.next_id
        guard = self.guard
        written = self.written()
        same = guard is not None and hooks == self.hooks_so_far and not written and _layerzero.unchanged(guard[0])
        if same and self.tables_so_far == self._writes_of_tables():
            return self._why_other_classes()
        self.guard = guard = None  # with what was made for the weights as they were, which may hold them
        self.written = write_guard(self.linears.values())  # of the blocks that still hold
        self.hooks_so_far = hooks
        reason = self._why_changed()
        if reason is None and not any(self.hooks) and self.device.type in ("cpu", "cuda"):
            self.tables_so_far = self._writes_of_tables()
            self.before_guard()
            self.guard = self._look()
        return reason

    def why_configured(self):
        """None, or why the configuration asks for what only the model's own forward computes."""
        config, attention = self.config, self.stack.attention
        if getattr(config, "_attn_implementation", attention) != attention:
            return "another attention implementation was chosen"
        if self.has_experts and getattr(config, "_experts_implementation", experts.NAME) != experts.NAME:
            return "another implementation of experts was chosen"
        if self.stack.cache is not None and not getattr(config, "is_causal", True):
            return "the configuration asks for attention that is not causal"
        return None

    def before_guard(self):
        """Called when everything that runs is known to be plain, before the guard is made."""

    def _writes_of_tables(self):
        """How often the tables of positions were written: a run reads the tables of one layer for all."""
        tables = [table[name] for _, table, name in self.all_tables]
        return [None if table.is_inference() else table._version for table in tables]

    def _why_other_classes(self):
        """The same for changes of classes, which no table of a module shows."""
        if [*map(type, self.modules)] != self.expected_types or any(
            getattr(kind, name) is not own for kind, name, own in self.kinds
        ):
            return "a class was changed after kernelize"
        return None

    def _look(self):
        parts = list(zip(self.parts, self.expected_parts, strict=True))
        forwards = [(table, "forward", table.get("forward")) for table in self.members]
        names = [(table, name) for table in self.weights for name in {"weight", "bias", *table}]
        given = [(table, name, table.get(name)) for table, name in names]
        tensors = [entry for entry in given if type(entry[2]) is Parameter]
        absent = [entry for entry in given if type(entry[2]) is not Parameter]  # or released
        tensors += [(table, name, table[name]) for table, name in self.held]
        facts = [(table, name, table.get(name)) for table, name, _ in self.facts]
        guarded = (parts, forwards + absent + facts, tensors)
        return _layerzero.guard(*guarded), guarded, {}  # all three have to live as long as the guard

    def _why_changed(self):
        if has_global_hooks() or (any(self.hooks) and not all(map(_only_captures, self.hooks))):
            return "a module has hooks"
        if [tuple(table.values()) for table in self.parts] != self.expected_parts:
            return "a module was replaced after kernelize"
        forwards = [table.get("forward") for table in self.members]
        if forwards != self.expected_forwards and list(map(replaced_forward, self.members)) != self.expected_forwards:
            return "a forward was replaced after kernelize"
        weights = [table.get(name) for table, name in self.needed]
        weights += [table["bias"] for table in self.weights if table.get("bias") is not None]
        weights = [weight for weight in weights if type(weight) is not ReleasedParameter]
        if any(type(w) is not Parameter or w.layout is not torch.strided or w.is_neg() for w in weights):
            return "a weight is no longer a plain parameter"
        buffers = [table.get(name) for table, name in self.held]
        if any(not isinstance(held, torch.Tensor) or type(held) is ReleasedParameter for held in buffers):
            return "what corrects the choice of experts, or tells positions, is no tensor any more"
        if len({held.device for held in (*weights, *buffers)}) > 1:
            return "the weights are not on one device"
        for group, table, name in self.all_tables:
            first, buffers = self.position_tables[group]
            if not _are_equal(table[name], buffers[first.name]):
                return "tables of positions differ between layers"
        classes = self._why_other_classes()
        if classes:
            return classes
        if any(_differs(table.get(name), value) for table, name, value in self.facts):
            return "an attribute of a module was changed after kernelize"
        entries = [*self.needed, *((table, "bias") for table in self.weights)]
        given = [(id(table) in self.wide, table.get(name)) for table, name in entries]
        held = [(wide, tensor.dtype) for wide, tensor in given if type(tensor) is Parameter]
        allowed = {torch.float32, self.dtype}
        if len({dtype for wide, dtype in held if not wide}) > 1 or any(dtype not in allowed for _, dtype in held):
            return "the weights have different dtypes: the model promotes, the operations do not"
        return None

    def count_aside(self, reason):
        self.why_aside[reason] = self.why_aside.get(reason, 0) + 1

    def takes_programs(self, hidden):
        if hidden.device.type != "cpu" or hidden.dtype not in DTYPES or not _layerzero.programs_may_run():
            return False
        return hidden.dtype is self.dtype and (self.stack.half or hidden.dtype is not torch.float16)

    def made(self, name, make):
        """What `make()` returned for the current weights; `why_changed` must have returned None."""
        held = self.guard[2] if self.guard else {}
        if name not in held:
            held[name] = make()
        return held[name]

    def program(self):
        return self.made("program", lambda: BlockProgram(self))

    def products(self):
        """The products of runs by calls."""
        return self.made("products", lambda: Products(self))

    def groups_of_products(self):
        """The parameter tables of linear layers with the same input, for each layer."""
        for layer in self.layers:
            for part in (layer.shape.attention, layer.shape.mlp):
                names = getattr(part, "linears", ())
                if len(names) > 1:
                    yield [layer[name] for name in names]

    def captured(self, make):
        """The captured steps for the current weights; None if nothing guards the weights."""
        return None if self.guard is None else self.made("steps", make)

    def head(self, model, make):
        """What `make()` returned for this model, as long as it has not changed; `why_changed` must have returned None."""
        held = self.guard[2] if self.guard else {}
        if "head" not in held or held["head"].model is not model or held["head"].why_changed():
            held["head"] = make()
        return held["head"]


def _gate_of_ours(module):
    """What `kernelize` has put in the place of the gate alone, where no operation takes the experts' weights; else None. It computes
    the same, so it is no change, but such experts are none for a program."""
    given = module.__dict__.get("_apply_gate")
    return given if getattr(given, "func", None) is experts.apply_gate else None


def plan_of(holder):
    """The plan of a module whose forward was replaced; None in traces, or if that was undone and a wrapper kept the forward."""
    plan = holder.__dict__.get("_layerzero_decoder")
    if plan is None or torch.compiler.is_compiling():
        return None
    if plan.layers is None:
        plan.build(holder)
    return plan


def plans_of(model):
    """[(module that holds layers, their plan)] of a kernelized model."""
    plans = [(module, module.__dict__.get("_layerzero_decoder")) for module in model.modules()]
    return [(module, plan) for module, plan in plans if plan is not None]


def program_of(model):
    """(program of a kernelized model's layers, None), or (None, why the next call without gradients runs none)."""
    found = plans_of(model)
    if not found:
        return None, None
    holder, plan = ([pair for pair in found if pair[1].stack.kind == "decoder"] or found)[-1]
    if plan.layers is None:
        plan.build(holder)
    if plan.device.type != "cpu" or plan.dtype not in DTYPES:
        return None, "programs are for float32, bfloat16 and float16 on the CPU"
    if holder.training:
        return None, "the model is in training mode"
    reason = plan.why_changed() or plan.wrong
    return (None, reason) if reason else (plan.program(), None)


def _differs(value, expected):
    """Whether a value was changed: numbers and texts are compared, of everything else only the identity, which is fast."""
    if value is expected:
        return False
    return not isinstance(expected, (int, float, str)) or type(value) is not type(expected) or value != expected


def _are_equal(table, first):
    return table is first or (table.dtype == first.dtype and torch.equal(table, first))


def facts_of(module, functions):
    """[(table, name)] of what the module's own forward may read: its plain attributes, those of its configuration, and
    what the files of its functions hold.
    """
    members = module.__dict__
    found = [(members, name) for name in members if not name.startswith("_") and name not in ("forward", "training")]
    found += globals_of(functions)
    config = getattr(members.get("config"), "__dict__", {})
    return found + [(config, name) for f in functions[:1] for name in f.__code__.co_names if name in config]
