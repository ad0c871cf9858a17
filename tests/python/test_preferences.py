"""Priorities by size, dtype and device: a kernel that is ranked lower is not refused, and says which condition ranks it."""

import json

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import backends  # noqa: E402
from layerzero.inspection.report import priority_text  # noqa: E402

MANY = {"when": [{"field": "rows", "relation": ">=", "operand": 3}], "priority": 0}
BF16 = {"when": [{"field": "dtype", "relation": "in", "set": {torch.bfloat16}}], "priority": 40}
W = torch.ones(8)


@pytest.fixture
def planted():
    @lz.register_kernel(
        "norm.rms",
        "tests.preferences",
        supported_dtypes=["float32", "bfloat16"],
        priority=100,
        preferences=[MANY, BF16],
    )
    def kernel(input, weight, eps):
        return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)

    yield "tests.preferences"
    lz.unregister_kernel("norm.rms", "tests.preferences")


def candidate(report, kernel_id):
    return next(c for c in report.candidates if c.kernel_id == kernel_id)


def test_the_first_preference_that_holds_decides(planted):
    def chosen(rows, dtype=torch.float32):
        x = torch.ones(rows, 8, dtype=dtype)
        assert lz.which("rms_norm", x, W.to(dtype)).kernel_id == lz.explain("rms_norm", x, W.to(dtype)).kernel_id
        lz.rms_norm(x, W.to(dtype))  # the second time from the cache
        return lz.which("rms_norm", x, W.to(dtype)).kernel_id

    for _ in range(2):
        assert [chosen(rows) == planted for rows in (1, 2, 3, 64, 2)] == [True, True, False, False, True]
        assert chosen(2, torch.bfloat16) != planted


def test_ranked_lower_is_not_refused(planted, capfd):
    x = torch.ones(3, 8)
    report = lz.explain("rms_norm", x, W)
    own = candidate(report, planted)
    assert own.admissible and not own.reasons
    assert own.preference.priority == 0 and own.default_priority == 100
    assert own.preference.when[0] == {"field": "rows", "relation": ">=", "wanted": ">= 3"}
    assert {t.name: t.value for t in own.terms}["priority"] == 0
    text = "ranked lower, 0 instead of 100: rows >= 3"
    assert own.ranked() == text
    assert text in str(report) and any(row[1] == planted and text in row[3] for row in report.rows())
    assert candidate(lz.explain("rms_norm", x[:2], W), planted).preference is None
    from layerzero.cli import explain

    explain._print(report, False)
    assert text in capfd.readouterr().out.replace("\n", " ")
    assert lz.validate(planted, x, W, operation="norm.rms") == (True, [])
    torch.testing.assert_close(lz.rms_norm(x, W, kernel=planted), lz.rms_norm(x, W))  # and it can be asked for


def test_lists_show_preferences(planted):
    kernel = next(k for k in lz.list_kernels("norm.rms") if k.kernel_id == planted)
    assert priority_text(kernel) == "100; 0 where rows >= 3; 40 where dtype one of bfloat16"
    assert [p.priority for p in kernel.preferences] == [0, 40]


def test_what_is_no_preference_is_refused():
    for wrong in ({"when": [], "priority": 5}, {"when": MANY["when"]}, MANY | {"code": "X"}, 5):
        with pytest.raises(lz.ConfigError, match=r"preferences\[0\]"):
            lz.register_kernel("norm.rms", "tests.wrong", supported_dtypes=["float32"], preferences=[wrong])(
                lambda input, weight, eps: input
            )


def test_by_device():
    """torch's cuDNN attention is preferred from sm_90 on: one row, where two had been."""
    q = torch.ones(1, 64, 8, 64, dtype=torch.bfloat16)
    own = {d: candidate(lz.explain("attention", q, q, q, device=d), "torch.sdpa.cudnn") for d in ("h100", "a100")}
    assert {d: c.default_priority for d, c in own.items()} == {"h100": 48, "a100": 48}
    assert own["h100"].preference is None and own["a100"].preference.priority == 44
    assert own["a100"].ranked() == "ranked lower, 44 instead of 48: device.sm < 90"


def test_own_prefill_by_warpgroups_is_first_where_torchs_choice_does_not_serve_well():
    """Few queries over many keys: before torch's choice. An lse alone: after cuDNN's. bench/gpu/attention_rows.py has the times."""

    def ranks(queries, keys, **options):
        q, k = (torch.ones(1, heads, rows, 64, dtype=torch.bfloat16) for heads, rows in ((8, queries), (2, keys)))
        report = lz.explain("attention", q, k, k, layout="BHSD", device="h200", **options)
        own = candidate(report, "cuda.attention.gqa.prefill.wgmma")
        assert own.admissible
        return report, own.preference.priority if own.preference else own.default_priority

    def torchs(report, kernel):
        return candidate(report, kernel).default_priority

    report, own = ranks(256, 256, causal=True)
    assert report.kernel_id == "torch.sdpa.auto" and own < torchs(report, "torch.sdpa.auto")
    report, own = ranks(64, 8192)
    assert report.kernel_id == "cuda.attention.gqa.prefill.wgmma" and own > torchs(report, "torch.sdpa.auto.full")
    report, own = ranks(256, 256, causal=True, return_lse=True)
    assert torchs(report, "torch.sdpa.flash.lse") < own < torchs(report, "torch.sdpa.cudnn.lse")
    report, own = ranks(256, 256, causal=True, return_lse=True, sinks=torch.ones(8))
    assert own > torchs(report, "torch.sdpa.cudnn.lse")
    report, own = ranks(256, 256, causal=True, window=64)
    assert own > torchs(report, "torch.sdpa.flash.window")


def test_no_row_is_there_for_its_priority_alone():
    """Two rows of a function differ in a rule that no preference could say: not in the range of one number alone."""

    def bare(row):
        ranges = ("min_sm", "max_sm", "kernel_id", "priority", "preferences", "notes")
        return json.dumps({k: v for k, v in row.items() if k not in ranges}, sort_keys=True)

    found = []
    for folder in sorted(p.name for p in backends.FOLDER.iterdir() if (p / "capabilities.json").exists()):
        document = json.loads((backends.FOLDER / folder / "capabilities.json").read_text())
        for operation, rows in document["ops"].items():
            seen = {}
            for row in rows:
                same = seen.setdefault(bare(document.get("templates", {}).get(row.get("extends"), {}) | row), row)
                if same is not row:
                    found.append((folder, operation, same["kernel_id"], row["kernel_id"]))
    assert not found
