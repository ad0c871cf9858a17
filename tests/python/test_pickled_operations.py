"""Operations are pickled by their name and copied as themselves."""

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest
from layerzero.contracts import contracts

torch = pytest.importorskip("torch")

X, W = torch.arange(32, dtype=torch.float32).view(4, 8), torch.full((8,), 2.0)
PACKAGE = Path(lz.__file__).parent.parent


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_operation_is_itself_again(protocol):
    for name in contracts():
        operation = getattr(lz, name)
        assert pickle.loads(pickle.dumps(operation, protocol)) is operation
        assert copy.copy(operation) is operation and copy.deepcopy([operation])[0] is operation


def test_another_process_finds_it_without_importing_it_first():
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['norm'].__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps({"norm": lz.rms_norm}),
        env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.decode().strip() == "rms_norm", done.stderr.decode()


def test_torch_saves_one():
    file = io.BytesIO()
    torch.save({"norm": lz.rms_norm, "weight": W}, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)["norm"] is lz.rms_norm


def test_pools_are_given_operations():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (found,) = pool.starmap(lz.rms_norm, [(X, W)])
    torch.testing.assert_close(found, lz.rms_norm(X, W))


def test_other_capsules_are_not_picklable():
    import datetime

    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(datetime.datetime_CAPI)
