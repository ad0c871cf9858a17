"""A kernelized model that is moved, copied, saved, loaded, compiled or run by another thread."""

import copy
import io
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from small_llama import BF16_RATIO, TOLERANCE, error, ids_of, logits_of, plan_of, tiny  # noqa: E402


def traces(model):
    """Modules in which kernelize left something."""
    return [
        n for n, m in model.named_modules() if any(k == "forward" or k.startswith("_layerzero") for k in m.__dict__)
    ]


def test_to_another_dtype_and_back():
    model, exact = tiny(), tiny().double()
    lz.kernelize(model)
    exact = logits_of(exact)
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float32):
        own = error(logits_of(tiny().to(torch.bfloat16).to(dtype)), exact)  # bf16 rounded the weights for good
        logits = logits_of(model.to(dtype))
        assert logits.dtype == dtype
        assert error(logits, exact) <= BF16_RATIO * own
    assert not plan_of(model).why_aside


def test_deepcopy_is_a_model_of_its_own():
    model = tiny()
    report = lz.kernelize(model)
    twin = copy.deepcopy(model)
    own = twin.__dict__["_layerzero_kernelized"].report
    logits_of(twin)
    assert own.replaced["decoder"]["calls"] == 1 and report.replaced["decoder"]["calls"] == 0
    assert lz.unkernelize(twin)
    assert not traces(twin) and twin.config._attn_implementation == "sdpa"
    assert torch.equal(logits_of(twin), logits_of(tiny()))
    assert error(logits_of(model), logits_of(tiny())) <= TOLERANCE
    assert report.replaced["decoder"]["calls"] == 1


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(assign):
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    assert list(model.state_dict()) == list(reference.state_dict())
    torch.manual_seed(9)
    other = {name: torch.randn_like(weight) for name, weight in reference.state_dict().items()}
    for each in (model, reference):
        each.load_state_dict(other, assign=assign)
    assert error(logits_of(model), logits_of(reference)) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_save_pretrained_and_from_pretrained(tmp_path):
    model = tiny()
    lz.kernelize(model)
    model.save_pretrained(tmp_path)
    assert not [path for path in tmp_path.glob("*.json") if "layerzero" in path.read_text()]
    expected, load = logits_of(tiny()), transformers.AutoModelForCausalLM.from_pretrained
    plain = load(tmp_path)
    assert plain.config._attn_implementation == "sdpa" and torch.equal(logits_of(plain), expected)
    chosen = load(tmp_path, attn_implementation="layerzero")
    assert error(logits_of(chosen), expected) <= TOLERANCE


def test_pickle_keeps_it_kernelized():
    model, stream = tiny(), io.BytesIO()
    lz.kernelize(model)
    torch.save(model, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    assert error(logits_of(loaded), logits_of(tiny())) <= TOLERANCE
    assert loaded.model.__dict__["_layerzero_part"]["calls"] == 1
    assert lz.unkernelize(loaded) and not traces(loaded)


@pytest.mark.parametrize("kernelize_first", [False, True])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled(kernelize_first, fullgraph):
    torch._dynamo.reset()
    model, expected = tiny(), logits_of(tiny())
    if kernelize_first:
        lz.kernelize(model)
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    assert error(logits_of(compiled), expected) <= TOLERANCE
    lz.kernelize(model)
    assert error(logits_of(compiled), expected) <= TOLERANCE
    assert error(logits_of(model), expected) <= TOLERANCE
    lz.unkernelize(model)
    assert torch.equal(logits_of(compiled), expected)


@pytest.mark.parametrize("in_place", [False, True])
def test_kernelize_of_what_is_compiled(in_place):
    torch._dynamo.reset()
    model, expected = tiny(), logits_of(tiny())
    if in_place:
        model.compile(backend="eager")
    compiled = model if in_place else torch.compile(model, backend="eager")
    logits_of(compiled)
    lz.kernelize(compiled)
    assert error(logits_of(compiled), expected) <= TOLERANCE
    assert lz.unkernelize(compiled) and not traces(model)
    assert torch.equal(logits_of(compiled), expected)


class InThread(threading.Thread):
    """Runs a model's forward that stops within a layer until it is told to go on."""

    def __init__(self, model):
        super().__init__()
        self.model, self.inside, self.go_on = model, threading.Event(), threading.Event()
        self.handle = model.model.layers[1].register_forward_pre_hook(self.wait)

    def wait(self, *_):
        self.inside.set()
        assert self.go_on.wait(60)

    def run(self):
        self.logits = logits_of(self.model)

    def __enter__(self):
        self.start()
        assert self.inside.wait(60)

    def __exit__(self, *_):
        self.go_on.set()
        self.join()
        self.handle.remove()


def test_a_model_that_another_thread_runs_is_refused():
    model, expected = tiny(), logits_of(tiny())
    for change in (lz.kernelize, lz.unkernelize):
        thread = InThread(model)
        before = traces(model)
        with thread, pytest.raises(RuntimeError, match="another thread is running this model"):
            change(model)
        assert traces(model) == before
        assert error(thread.logits, expected) <= TOLERANCE
        with InThread(tiny()):  # another model is none of its business
            change(model)
    assert not traces(model)


def test_threads_share_a_kernelized_model():
    model, results = tiny(), {}
    lz.kernelize(model)
    ids = {n: ids_of(1, 3 + n) for n in range(6)}

    def run(n):
        results[n] = [logits_of(model, ids[n]) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(n,)) for n in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, found in results.items():
        expected = logits_of(tiny(), ids[n])
        assert len(found) == 5 and all(error(logits, expected) <= TOLERANCE for logits in found)


def test_a_parametrised_weight_is_used():
    class Half(torch.nn.Module):
        def forward(self, weight):
            return weight * 0.5

    model, reference = tiny(), tiny()
    lz.kernelize(model)
    for each in (model, reference):
        torch.nn.utils.parametrize.register_parametrization(each.model.layers[0].mlp.up_proj, "weight", Half())
    assert error(logits_of(model), logits_of(reference)) <= TOLERANCE
    assert plan_of(model).why_aside == {"a weight is no longer a plain parameter": 1}
