"""Tokenizers of the kinds that models use, trained on the repository's pages, and random texts."""

import functools
import io
import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre

ROOT = pathlib.Path(__file__).resolve().parents[3]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s"
)
_CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CAPITAL, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}*{_SMALL}+{_CASES}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}+{_SMALL}*{_CASES}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
TEKKEN = O200K.replace(_CASES, "").replace(r"\p{N}{1,3}", r"\p{N}")
_MARK = "\u2581"
_FOREIGN = "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e\u306e\u6587 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \ud55c\uad6d\uc5b4 \u05e2\u05d1\u05e8\u05d9\u05ea \U0001f469\u200d\U0001f680 "


@functools.cache
def corpus() -> list[str]:
    pages = sorted((ROOT / "docs/guide").glob("*.md"))[:12]
    return [page.read_text() for page in pages] + [_FOREIGN * 20]


def _byte_level(pre_tokenizer, normalizer=None, ignore_merges=False, trim=True):
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = sorted(pre.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|pad|>", lstrip=True, rstrip=True)])
    if not normalizer:
        tokenizer.add_tokens(["zebra", AddedToken("zeb", normalized=False)])
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=trim), template])
    return tokenizer


def _split(expression):
    return pre.Sequence([pre.Split(Regex(expression), "isolated"), pre.ByteLevel(False, use_regex=False)])


def _marked(normalizer, pre_tokenizer, decoder, byte_fallback=True):
    options = {"unk_token": "<unk>", "byte_fallback": byte_fallback, "fuse_unk": True}
    tokenizer = tokenizers.Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre.Metaspace()
    named = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=named + fallback, limit_alphabet=200, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] in named]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(parts))
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
    if pre_tokenizer is None:
        parts = json.loads(tokenizer.to_str()) | {"pre_tokenizer": None}
        return tokenizers.Tokenizer.from_str(json.dumps(parts))
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def _to_spaces(*more):
    return decoders.Sequence([decoders.Replace(_MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *more])


BUILDERS = {
    "gpt2": lambda: _byte_level(pre.ByteLevel(add_prefix_space=False)),
    "roberta": lambda: _byte_level(pre.ByteLevel(add_prefix_space=True), trim=False),
    "llama3": lambda: _byte_level(_split(LLAMA3), ignore_merges=True),
    "qwen2": lambda: _byte_level(_split(QWEN2), normalizers.NFC()),
    "o200k": lambda: _byte_level(_split(O200K)),
    "tekken": lambda: _byte_level(_split(TEKKEN)),
    "digits": lambda: _byte_level(pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(False)])),
    "lowercase": lambda: _byte_level(
        pre.ByteLevel(False), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "llama2": lambda: _marked(
        normalizers.Sequence([normalizers.Prepend(_MARK), normalizers.Replace(" ", _MARK)]),
        None,
        _to_spaces(decoders.Strip(" ", 1, 0)),
    ),
    "gemma": lambda: _marked(normalizers.Replace(" ", _MARK), None, _to_spaces()),
    "metaspace": lambda: _marked(
        normalizers.Sequence([]), pre.Metaspace(prepend_scheme="always"), decoders.Metaspace(), byte_fallback=False
    ),
    "metaspace_first": lambda: _marked(
        normalizers.Sequence([]),
        pre.Metaspace(prepend_scheme="first", split=False),
        decoders.Metaspace(prepend_scheme="first"),
        byte_fallback=False,
    ),
}


@functools.cache
def vocabulary(name):
    """Returns a tokenizers.Tokenizer: one of BUILDERS."""
    return BUILDERS[name]()


@functools.cache
def tiktoken_encoding(pattern):
    """Returns a tiktoken.Encoding of the ranks that the trained byte-level vocabulary has."""
    import tiktoken

    parts = json.loads(vocabulary("gpt2").to_str())["model"]
    bytes_of = {text: value for value, text in _alphabet().items()}
    ranks = {bytes([value]): value for value in range(256)}
    for left, right in parts["merges"]:
        token = bytes(bytes_of[letter] for letter in left + right)
        ranks.setdefault(token, len(ranks))
    return tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|end|>": len(ranks)})


def _alphabet():
    from layerzero.tokenizers.own import byte_text

    return {value: byte_text(bytes([value])) for value in range(256)}


@functools.cache
def sentencepiece_model(**options):
    """Returns a SentencePieceProcessor of type BPE whose normalizer is the identity."""
    import sentencepiece

    settings = {
        "model_type": "bpe", "vocab_size": 900, "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "character_coverage": 0.995, "minloglevel": 2,
    } | options  # fmt: skip
    model = io.BytesIO()
    lines = iter([line for text in corpus() for line in text.splitlines() if line])
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **settings)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


_PLANES = ((0x20, 0x7F), (0x20, 0x7F), (0, 0x250), (0x300, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000))
_PIECES = (
    " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'\u017f", "0", "12345", "\u00a0", "\0", "\u3000", "/", "Ab", "ABC",
    "hello", _MARK, "\n\n\n   ", "zebra", "zeb", "\u0301", "\u1100\u1161",
)  # fmt: skip


# Halves of UTF-16 pairs, which no UTF-8 has; tiktoken reads two that follow each other as the character that they are.
_SURROGATES = ("\ud800", "\udbff", "\udc00", "\udfff", "\ud83d\ude00", "\ude00\ud83d")


def random_text(source: random.Random, added=(), surrogates=0.0):
    """Returns up to 60 pieces: code points of all planes, white space, contractions, added tokens; and of a share of texts
    also lone surrogates."""
    pieces = [source.choice(_SURROGATES)] if surrogates and source.random() < surrogates else []
    for _ in range(source.randrange(60)):
        choice = source.random()
        if choice < 0.25:
            pieces.append(source.choice(_PIECES))
        elif choice < 0.28 and added:
            pieces.append(source.choice(added))
        else:
            pieces.append(chr(source.randrange(*source.choice(_PLANES))))
    if pieces and pieces[0] in _SURROGATES:
        source.shuffle(pieces)
    return "".join(pieces)


def is_text(text: str):
    """Whether it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def outcome(call):
    """Returns what a call returned, or the library's own error as (its class, its message)."""
    try:
        return call()
    except Exception as error:
        cause = error.__cause__ or error
        return type(cause), str(cause)


def added_tokens(tokenizer):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]
