"""Policy from code: scopes per thread and task, locks, process-wide keys, environment."""

import asyncio
import contextvars
import threading

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from processes import run  # noqa: E402

X, W = torch.ones(2, 8), torch.ones(8)


def kernel():
    return lz.which("rms_norm", X, W)["kernel_id"]


@pytest.fixture
def own():
    """The kernel that runs without any policy."""
    return kernel()


def test_a_scope_holds_in_its_block_alone(own):
    with lz.policy(locks={"norm.rms": "torch.rms_norm"}):  # proves: locks
        assert kernel() == "torch.rms_norm"
        with lz.policy(enabled=False, locks={"norm.rms": None}):
            assert kernel() == "torch.ref.norm.rms"
        assert kernel() == "torch.rms_norm"
    assert kernel() == own


def test_a_scope_ends_with_an_exception(own):
    with pytest.raises(RuntimeError), lz.policy(enabled=False):
        raise RuntimeError
    assert kernel() == own


def test_a_scope_changes_what_runs_not_only_what_is_said():
    ran = []

    @lz.register_kernel("norm.rms", "tests.policy", supported_dtypes=["float32"], priority=0)
    def spy(input, weight, eps):
        ran.append(eps)
        return input

    with lz.policy(locks={"norm.rms": "tests.policy"}):
        lz.rms_norm(X, W, 1e-3)
    lz.rms_norm(X, W, 1e-3)
    assert ran == [1e-3]


def test_threads_have_their_own(own):
    seen = {}

    def work():
        seen["before"] = kernel()
        with lz.policy(enabled=False):
            entered.set()
            leave.wait(10)
            seen["inside"] = kernel()

    entered, leave = threading.Event(), threading.Event()
    with lz.policy(locks={"norm.rms": "torch.rms_norm"}):
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait(10)
        assert kernel() == "torch.rms_norm"
        leave.set()
        thread.join()
    assert seen == {"before": own, "inside": "torch.ref.norm.rms"}


def test_tasks_have_their_own(own):
    async def locked(wait_for, done):
        with lz.policy(locks={"norm.rms": "torch.rms_norm"}):
            done.set()
            await wait_for.wait()
            return kernel()

    async def main():
        first, second = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(locked(second, first))
        await first.wait()
        outside = kernel()
        second.set()
        return outside, await task

    assert asyncio.run(main()) == (own, "torch.rms_norm")


def test_a_copied_context_keeps_the_scope(own):
    with lz.policy(locks={"norm.rms": "torch.rms_norm"}):
        context = contextvars.copy_context()
    assert kernel() == own
    assert context.run(kernel) == "torch.rms_norm"


def test_decorator(own):
    scope = lz.policy(locks={"norm.rms": "torch.rms_norm"})

    @scope
    def decorated(depth):
        return [kernel()] + (decorated(depth - 1) if depth else [])

    @scope
    async def coroutine():
        await asyncio.sleep(0)
        return kernel()

    async def both():
        return await asyncio.gather(coroutine(), coroutine())

    assert decorated(2) == ["torch.rms_norm"] * 3
    assert asyncio.run(both()) == ["torch.rms_norm"] * 2
    assert kernel() == own
    with pytest.raises(TypeError, match="generator"):

        @scope
        def generator():
            yield


def test_prefer_and_disabled(own):
    with lz.prefer("torch"):
        preferred = lz.explain("rms_norm", X, W)
    terms = next(c for c in preferred.candidates if c.kernel_id == "torch.rms_norm").get("terms")
    assert {"name": "preferred", "value": 20, "source": "policy"} in terms
    with lz.disabled():  # proves: enabled
        assert kernel() == "torch.ref.norm.rms"
    assert kernel() == own


def test_lock_and_unlock(own):
    lz.lock("norm.rms", "torch.rms_norm")
    try:
        assert kernel() == "torch.rms_norm"
        with pytest.raises(lz.NoKernelFoundError):
            lz.lock("norm.rms", "zentorch.rms_norm")
            kernel()
    finally:
        lz.unlock("norm.rms")
    assert kernel() == own


def test_configure_holds_everywhere(own):
    lz.configure(enabled=False)
    try:
        assert kernel() == "torch.ref.norm.rms"
        seen = []
        thread = threading.Thread(target=lambda: seen.append(kernel()))
        thread.start()
        thread.join()
        assert seen == ["torch.ref.norm.rms"]
    finally:
        lz.configure(enabled=True)
    assert kernel() == own


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"no_such_key": 1}, "no_such_key"),
        ({"strict_mode": "maybe"}, "strict_mode"),
        ({"speculative": {"a": 1}}, "not supported in this version"),
        ({"cache": {"max_size": -1}}, "max_size"),
    ],
    ids=["unknown", "type", "later", "range"],
)
def test_wrong_keys_are_refused_as_a_whole(keys, text):
    before = lz.policy_in_force()
    for call in (lz.configure, lz.policy):
        with pytest.raises(lz.ConfigError, match=text):
            call(**keys)
    assert lz.policy_in_force() == before


def test_policy_in_force_has_origins():
    with lz.policy(deterministic=True):
        entry = lz.policy_in_force()["keys"]["deterministic"]
    assert entry["value"] is True and "lz.policy" in entry["origin"]
    assert "lz.policy" not in lz.policy_in_force()["keys"]["deterministic"]["origin"]


WHICH = """
import torch, layerzero as lz
print(lz.which("rms_norm", torch.ones(2, 8), torch.ones(8))["kernel_id"])
"""


def test_environment(tmp_path):
    assert run(WHICH, tmp_path, LAYERZERO_DISABLED="1").stdout.strip() == "torch.ref.norm.rms"
    locked = run(WHICH, tmp_path, LAYERZERO_LOCK_NORM_RMS="torch.rms_norm")
    assert locked.stdout.strip() == "torch.rms_norm", locked.stderr


def test_project_file_and_load_config(tmp_path):
    (tmp_path / "layerzero.yaml").write_text("version: 1\nlocks:\n  norm.rms: torch.rms_norm\n")
    (tmp_path / "other.yaml").write_text("version: 1\nenabled: false\n")
    code = WHICH + 'lz.load_config("other.yaml")\n' + WHICH
    result = run(code, tmp_path)
    assert result.stdout.split() == ["torch.rms_norm", "torch.ref.norm.rms"], result.stderr


def test_a_wrong_project_file_is_said_with_its_line(tmp_path):
    (tmp_path / "layerzero.yaml").write_text("version: 1\nno_such_key: 3\n")
    code = "import layerzero as lz\nprint(lz.doctor().problems)"
    result = run(code, tmp_path)
    for text in (result.stdout, result.stderr):  # the report, and a warning at import
        assert "layerzero.yaml:2" in text and "no_such_key" in text, result.stdout + result.stderr


def test_policy_objects_leave_nothing_in_the_context():
    def blocks():
        import contextvars

        with lz.policy(strict_mode=True):
            pass
        return len(contextvars.copy_context())

    before = blocks()
    assert [blocks() for _ in range(5)] == [before] * 5


def test_a_policy_object_may_be_entered_again_inside_itself():
    strict, before = lz.policy(strict_mode=True), lz.policy_in_force()
    with strict, lz.policy(deterministic=True), strict:
        assert lz.policy_in_force()["keys"]["strict_mode"]["value"]
    assert lz.policy_in_force() == before
