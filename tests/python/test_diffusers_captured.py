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
    """The module, with the CPU taken for a device; `made` counts captures, `seconds` are the times of the calls and of a replay, `host` the
    host's part of the calls."""
    module = importlib.import_module("layerzero.integrations.diffusers.captured")
    captures = importlib.import_module("layerzero.torch.captures")
    faked = types.SimpleNamespace(module=module, made=0, seconds=[2.0, 1.0])

    def replay_of(warm_up, run, pool):
        warm_up()
        faked.made += 1
        return run

    def timed(run):  # the first is of the host and the whole forward; then three of the calls, three of replays
        result, seconds = run(), faked.seconds[faked.timed > 3]
        faked.timed = (faked.timed + 1) % 7
        return faked.host * seconds, seconds, result

    faked.timed, faked.host = 0, 1.0
    monkeypatch.setattr(captures, "replay_of", replay_of)
    monkeypatch.setattr(module, "_timed", timed)
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
    assert report.captured == {"calls": 2, "kinds": 1, "left": {}} and captured.made == 1
    assert "2 calls as CUDA graphs" in str(report)
    assert lz.unkernelize(model) and "forward" not in model.__dict__


def test_a_replay_reads_new_inputs_and_its_result_stays(flux):
    results = []
    for scale in (1.0, 1.0, 2.0, 3.0):
        given = flux.given | {"hidden_states": scale * flux.given["hidden_states"]}
        results.append((diffusion_models.run(flux.model, given), given))
    assert flux.report.captured["calls"] == 2
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


@pytest.mark.parametrize("change", ["weight", "attribute", "processor", "list", "dict", "policy"])
def test_a_change_drops_the_graphs(change, flux):
    block = flux.model.transformer_blocks[0]
    block.attn.processor.scale, block.scales = [1.0, [2.0]], {"one": {"two": 1.0}}
    for _ in range(3):
        diffusion_models.run(flux.model, flux.given)
    if change == "weight":
        block.attn.to_q.weight = torch.nn.Parameter(2 * block.attn.to_q.weight.data)
    elif change == "attribute":
        block.norm1.norm.eps = 0.5
    elif change == "processor":
        block.attn.processor.marked = True
    elif change == "list":
        block.attn.processor.scale[1][0] = 0.5  # as set_ip_adapter_scale does
    elif change == "dict":
        block.scales["one"]["two"] = 0.5
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


def test_a_capture_that_failed_is_tried_again_later(flux):
    handle = flux.model.register_forward_pre_hook(lambda *_: None)
    for _ in range(3):
        diffusion_models.run(flux.model, flux.given)
    assert flux.captured.made == 0 and "the model has hooks" in str(flux.report)
    handle.remove()
    for _ in range(40):
        diffusion_models.run(flux.model, flux.given)
    assert flux.captured.made == 1 and flux.report.captured["calls"] > 5 and not flux.report.captured["left"]


def test_few_graphs_are_kept_and_no_kind_is_captured_twice(flux, monkeypatch):
    monkeypatch.setattr(flux.captured.module, "_MOST_GRAPHS", 2)
    texts = [
        flux.given | {"encoder_hidden_states": torch.randn(2, n, 32), "txt_ids": torch.zeros(n, 3)}
        for n in (3, 4, 5, 6)
    ]
    for _ in range(4):
        for given in texts:
            diffusion_models.run(flux.model, given)
    assert flux.captured.made == 4 and flux.report.captured["kinds"] == 2
    reason, left = "2 other kinds of calls were used more recently", flux.report.captured["left"]
    dropped = [shapes for n in (3, 4) for shapes in left if f"2x{n}x32" in shapes.split(", ")]
    assert [*left] == dropped and [*left.values()] == [reason, reason]
    assert str(flux.report).count(f"no CUDA graph, {reason}") == 2


def test_where_the_device_takes_the_time_nothing_is_captured(captured):
    captured.host = 0.1
    model, given = diffusion_models.build("dit")
    expected, report = diffusion_models.run(model, given), lz.kernelize(model)
    for _ in range(4):
        assert close(diffusion_models.run(model, given), expected)
    assert captured.made == 0 and "the device takes the time, not the host" in str(report)


def test_what_torch_decides_by_is_part_of_the_kind(flux):
    def calls():
        for _ in range(3):
            assert close(diffusion_models.run(flux.model, flux.given), flux.expected)
        return flux.report.captured["calls"]

    assert calls() == 1
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        calls()
    assert flux.captured.made == 2
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        calls()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert flux.captured.made == 3


def test_global_hooks_see_each_call(captured, monkeypatch):
    monkeypatch.undo()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    module = importlib.import_module("layerzero.integrations.diffusers.captured")
    on_device = types.SimpleNamespace(is_cuda=True)
    try:
        monkeypatch.setattr(torch, "Tensor", types.SimpleNamespace)
        assert not module._may_replay([on_device])
    finally:
        handle.remove()


def test_arguments_that_the_model_writes_are_the_callers(captured, monkeypatch):
    model, given = diffusion_models.build("dit")
    own = type(model).forward

    def writes(self, *args, cross_attention_kwargs=None, **more):
        if cross_attention_kwargs is not None:
            cross_attention_kwargs["seen"] = cross_attention_kwargs.get("seen", 0) + 1
        return own(self, *args, **more)

    monkeypatch.setattr(type(model), "forward", writes)
    report, told = lz.kernelize(model), {}
    for number in range(1, 4):
        diffusion_models.run(model, given | {"cross_attention_kwargs": told})
        assert told == {"seen": number}
    for _ in range(3):  # the same contents in each call
        diffusion_models.run(model, given | {"cross_attention_kwargs": {}})
    assert captured.made == 0 and "it writes into its arguments" in str(report)


def test_a_wrapper_around_the_forward_outlives_unkernelize(flux):
    for _ in range(3):
        diffusion_models.run(flux.model, flux.given)
    kept = flux.model.forward  # as accelerate's hooks keep it
    flux.model.forward = lambda *args, **given: kept(*args, **given)
    lz.unkernelize(flux.model)
    assert close(diffusion_models.run(flux.model, flux.given), flux.expected)
    del flux.model.__dict__["forward"]


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
    assert flux.captured.made == 1 and flux.report.captured["calls"] == 3


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
        assert other.forward._of() is other and other.__dict__[flux.captured.module.STATE].counts["kinds"] == 0


@pytest.mark.parametrize("made", ["copy", "replica"])
def test_a_copy_that_shares_attributes_runs_its_own_code(flux, made):
    """As copy.copy and torch.nn.DataParallel make them."""

    def copied(module):
        if made == "copy":
            return copy.copy(module)
        other = module._replicate_for_data_parallel()
        other._parameters, other._modules = dict(module._parameters), dict(module._modules)
        return other

    norm = flux.model.transformer_blocks[0].attn.norm_q
    other, rows = copied(norm), torch.randn(2, *norm.weight.shape)
    other._parameters = {"weight": torch.nn.Parameter(3 * norm.weight.detach())}
    with torch.inference_mode():
        assert close(other(rows), 3 * norm(rows))
    whole = copied(flux.model)
    whole._modules = {**whole._modules, "proj_out": torch.nn.Linear(flux.model.proj_out.in_features, 7)}
    for _ in range(3):
        assert diffusion_models.run(whole, flux.given).shape[-1] == 7
    assert flux.captured.made == 0 and not lz.unkernelize(whole)  # its parts are the model's
    assert close(diffusion_models.run(flux.model, flux.given), flux.expected)
    assert lz.unkernelize(flux.model)
    assert not {"_replicate_for_data_parallel", "__reduce_ex__"} & {*flux.model.__dict__, *norm.__dict__}


def test_graphs_are_an_option(captured):
    model, given = diffusion_models.build("dit")
    report = lz.kernelize(model, graphs=False)
    for _ in range(3):
        diffusion_models.run(model, given)
    assert captured.made == 0 and "forward" not in model.__dict__ and report.captured["calls"] == 0


def test_on_the_cpu_nothing_is_captured(diffusers):
    model, given = diffusion_models.build("dit")
    report = lz.kernelize(model)
    for _ in range(3):
        diffusion_models.run(model, given)
    assert report.captured == {"calls": 0, "kinds": 0, "left": {}}
