"""Forwards of diffusers' models as graphs, without a device: a replay runs what was captured again. tests/gpu/test_diffusers.py captures."""

import contextlib
import copy
import importlib
import inspect
import pickle
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import diffusion_models  # noqa: E402
import layerzero as lz  # noqa: E402

FOLDER = Path(sys.prefix) / "diffusers"


@pytest.fixture(scope="module", autouse=True)
def diffusers():
    added = FOLDER.is_dir()
    if added:
        sys.path.append(str(FOLDER))
    try:
        yield pytest.importorskip("diffusers", reason="needs requirements/diffusers.txt in .venv/diffusers: make setup")
    finally:
        if added:
            sys.path.remove(str(FOLDER))


@pytest.fixture
def captured(monkeypatch):
    """The module, with the CPU taken for a device; `made` counts captures, `seconds` are the times of the calls and of a replay."""
    module = importlib.import_module("layerzero.integrations.diffusers.captured")
    captures = importlib.import_module("layerzero.torch.captures")
    faked = types.SimpleNamespace(module=module, made=0, seconds=[2.0, 1.0])

    def replay_of(warm_up, run, pool):
        warm_up()
        faked.made += 1
        return run

    times = lambda run: (run(), faked.seconds[faked.timed % 2], setattr(faked, "timed", faked.timed + 1))[1]  # noqa: E731
    faked.timed = 0
    monkeypatch.setattr(captures, "replay_of", replay_of)
    monkeypatch.setattr(module, "_seconds", times)
    monkeypatch.setattr(module, "_may_replay", bool)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "a stream")
    return faked


@pytest.fixture
def flux(captured):
    model, given = diffusion_models.build("flux")
    expected = diffusion_models.run(model, given)
    yield types.SimpleNamespace(
        model=model, given=given, expected=expected, report=lz.kernelize(model), captured=captured
    )
    lz.unkernelize(model)


def close(actual, expected):
    return bool((actual - expected).norm() <= 1e-4 * expected.norm())


@pytest.mark.parametrize("name", diffusion_models.NAMES)
def test_the_same_results_by_replays(name, captured):
    model, given = diffusion_models.build(name)
    expected = diffusion_models.run(model, given)
    report = lz.kernelize(model)
    for _ in range(4):
        assert close(diffusion_models.run(model, given), expected)
    assert report.captured == {"calls": 3, "kinds": 1, "left": {}} and captured.made == 1
    assert "3 calls as CUDA graphs" in str(report)
    assert lz.unkernelize(model) and "forward" not in model.__dict__


def test_a_replay_reads_new_inputs_and_its_result_stays(flux):
    results = []
    for scale in (1.0, 1.0, 2.0, 3.0):
        given = flux.given | {"hidden_states": scale * flux.given["hidden_states"]}
        results.append((diffusion_models.run(flux.model, given), given))
    assert flux.report.captured["calls"] == 3
    lz.unkernelize(flux.model)
    assert all(close(result, diffusion_models.run(flux.model, given)) for result, given in results)


def test_other_shapes_and_other_arguments_are_other_kinds(flux):
    def run(**more):
        with torch.no_grad():
            return flux.model(**flux.given | more)

    for _ in range(3):
        whole, parts = run(return_dict=True), run(return_dict=False)
        assert type(whole).__name__ == "Transformer2DModelOutput" and type(parts) is tuple
        assert close(whole.sample, flux.expected) and close(parts[0], flux.expected)
    short = {
        name: flux.given[name][:1]
        for name in ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")
    }
    for _ in range(3):
        assert close(run(return_dict=False, **short)[0], flux.expected[:1])
    assert flux.report.captured["kinds"] == 3 and flux.captured.made == 3


@pytest.mark.parametrize("change", ["weight", "attribute", "processor", "policy"])
def test_a_change_drops_the_graphs(change, flux):
    for _ in range(3):
        diffusion_models.run(flux.model, flux.given)
    block = flux.model.transformer_blocks[0]
    if change == "weight":
        block.attn.to_q.weight = torch.nn.Parameter(2 * block.attn.to_q.weight.data)
    elif change == "attribute":
        block.norm1.norm.eps = 0.5
    elif change == "processor":
        block.attn.processor.marked = True
    else:
        lz.configure(log_selections=True)
    try:
        for _ in range(3):
            result = diffusion_models.run(flux.model, flux.given)
        assert flux.captured.made == 2 and flux.report.captured["kinds"] == 1
        lz.unkernelize(flux.model)
        assert close(result, diffusion_models.run(flux.model, flux.given))
    finally:
        lz.configure(log_selections=False)


def test_a_model_that_changes_all_the_time_is_left(flux):
    for number in range(8):
        flux.model.transformer_blocks[0].number = number
        diffusion_models.run(flux.model, flux.given)
        diffusion_models.run(flux.model, flux.given)
    made = flux.captured.made
    assert made <= 3 and "changes between its calls" in flux.report.captured["left"]["all"]
    assert close(diffusion_models.run(flux.model, flux.given), flux.expected) and flux.captured.made == made


def test_what_a_graph_would_not_see_is_left_with_its_reason(flux, captured):
    block = flux.model.transformer_blocks[0]
    handle = block.register_forward_hook(lambda *_: None)
    for _ in range(3):
        diffusion_models.run(flux.model, flux.given)
    assert captured.made == 0 and "transformer_blocks.0 has hooks" in str(flux.report)
    handle.remove()

    class Mine(torch.nn.Identity):
        pass

    model, given = diffusion_models.build("flux")
    model.extra = Mine()
    report = lz.kernelize(model)
    for _ in range(3):
        diffusion_models.run(model, given)
    assert "extra is a Mine, whose state cannot be watched" in str(report)


def test_a_graph_that_is_not_faster_is_dropped(captured):
    captured.seconds = [1.0, 0.99]
    model, given = diffusion_models.build("dit")
    expected, report = diffusion_models.run(model, given), lz.kernelize(model)
    for _ in range(3):
        assert close(diffusion_models.run(model, given), expected)
    assert report.captured["calls"] == report.captured["kinds"] == 0 and captured.made == 1
    assert "a replay takes 990.00 ms, the calls take 1000.00" in str(report)


def test_a_graph_with_other_results_is_dropped(captured, monkeypatch):
    monkeypatch.setattr(captured.module, "_same", lambda actual, expected: False)
    model, given = diffusion_models.build("dit")
    expected, report = diffusion_models.run(model, given), lz.kernelize(model)
    for _ in range(3):
        assert close(diffusion_models.run(model, given), expected)
    assert report.captured["calls"] == 0 and "other results than the calls" in str(report)


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_calls_in_and_outside_of_inference_mode_share_a_graph(first, flux):
    other = {torch.inference_mode: torch.no_grad, torch.no_grad: torch.inference_mode}[first]
    for mode in (first, first, other, first, other):
        with mode():
            given = {name: value.clone() for name, value in flux.given.items()}
            result = flux.model(**given, return_dict=False)[0]
        assert close(result, flux.expected)
    assert flux.captured.made == 1 and flux.report.captured["calls"] == 4


def test_gradients_and_training_take_the_models_own_code(flux):
    for _ in range(3):
        flux.model(**flux.given)  # with gradients
    flux.model.train()
    for _ in range(3):
        diffusion_models.run(flux.model, flux.given)
    assert flux.captured.made == 0 and flux.report.captured["calls"] == 0


def test_copies_pickles_and_signatures(flux):
    for _ in range(3):
        diffusion_models.run(flux.model, flux.given)
    own = inspect.signature(type(flux.model).forward).parameters
    assert list(inspect.signature(flux.model.forward).parameters) == list(own)[1:]
    for other in (copy.deepcopy(flux.model), pickle.loads(pickle.dumps(flux.model))):
        assert close(diffusion_models.run(other, flux.given), flux.expected)
        assert other.forward.args[0] is other


def test_on_the_cpu_nothing_is_captured(diffusers):
    model, given = diffusion_models.build("dit")
    report = lz.kernelize(model)
    for _ in range(3):
        diffusion_models.run(model, given)
    assert report.captured == {"calls": 0, "kinds": 0, "left": {}}
