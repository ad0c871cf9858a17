"""Why greedy answers of vLLM's attention backends differ: log-probabilities of the same tokens, and how near the candidates were.

    python bench/serving/vllm_logprobs.py --out result.json                 # FLASH_ATTN twice, LAYERZERO, FLASHINFER; eager
    python bench/serving/vllm_logprobs.py --engines flash_attn@graphs layerzero@graphs

Model, weights, prompts and names of engines are those of vllm_backends.py, each engine in a process of its own, eager unless
@MODE says otherwise. The first engine's greedy answers at the first batch size are the reference. Each engine then, at each
batch size (--batch),

* `scored`: is given the reference's prompts with their answers, and says for each token of the answers its log-probability and
  the two best candidates. These steps are prefill.
* `decoded`: answers the prompts itself. Log-probabilities are compared until the tokens differ, since what follows has another
  context. These steps are decode.

Each row compares one engine and batch size with the reference: the largest and the mean difference of log-probabilities, how
often the best candidate is another one, and there the reference's gap between its first and second candidate. The reference's
engine at another batch size, and in another process, are the controls: differences of the same size as theirs are rounding.
A backend that computes something else differs by more, and at places where the gap is not small.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import vllm_backends  # noqa: E402

ENGINES = ["flash_attn", "flash_attn", "layerzero", "flashinfer"]


def place(token, candidates):
    """[token, its log-probability, best candidate, its log-probability, that of the second]; candidates: {token: Logprob}."""
    first, second = sorted(candidates.items(), key=lambda one: (-one[1].logprob, one[1].rank or 0))[:2]
    return [token, candidates[token].logprob, first[0], first[1].logprob, second[1].logprob]


def one_engine(arguments):
    """Runs in a process of its own; prints its result as the last line. The first one writes the reference's answers."""
    with tempfile.TemporaryDirectory() as root:
        llm, result = vllm_backends.started(arguments, root)
        from vllm import SamplingParams

        prompts = vllm_backends.random_prompts(max(arguments.batch), arguments.input)
        greedy = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}

        def outputs(ids, batch, **options):
            sampling = SamplingParams(**greedy, **options)
            rows = [{"prompt_token_ids": row} for row in ids]
            for at in range(0, len(rows), batch):
                yield from llm.generate(rows[at : at + batch], sampling, use_tqdm=False)

        for batch in arguments.batch:
            decoded = []
            for one in outputs(prompts, batch, max_tokens=arguments.output, logprobs=2):
                answer = one.outputs[0]
                decoded.append([place(*pair) for pair in zip(answer.token_ids, answer.logprobs, strict=True)])
            result["batches"][batch] = {"decoded": decoded}
            if not arguments.answers.exists():
                arguments.answers.write_text(json.dumps([[token for token, *_ in row] for row in decoded]))
            whole = [p + a for p, a in zip(prompts, json.loads(arguments.answers.read_text()), strict=True)]
            result["batches"][batch]["scored"] = [
                [place(*pair) for pair in list(zip(row, one.prompt_logprobs, strict=True))[arguments.input :]]
                for row, one in zip(whole, outputs(whole, batch, max_tokens=1, prompt_logprobs=2), strict=True)
            ]
            vllm_backends.came(result, cut_off=batch != arguments.batch[-1])


def summed(pairs):
    """What two engines say of the same tokens; pairs: (own place, reference's place)."""
    differences = [abs(own[1] - other[1]) for own, other in pairs]
    gaps = [other[3] - other[4] for _, other in pairs]
    flips = [gap for gap, (own, other) in zip(gaps, pairs, strict=True) if own[2] != other[2]]
    return {
        "tokens": len(pairs),
        "largest_difference": max(differences, default=None),
        "mean_difference": statistics.mean(differences) if differences else None,
        "other_best_candidate": len(flips),
        "gaps_there": {"largest": max(flips), "mean": statistics.mean(flips)} if flips else None,
        "mean_gap": statistics.mean(gaps) if gaps else None,
    }


def scored(own, reference):
    return summed([pair for rows in zip(own, reference, strict=True) for pair in zip(*rows, strict=True)])


def decoded(own, reference):
    """Only what has the same tokens before it: up to the first difference, whose gap says how near the candidates were."""
    same, first_differences = [], []
    for mine, theirs in zip(own, reference, strict=True):
        pairs = list(zip(mine, theirs, strict=True))
        at = next((i for i, (a, b) in enumerate(pairs) if a[0] != b[0]), len(pairs))
        same += pairs[:at]
        first_differences += [other[3] - other[4] for _, other in pairs[at : at + 1]]
    found = summed(same) | {"answers": len(own), "other_answers": len(first_differences)}
    found["gaps_at_first_difference"] = sorted(first_differences, reverse=True)
    return found


def compared(results):
    """A row for each engine and batch size, against the first of both; the reference itself has none."""
    if not results or not results[0]["batches"]:
        return []
    batch, reference = next(iter(results[0]["batches"].items()))
    rows = []
    for one in results:
        for size, own in one["batches"].items():
            if own is reference:
                continue
            row = {"engine": one["engine"], "batch": size, "against": f"{results[0]['engine']}, batch {batch}"}
            rows.append(
                row | {what.__name__: what(own[what.__name__], reference[what.__name__]) for what in (scored, decoded)}
            )
    return rows


def written(results, failures, path):
    rows = compared(results)
    kept = [{name: value for name, value in one.items() if name != "batches"} for one in results]
    report = {"engines": kept, "compared": rows, "failed": [{"engine": e, "error": why} for e, why in failures.items()]}
    path.write_text(json.dumps(report, indent=1) + "\n")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=ENGINES, help="the first one's answers are the reference")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("vllm-logprobs.json"))
    parser.add_argument(
        "--batch", nargs="+", type=int, default=[16, 4], help="the first one's answers are the reference"
    )
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument(
        "--most", type=float, default=120, help="seconds that one engine may take; the first twice as many"
    )
    arguments = parser.parse_args()
    if arguments.engine:
        return one_engine(arguments)
    results, failures = [], {}
    with tempfile.TemporaryDirectory() as root:
        passed = [a for n in ("input", "output", "layers") for a in (f"--{n}", str(getattr(arguments, n)))]
        passed += ["--answers", str(Path(root) / "answers.json"), "--batch", *map(str, arguments.batch)]
        for label, engine in vllm_backends.labelled(arguments.engines):
            began = time.monotonic()
            named = engine if "@" in engine else f"{engine}@eager"
            command = [sys.executable, __file__, "--engine", named, *passed]
            log = arguments.out.with_suffix(f".{label.replace(', run ', '.')}.log")
            limit = arguments.most * (1 if results else 2)
            *_, (found, failure) = vllm_backends.run(command, log, limit)
            if found:
                results.append(found | {"engine": label, "whole_s": time.monotonic() - began})
            if failure:
                failures[label] = failure
            for row in written(results, failures, arguments.out):
                print(json.dumps(row))
            print(f"{label}: {failure or 'ready'}", flush=True)
            if not results:
                break  # no reference
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
