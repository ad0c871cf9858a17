"""lz.profile and `explain --model`: where the time of a call goes. `policy freeze`: what ran, as locks."""

import json
import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import cli  # noqa: E402
from layerzero.telemetry import profiling  # noqa: E402

X, W = torch.randn(64, 576), torch.ones(576)


@pytest.fixture
def slow_kernel():
    """A kernel of norm.rms that takes 5 ms."""

    @lz.register_kernel(
        "norm.rms", "planted.slow", supported_dtypes=["float32"], requires_layouts=["any"], platform="cpu", priority=1
    )
    def slow(input, weight, eps, weight_offset=None):
        time.sleep(0.005)
        return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)

    yield "planted.slow"
    lz.unregister_kernel("norm.rms", "planted.slow")


def work(kernel):
    torch.mm(W.expand(576, 576), W.expand(576, 576))
    lz.rms_norm(X, W, kernel=kernel)
    lz.activation(X, "silu")


def test_it_finds_the_kernel_that_takes_the_time(slow_kernel):
    found = lz.profile(work, slow_kernel, runs=3)
    first = found.operations[0]
    assert (first.operation, first.kernel_id, first.runs) == ("rms_norm", slow_kernel, 1)
    assert first.us >= 5000 and found.seconds >= 0.005
    assert {row.operation for row in found.operations} == {"rms_norm", "activation"}
    assert sum(row.share for row in found.operations) + found.elsewhere.share >= 0.99
    assert slow_kernel in str(found) and "elsewhere" in str(found)


def test_torch_operations_elsewhere_are_named_and_those_inside_kernels_are_not(slow_kernel):
    names = [row["name"] for row in lz.profile(work, slow_kernel, runs=1).to_dict()["elsewhere"]["torch"]]
    assert "aten::mm" in names and "aten::rms_norm" not in names


def test_a_call_without_kernels_says_so():
    found = lz.profile(lambda: torch.ones(3).sum(), runs=1)
    assert not found.operations and "kernelize" in found.notes[0] and found.elsewhere.share == 1


def test_what_would_be_faster_has_measured_times_and_needs():
    def candidate(name, us, reasons=()):
        reasons = [{"code": code, "message": "not there"} for code in reasons]
        return {"kernel_id": name, "measured_us": us, "reasons": reasons, "reference": False, "score": 1.0}

    report = {"kernel_id": "a.x", "locked": None, "score": 2.0}
    report["candidates"] = [
        candidate("a.x", 10.0),
        candidate("b.x", 5.0, ["NOT_INSTALLED"]),
        candidate("c.x", 4.0, ["POLICY_DENIED"]),
        candidate("d.x", 9.9, ["NOT_INSTALLED"]),  # within noise
        candidate("e.x", 20.0),
        candidate("f.x", None, ["NOT_INSTALLED"]),
    ]
    faster = profiling._faster(report)
    assert [f["kernel_id"] for f in faster] == ["c.x", "b.x"]
    assert faster[1]["needs"] == "NOT_INSTALLED: not there"
    assert profiling._faster(report | {"kernel_id": "f.x"}) == []


@pytest.mark.parametrize(("arguments", "options"), [((3,), {}), ((work,), {"runs": 0})])
def test_bad_arguments(arguments, options):
    with pytest.raises((lz.WrongTypeError, lz.errors.InvalidRequestError)):
        lz.profile(*arguments, **options)


def test_frozen_kernels_run_again(tmp_path, capfd, request):
    """A class that ran by a lock of the script keeps it; the policy is one that the engine reads."""
    nothing = tmp_path / "nothing.yaml"
    nothing.write_text("version: 1")
    request.addfinalizer(lambda: lz.load_config(nothing))  # what is checked is in force until the next file
    script, frozen = tmp_path / "run.py", tmp_path / "frozen.yaml"
    script.write_text(
        "import torch, layerzero as lz\n"
        "w = torch.ones(64)\n"
        "with lz.policy(locks={'norm.rms': 'torch.rms_norm'}): lz.rms_norm(torch.ones(4, 64), w)\n"
        "lz.rms_norm(torch.ones(9, 64), w)\nlz.activation(w, 'silu')\n"
    )
    assert cli.run(["policy", "freeze", "--json", "-o", str(frozen), str(script)]) == 0
    written = json.loads(capfd.readouterr().out)
    assert written["locks"].keys() == {"activation.pointwise"}
    assert {rule["lock"] for rule in written["rules"]} == {"torch.rms_norm", "hwy.norm.rms"}
    assert cli.run(["policy", "check", str(frozen)]) == 0
    code = "import torch, layerzero as lz; print(*(lz.which('rms_norm', torch.ones(n, 64), torch.ones(64))['kernel_id'] for n in (4, 9)))"
    env = os.environ | {"LAYERZERO_CONFIG": str(frozen)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["torch.rms_norm", "hwy.norm.rms"], done.stderr


def test_a_program_without_calls_freezes_nothing(tmp_path, capfd):
    script = tmp_path / "run.py"
    script.write_text("import layerzero")
    assert cli.run(["policy", "freeze", "-o", str(tmp_path / "frozen.yaml"), str(script)]) == 1
    assert not (tmp_path / "frozen.yaml").exists()
