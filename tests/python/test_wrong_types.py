"""What a wrong type, a path that cannot be written and a misspelled name say: LayerZero's errors, with the argument's name."""

import copy
import errno
import os
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.host.files import check_writable, replaced  # noqa: E402
from layerzero.host.typed import typed, typed_if_it_fails  # noqa: E402

X, W = torch.ones(4, 8), torch.ones(8)
Q = torch.ones(1, 4, 2, 8)
NORM = "rms_norm --input f32[batch,8] --weight f32[8]"


def kernel(input, weight, eps, weight_offset):
    return input


def register(**facts):
    return lambda: lz.register_kernel("norm.rms", "tests.typed", **{"supported_dtypes": ["float32"]} | facts)(kernel)


WRONG = [
    (lambda: lz.configure(strict_mode=object()), lz.ConfigError, "policy"),
    (lambda: lz.policy(prefer_sources={"torch"}), lz.ConfigError, "policy"),
    (lambda: lz.lock("rms_norm", None), lz.WrongTypeError, "lock: kernel_id"),
    (lambda: lz.prefer(["torch"]), lz.WrongTypeError, "prefer: source"),
    (lambda: lz.load_config(3), lz.WrongTypeError, "load_config: path"),
    (lambda: lz.load_config("a\0b"), lz.ConfigError, "load_config: path"),
    (lambda: lz.shadow("x"), lz.WrongTypeError, "shadow: rate"),
    (lambda: lz.which("rms_norm", X, W, device=0), lz.WrongTypeError, "which: device"),
    (lambda: lz.which("rms_norm", "x", W), lz.WrongTypeError, "rms_norm: input"),
    (lambda: lz.which("rms_norm", (X, X), W), lz.WrongTypeError, "rms_norm: input"),
    (lambda: lz.which("rms_norm", ("float32", [4, 8], [8, 1]), W), lz.WrongTypeError, "rms_norm: input"),
    (lambda: lz.which("rms_norm", ("float32", (4, 8), (1,)), W), lz.WrongTypeError, "rms_norm: input"),
    (lambda: lz.which("rms_norm", ("float32", (4, "a"), (8, 1)), W), lz.WrongTypeError, "rms_norm: input"),
    (lambda: lz.which("rms_norm", ("float32", (1,) * 9, (1,) * 9), W), lz.InvalidRequestError, "input"),
    (lambda: lz.explain("rms_norm", X.to("meta"), W), lz.WrongTypeError, "rms_norm: input"),
    (lambda: lz.explain("rms_norm", X.to_sparse(), W), lz.WrongTypeError, "rms_norm: input"),
    (lambda: lz.prepare("rms_norm", X, W)("x", W), lz.WrongTypeError, "a prepared rms_norm"),
    (lambda: lz.prepare("rms_norm", X, W)(X, W, W), lz.WrongTypeError, "a prepared rms_norm"),
    (lambda: lz.validate(3, X, W), lz.WrongTypeError, "validate: kernel_id"),
    (lambda: lz.coverage(3), lz.WrongTypeError, "coverage: arguments"),
    (lambda: lz.tune("rms_norm", X, W, samples="a"), lz.WrongTypeError, "tune: samples"),
    (lambda: lz.tune("rms_norm", X, W, budget_s=-1), lz.InvalidRequestError, "tune: budget_s"),
    (lambda: lz.tune("rms_norm", X, W, imports="module"), lz.WrongTypeError, "tune: imports"),
    (lambda: lz.tune("rms_norm", X, W, shard=3), lz.WrongTypeError, "tune: shard"),
    (lambda: lz.tune("rms_norm", X, W, device="nosuch"), lz.UnknownNameError, "tune: device"),
    (lambda: lz.tune("rms_norm", X, W, device="cuda:99"), lz.UnknownNameError, "tune: device"),
    (lambda: lz.warmup("rms_norm", [(4, 8)], device="nosuch"), lz.UnknownNameError, "warmup: device"),
    (lambda: lz.warmup("rms_norm", [(4, 8)], device="cuda:99"), lz.UnknownNameError, "warmup: device"),
    (lambda: lz.alibi_slopes(2, device="nosuch"), lz.UnknownNameError, "alibi_slopes: device"),
    (lambda: lz.alibi_slopes(2, device=2.5), lz.WrongTypeError, "alibi_slopes: device"),
    (lambda: lz.DispatchTable(3), lz.WrongTypeError, "DispatchTable: document"),
    (lambda: lz.DispatchTable({}), lz.ConfigError, "table"),
    (lambda: lz.DispatchTable({"hardware_signature": "", "plans": {}}), lz.ConfigError, "table"),
    (lambda: lz.DispatchTable({"hardware_signature": "", "plans": [{"bucket": {}}]}), lz.ConfigError, "table"),
    (
        lambda: lz.DispatchTable({"hardware_signature": "", "plans": [{"bucket": {}, "ops": [{"op": "a"}]}]}),
        lz.ConfigError,
        "table",
    ),
    (lambda: lz.warmup("rms_norm", 3), lz.WrongTypeError, "warmup: shapes"),
    (lambda: lz.warmup("rms_norm", [(4, 8)], "flaot16"), lz.InvalidRequestError, "rms_norm: dtype of input"),
    (lambda: lz.warmup("rms_norm", [{"rows": 4, "hidden": 8}], "float32"), lz.InvalidRequestError, "shapes"),
    (lambda: lz.warmup("rms_norm", [(4, 8)], inputs={}), lz.InvalidRequestError, "warmup: inputs"),
    (lambda: lz.warmup(torch.nn.Linear(2, 2), [(1, 2)]), lz.InvalidRequestError, "warmup: shapes"),
    (lambda: lz.warmup("rms_norm", [(4, 8)], budget_s=float("nan")), lz.InvalidRequestError, "warmup: budget_s"),
    (lambda: lz.solve([3]), lz.WrongTypeError, "operations"),
    (lambda: lz.solve(NORM, {"batch": 4}), lz.WrongTypeError, "shape_buckets: batch"),
    (lambda: lz.solve(NORM, {"batch": [True, 2]}), lz.InvalidRequestError, "shape_buckets: batch"),
    (lambda: lz.solve(NORM, {"batch": [4]}, tp_sizes=["a"]), lz.WrongTypeError, "solve: tp_sizes"),
    (lambda: lz.load_table(None), lz.WrongTypeError, "load_table: path"),
    (lambda: lz.profile("x"), lz.WrongTypeError, "profile: call"),
    (lambda: lz.require(kernels=3), lz.WrongTypeError, "kernels"),
    (lambda: lz.record(3), lz.WrongTypeError, "record: path"),
    (lambda: lz.reset_health(None), lz.WrongTypeError, "reset_health: kernel"),
    (lambda: lz.alibi_slopes(0), lz.InvalidRequestError, "alibi_slopes: num_heads"),
    (lambda: lz.PackedWeights("x"), lz.WrongTypeError, "PackedWeights: max_bytes"),
    (lambda: lz.TokenCache(max_bytes="64"), lz.WrongTypeError, "TokenCache: max_bytes"),
    (lambda: lz.unkernelize(None), lz.WrongTypeError, "unkernelize"),
    (lambda: lz.KVCacheManager(num_blocks="4", block_size=4), lz.WrongTypeError, "KVCacheManager: num_blocks"),
    (lambda: lz.KVCacheManager(num_blocks=4, block_size=4).append(None), lz.WrongTypeError, "KVCacheManager.append"),
    (lambda: lz.KVCacheManager(num_blocks=4, block_size=4).attach("a", "b"), lz.WrongTypeError, "KVCacheManager"),
    (
        lambda: lz.KVCacheManager(num_blocks=4, block_size=4).allocate(2**70, 1),
        lz.InvalidRequestError,
        "KVCacheManager",
    ),
    (lambda: lz.TensorSchema(3), lz.WrongTypeError, "name"),
    (lambda: lz.TensorSchema("a", shape_vars="ab"), lz.WrongTypeError, "a: shape_vars"),
    (lambda: lz.OperationSchema("a", 4, (), {}), lz.WrongTypeError, "a: inputs"),
    (lambda: lz.KernelRegistry().get_schema(3), lz.WrongTypeError, "KernelRegistry.get_schema"),
    (register(supported_dtypes="float32"), lz.WrongTypeError, "register_kernel: supported_dtypes"),
    (register(constraints=["a"]), lz.WrongTypeError, "constraints"),
    (register(priority=object()), lz.ConfigError, "kernel"),
    (lambda: lz.register_kernel("norm.rms", "a.b", supported_dtypes=["float32"])(int), lz.WrongTypeError, "kernel"),
    (lambda: lz.rms_norm(X, W, eps=True), lz.WrongTypeError, "rms_norm: eps"),
    (lambda: lz.sample_topk(X, True), lz.WrongTypeError, "sample_topk: k"),
    (lambda: lz.sample_topk(X, (True,)), lz.WrongTypeError, "sample_topk: k"),
    (lambda: lz.sample_topk(X, [False]), lz.WrongTypeError, "sample_topk: k"),
    (lambda: lz.activation(X, function="\ud800"), lz.WrongTypeError, "activation: function"),
    (lambda: lz.rms_norm(X, W, out=()), lz.WrongTypeError, "rms_norm: out"),
    (lambda: lz.fused_add_rms_norm(X, X, W, out=3), lz.WrongTypeError, "fused_add_rms_norm: out"),
]

STORAGE = [
    ({"device": "nosuch"}, lz.UnknownNameError, "device"),
    ({"device": "cuda:99"}, lz.UnknownNameError, "device"),
    ({"device": "meta"}, lz.UnknownNameError, "device"),
    ({"device": 2.5}, lz.WrongTypeError, "device"),
    ({"dtype": torch.complex64}, lz.InvalidRequestError, "dtype"),
    ({"dtype": torch.bool}, lz.InvalidRequestError, "dtype"),
    ({"dtype": "float32"}, lz.WrongTypeError, "dtype"),
    ({"num_layers": 0}, lz.InvalidRequestError, "num_layers"),
]


@pytest.mark.parametrize(("options", "kind", "field"), STORAGE, ids=[str(options) for options, *_ in STORAGE])
def test_storage_that_no_operation_can_use_is_refused(options, kind, field):
    manager = lz.KVCacheManager(num_blocks=4, block_size=4)
    with pytest.raises(kind) as caught:
        manager.allocate_storage(num_kv_heads=2, head_dim=8, **options)
    assert caught.value.field == f"KVCacheManager: {field}" and caught.value.wanted and caught.value.got
    assert manager.num_layers == 0


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_attached_storage_that_no_operation_can_use_is_refused():
    cache = torch.zeros(4, 4, 2, 8)
    wrong = [cache.to(torch.complex64), cache.int(), cache.to("meta"), cache.to_sparse(), cache.numpy()]
    wrong += [torch.nested.nested_tensor([cache[0], cache[1, :2]])]
    manager = lz.KVCacheManager(num_blocks=4, block_size=4)
    for one in wrong:
        for name, pair in (("key_cache", (one, cache)), ("value_cache", (cache, one))):
            with pytest.raises(lz.InvalidRequestError) as caught:
                manager.attach(*pair)
            assert caught.value.field == f"KVCacheManager: {name}"
    assert manager.num_layers == 0 and manager.attach(cache, cache.clone()) == 0


@pytest.mark.parametrize(("call", "kind", "field"), WRONG, ids=[f"{i}-{field}" for i, (*_, field) in enumerate(WRONG)])
def test_a_wrong_argument_is_named(call, kind, field):
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.field.startswith(field) and caught.value.wanted and caught.value.got


def test_what_was_got_in_place_of_values_is_told():
    for tensor in (X.to("meta"), X.to_sparse()):
        with pytest.raises(lz.WrongTypeError, match="got a tensor without dense values in memory"):
            lz.explain("rms_norm", tensor, W)
    with torch.device("meta"), pytest.raises(lz.WrongTypeError, match="got a mode or transform of torch in force"):
        lz.explain("rms_norm", X, W)


@pytest.mark.parametrize("layouts", [["BSDH"], ["BHSD", "NHD"]])
def test_a_layout_that_the_operation_lacks_is_refused(layouts):
    with pytest.raises(lz.InvalidRequestError, match="layouts of attention: BSHD, BHSD"):
        lz.register_kernel("attention.standard.prefill", "a.b", supported_dtypes=["float32"], requires_layouts=layouts)


def test_a_layout_of_an_operation_without_layouts_is_refused():
    with pytest.raises(lz.InvalidRequestError, match="layouts of rms_norm: any"):
        lz.register_kernel("norm.rms", "a.b", supported_dtypes=["float32"], requires_layouts=["BSHD"])


def test_a_lock_takes_what_which_takes():
    lz.lock(lz.rms_norm, "hwy.norm.rms")
    try:
        assert lz.explain("rms_norm", X, W).locked == "hwy.norm.rms"
    finally:
        lz.unlock(lz.rms_norm)


def test_numbers_of_numpy_and_paths_are_values_of_the_policy(tmp_path):
    np = pytest.importorskip("numpy")
    with lz.policy(strict_mode=np.bool_(True), prefer_tolerance=np.float32(0.5)):
        keys = lz.policy_in_force()["keys"]
        assert keys["strict_mode"]["value"] is True and keys["prefer_tolerance"]["value"] == 0.5
    lz.policy(health={"keep_inputs": tmp_path})


def test_warmup_runs_in_the_dtype_that_serves():
    (warmed,) = lz.warmup("rms_norm", [(4, 8)], device="cpu").calls
    assert warmed.inputs == "float32[4,8]" and warmed.state == "ready"


# ---- files


def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    for path in (tmp_path / "none" / "page.html", tmp_path):
        for block in (lz.report(path), lz.record(path)) if path == tmp_path else (lz.report(path),):
            with pytest.raises(lz.FileError) as caught, block:
                raise AssertionError("the block ran")
            assert isinstance(caught.value, OSError) and str(path) in str(caught.value) and caught.value.errno
    check_writable("x", tmp_path / "new" / "file", folders=True)
    with pytest.raises(lz.FileError), replaced(tmp_path / "none" / "file") as file:
        file.write(b"")
    assert sorted(os.listdir(tmp_path)) == []


def test_errors_of_other_files_in_the_block_are_their_own(tmp_path):
    for error in (ConnectionResetError(104, "reset"), OSError(errno.ENOSPC, "full", str(tmp_path / "other"))):
        with pytest.raises(OSError) as caught, replaced(tmp_path / "file"):
            raise error
        assert caught.value is error
    with pytest.raises(lz.FileError), replaced(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(lz.FileError), replaced(tmp_path / "none" / "file"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_database_is_found_by_a_relative_path(tmp_path, monkeypatch):
    from layerzero import perf_records

    monkeypatch.chdir(tmp_path)
    assert perf_records.write_database([], pathlib.Path("times.sqlite"))["added"] == 0
    assert perf_records.read_database(pathlib.Path("times.sqlite")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep a working folder")
def test_a_relative_path_without_a_working_folder_is_refused(tmp_path, monkeypatch):
    from layerzero import perf_records

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(lz.ConfigError, match="times.sqlite: wanted a path"):
        perf_records.read_database(pathlib.Path("times.sqlite"))


# ---- the check itself


def test_annotations_are_the_checks():
    @typed
    def function(a: int, b: "str | None" = None, *c: float, d: list[str] | None = None, e: tuple[int, int] = (1, 1)):
        return a

    assert function(1, object(), 2.5, 3, d=["x"], e=[1, 2]) == 1  # a text as annotation is not known
    for arguments, named in ([("1",), {}], [(True,), {}], [(1, None, "2"), {}], [(1,), {"d": "x"}], [(1,), {"e": 3}]):
        with pytest.raises(lz.WrongTypeError, match="test_annotations_are_the_checks"):
            function(*arguments, **named)
    assert copy.copy(function) is function and function.__name__ == "function"


def test_errors_of_right_arguments_are_their_own():
    @typed_if_it_fails
    def function(a: int):
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        function(1)
    with pytest.raises(lz.WrongTypeError):
        function("1")
    assert "layerzero.host.typed" in sys.modules
