"""One case: drawn from an operator, a seed and a number, run, and compared with what is expected."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from device import DEVICE
from paths import PATHS, set_core
from samples import OPERATORS, OperatorCase
from tolerances import PLAIN_FORMULA, of_sensitivity
from torch import Tensor

import lapgrad
from fuzz.expected import Expected, Part, Reference, are_sizes_in_range, find_part_exponent, scale
from fuzz.memory import Arrangement, arrange, draw_alias, draw_layout, fill
from fuzz.recipes import draw_recipe
from fuzz.values import draw_values
from lapgrad._kernels import cpu as _cpu

#: Kinds of operands: an operator with the flag ``lower`` reads only one triangle of them.
_ONE_TRIANGLE = ("spd", "spaced", "triangular")


@dataclasses.dataclass
class Report:
    """The outcome of a case.

    Attributes:
        description: The call in words.
        failures: What was wrong; empty if nothing was.
        worst: The largest error in units of what is allowed.
        undecided: A sign that the operator and the reference may choose differently: nothing was compared.
    """

    description: str
    failures: list[str] = dataclasses.field(default_factory=list)
    worst: float = 0.0
    undecided: bool = False


class Attack:
    """A call of an operator with everything that was drawn for it."""

    def __init__(self, name: str, seed: int, number: int, largest: int = 300) -> None:
        self.case: OperatorCase = OPERATORS[name]
        self.number = number
        rng = self._rng = random.Random(f"{name} {seed} {number}")
        self.dtype = rng.choice([torch.float64, torch.float32])
        parameters = inspect.signature(self.case.fn).parameters
        aliased = len(self.case.operands) > 1 and rng.random() < 0.3
        recipe = draw_recipe(self.case, rng, largest, aliased)
        self.flags = recipe.flags
        self.overwrites = self.case.overwrites is not None and rng.random() < (0.6 if aliased else 0.3)
        # Grading one of two operands that share memory would grade the other one, too.
        base, special = draw_values(self.case, recipe, rng, self.dtype, may_grade=not aliased)
        operands = range(len(base))
        if self.overwrites and not _does_result_fit(self.case, base, self.flags):
            self.overwrites = False
        target = {self.case.overwrites} if self.overwrites else set()
        self.arrangement: Arrangement = (
            draw_alias(self.case, base, rng, self.dtype) if aliased else None
        ) or arrange(self.case, base, rng, self.dtype, set(operands) - target)
        needs = {i for i in operands if rng.random() < 0.7} if rng.random() < 0.8 else set()
        if needs & set(self._find_operands_in_one_block()):  # views of one leaf
            needs |= set(self.arrangement.aliased or ())
        self.needs = sorted(needs)
        self.threads = rng.randint(1, 4)
        self.path = rng.choice([*PATHS, *["default"] * len(PATHS)]) if DEVICE.type == "cpu" else "default"
        self.isa = rng.choice(["", *_list_instruction_sets()])
        # With alpha or beta 0 the degree of that term cannot be measured, but the term must stay in range.
        # With an absolute tolerance, results are homogeneous only as long as no pivot gets below it.
        scaled = (
            not special
            and rng.random() < 0.3
            and 0.0 not in (self.flags.get("alpha"), self.flags.get("beta"))
            and "tol" not in self.flags
        )
        self._prepare_expected(rng, scaled)
        hides = (
            "lower" in parameters
            and self.case.kinds[0] in _ONE_TRIANGLE
            and self.arrangement.aliased is None
            and 0 not in self.arrangement.places[0].stride
            and rng.random() < 0.5
        )
        if hides:
            self._hide_triangle(self.flags.get("lower", True))
        words = [name, recipe.id, str(self.dtype).removeprefix("torch."), special]
        words += [f"blocks times 2^{self.exponents}" if self.exponents else ""]
        words += ["overwrite" if self.overwrites else "", "other triangle NaN" if hides else ""]
        words += [f"gradients of {[self.case.operands[i] for i in self.needs]}" if self.needs else ""]
        words += [f"threads {self.threads}", f"path {self.path!r}", self.isa, self.arrangement.description]
        self.description = ", ".join(word for word in words if word)

    def _prepare_expected(self, rng: random.Random, scaled: bool) -> None:
        """Compute the expected results; with ``scaled``, first multiply the operands by powers of two.

        The gradients of all operands have to be in range, as one may be a step on the way to another.
        """
        self.exponents: list[int] = []
        operands = range(len(self.case.operands)) if self.needs else range(0)
        reference = Reference(self.case, self.flags, operands)
        with _use_one_thread():
            self.expected: Expected = reference.expect(self.arrangement.values(), rng)
            if scaled and self.case.scale_share > 0.0:
                self._scale(reference, rng)
        if self.expected.gradients:
            self.expected.gradients = [self.expected.gradients[i] for i in self.needs]

    def _scale(self, reference: Reference, rng: random.Random) -> None:
        """Multiply the blocks by powers of two, and scale the expected results accordingly."""
        values, places = self.arrangement.values(), self.arrangement.places
        blocks = sorted({place.block for place in places})
        groups = [[i for i, place in enumerate(places) if place.block == block] for block in blocks]
        degrees = reference.degrees(values, groups, self.expected)
        self.exponents = self._draw_exponents(rng, values, groups, degrees)
        for block, exponent in zip(blocks, self.exponents, strict=True):
            half = exponent // 2
            self.arrangement.blocks[block].mul_(2.0**half).mul_(2.0 ** (exponent - half))
        if degrees is None:
            self.expected = reference.expect(self.arrangement.values(), rng, self.expected.cotangents)
        else:
            self.expected = scale(self.expected, degrees, self.exponents)

    def _draw_exponents(
        self,
        rng: random.Random,
        values: list[Tensor],
        groups: list[list[int]],
        degrees: list[list[float]] | None,
    ) -> list[int]:
        """Return an exponent per group: a multiple of 4, so large that a number is near the end of the range.

        Without degrees of homogeneity the exponents are small: the reference is evaluated at scaled operands,
        and its squares and fourth powers must not overflow.
        """
        widest = 1020 if self.dtype is torch.float64 else 120
        if degrees is None:
            widest = 30
        widest *= self.case.scale_share
        share = rng.random() < 0.5
        drawn = [rng.choice([-1, 1]) * widest * rng.uniform(0.5, 1) for _ in groups]
        if share:
            drawn = [drawn[0]] * len(groups)
        while True:
            exponents = [4 * round(exponent / 4) for exponent in drawn]
            inputs = [values[i] for group in groups for i in group]
            shifts = [exponent for exponent, group in zip(exponents, groups, strict=True) for _ in group]
            parts = [part.value for part in self.expected.parts()] if degrees is not None else []
            shifts += [find_part_exponent(row, exponents) for row in degrees or ()]
            if not any(exponents) or are_sizes_in_range([*inputs, *parts], shifts, self.dtype):
                return exponents
            drawn = [0.95 * exponent if abs(exponent) > 2 else 0.0 for exponent in drawn]

    def _hide_triangle(self, lower: bool) -> None:
        """Set the triangle that the operator must not read to NaN."""
        place = self.arrangement.places[0]
        A = place.view(self.arrangement.blocks[place.block])
        hidden = torch.ones(A.shape[-2:], dtype=torch.bool, device=A.device).triu(1)
        A.masked_fill_(hidden if lower else hidden.mT, math.nan)

    def run(self) -> Report:
        """Call the operator and compare."""
        report = Report(self.description)
        blocks = [block.clone() for block in self.arrangement.blocks]
        try:
            with set_core(PATHS[self.path][1], self.threads, self.isa), warnings.catch_warnings():
                # Nearly equal singular values are drawn now and then.
                warnings.simplefilter("ignore", lapgrad.DegenerateSpectrumWarning)
                results, gradients = self._call(report)
        except Exception as error:  # whatever it is, it is reported
            if isinstance(error, lapgrad.LapgradError) and not self._is_in_range():
                return report
            report.failures.append(f"{type(error).__name__}: {error}")
            return report
        if not self.overwrites:
            self._check_operands(report, blocks)
        for part, actual in zip(self.expected.results, results, strict=True):
            self._compare(report, part, actual)
        for part, actual in zip(self._compute_expected_gradients(), gradients, strict=True):
            self._compare(report, part, actual)
        # The sign of a vector depends on rounding where two entries are nearly of the same size.
        length = max((size for place in self.arrangement.places for size in place.shape), default=1)
        if report.failures and self.expected.margin < 1e-5 + length**1.5 * 10 * torch.finfo(self.dtype).eps:
            report.failures.clear()
            report.undecided = True
        return report

    def _call(self, report: Report) -> tuple[list[Tensor], list[Tensor]]:
        """Results and gradients of the operator on its device."""
        arrangement, flags = self.arrangement, dict(self.flags)
        together = {arrangement.places[i].block for i in self._find_operands_in_one_block()}
        # Operands that share a block are views of one leaf (or, to be overwritten, of a copy of it).
        leaves: dict[int, Tensor] = {}
        memory: dict[int, Tensor] = {}
        for block in together:
            needed = any(arrangement.places[i].block == block for i in self.needs)
            leaves[block] = arrangement.blocks[block].detach().requires_grad_(needed)
            memory[block] = leaves[block] * 1.0 if self.overwrites else leaves[block]
        args = []
        for i, place in enumerate(arrangement.places):
            if place.block in memory:
                args.append(place.view(memory[place.block]))
            else:
                view = place.view(arrangement.blocks[place.block]).detach()
                args.append(view.requires_grad_(i in self.needs))
        if arrangement.aliased is not None and arrangement.one_object:
            args[arrangement.aliased[1]] = args[arrangement.aliased[0]]
        target = args[self.case.overwrites] if self.overwrites and self.case.overwrites is not None else None
        before = memory[self._target_block()].detach().clone() if target is not None else None
        if self.overwrites:
            flags["overwrite"] = True
        output = self.case.fn(*args, **flags)
        results = [output] if isinstance(output, Tensor) else list(output)
        if target is not None and before is not None:
            self._check_target(report, results[0], target, memory[self._target_block()].detach(), before)
        values = [result.detach().clone() for result in results]
        if not self.needs or not self.expected.gradients:
            return values, []
        pairs = [
            (r, w)
            for r, w in zip(results, self._lay_out_cotangents(), strict=True)
            if w is not None and r.requires_grad
        ]
        before_backward = [w.clone() for _, w in pairs]
        wanted = [*leaves.values(), *(arg for i, arg in enumerate(args) if i in self.needs and arg.is_leaf)]
        wanted = [leaf for leaf in wanted if leaf.requires_grad]
        found = dict(
            zip(
                map(id, wanted),
                torch.autograd.grad(
                    [r for r, _ in pairs], wanted, [w for _, w in pairs], materialize_grads=True
                ),
                strict=True,
            )
        )
        if any(not torch.equal(w, old) for (_, w), old in zip(pairs, before_backward, strict=True)):
            report.failures.append("the backward pass changed a cotangent")
        gradients = []
        for i in self.needs:
            place = arrangement.places[i]
            if place.block in leaves:
                gradients.append(place.view(found[id(leaves[place.block])]))
            else:
                gradients.append(found[id(args[i])])
        return values, gradients

    def _is_in_range(self) -> bool:
        """Return whether the dtype can represent the expected results, and their norms if they are matrices.

        Else the operator may raise: eigenvalues of a result may be larger than its entries.
        """
        largest = torch.finfo(self.dtype).max
        values = [part.value for part in self.expected.results if part.value.is_floating_point()]
        return all(bool((value.abs() <= largest / max((1, *value.shape[-2:]))).all()) for value in values)

    def _target_block(self) -> int:
        assert self.case.overwrites is not None
        return self.arrangement.places[self.case.overwrites].block

    def _find_operands_in_one_block(self) -> list[int]:
        """Return the operands that share a block with another one or are overwritten."""
        together = list(self.arrangement.aliased or ())
        if self.overwrites and self.case.overwrites is not None:
            together.append(self.case.overwrites)
        return together

    def _lay_out_cotangents(self) -> list[Tensor | None]:
        """Return the cotangents in any layout."""
        drawn: list[Tensor | None] = []
        for w in self.expected.cotangents:
            if w is None:
                drawn.append(None)
                continue
            place, length = draw_layout(self._rng, tuple(w.shape), 0)
            drawn.append(place.view(fill(place, length, w, self.dtype)))
        return drawn

    def _compute_expected_gradients(self) -> Iterator[Part]:
        """Return the expected gradients; those of operands that share memory are added."""
        arrangement, parts = self.arrangement, dict(zip(self.needs, self.expected.gradients, strict=False))
        for i, part in parts.items():
            others = [j for j in (arrangement.aliased or ()) if j != i]
            if i not in (arrangement.aliased or ()):
                yield part
                continue
            # In a block all operands are differentiated, or none.
            place = arrangement.places[i]
            totals = []
            for name in ("value", "sensitivity", "own_error"):
                flat = torch.zeros(arrangement.blocks[place.block].shape, dtype=torch.float64)
                for j in (i, *others):
                    if j in parts:
                        arrangement.places[j].view(flat).add_(getattr(parts[j], name))
                totals.append(place.view(flat))
            value, sensitivity, own_error = totals
            yield Part(part.name, value, sensitivity, own_error, part.by_rows)

    def _check_operands(self, report: Report, before: list[Tensor]) -> None:
        """Report operands that were changed, or whose surrounding memory was."""
        for block, (old, new) in enumerate(zip(before, self.arrangement.blocks, strict=True)):
            if not torch.equal(_copy_bits(old), _copy_bits(new)):
                names = [
                    self.case.operands[i]
                    for i, place in enumerate(self.arrangement.places)
                    if place.block == block
                ]
                report.failures.append(f"the memory of {' and '.join(names)} was changed")

    def _check_target(
        self, report: Report, result: Tensor, target: Tensor, after: Tensor, before: Tensor
    ) -> None:
        """Report a result that is not the overwritten operand, or changes in the memory around it."""
        assert self.case.overwrites is not None
        if self.case.leaves_result and result is not target:
            report.failures.append("overwrite=True does not return the operand it overwrites")
        place = self.arrangement.places[self.case.overwrites]
        outside = torch.ones(after.shape, dtype=torch.bool, device=after.device)
        place.view(outside).fill_(False)
        if not torch.equal(_copy_bits(after)[outside], _copy_bits(before)[outside]):
            report.failures.append("overwrite=True has written outside of the operand")

    def _compare(self, report: Report, part: Part, actual: Tensor) -> None:
        """Report a result or gradient that differs from the expected one."""
        expected = part.value
        if actual.shape != expected.shape:
            report.failures.append(f"{part.name}: shape {tuple(actual.shape)}, not {tuple(expected.shape)}")
            return
        if not expected.is_floating_point():
            if not torch.equal(actual.cpu().long(), expected.long()):
                report.failures.append(f"{part.name}: {actual.flatten()[:8].tolist()} is wrong")
            return
        if actual.dtype is not self.dtype:
            report.failures.append(f"{part.name}: {actual.dtype}")
            return
        if not expected.numel():
            return
        info = torch.finfo(self.dtype)
        units = of_sensitivity(self._count_longest_sum(part), self.case.passes)
        size = part.size() + self._estimate_size_by_units(part)
        # Subnormal numbers may be flushed to 0, as MKL does. Entries that overflow are not compared.
        allowed = units * info.eps * size + self._count_longest_sum(part) * info.tiny
        allowed = allowed + PLAIN_FORMULA * info.eps * part.reference_error()
        judged = (size < info.max / 16) & allowed.isfinite()
        error = (actual.cpu().double() - expected).abs()
        ratio = torch.where(judged, error / allowed, torch.zeros_like(error))
        worst = float(ratio.nan_to_num(nan=math.inf).max())
        report.worst = max(report.worst, worst)
        if worst > 1:
            where = tuple(
                int(i) for i in torch.unravel_index(ratio.nan_to_num(nan=math.inf).argmax(), ratio.shape)
            )
            wrong = int((~(ratio <= 1)).sum())
            report.failures.append(
                f"{part.name}: {wrong} of {ratio.numel()} entries are wrong; at {where} it is "
                f"{float(actual[where]):.17g}, not {float(expected[where]):.17g}; error {worst * units:.3g} "
                f"units, allowed {units:.3g}"
            )

    def _estimate_size_by_units(self, part: Part) -> float:
        """Return the size |cotangent| |result| / |operand| that a gradient has by its units; 0 for results.

        Formulas add up terms of that size also where, as in special shapes, they cancel.
        """
        if part.name not in [gradient.name for gradient in self.expected.gradients]:
            return 0.0
        operand = self.arrangement.values()[self.case.operands.index(part.name.removeprefix("gradient of "))]
        if not operand.numel():
            return 0.0
        total = sum(
            float(w.abs().max()) * float(result.value.abs().max())
            for w, result in zip(self.expected.cotangents, self.expected.results, strict=True)
            if w is not None and w.numel()
        )
        return total / max(float(operand.nan_to_num().abs().max()), torch.finfo(torch.float64).tiny)

    def _count_longest_sum(self, part: Part) -> int:
        """Return the number of terms of the longest sum that an entry may be computed from."""
        shapes = [place.shape for place in self.arrangement.places]
        longest = max((size for shape in shapes for size in shape[-2:]), default=1) or 1  # of no terms: 0
        if part in self.expected.results:
            return longest
        # Gradients of operands that a batch shares are sums over the batch.
        items = max(
            math.prod(shape[:-2]) for shape in [*shapes, *(p.value.shape for p in self.expected.results)]
        )
        return max(1, longest * items // max(1, math.prod(part.value.shape[:-2])))


def _does_result_fit(case: OperatorCase, values: list[Tensor], flags: dict[str, Any]) -> bool:
    """Whether the operand to overwrite already has the leading dimensions of the result."""
    assert case.overwrites is not None
    batch = torch.broadcast_shapes(*[value.shape[:-2] for value in values])
    return values[case.overwrites].shape[:-2] == batch


def _copy_bits(A: Tensor) -> Tensor:
    """Return the numbers as integers, so that NaN equals itself."""
    return A.view(torch.int64 if A.dtype is torch.float64 else torch.int32)


def _list_instruction_sets() -> list[str]:
    if DEVICE.type != "cpu" or not _cpu.is_available():
        return []
    return [isa for isa in _cpu.ISA_VARIANTS if _cpu.core.isa_supported(isa)]


@contextlib.contextmanager
def _use_one_thread() -> Iterator[None]:
    """While active, torch uses one thread: its LU of a batch hangs on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
