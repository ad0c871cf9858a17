"""Questions to the engine: reports, validation, lists, doctor, registration by entry points."""

import json
import pickle
from html.parser import HTMLParser

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import backends  # noqa: E402
from layerzero.backends.availability import availability_of  # noqa: E402
from layerzero.host.optional import release_numbers  # noqa: E402
from layerzero.inspection.report import SelectionReport  # noqa: E402

X, W = torch.ones(2, 8), torch.ones(8)


def test_report_has_keys_and_attributes():
    report = lz.explain("norm.rms", X, W)
    assert report.operation == report["operation"] == "norm.rms"
    assert report.kernel_id == lz.which("rms_norm", X, W)["kernel_id"]
    assert {"kernel_id", "score", "candidates", "plan", "key", "policy_hash", "device"} <= set(report)
    for candidate in report.candidates:
        assert set(candidate) >= {"kernel_id", "admissible", "score", "terms", "reasons"}
        assert candidate.admissible or candidate.reasons
        for reason in candidate.reasons:
            assert reason.code and reason.field and reason["wanted"] == reason.wanted and reason.message
    with pytest.raises(AttributeError, match="kernel_id"):
        report.kernel  # noqa: B018
    json.dumps(report.to_dict())
    assert pickle.loads(pickle.dumps(report)) == report
    assert report.kernel_id in str(report) and report.kernel_id in report._repr_html_()


class Cells(HTMLParser):
    """The texts of a table's cells, row by row; tags must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "br":
            self.rows[-1][-1] += "\n"
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_notebook_shows_a_table():
    report = lz.explain("attention", *[torch.ones(1, 4, 2, 7)] * 3, device="h100")
    html = report._repr_html_()
    head, *rows = Cells(html).rows
    assert head == ["", "kernel", "score", "why"] and rows == [list(row) for row in report.rows()]
    assert len(rows) == len(report.candidates) and [row[1] for row in rows if row[0]] == [report.kernel_id]
    assert any("\n" in row[3] for row in rows)  # a kernel keeps all its reasons
    # Names and values are data: none of them is markup.
    broken = SelectionReport({**report.to_dict(), "operation": "<script>x</script>"})
    assert "<script>" not in broken._repr_html_()


def flash_like(number, min_sm, max_sm):
    """A row as a library of attention kernels for some generations of GPUs would have it; the library is not here."""
    return {
        "kernel_id": f"absent.attention.v{number}",
        "adapter": "no_such_module_of_ours:attention",
        "dtypes": ["float16", "bfloat16"],
        "requires_layouts": ["BSHD", "BHSD"],
        "accepts": ["causal"],
        "min_sm": min_sm,
        "max_sm": max_sm,
        "max_head_dim": 256,
        "head_dim_multiple": 8,
    }


@pytest.fixture(scope="module")
def absent():
    """A library for CUDA that is not installed, with a kernel for each range of SMs."""
    rows = [flash_like(2, 80, 90), flash_like(3, 90, 90), flash_like(4, 90, None)]
    descriptor = {
        "schema_version": "1.0",
        "backend": "absent",
        "backend_version": "1",
        "platform": "cuda",
        "requires": [{"import": "no_such_module_of_ours", "install": "pip install absent"}],
        "ops": {"attention.standard.prefill": rows},
    }
    lz.list_kernels()
    backends.register(descriptor)
    yield
    lz._layerzero.unregister("no_such_module_of_ours:attention")
    del backends._libraries["absent"]


def test_explain_for_a_simulated_device(absent):
    q = torch.empty(1, 64, 8, 64, dtype=torch.bfloat16)
    report = lz.explain("attention", q, q, q, device="h100", layout="BSHD")
    assert report.device.simulated and report.device.name == "h100"
    assert next(c for c in report.candidates if c.kernel_id == "absent.attention.v3").reasons == []
    with pytest.raises(lz.LayerZeroError, match="h1000"):
        lz.explain("attention", q, q, q, device="h1000")


@pytest.mark.parametrize(
    "device, codes",
    [
        ("t4", {2: "SM_TOO_OLD", 3: "SM_TOO_OLD", 4: "SM_TOO_OLD"}),
        ("a100", {3: "SM_TOO_OLD", 4: "SM_TOO_OLD"}),
        ("h100", {}),
        ("b200", {2: "SM_TOO_NEW", 3: "SM_TOO_NEW"}),
    ],
)
def test_ranges_of_sms(absent, device, codes):
    q = torch.empty(1, 64, 8, 64, dtype=torch.bfloat16)
    report = lz.explain("attention", q, q, q, device=device, layout="BSHD")
    found = {c.kernel_id: [r.code for r in c.reasons] for c in report.candidates}
    assert {n: found[f"absent.attention.v{n}"] for n in (2, 3, 4)} == {
        n: [codes[n]] if n in codes else [] for n in (2, 3, 4)
    }


def test_every_refused_kernel_keeps_all_its_reasons(absent):
    report = lz.explain("attention", *[torch.ones(1, 4, 2, 7)] * 3)
    refused = next(c for c in report.candidates if c.kernel_id == "absent.attention.v2")
    assert {"NOT_INSTALLED", "PLATFORM_MISMATCH", "DTYPE_UNSUPPORTED", "SM_TOO_OLD"} <= {
        r.code for r in refused.reasons
    }


def test_validate():
    assert lz.validate("hwy.norm.rms", X, W) == (True, [])
    ok, reasons = lz.validate("zentorch.rms_norm", X, W)
    assert not ok and "NOT_INSTALLED" in {r.code for r in reasons}
    ok, reasons = lz.validate("hwy.attention.standard.decode", *[torch.ones(1, 4, 2, 8)] * 3)
    assert not ok and [(r.code, r.field, r.wanted, r.got) for r in reasons] == [("SHAPE_UNSUPPORTED", "s_q", "1", "4")]
    with pytest.raises(lz.UnknownNameError, match="nobody"):
        lz.validate("nobody", X)


def test_list_kernels():
    kernels = lz.list_kernels()
    assert len({k.kernel_id for k in kernels}) == len(kernels)
    assert any(len(k.operations) > 1 for k in kernels) and all(k.operation == k.operations[0] for k in kernels)
    assert {"hwy.norm.rms", "torch.rms_norm", "torch.ref.norm.rms", "ref.norm.rms"} <= {k.kernel_id for k in kernels}
    assert {k.name for k in lz.list_kernels("norm.rms")} == {"rms_norm"}
    missing = next(k for k in kernels if k.kernel_id == "zentorch.rms_norm")
    assert not missing.installed and missing.usable is False and "zentorch" in missing.detail


def test_every_operation_has_a_reference_for_any_device():
    for name in lz._operations:
        kernels = lz.list_kernels(name)
        operations = {i for k in kernels for i in k.operations}
        assert operations == {k.operation for k in kernels if k.kernel_id == f"torch.ref.{k.operation}"}


def test_doctor():
    report = lz.doctor()
    assert report.ok and report.problems == [], report.problems
    assert report.layerzero.version == lz.__version__
    assert not report.libraries.zentorch.installed and report.libraries.torch.installed
    assert report.devices.devices[0].platform == "cpu"
    json.dumps(report.to_dict())


def test_version():
    assert lz.version_info[:3] == tuple(int(n) for n in lz.__version__.split("."))
    assert lz.version_info.build.startswith(lz.__version__)


# ---- libraries


def test_versions_are_compared_as_numbers():
    assert release_numbers("2.11.0+cu130") == (2, 11) and release_numbers("4.0.0b4") == (4,)
    assert release_numbers("2.9") < release_numbers("2.10")


def test_availability_imports_nothing(monkeypatch):
    import builtins

    plain = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name != "importlib.metadata":
            raise AssertionError(f"imported {name}")
        return plain(name, *args, **kwargs)

    row = {"kernel_id": "x.y", "requires": [{"import": "no_such_module_of_ours"}]}
    descriptor = {"backend_version": "1", "requires": [{"import": "json"}], "ops": {"norm.rms": [row]}}
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", refuse)
        found = availability_of(descriptor)
    assert found["*"]["installed"] and not found["x.y"]["installed"]
    newer = {"import": "torch", "distribution": "torch", "min_version": "99"}
    old = availability_of({"backend_version": "1", "requires": [newer], "ops": {}})
    assert old["*"]["code"] == "NOT_INSTALLED" and "older than 99" in old["*"]["detail"]


def test_entry_points(monkeypatch):
    from importlib.metadata import EntryPoint

    from layerzero.backends import entry_points

    points = [
        EntryPoint("broken", "no_such_module_of_ours:register_backend", entry_points.GROUP),
        EntryPoint("wrong", "builtins:int", entry_points.GROUP),
    ]
    monkeypatch.setattr(entry_points, "_points", lambda: points)
    assert list(entry_points.in_files()) == []
    for point, load in entry_points.in_code():
        backends._try(point.name, load)
    try:
        problems = "\n".join(backends.problems())
        assert "no_such_module_of_ours" in problems and "wrong" in problems
        assert not lz.doctor().ok
    finally:
        for point in points:
            backends._problems.pop(point.name)
            backends._libraries.pop(point.name)


def test_an_adapter_that_cannot_be_loaded_is_said():
    with pytest.raises(lz.KernelExecutionError, match="no_such_module_of_ours"):
        backends.resolve("x.kernel", "no_such_module_of_ours:function", "x")
