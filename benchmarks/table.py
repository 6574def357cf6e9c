"""One line of the result for each thing measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    what: str
    ours: str
    bare: str
    ratio: float
    #: `>= 5` or `<= 1.5`; empty where there is no goal.
    goal: str = ""

    @property
    def missed(self) -> bool:
        if not self.goal:
            return False
        sign, bound = self.goal.split()
        return self.ratio < float(bound) if sign == ">=" else self.ratio > float(bound)


def compared(what: str, ours: Sequence[float], bare: Sequence[float], unit: str, goal: str = "") -> Line:
    """A line from the figures of several rounds: the ratio is the median of the rounds' ratios."""
    ratio = median(a / b for a, b in zip(ours, bare, strict=True))
    return Line(
        what=what,
        ours=f"{median(ours):,.0f} {unit}",
        bare=f"{median(bare):,.0f} {unit}",
        ratio=ratio,
        goal=goal,
    )


def render(lines: Sequence[Line]) -> str:
    rows = [f"| {line.what} | {line.ours} | {line.bare} | {line.ratio:.2f} | {line.goal} |" for line in lines]
    return "\n".join(["| what | Ductile | beside it | ratio | goal |", "|---|---|---|---|---|", *rows])
