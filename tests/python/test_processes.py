"""Threads, forked and spawned processes, subinterpreters: one engine per process, used from anywhere in it."""

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from torch.nn import functional as F  # noqa: E402

THREADS = 16


# ---- threads


def rms_norm(x):
    w = torch.linspace(-1, 1, 96)
    return (x, w), {}, F.rms_norm(x, (96,), w, 1e-6)


def attention(x):
    q, k, v = (x[:, None, part : part + 32].unsqueeze(0) for part in (0, 32, 64))
    want = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
    return (q, k, v), {"layout": "BSHD"}, want.transpose(1, 2)


def linear(x):
    w = torch.linspace(-1, 1, 40 * 96).reshape(40, 96)
    return (x, w), {}, F.linear(x, w)


def sample_topk(x):
    return (x, 1), {"seed": 0}, x.argmax(-1)


def kv_gather(x):
    slots = torch.arange(x.shape[0]).flip(0)
    return (x.reshape(-1, 1, 2, 48), slots), {"layout": "NHD"}, x.reshape(-1, 2, 48).flip(0)


def quantize(x):
    return (x, "int8", torch.tensor(0.125)), {}, (x / 0.125).round().clamp(-128, 127).to(torch.int8)


# One operation of each group, with kernels that take turns: deterministic ones, which every policy below admits.
CALLS = {
    rms_norm: ("hwy.norm.rms", "torch.rms_norm", "ref.norm.rms", "torch.ref.norm.rms"),
    attention: ("hwy.attention.standard.prefill", "torch.sdpa.cpu", "ref.attention.standard.prefill"),
    linear: ("hwy.mlp.linear.gemm", "ref.mlp.linear", "torch.ref.mlp.linear"),
    sample_topk: ("hwy.sampling.topk", "ref.sampling.topk", "torch.ref.sampling.topk"),
    kv_gather: ("cpu.kv.gather", "ref.kv.gather", "torch.ref.kv.gather"),
    quantize: ("hwy.quantize.int8", "ref.quantize", "torch.ref.quantize"),
}


@pytest.mark.parametrize("shared", [True, False])
def test_sixteen_threads_under_policy_changes(shared):
    """Every result is right and every scope is its thread's own, while the process's policy changes underneath."""
    everybodys, stop = torch.randn(64, 96), threading.Event()

    def close(got, want):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        calls = list(CALLS.items())
        with torch.no_grad():
            for rows in range(5, 40):  # more than four: else linear has another kernel
                make, kernels = calls[(seed + rows) % len(calls)]
                name, kernel = make.__name__, kernels[seed // 2 % len(kernels)]
                x = everybodys[:rows] if shared else torch.randn(rows, 96, generator=generator)
                arguments, options, want = make(x)
                operation = lz.explain(name, *arguments, **options).operation
                with lz.policy(locks={operation: kernel}):
                    assert lz.which(name, *arguments, **options)["kernel_id"] == kernel
                    close(getattr(lz, name)(*arguments, **options), want)
                close(getattr(lz, name)(*arguments, **options), want)
                close(getattr(lz, name)(*arguments, **options, out=torch.empty(want.shape, dtype=want.dtype)), want)
                leaf = x.clone().requires_grad_()
                with torch.enable_grad():
                    assert lz.rms_norm(leaf, leaf[0].detach()).requires_grad

    def change():
        keys = ({"avoid_sources": ["hwy"]}, {"avoid_sources": []}, {"deterministic": True}, {"deterministic": False})
        for turn in range(10_000):
            if stop.is_set():
                return
            lz.configure(**keys[turn % len(keys)])

    changer = threading.Thread(target=change)
    changer.start()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
    finally:
        stop.set()
        changer.join()
        lz.configure(avoid_sources=[], deterministic=False)


def test_threads_meet_at_the_first_call():
    """Sixteen threads make the process's first call of an operation at once."""
    run(
        """
        import threading, torch, layerzero as lz
        start, wrong = threading.Barrier(16), []
        x = torch.randn(3, 8)
        def first():
            start.wait()
            try:
                if not torch.allclose(lz.layer_norm(x, 8), torch.nn.functional.layer_norm(x, (8,)), atol=1e-6):
                    wrong.append("values")
            except Exception as error:
                wrong.append(repr(error))
        threads = [threading.Thread(target=first) for _ in range(16)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not wrong, wrong
        """
    )


# ---- processes


def run(source, path=None):
    """A Python of its own; its output, or a failure with it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lz.__file__).parent.parent)}
    command = [sys.executable, str(path)] if path else [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# One operation of each group, by own kernels alone, on sizes that use threads; compared without torch's threads, which
# may hang in a forked child.
USE = """
import numpy, torch, layerzero as lz
w, m = torch.randn(1024), torch.randn(64, 1024)
def softmax(x):
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
def attention(q, k, v):
    hidden = numpy.triu(numpy.ones((q.shape[0], k.shape[0])), 1) * -1e9
    return numpy.stack([softmax(q[:, h] @ k[:, h].T / 8 + hidden) @ v[:, h] for h in range(q.shape[1])], 1)
def use(rows):
    x = torch.randn(rows, 1024)
    q, k, v = (x[:, i * 256 : i * 256 + 256].reshape(rows, 4, 64) for i in range(3))
    slots = torch.arange(rows - 1, -1, -1)
    with torch.no_grad():
        got = {
            "norm": lz.rms_norm(x, w, kernel="hwy.norm.rms"),
            "linear": lz.linear(x, m, kernel="hwy.mlp.linear.gemm"),
            "attention": lz.attention(
                q[None], k[None], v[None], causal=True, layout="BSHD",
                kernel="hwy.attention.standard.decode" if rows == 1 else "hwy.attention.standard.prefill")[0],
            "token": lz.sample_topk(x, 1, kernel="hwy.sampling.topk"),
            "rows": lz.kv_gather(x.reshape(rows, 1, 4, 256), slots, layout="NHD", kernel="cpu.kv.gather"),
            "codes": lz.quantize(x, "int8", torch.tensor(0.125), kernel="hwy.quantize.int8"),
        }
    x, q, k, v = (t.numpy().astype("f8") for t in (x, q, k, v))
    want = {
        "norm": x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w.numpy(),
        "linear": x @ m.numpy().T.astype("f8"),
        "attention": attention(q, k, v),
        "token": x.argmax(-1),
        "rows": x.reshape(rows, 4, 256)[::-1],
        "codes": numpy.clip(numpy.round(x / 0.125), -128, 127),
    }
    for name, value in want.items():
        assert numpy.allclose(got[name].numpy(), value, rtol=1e-4, atol=1e-3), (name, rows)
    return True
"""


def test_a_forked_child_works_after_the_parent_used_threads():
    run(
        USE
        + textwrap.dedent(
            """
            import os
            torch.set_num_threads(2)
            torch.randn(1 << 20).exp()  # starts torch's threads
            use(512)
            with lz.policy(deterministic=True):
                for _ in range(3):
                    child = os.fork()
                    if child == 0:
                        try:
                            use(512), use(3)
                            os._exit(0)
                        finally:
                            os._exit(1)
                    assert os.waitpid(child, 0)[1] == 0
            use(512)
            """
        )
    )


def test_a_child_that_is_forked_while_kernels_are_registered():
    run(
        USE
        + textwrap.dedent(
            """
            import os, threading, time
            how = {"supported_dtypes": {"float32"}, "platform": "cpu", "requires_layouts": ("any",)}
            mine = lambda input, weight=None, eps=1e-6, weight_offset=0.0: input * 0
            ended, registered = threading.Event(), 0
            def register(name):
                global registered
                while not ended.is_set():
                    lz.register_kernel("norm.rms", name, **how)(mine)
                    lz.unregister_kernel("norm.rms", name)
                    registered += 1
            use(3)
            others = [threading.Thread(target=register, args=(f"mine.norm{n}",), daemon=True) for n in range(3)]
            for other in others:
                other.start()
            children = []
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    try:
                        lz.register_kernel("norm.rms", "child.norm", **how)(mine)
                        os._exit(0)
                    finally:
                        os._exit(1)
                children.append(child)
                time.sleep(0.01)
            ended.set()
            waiting, end = set(children), time.monotonic() + 60
            while waiting and time.monotonic() < end:
                for child in list(waiting):
                    done, status = os.waitpid(child, os.WNOHANG)
                    if done:
                        assert status == 0, status
                        waiting.discard(child)
                time.sleep(0.01)
            for child in waiting:
                os.kill(child, 9)
            assert registered > 10, registered
            assert not waiting, f"{len(waiting)} of 30 children wait for a lock"
            """
        )
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_every_start_method(method, tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(
        USE
        + textwrap.dedent(
            f"""
            import multiprocessing
            if __name__ == "__main__":
                use(300)
                with multiprocessing.get_context("{method}").Pool(2) as pool:
                    assert pool.map(use, [1, 2, 300, 400], chunksize=1) == [True] * 4
                print("done")
            """
        )
    )
    assert run("", script).strip() == "done"


@pytest.mark.full
def test_a_kernelized_model_works_in_a_forked_child():
    pytest.importorskip("transformers")
    run(
        """
        import os, torch, transformers, layerzero as lz
        torch.set_num_threads(2)
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        model = transformers.LlamaForCausalLM(config).eval()
        ids = torch.randint(3, 64, (2, 9))
        with torch.inference_mode():
            want = model(ids).logits
            lz.kernelize(model)
            assert torch.allclose(model(ids).logits, want, atol=1e-4)
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)  # torch's own rule for forked children
                os._exit(0 if torch.allclose(model(ids).logits, want, atol=1e-4) else 1)
            assert os.waitpid(child, 0)[1] == 0
        """
    )


# ---- interpreters


def subinterpreters():
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            return __import__(name)
        except ImportError:
            continue
    return None


@pytest.mark.skipif(subinterpreters() is None, reason="this Python has no subinterpreters from Python")
@pytest.mark.parametrize("after", [False, True], ids=["alone", "after the main interpreter"])
def test_a_subinterpreter_is_refused(after):
    name = subinterpreters().__name__
    output = run(
        f"""
        import {name} as interpreters, sys
        {"import layerzero" if after else ""}
        one = interpreters.create()
        code = '''
        import sys
        sys.path[:] = {{}}
        try:
            import layerzero
        except ImportError as error:
            print("refused:", error, flush=True)
        else:
            print("served", flush=True)
        '''
        import textwrap
        try:
            got = interpreters.run_string(one, textwrap.dedent(code).format(sys.path))
            print(got) if got is not None else None
        except Exception as error:
            print("failed:", error)
        """
    )
    assert "refused:" in output and "subinterpreter" in output, output
