"""Arguments of forwards are bound by the signature that is called: releases of Transformers, and models, name them otherwise."""

import inspect
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers.arguments import CACHE, Signature, cache_argument, cache_of  # noqa: E402
from small_llama import GREEDY, TOLERANCE, error, ids_of, plan_of, tiny  # noqa: E402

THEIRS = next(iter(cache_argument(tiny(), None)))  # the name that this release has
NAMES = ["cache", "past_key_values", "cache_params", "kv"]


def forward_with(name):
    """A forward that calls its cache so, and says of what type it is."""
    scope = {"Cache": transformers.Cache}
    exec(f"def forward(self, hidden, mask=None, {name}: Cache | None = None, **further): pass", scope)
    return scope["forward"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["position", "name"])
def test_a_cache_is_found_whatever_it_is_called(name, how):
    signature, cache = Signature(forward_with(name)), transformers.DynamicCache()
    given = ((1, 2, cache), {}) if how == "position" else ((1, 2), {name: cache})
    assert signature.bind(*given) == {"hidden": 1, "mask": 2, CACHE: cache}
    assert signature.name_of(CACHE) == name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("former", ["past_key_values", "cache_params"])
def test_a_former_name_is_taken_too(name, former):
    assert Signature(forward_with(name)).bind((), {former: 3})[CACHE] == 3


def test_the_first_parameter_comes_first_however_it_is_passed():
    bound = Signature(forward_with("cache")).bind((), {"mask": 1, "cache": 2, "hidden": 3})
    assert next(iter(bound.items())) == ("hidden", 3)


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((1, 2, 3, 4), {}),
        ((1,), {"hidden": 2}),
        ((1, 2, 3), {"cache": 4}),
        ((1,), {"cache": 2, "past_key_values": 3}),
    ],
)
def test_nothing_is_dropped(args, kwargs):
    assert Signature(forward_with("cache")).bind(args, kwargs) is None


def test_a_type_decides_only_where_no_name_is_known():
    scope = {"Cache": transformers.Cache}
    exec("def forward(self, hidden, cache: Cache = None, other: Cache = None): pass", scope)
    assert Signature(scope["forward"]).bind((), {"hidden": 1, "other": 2}) == {"hidden": 1, "other": 2}


# ---- whole models


class Renamed:
    """Changes the name of an argument of a class's forward, as a release does."""

    def __init__(self, monkeypatch, kind, name):
        own = kind.forward

        def forward(self, *args, **kwargs):
            kwargs = {THEIRS if key == name else key: value for key, value in kwargs.items()}
            return own(self, *args, **kwargs)

        signature = inspect.signature(own)
        parameters = [p.replace(name=name) if p.name == THEIRS else p for p in signature.parameters.values()]
        forward.__signature__ = signature.replace(parameters=parameters)
        monkeypatch.setattr(kind, "forward", forward)


def run(model, ids):
    """Logits of a prompt and of two tokens behind it."""
    with torch.inference_mode():
        first = model(ids[:, :-2], use_cache=True)
        given = cache_argument(model, cache_of(first))
        return torch.cat([first.logits, model(ids[:, -2:], use_cache=True, **given).logits], dim=1)


@pytest.mark.parametrize("name", [name for name in NAMES if name != THEIRS])
def test_a_base_model_of_another_name_runs_as_one_program(name, monkeypatch):
    model, ids = tiny(), ids_of()
    expected = run(model, ids)
    Renamed(monkeypatch, type(model.model), name)
    report = lz.kernelize(model)
    call = type(model.model).__call__

    def called(self, *args, **kwargs):
        return call(self, *args, **{name if key == THEIRS else key: value for key, value in kwargs.items()})

    monkeypatch.setattr(type(model.model), "__call__", called)
    assert error(run(model, ids), expected) <= TOLERANCE
    assert report.replaced["decoder"]["calls"] == 2 and not plan_of(model).why_aside


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_base_model_is_called_by_any_name_of_a_release(name):
    model, ids = tiny(), ids_of()
    expected = run(model, ids)
    lz.kernelize(model)
    cache = transformers.DynamicCache(config=model.config)
    with torch.inference_mode():
        rows = [model.model(part, use_cache=True, **{name: cache})[0] for part in (ids[:, :-2], ids[:, -2:])]
        assert error(model.lm_head(torch.cat(rows, dim=1)), expected) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_positional_arguments_run_as_one_program():
    model, ids = tiny(), ids_of()
    positional = Signature(type(model.model).forward).positional
    assert positional[:4] == ["input_ids", "attention_mask", "position_ids", THEIRS]
    expected = run(model, ids)
    report, cache = lz.kernelize(model), transformers.DynamicCache(config=model.config)
    with torch.inference_mode():
        rows = [model.model(part, None, None, cache)[0] for part in (ids[:, :-2], ids[:, -2:])]
        assert error(model.lm_head(torch.cat(rows, dim=1)), expected) <= TOLERANCE
    assert report.replaced["decoder"]["calls"] == 2 and not plan_of(model).why_aside


def test_two_caches_are_the_own_forwards_business():
    model, ids = tiny(), ids_of()
    lz.kernelize(model)
    caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.model(ids, cache=caches[0], past_key_values=caches[1])
    assert any("twice" in reason for reason in plan_of(model).why_aside)


@pytest.mark.parametrize("weights", [None, "int8"])
def test_no_warning_comes_of_kernelize(weights):
    """A release warns where code calls an argument by its former name."""
    model, ids = tiny(), ids_of(batch=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lz.kernelize(model, **{"weights": weights, "max_perplexity_ratio": 100.0} if weights else {})
        model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
        lz.unkernelize(model)


def test_the_result_has_the_cache_where_the_release_has_it():
    model = tiny()
    with torch.inference_mode():
        own = model.model(ids_of(), use_cache=True)
        lz.kernelize(model)
        ours = model.model(ids_of(), use_cache=True)
    assert type(ours) is type(own) and list(ours.keys()) == list(own.keys())
    assert isinstance(cache_of(ours), transformers.DynamicCache)
