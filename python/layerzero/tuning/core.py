"""The measuring core of tuning and of `layerzero bench ops`: calls timed in turns, on a CPU and on CUDA.

The loops are C++ (`_layerzero.time_rounds`): a sample is a run of calls of one side, by the clock on a CPU and between two
events on a GPU. Every comparison is paired by round, and the default has two places in each (A/A), so that its distance
from itself is known. The statistics are src/perfdb/compare.h.
"""

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from layerzero import _layerzero

WARM_UPS = 5  # calls before the first sample; the first of them may compile and is timed on its own
SAMPLE_US = {"cpu": 2000.0, "cuda": 1000.0}  # duration of one sample; at least one call
MOST_CALLS = 200  # of a sample on a GPU: fewer than the device's queue takes without the host waiting
SCREENED = 3  # samples of each candidate before each halving
NEAR = 1.3  # times the fastest: what is slower after screening is no finalist
FINALISTS = 6
LEAST_GAIN = 0.01  # smaller gains keep the default
NEARLY = 0.02  # a gain that is not beyond noise and seems more than this is timed longer
MOST_MORE = 2  # times as many rounds again, then
MOST_PAIRS = 400  # that a comparison reads, of src/perfdb/compare.cpp: later ones do not count
BEAT_S = 1.0  # between signs of life
LEAST_ROUNDS = 6  # fewer cannot exclude anything at 95 %
PAUSE_S = 0.002  # between rounds on a GPU, so that it does not throttle


@dataclass
class Side:
    """A kernel of a call as it is timed: `run` makes `calls` calls of the operation, with the tensors of the next turn."""

    run: Callable[..., Any]
    turns: tuple[tuple[Any, ...], ...] = ((),)
    calls: int = 1
    loops: int = 1  # runs of one sample
    first_us: float = 0.0  # of the first call

    def given(self) -> tuple[Any, ...]:
        """Returns what time_rounds takes."""
        return self.run, self.turns, self.loops


@dataclass(frozen=True)
class Clock:
    """Where samples are taken: "cpu" or an ordinal of CUDA with torch's current stream."""

    ordinal: int = -1

    @classmethod
    def of(cls, device: str) -> "Clock":
        """Returns the clock of "cpu" or "cuda:N"."""
        if device == "cpu":
            return cls()
        return cls(int(device.partition(":")[2] or 0))

    @property
    def kind(self) -> str:
        """Returns "cpu" or "cuda"."""
        return "cpu" if self.ordinal < 0 else "cuda"

    def samples(self, sides: Sequence[Side], order: Sequence[int]) -> list[tuple[float, float]]:
        """Returns (us, us of the host's part) of one call for each number of `order`, which are places in `sides`."""
        stream = 0
        if self.ordinal >= 0:
            import torch

            stream = torch.cuda.current_stream(self.ordinal).cuda_stream
            torch.cuda.synchronize(self.ordinal)
        found = _layerzero.time_rounds(tuple(s.given() for s in sides), tuple(order), self.ordinal, stream)
        return [(us / sides[n].calls, host / sides[n].calls) for n, (us, host) in zip(order, found, strict=True)]

    def prepare(self, side: Side, sample_us: float | None = None) -> float:
        """Warms up, chooses how many runs a sample has, and returns us per call. Sets first_us."""
        side.loops = 1
        side.first_us = self.samples([side], [0])[0][0]
        warm = [us for us, _ in self.samples([side], [0] * max(WARM_UPS - 1, len(side.turns)))]
        us = statistics.median(warm)
        wanted = (SAMPLE_US[self.kind] if sample_us is None else sample_us) / max(us * side.calls, 1e-3)
        side.loops = max(1, math.ceil(wanted) if self.ordinal < 0 else min(MOST_CALLS, math.ceil(wanted)))
        return us


@dataclass
class Rounds:
    """Times of several sides of the same rounds, us: `samples[name][round]`, and the first side again."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    host: dict[str, list[float]] = field(default_factory=dict)
    again: list[float] = field(default_factory=list)

    def add(self, more: "Rounds") -> None:
        """Adds further rounds of the same sides."""
        for name in self.samples:
            self.samples[name] += more.samples[name]
            self.host[name] += more.host[name]
        self.again += more.again

    def us(self, name: str) -> float:
        """Returns the median."""
        return statistics.median(self.samples[name])

    def spread(self, name: str) -> float:
        """Returns the noise of a comparison with the side that is timed twice."""
        return _layerzero.spread_of(self.samples[name], self.again)

    def ratio(self, name: str, other: str) -> "Ratio":
        """Returns how many times as long one side takes as the other."""
        return Ratio(*_layerzero.paired_ratio(self.samples[name], self.samples[other]))


@dataclass(frozen=True)
class Ratio:
    """How many times as long one side takes as another: value, 95 % interval, confidence that it is below 1."""

    value: float
    low: float
    high: float
    confidence: float


def in_rounds(
    clock: Clock,
    sides: dict[str, Side],
    rounds: int,
    twice: str | None = None,
    *,
    seed: int = 0,
    reverse: bool = False,
    beat: Callable[[], None] = lambda: None,
) -> Rounds:
    """Times the sides in rounds, each in a random order of its own; `twice`: the side with two places in each.

    `reverse`: the same orders backwards, for a confirmation. `beat()` is called between rounds, at most once a second.
    """
    names, generator = list(sides), random.Random(seed)
    numbers = {name: n for n, name in enumerate(names)}
    orders = []
    for _ in range(rounds):
        order = [numbers[name] for name in names]
        generator.shuffle(order)
        if twice is not None:
            order.insert(generator.randrange(len(order) + 1), numbers[twice])
        orders.append(order[::-1] if reverse else order)
    found = Rounds({name: [] for name in names}, {name: [] for name in names})
    beaten = -math.inf
    for order in orders[::-1] if reverse else orders:
        if time.monotonic() - beaten >= BEAT_S:
            beat()
            beaten = time.monotonic()
        seen: set[int] = set()
        for number, (us, host) in zip(order, clock.samples(list(sides.values()), order), strict=True):
            name = names[number]
            if number in seen:
                found.again.append(us)
                continue
            seen.add(number)
            found.samples[name].append(us)
            found.host[name].append(host)
        if clock.ordinal >= 0:
            time.sleep(PAUSE_S)
    return found


def screen(
    clock: Clock, sides: dict[str, Side], default: str, seed: int = 0, beat: Callable[[], None] = lambda: None
) -> tuple[list[str], dict[str, list[float]]]:
    """Successive halving: returns the finalists, the default among them, and the samples of every side."""
    names, samples = list(sides), {name: list[float]() for name in sides}
    if len(names) == 1:
        return names, samples
    while True:
        found = in_rounds(clock, {name: sides[name] for name in names}, SCREENED, seed=seed, beat=beat)
        for name in names:
            samples[name] += found.samples[name]
        us = [min(samples[name]) for name in names]  # of few samples the least disturbed one
        kept = _layerzero.survivors(us, names.index(default), NEAR, FINALISTS)
        before, names = len(names), [names[i] for i in kept]
        if len(names) <= FINALISTS or len(names) == before:
            return names, samples


@dataclass
class Verdict:
    """What a comparison of finalists has shown. `winner` is the default unless another kernel is faster beyond noise, in
    the finals and in the confirmation."""

    default: str
    winner: str
    finals: Rounds
    screened: dict[str, list[float]]
    spread: float
    ratios: dict[str, Ratio]  # of each finalist to the default
    confirmed: Ratio | None = None  # of the winner, or of the candidate that the confirmation refused
    refused: str = ""  # why a faster kernel has not won

    @property
    def confidence(self) -> float:
        """Returns how sure the winner is: of the default, that no finalist is faster beyond noise."""
        if self.winner != self.default:
            return self.ratios[self.winner].confidence
        others = [r.confidence for name, r in self.ratios.items() if name != self.default]
        return 1 - max(others, default=0.0)


def decide(default: str, finals: Rounds, least: float = LEAST_GAIN) -> tuple[str, float, dict[str, Ratio]]:
    """Returns the fastest finalist that beats the default beyond noise, or the default; the noise; and the ratios."""
    spread = finals.spread(default)
    ratios = {name: finals.ratio(name, default) for name in finals.samples}
    beats = [
        n for n, r in ratios.items() if n != default and _layerzero.replaces(r.value, r.low, r.high, spread, least)
    ]
    return min(beats, key=lambda name: ratios[name].value, default=default), spread, ratios


def compare(
    clock: Clock,
    sides: dict[str, Side],
    default: str,
    rounds: int,
    *,
    seed: int = 0,
    about_to: Callable[[str], None] = lambda name: None,
    until: float | None = None,
) -> Verdict:
    """Screens the sides, times the finalists in turns, and confirms the winner in reverse order: its interval excludes 1 again.

    `about_to(name)` is called before the first calls of a side, and with "" as a sign of life afterwards. `rounds`: of the
    finals, at least 6, and again as many up to twice while a gain is likely that the noise so far hides, but not beyond
    400 in all, and not after `until`, by time.monotonic().
    """
    for name, side in sides.items():
        about_to(name)
        clock.prepare(side)
    beat = functools.partial(about_to, "")
    beat()
    names, screened = screen(clock, sides, default, seed, beat)
    finalists, rounds = {name: sides[name] for name in names}, max(rounds, LEAST_ROUNDS)
    finals = in_rounds(clock, finalists, rounds, default, seed=seed + 1, beat=beat)
    winner, spread, ratios = decide(default, finals)
    for more in range(MOST_MORE):
        if winner != default or min(ratio.value for ratio in ratios.values()) > 1 - NEARLY:
            break
        further = min(rounds, MOST_PAIRS - len(finals.again))
        if further <= 0 or (until is not None and time.monotonic() >= until):
            break
        finals.add(in_rounds(clock, finalists, further, default, seed=seed + 3 + more, beat=beat))
        winner, spread, ratios = decide(default, finals)
    verdict = Verdict(default, winner, finals, screened, spread, ratios)
    if winner != default:
        pair = {name: sides[name] for name in (default, winner)}
        again = in_rounds(clock, pair, rounds, default, seed=seed + 2, reverse=True, beat=beat)
        verdict.confirmed = again.ratio(winner, default)
        if not (verdict.confirmed.high < 1 and verdict.confirmed.value < 1 - LEAST_GAIN):
            verdict.winner, verdict.refused = default, f"{winner} was not faster again in reverse order"
    return verdict
