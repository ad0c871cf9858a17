"""References that answer in place of other kernels are counted, logged once with what to install, and listed."""

import json
import logging
import warnings

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import planted_library  # noqa: E402
from layerzero.host import log  # noqa: E402
from planted_library import BINDINGS, OWN, W, X  # noqa: E402

library = planted_library.library


@pytest.fixture
def forgotten():
    """Nothing was logged yet."""
    kept = set(log._logged)
    log._logged.clear()
    yield
    log._logged.update(kept)


def calls(operation="norm.rms"):
    served = json.loads(lz._layerzero.stats())["served_by_reference"]
    return sum(s["calls"] for s in served if s["operation"] == operation)


ONLY_REFERENCES = [{"deny": ["hwy.*", "torch.rms_norm", "zentorch.*"]}]


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_reference_in_place_of_another_kernel_is_counted_and_said(library, forgotten, binding):
    name = library(None)  # not installed
    before = calls()
    with pytest.warns(lz.LayerZeroReferenceWarning) as warned, lz.policy(rules=ONLY_REFERENCES):
        for _ in range(3):
            BINDINGS[binding]()
    assert calls() == before + 3
    (line,) = [str(w.message) for w in warned if str(w.message).startswith("norm.rms")]
    assert "runs on its reference" in line and f"pip install {name}" in line
    found = next(s for s in lz.doctor().served_by_reference if s["operation"] == "norm.rms")
    assert found["platform"] == "cpu" and found["kernel_id"] in ("torch.ref.norm.rms", "ref.norm.rms")
    assert {"library": name, "detail": f"module {name} is not installed", "fix": f"pip install {name}"} in found[
        "lacking"
    ]


def test_a_library_that_is_broken_is_named_with_its_error(library, forgotten):
    name = library("raise ImportError('libfoo.so.3')")
    with pytest.warns(lz.LayerZeroReferenceWarning) as warned, lz.policy(rules=ONLY_REFERENCES):
        lz.rms_norm(X, W)
    (line,) = [str(w.message) for w in warned]
    assert warned[0].filename == __file__  # the place of the call, not of LayerZero
    assert f"mend {name}" in line and "libfoo.so.3" in line


def test_a_warning_that_is_an_error_leaves_the_call_right(library, caplog, forgotten):
    library(None)
    with warnings.catch_warnings(), lz.policy(rules=ONLY_REFERENCES):
        warnings.simplefilter("error")
        assert torch.equal(lz.rms_norm(X, W), lz.rms_norm(X, W))
    assert ["runs on its reference" in message for message in caplog.messages] == [True]


def test_a_reference_that_was_asked_for_is_no_fallback(library, caplog, forgotten, recwarn):
    library(None)
    before = calls()
    with caplog.at_level(logging.WARNING, logger="layerzero"):
        lz.rms_norm(X, W, kernel="ref.norm.rms")
        with lz.disabled():
            lz.rms_norm(X, W)
    assert calls() == before and not caplog.messages and not recwarn.list


def test_a_reference_without_any_other_kernel_is_no_fallback_on_a_cpu(caplog, forgotten):
    kernels = lz.list_kernels()
    # Rows of Inductor's take no call until one is compiled for it.
    others = [k for k in kernels if not k.reference and k.platform != "cuda" and k.backend != "inductor"]
    only = {i for k in kernels for i in k.operations} - {i for k in others for i in k.operations}
    assert only
    assert not only & {s["operation"] for s in lz.doctor().served_by_reference if s["platform"] == "cpu"}


def test_the_operators_log_their_selections(caplog):
    with caplog.at_level(logging.INFO, logger="layerzero"), lz.policy(log_selections=True):
        for _ in range(2):
            torch.ops.layerzero.rms_norm(X, W)
    assert caplog.messages == [f"norm.rms: {OWN}"]


def test_the_operators_log_their_fallbacks(caplog):
    @lz.register_kernel("norm.rms", "tests.backends.fails", supported_dtypes=["float32"], priority=100)
    def fails(input, weight, eps, weight_offset):
        raise ValueError("not today")

    with caplog.at_level(logging.WARNING, logger="layerzero"):
        for _ in range(2):
            torch.ops.layerzero.rms_norm(X, W)
    assert len(caplog.messages) == 1 and "tests.backends.fails failed" in caplog.messages[0]


def test_doctor_prints_what_only_a_reference_serves(library):
    name = library(None)
    with lz.policy(rules=ONLY_REFERENCES):
        lz.rms_norm(X, W)
    text = str(lz.doctor())
    assert "Only their reference serves" in text and name in text


def test_kernels_are_read_once_for_all_served_references(library, monkeypatch):
    """And each library is tried once, whatever number of calls lack it."""
    from layerzero.backends import report

    broken, absent = library("raise ImportError('libfoo.so.3')"), library(None)
    uses = [
        {"operation": f"o{i}", "platform": "cpu", "kernel_id": "r", "calls": 1, "libraries": [broken, absent]}
        for i in range(3)
    ]
    read, tried, kernels, of = [], [], lz._layerzero.kernels, report._tried
    monkeypatch.setattr(lz._layerzero, "kernels", lambda *given: (read.append(1), kernels(*given))[1])
    monkeypatch.setattr(report, "_tried", lambda name, *given: (tried.append(name), of(name, *given))[1])
    found = report.served_by_reference(uses, {"devices": []})
    assert len(read) == 1 and sorted(tried) == sorted([broken, absent])
    assert [[each["library"] for each in one["lacking"]] for one in found] == [[broken, absent]] * 3
