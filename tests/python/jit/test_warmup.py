"""`lz.warmup` and the shape manifest, on own kernels and on a planted one that is compiled at its first call."""

import datetime
import json
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.jit import examples, library, manifest, warmup, work  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_known", {})
    before = lz.policy_in_force()["keys"]["jit.manifest_path"]["value"]
    lz.configure(jit={"memory_mb": 0, "manifest_path": str(tmp_path / "manifest.json")}, memory_headroom_mb=0)
    yield tmp_path
    assert work.idle(time.monotonic() + 60)
    lz.configure(jit={"memory_mb": 2048, "manifest_path": before}, memory_headroom_mb=1024)


@pytest.fixture
def slow_kernel():
    """A kernel for norm.rms that is compiled at the first call of each width; returns its calls."""
    calls = []

    @lz.register_kernel(
        "norm.rms",
        "slow.rms",
        supported_dtypes=["float32"],
        priority=100,
        jit={"when": "first_call", "key": ["hidden"]},
    )
    def rms_norm(input, weight, eps):
        calls.append(input.shape[-1])
        if input.shape[-1] == 13:
            raise RuntimeError("no such width")
        return torch.nn.functional.rms_norm(input, input.shape[-1:], weight, eps)

    return calls


def test_an_operation_by_shapes(slow_kernel):
    progress = []
    report = lz.warmup(
        "norm.rms",
        shapes=[(2, 32), (2, 48)],
        dtype=torch.float32,
        device="cpu",
        options={"weight": True},
        progress=lambda *now: progress.append(now),
    )
    assert report.complete and report.compiled == 2
    assert [(c.operation, c.state, c.kernel_id) for c in report.calls] == [("rms_norm", "ready", "slow.rms")] * 2
    assert [p[:2] for p in progress] == [(0, 2), (1, 2), (2, 2)]
    before = work.counts()
    lz.rms_norm(torch.ones(2, 48), torch.ones(48))
    assert work.counts() == before, "nothing is left to compile"


def test_a_kernel_that_cannot_be_compiled_is_a_fallback(slow_kernel):
    report = lz.warmup("norm.rms", shapes=[(2, 13)], dtype="float32", device="cpu", options={"weight": True})
    (call,) = report.calls
    assert call.state == "fallback" and "slow.rms" in call.detail and call.kernel_id != "slow.rms"
    assert not report.complete


def test_the_budget_ends_it(slow_kernel):
    report = lz.warmup("norm.rms", shapes=[(2, 32), (2, 48)], dtype="float32", device="cpu", budget_s=0)
    assert [call.state for call in report.calls] == ["left", "left"]


@pytest.mark.parametrize(
    ("operation", "shapes", "message"),
    [
        ("mlp.linear", [(4, 64)], "the size of n too"),
        ("norm.rms", None, "a list of shapes"),
        ("attention", [(4, 64)], "has the axes"),
    ],
)
def test_what_a_shape_does_not_say_is_asked_for(operation, shapes, message):
    with pytest.raises(lz.InvalidRequestError, match=message):
        lz.warmup(operation, shapes=shapes, dtype="float32", device="cpu")


class Model(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return lz.rms_norm(x, self.weight)


def test_a_model_is_recorded_and_the_next_process_warms_up_from_it(slow_kernel):
    # proves: jit.manifest_path
    jsonschema = pytest.importorskip("jsonschema")
    model = Model()
    report = lz.warmup(model, inputs=[{"x": torch.randn(1, 32)}, {"x": torch.randn(5, 32)}], record=True)
    assert report.complete
    document = json.loads(manifest.path().read_text())
    jsonschema.validate(document, json.loads((ROOT / "schemas/manifest.schema.json").read_text()))
    assert set(document["models"]) == {manifest.model_hash(model)}
    shapes = [call["tensors"]["input"]["shape"] for call in document["models"][manifest.model_hash(model)]["calls"]]
    assert shapes == [[1, 32], [5, 32]]
    again = lz.warmup("manifest")
    assert again.complete and len(again.calls) == 2
    assert manifest.model_hash(Model(48)) not in document["models"]


def test_a_manifest_without_a_path_is_in_the_cache_folder(monkeypatch, tmp_path):
    unnamed = manifest.jit_settings()._replace(manifest_path="")
    monkeypatch.setattr(manifest, "jit_settings", lambda: unnamed)
    assert manifest.path() == tmp_path / "cache" / "shape_manifest.json"


def test_an_old_manifest_warns(slow_kernel):
    # proves: jit.manifest_stale_days
    lz.warmup(Model(), inputs={"x": torch.randn(1, 32)}, record=True)
    document = json.loads(manifest.path().read_text())
    for one in document["models"].values():
        old = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=8)
        one["updated_at"] = old.isoformat()
    manifest.path().write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="8 days old"):
        lz.warmup("manifest")
    lz.configure(jit={"manifest_stale_days": 0})
    assert not any(manifest.stale(one) for one in manifest.read().values())
    lz.configure(jit={"manifest_stale_days": 7})


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema_version": "9", "models": {}}', '{"schema_version": "1.0", "models": {"a": 1}}']
)
def test_a_file_that_is_no_manifest_is_an_error(cache, text):
    (cache / "wrong.json").write_text(text)
    with pytest.raises(lz.ConfigError, match="wrong.json"):
        lz.warmup(cache / "wrong.json")


def test_calls_of_a_manifest_name_what_exists(cache):
    call = {"operation": "rms_norm", "device": "cpu", "tensors": {"nothing": {}}, "scalars": {}}
    model = {"name": "a", "updated_at": "2026-01-01T00:00:00+00:00", "calls": [call]}
    (cache / "wrong.json").write_text(json.dumps({"schema_version": "1.0", "models": {"a": model}}))
    with pytest.raises(lz.ConfigError, match="no parameter nothing"):
        manifest.read(cache / "wrong.json")


def test_the_engine_describes_a_call_as_it_was_made():
    seen = []
    handle = lz._layerzero.observe_calls(lambda text: seen.append(json.loads(text)))
    try:
        query, key = torch.randn(1, 4, 8, 16), torch.randn(1, 4, 8, 16)
        lz.attention(query, key, key, causal=True, layout="BHSD")
    finally:
        lz._layerzero.stop_observing(handle)
    (call,) = seen
    assert call["layout"] == "BHSD" and call["tensors"]["query"]["shape"] == [1, 4, 8, 16]
    assert call["tensors"]["query"]["strides"] == list(query.stride()) and call["scalars"]["causal"] is True
    lz.attention(**examples.arguments(call))


def test_whole_calls():
    given = {"operation": "norm.rms", "tensors": {"input": {"dtype": "float32", "shape": [2, 8]}}, "device": "cpu"}
    assert lz.warmup([given]).complete
    with pytest.raises(lz.WrongTypeError, match="calls"):
        lz.warmup([{"operation": "norm.rms"}])
    with pytest.raises(lz.WrongTypeError, match="a manifest"):
        lz.warmup(3)


def test_references_are_compiled_if_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(warmup, "_run", lambda call, arguments, references, until: asked.append(references))
    lz.warmup("norm.rms", shapes=[(1, 8)], dtype="float32", device="cpu", references=True)
    assert asked[0] is True
