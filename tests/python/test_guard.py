"""What a guard sees of a model's objects, what a kernelized model sees of changes, and that neither keeps a model."""

import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from small_llama import TOLERANCE, error, ids_of, logits_of, plan_of, tiny  # noqa: E402
from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


def weight(*shape):
    return nn.Parameter(torch.ones(shape))


class Guarded:
    """A guard of one object of each kind; keeps what it guards."""

    def __init__(self):
        self.parts = {"a": nn.Identity(), "b": nn.Identity()}
        self.members = {"training": False}
        self.weights = {"weight": weight(4, 3), "bias": None}
        self.kept = (
            [(self.parts, tuple(self.parts.values()))],
            [
                (self.members, "training", False),
                (self.members, "forward", None),
                (self.weights, "bias", None),
            ],
            [(self.weights, "weight", self.weights["weight"])],
        )
        self.guard = _layerzero.guard(*self.kept)

    def unchanged(self):
        return _layerzero.unchanged(self.guard)


def move(w):
    w.weights["weight"].data = torch.ones(4, 3)


CHANGES = {
    "module replaced": lambda w: w.parts.update(a=nn.Identity()),
    "module added": lambda w: w.parts.update(c=nn.Identity()),
    "module removed": lambda w: w.parts.pop("b"),
    "modules swapped": lambda w: w.parts.update(a=w.parts["b"], b=w.parts["a"]),
    "module reordered": lambda w: w.parts.update(a=w.parts.pop("a")),
    "member set": lambda w: w.members.update(training=True),
    "member removed": lambda w: w.members.pop("training"),
    "forward given": lambda w: w.members.update(forward=print),
    "bias given": lambda w: w.weights.update(bias=weight(4)),
    "weight replaced": lambda w: w.weights.update(weight=weight(4, 3)),
    "weight removed": lambda w: w.weights.pop("weight"),
    "weight absent": lambda w: w.weights.update(weight=None),
    "data replaced": move,
    "dtype": lambda w: setattr(
        w.weights["weight"].requires_grad_(False), "data", w.weights["weight"].view(torch.int32)
    ),
    "shape": lambda w: setattr(w.weights["weight"], "data", w.weights["weight"].data.view(3, 4)),
    "rank": lambda w: setattr(w.weights["weight"], "data", w.weights["weight"].data.view(12)),
    "strides": lambda w: setattr(w.weights["weight"], "data", w.weights["weight"].data.as_strided((4, 3), (1, 4))),
    "offset": lambda w: setattr(w.weights["weight"], "data", w.weights["weight"].data[1:]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_guard_sees(change):
    guarded = Guarded()
    assert guarded.unchanged() and guarded.unchanged()
    CHANGES[change](guarded)
    assert not guarded.unchanged()


def test_a_guard_does_not_mind():
    guarded = Guarded()
    with torch.no_grad():
        guarded.weights["weight"].mul_(2)  # the same memory: programs read it again each time
    guarded.weights["weight"].requires_grad_(False)
    guarded.members["other"] = 1
    guarded.members["forward"] = None
    assert guarded.unchanged()


def test_a_guard_undone_is_unchanged_again():
    guarded = Guarded()
    first = guarded.parts["a"]
    guarded.parts["a"] = nn.Identity()
    assert not guarded.unchanged()
    guarded.parts["a"] = first
    assert guarded.unchanged()


def test_a_guard_owns_nothing():
    guarded = Guarded()
    part, tensor = weakref.ref(guarded.parts["a"]), weakref.ref(guarded.weights["weight"])
    guard = guarded.guard
    del guarded
    gc.collect()
    assert part() is None and tensor() is None
    del guard


@pytest.mark.parametrize(
    "entry",
    [
        ([({}, [])], [], []),
        ([()], [], []),
        ([], [({}, "key")], []),
        ([], [], [({}, "weight", None)]),
        ([], [], [({}, "weight", torch.ones(1, 1, 1, 1, 1, 1))]),
        ([], [], [({}, "weight", torch.ones(2, device="meta"))]),
    ],
)
def test_what_cannot_be_guarded_is_refused(entry):
    with pytest.raises((TypeError, SystemError)):
        _layerzero.guard(*entry)


class Doubled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 2 * self.inner(x)


def new_head(model):
    torch.manual_seed(8)
    old = model.model.layers[1].self_attn.q_proj
    model.model.layers[1].self_attn.q_proj = nn.Linear(old.in_features, old.out_features, bias=False)


def wrapped(model):
    model.model.layers[0].mlp = Doubled(model.model.layers[0].mlp)


def scaled_data(model):
    parameter = model.model.layers[2].mlp.up_proj.weight
    parameter.data = parameter.data * 1.5


def scaled_in_place(model):
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight.mul_(1.5)


def new_parameter(model):
    layer = model.model.layers[2].mlp.down_proj
    layer.weight = nn.Parameter(layer.weight.detach() * 0.5)


def new_forward(model):
    norm = model.model.norm
    own = type(norm).forward
    norm.forward = lambda x: own(norm, x) * 3


def new_bias(model):
    layer = model.model.layers[0].self_attn.o_proj
    layer.bias = nn.Parameter(torch.full((layer.out_features,), 0.25))


def transposed(model):
    layer = model.model.layers[0].self_attn.o_proj
    layer.weight.data = layer.weight.data.t().contiguous().t()


def hooked(model):
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: output * 2)


class Special(nn.Parameter):
    pass


def special_bias(model):
    layer = model.model.layers[0].self_attn.o_proj
    layer.bias = Special(torch.full((layer.out_features,), 0.25))


MODEL_CHANGES = {
    change.__name__: change
    for change in (
        new_head,
        wrapped,
        scaled_data,
        scaled_in_place,
        new_parameter,
        new_forward,
        new_bias,
        special_bias,
        transposed,
        hooked,
    )
}


@pytest.mark.parametrize("change", MODEL_CHANGES)
def test_a_kernelized_model_follows(change):
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    for _ in range(2):
        assert error(logits_of(model), logits_of(reference)) <= TOLERANCE
    before = logits_of(model)
    for each in (model, reference):
        MODEL_CHANGES[change](each)
    for _ in range(2):
        assert error(logits_of(model), logits_of(reference)) <= TOLERANCE
    if change != "transposed":
        assert error(logits_of(model), before) > 100 * TOLERANCE


def test_changes_on_and_on():
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    for factor in (2.0, 0.5, 3.0):
        for each in (model, reference):
            norm = each.model.layers[1].input_layernorm.weight
            norm.data = norm.data * factor
        assert error(logits_of(model), logits_of(reference)) <= TOLERANCE
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("undo", [False, True])
def test_a_model_that_ran_is_freed(undo):
    model = tiny()
    lz.kernelize(model)
    with torch.inference_mode():
        output = model(ids_of(), use_cache=True)
        model(ids_of(2, 1), past_key_values=output.past_key_values)
    if undo:
        lz.unkernelize(model)
    parts = [weakref.ref(part) for part in (model, model.model, model.model.layers[0].mlp.up_proj)]
    weights = [weakref.ref(model.model.layers[0].mlp.up_proj.weight), weakref.ref(model.lm_head.weight)]
    cache = output.past_key_values
    del model, output
    gc.collect()
    assert not [ref() for ref in parts + weights if ref() is not None]
    assert cache.get_seq_length() == 10  # belongs to who asked for it


def test_weights_that_were_replaced_are_freed():
    model = tiny()
    lz.kernelize(model)
    logits_of(model)
    layer = model.model.layers[0].mlp.up_proj
    memory = StorageWeakRef(layer.weight.untyped_storage())
    parameter = weakref.ref(layer.weight)
    layer.weight = nn.Parameter(layer.weight.detach().clone())
    logits_of(model)
    gc.collect()
    assert parameter() is None and memory.expired()


def test_threads_run_a_model_that_changes():
    """Every answer is that of the weights before or after; what comes later is that of the last ones."""
    model = tiny()
    lz.kernelize(model)
    norm = model.model.norm.weight
    values = [norm.data.clone() * factor for factor in (1.0, 2.0)]
    expected = []
    for value in values:
        norm.data = value
        expected.append(logits_of(model))
    stop, wrong = threading.Event(), []

    def work():
        while not stop.is_set():
            logits = logits_of(model)
            if min(error(logits, each) for each in expected) > TOLERANCE:
                wrong.append(logits)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(40):
        norm.data = values[i % 2]
        assert error(logits_of(model), expected[i % 2]) <= TOLERANCE
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert error(logits_of(model), expected[1]) <= TOLERANCE


def test_threads_start_a_model_together():
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    expected = logits_of(reference)
    barrier, results = threading.Barrier(8), []

    def work():
        barrier.wait()
        try:
            results.append(error(logits_of(model), expected))
        except Exception as failure:
            results.append(failure)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(each, float) and each <= TOLERANCE for each in results), results


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.functions = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.functions.add(func.name())
        return func(*args, **(kwargs or {}))


def test_modes_see_the_operations_one_by_one():
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    logits_of(model)
    with Seen() as seen:
        logits = logits_of(model)
    assert error(logits, logits_of(reference)) <= TOLERANCE
    assert {"layerzero::linear", "layerzero::attention"} <= seen.functions
    assert not plan_of(model).why_aside
