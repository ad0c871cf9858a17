"""SGLang's engine on the CPU with a small Llama of random weights: python sglang_engine.py FOLDER BACKEND prints its tokens as JSON.

Prompts, then the same prompts with three tokens more, whose beginnings SGLang has in its cache.
"""

import json
import sys
from pathlib import Path

PROMPTS = [[(7 * i + 13 * n) % 131 for i in range(length)] for n, length in enumerate((5, 23, 40))]
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


def main(folder, backend):
    import small_llama
    from layerzero.integrations.sglang.launch_server import entry_point

    model = Path(folder) / "model"
    if not model.exists():
        small_llama.tiny().save_pretrained(model)
    with entry_point():
        import sglang

        own = backend == "layerzero"
        engine = sglang.Engine(
            model_path=str(model), device="cpu", skip_tokenizer_init=True, dtype="float32", max_total_tokens=1024,
            mem_fraction_static=0.2, disable_cuda_graph=True, page_size=16, attention_backend=backend,
            sampling_backend="layerzero" if own else "pytorch", log_level="warning",
        )  # fmt: skip
        found = {}
        for name, prompts in (("prompts", PROMPTS), ("prefixes", [[*prompt, 1, 2, 3] for prompt in PROMPTS])):
            answers = engine.generate(input_ids=prompts, sampling_params=GREEDY)
            found[name] = [answer["output_ids"] for answer in answers]
            found[f"cached {name}"] = [answer["meta_info"]["cached_tokens"] for answer in answers]
        print("TOKENS", json.dumps(found))
        engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
