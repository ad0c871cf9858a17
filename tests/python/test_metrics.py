"""lz.metrics(): counters by operation and kernel, and their Prometheus text."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import planted_library  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from planted_library import BINDINGS, OWN, W, X  # noqa: E402

library = planted_library.library


def count(rows, counter="count", **labels):
    return sum(row[counter] for row in rows if all(row[key] == value for key, value in labels.items()))


def selections():
    return count(lz.metrics().selections, operation="norm.rms", kernel_id=OWN)


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_selection_is_counted_and_a_hit_is_not(binding):
    _layerzero.invalidate()
    before = selections()
    BINDINGS[binding]()
    first = selections()
    for _ in range(3):
        BINDINGS[binding]()
    assert first == before + 1
    again = selections() - first
    if binding == "program":  # made again, it finds the plan of the first unless its memory is aligned otherwise
        assert again <= 3
    else:
        assert again == {"prepared": 3}.get(binding, 0)  # made again, each has a call site cache of its own


def test_calls_of_references_are_counted(library):
    library(None)
    before = count(lz.metrics().reference_calls, "calls", operation="norm.rms", platform="cpu")
    with lz.policy(rules=[{"deny": ["hwy.*", "torch.rms_norm", "zentorch.*"]}]):
        for _ in range(2):
            lz.rms_norm(X, W)
    assert count(lz.metrics().reference_calls, "calls", operation="norm.rms", platform="cpu") == before + 2


def test_failures_are_counted_by_kernel():
    @lz.register_kernel("norm.rms", "tests.metrics.fails", supported_dtypes=["float32"], priority=100)
    def fails(input, weight, eps, weight_offset):
        raise ValueError("not today")

    try:
        for _ in range(3):
            lz.rms_norm(X, W)
        found = lz.metrics()
    finally:
        lz.unregister_kernel("norm.rms", "tests.metrics.fails")
    assert count(found.failures, kernel_id="tests.metrics.fails") == 3 <= found.fallbacks


def test_prometheus_reads_the_text():
    parser = pytest.importorskip("prometheus_client.parser")
    lz.rms_norm(X, W)
    text = lz.metrics().prometheus()
    assert text.endswith("\n")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    selected = {(s.labels["operation"], s.labels["kernel"]): s.value for s in families["layerzero_selections"].samples}
    assert selected["norm.rms", OWN] == selections()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    import sys

    for name in [m for m in sys.modules if m.startswith(("prometheus_client", "layerzero.telemetry"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(lz.NotInstalledError, match=r"layerzero-kernels\[metrics\]"):
        lz.metrics().prometheus()
