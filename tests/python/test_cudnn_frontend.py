"""Adapters of cudnn-frontend over a stand-in with the library's signatures, against the FP64 references."""

import pytest

torch = pytest.importorskip("torch")
import cudnn_stand_in  # noqa: E402
import layerzero as lz  # noqa: E402
from conformance_calls import problems  # noqa: E402
from library_rows import adapter_of, failures_of, installed, rows, served  # noqa: E402

BACKEND = "cudnn_frontend"


@pytest.fixture(scope="module", autouse=True)
def package():
    with installed({"cudnn": cudnn_stand_in.module()}, (BACKEND,)):
        yield


def test_every_row_agrees_with_fp64():
    failures, ran = [], {}
    for name, row in rows(BACKEND):
        for line, _, values in served(name, row):
            ran[row["kernel_id"], name] = ran.get((row["kernel_id"], name), 0) + 1
            failures += failures_of(row, name, line, adapter_of(row)(*values))
    assert not failures, f"{len(failures)} of {ran}\n" + "\n".join(failures[:20])
    assert not [key for name, row in rows(BACKEND) if (key := (row["kernel_id"], name)) not in ran], ran


def test_a_wrong_window_would_be_seen(monkeypatch):
    from layerzero.backends.cudnn_frontend import adapters

    run = adapters.run
    monkeypatch.setattr(
        adapters, "run", lambda kind, given: run(kind._replace(left=kind.left and kind.left + 1), given)
    )
    row = next(row for name, row in rows(BACKEND) if name == "attention")
    calls = [(line, v) for line, a, v in served("attention", row) if a.get("window")]
    assert [line for line, values in calls if problems("attention", line, adapters.attention(*values))]


@pytest.mark.parametrize(
    ("rows_of_query", "given", "capturing", "chosen"),
    [
        (1024, {"window": 256}, False, True),
        (1023, {"window": 256}, False, False),
        (1024, {}, False, False),
        (1024, {"window": 256}, True, False),
    ],
)
def test_it_comes_first_for_long_windows_alone(rows_of_query, given, capturing, chosen):
    q = torch.zeros(1, rows_of_query, 8, 64, dtype=torch.bfloat16)
    with lz.policy(avoid_sources=["vllm_fa3", "cuda"]):  # which are about as fast, and plan nothing
        call = {"causal": True, "layout": "BSHD", "device": "h100", "capturing": capturing} | given
        assert (lz.explain("attention", q, q, q, **call).kernel_id == "cudnn_frontend.attention") == chosen


def test_calls_of_one_kind_share_a_plan():
    from layerzero.backends.cudnn_frontend.adapters import attention

    def call(length):
        q, k = torch.randn(1, 3, 4, 64).half(), torch.randn(1, length, 2, 64).half()
        attention(q, k, k, True, None, None, 0.0, None, None, None, None, False, "BSHD")
        return len(cudnn_stand_in.PLANS)

    before = call(9)
    assert call(9) == before
    assert call(10) == before + 1
