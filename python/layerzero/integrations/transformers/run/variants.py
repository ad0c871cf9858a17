"""Ways to capture a step of few rows where no measurement of a call alone says which is best, and the search for the fastest.

A variant is a record of choices, {part of the step: what runs there}; what it does not name is what each call selects.
"""

from collections.abc import Callable, Iterable
from typing import Any

Variant = dict[str, str]
SELECTED = "selected"
EARLY = "early"  # the part of a variant whose kernels are launched early
EMBEDDING = "embedding"
PRODUCTS = "products"  # all that no part of their own names
FEW_ROWS = ("cuda.mlp.linear", "cuda.mlp.linear.long")  # kernels of products of few rows
LOOKUP = "cuda.embedding.lookup"
_GAIN = 0.997  # of the time: what a further choice has to save, since replays differ by some 0.2 %


def product(outputs: int, inputs: int) -> str:
    """The part that products with weights of one shape are."""
    return f"{outputs} x {inputs}"


def of_all_products() -> list[Variant]:
    """The variants that are tried first."""
    early = {EARLY: "on"}
    return [{}, early, *({PRODUCTS: kernel} | early for kernel in FEW_ROWS)]


def of_one_part(products: Iterable[str]) -> list[Variant]:
    """What is tried on top of the fastest of the first, one after the other. products: the parts that products are."""
    return [{EMBEDDING: LOOKUP}, *({part: kernel} for part in products for kernel in (*FEW_ROWS, SELECTED))]


def name_of(variant: Variant) -> str:
    found = [f"{part}: {kernel}" for part, kernel in variant.items() if part not in (PRODUCTS, EARLY)]
    first = [variant[PRODUCTS]] if PRODUCTS in variant else [] if found else [SELECTED]
    return ", ".join([*first, *found, *(["early"] if EARLY in variant else [])])


class Search:
    """capture: makes what replays a variant, or raises. times: microseconds of each of several replays, by name."""

    def __init__(self, capture: Callable[[Variant], Any], times: Callable[[dict[str, Any]], dict[str, float]]) -> None:
        self.capture, self.times_of = capture, times
        self.us: dict[str, float] = {}
        self.variant: Variant = {}  # the fastest so far
        self.made: Any = None

    def first(self, variants: list[Variant]) -> None:
        """Keeps the fastest of `variants`, of which the first one has to be captured."""
        made: dict[str, Any] = {}
        for variant in variants:
            found = self._made(variant, must=not made)
            if found is not None:
                made[name_of(variant)] = variant, found
        if len(made) > 1:
            self.us |= self.times_of({name: found for name, (_, found) in made.items()})
        self.variant, self.made = made[min(made, key=lambda name: self.us.get(name, 0.0))]

    def then(self, variants: list[Variant]) -> None:
        """Adds each choice of `variants` that is clearly faster than what is kept."""
        for further in variants:
            variant = self.variant | further
            if variant == self.variant or not self._differs(further):
                continue
            found = self._made(variant)
            if found is None:
                continue
            name, best = name_of(variant), name_of(self.variant)
            times = self.times_of({best: self.made, name: found})
            self.us |= {name: times[name]}
            if times[name] < _GAIN * times[best]:
                self.variant, self.made = variant, found

    def _differs(self, further: Variant) -> bool:
        """Whether a choice differs from the one that is kept."""
        of_products = self.variant.get(PRODUCTS, SELECTED)
        return any(
            kernel != self.variant.get(part, SELECTED if part == EMBEDDING else of_products)
            for part, kernel in further.items()
        )

    def _made(self, variant: Variant, must: bool = False) -> Any:
        try:
            return self.capture(variant)
        except Exception:
            if must:
                raise
            return None
