"""A small tokenizer and texts for tests."""

import tokenizers

TEXTS = ["Hello world", "naïve café ☕ 日本", "", "  two  spaces\n\ttab", "<s>Hello</s>"]


def build(**changes):
    """A small byte-level BPE tokenizer with a template that adds special tokens."""
    settings = {"vocab_size": 320, "add_prefix_space": False, "lowercase": False, "special": ("<s>", "</s>")} | changes
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    if settings["lowercase"]:
        tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=settings["add_prefix_space"])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=settings["vocab_size"],
        special_tokens=list(settings["special"]),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello world, hello there, naïve café"] * 4, trainer)
    first, last = settings["special"]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, 0), (last, 1)]
    )
    return tokenizer
