"""Learns one deep Gaussian process on MNIST, with checkpoints, tests it and draws samples."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapgrad import _exceptions
from lapgrad.models import DeepGP, LogLikelihood
from lapgrad.models._storage.archive import read_archive, write_archive
from lapgrad_bench.experiments import digits, mnist
from lapgrad_bench.experiments.mnist import Scaling

Row = dict[str, Any]
DTYPES = {"float32": torch.float32, "float64": torch.float64}

#: Steps between two readings of the bound; each makes a row of results.
LOOK_EVERY = 100
#: Seconds between two checkpoints.
KEEP_EVERY = 60.0
#: Test images between two checks whether to stop.
TEST_PART = 500
_CHECKPOINT = "a checkpoint of this experiment"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything but the length of training that decides the figures; --resume needs the same settings.

    Attributes:
        arch: Latent variables per layer, the top layer first: "5-20-50".
        preprocessing: One of ``mnist.PREPROCESSINGS``.
        inducing: Inducing inputs per layer.
        hidden: Widths of the hidden layers of recognition networks: "500-300".
        batch: Images per step.
        lr: Learning rate of Adam at the start.
        natural: Length of natural gradient steps of q(u) at the start; 0: Adam moves q(u), too.
        annealing: Steps in which the weight of latent variables rises to 1.
        dtype: Of everything but kernel matrices of inducing inputs.
        images: Training images that are used.
        seed: Of all random numbers.
    """

    arch: str
    preprocessing: str = "unit"
    inducing: int = 400
    hidden: str = "500-300"
    batch: int = 1000
    lr: float = 5e-3
    natural: float = 0.1
    annealing: int = 0
    dtype: str = "float32"
    images: int = 60_000
    seed: int = 0

    def widths(self) -> list[int]:
        """``arch`` as numbers."""
        return [int(part) for part in self.arch.split("-")]


@dataclasses.dataclass
class Limits:
    """How long to learn, and how to test.

    Attributes:
        steps: None: no limit.
        seconds: Of learning, in all runs that a checkpoint has seen; None: no limit.
        samples: Of latent variables per test image, in the end.
        refine: Steps that improve q(h_1 | y) of each test image on the bound before the test; a test without
        them is made, too. tests: Test images that are used. test_every: Seconds between two tests during
        training (few samples, few images); infinity: none.
    """

    steps: int | None
    seconds: float | None
    samples: int = 1000
    refine: int = 100
    tests: int = 10_000
    test_every: float = math.inf


def join_tests(parts: Sequence[LogLikelihood]) -> LogLikelihood:
    """Return the figures of all observations from those of parts of them.

    Example:
        >>> one = LogLikelihood(1.0, 0.5, 0.3, torch.tensor([0.0, 2.0]), torch.tensor([9.0, 9.0]))
        >>> round(join_tests([one, one]).sampling_error, 3), join_tests([one]).mean
        (0.212, 1.0)
    """
    values = torch.cat([part.values for part in parts])
    n = len(values)
    error = float(values.std() / n**0.5) if n > 1 else math.nan
    # The errors of the parts are independent; that of a part is the error of a mean, not of a sum.
    sampling = math.hypot(*(len(part.values) * part.sampling_error for part in parts)) / n
    effective = torch.cat([part.effective_samples for part in parts])
    return LogLikelihood(float(values.mean()), error, sampling, values, effective)


class Run:
    """The training of one architecture.

    Args:
        settings: What to learn.
        limits: How long.
        folder: Where data are; None: what LAPGRAD_DATA says.
        device: Where to learn.
        output: Where the checkpoint, the model and the picture go.
        resume: Go on from the checkpoint, if there is one.

    Attributes:
        rows: The rows of results, with ``resume`` those of the interrupted run first.
    """

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        folder: Path | None,
        device: torch.device,
        output: Path,
        resume: bool,
    ) -> None:
        self.settings, self.limits, self.device, self.output = settings, limits, device, output
        dtype = DTYPES[settings.dtype]
        train = mnist.load_images("train", folder)[: settings.images]
        self.scaling = Scaling.of(settings.preprocessing, train)
        self.train = self.scaling.apply(train, dtype, settings.seed).to(device)
        test = mnist.load_images("test", folder)[: limits.tests]
        self.test = self.scaling.apply(test, dtype, settings.seed + 1).to(device)
        hidden = [int(part) for part in settings.hidden.split("-")] if settings.hidden else []
        options: dict[str, Any] = {"inducing": settings.inducing, "hidden": hidden}
        self.model = DeepGP(self.train, settings.widths(), generator=settings.seed, **options)
        self.rows: list[Row] = []
        self.state: dict[str, Any] | None = None
        self.kept = self.tested = time.monotonic()
        if resume and self.checkpoint.is_file():
            self._load_checkpoint()

    @property
    def name(self) -> str:
        """The stem of the file names of this architecture."""
        return f"table2-{self.settings.arch}"

    @property
    def checkpoint(self) -> Path:
        """The file with the state of an unfinished run."""
        return self.output / f"{self.name}.checkpoint.pt"

    def learn(self, report: Callable[[Row], bool], handle_checkpoint: Callable[[], None]) -> bool:
        """Learn up to the limits.

        Args:
            report: Called with the newest row; True stops.
            handle_checkpoint: Called when a checkpoint has been written.

        Returns:
            Whether the limits were reached.
        """
        stopped = False

        def handle_check(step: int, loss: float) -> bool:
            nonlocal stopped
            self.state = self.model.training_state()
            row = self._make_row(elbo=-loss + self.scaling.nats)
            if step > self.settings.annealing:  # Before the annealing has ended, the loss is not a bound.
                self.rows.append(row)
            now = time.monotonic()
            if now > self.tested + self.limits.test_every:
                test = self._run_test(self.test[:500], 50)
                assert test is not None, "nothing stops it"
                self.rows.append(test)
                self.tested = time.monotonic()
            if now > self.kept + KEEP_EVERY:
                self.write_checkpoint()
                handle_checkpoint()
            stopped = report(row)
            return stopped

        limits = self.limits
        self.model.fit(
            self.train,
            steps=limits.steps,
            seconds=limits.seconds,
            batch=self.settings.batch,
            lr=self.settings.lr,
            natural=self.settings.natural,
            annealing=self.settings.annealing,
            every=LOOK_EVERY,
            generator=self.settings.seed,
            resume=self.state,
            callback=handle_check,
        )
        self.state = self.model.training_state()
        self.write_checkpoint()
        return not stopped

    def finish(self, report: Callable[[float], bool]) -> Row | None:
        """Test with all samples, write the model and the picture; return the row.

        Args:
            report: Called with the part of the test that is done, 0 to 1; True stops the test.

        Returns:
            The row of the test; None if it was stopped. It is then repeated after ``resume``.
        """
        # A step of refinement costs about as much as a sample: an evaluation of the layers, and its gradient.
        plain, refined = self.limits.samples, self.limits.samples + 3 * self.limits.refine
        share = plain / (plain + refined) if self.limits.refine else 1.0
        row = self._run_test(self.test, self.limits.samples, report=lambda done: report(share * done))
        if row is not None and self.limits.refine:
            unrefined, refine = row, self.limits.refine
            rest = lambda done: report(share + (1.0 - share) * done)  # noqa: E731
            row = self._run_test(self.test, self.limits.samples, refine, report=rest)
            if row is not None:
                self.rows.append(unrefined)
        if row is None:
            return None
        self.rows.append(row)
        self.model.save(self.output / f"{self.name}.pt")
        title = f"Deep Gaussian process {self.settings.arch} on MNIST: test {row['test_ll']:.1f} nats"
        try:
            digits.draw_digits(self.model, self.test, self.scaling, title, self.output / f"{self.name}.png")
        except ImportError:
            print("No picture: matplotlib is not installed (pip install 'lapgrad[demo]').")
        return row

    def write_checkpoint(self) -> None:
        """Write the checkpoint atomically."""
        content = {
            "settings": dataclasses.asdict(self.settings),
            "model": self.model.state_dict(),
            "training": self.state,
        }
        self.output.mkdir(parents=True, exist_ok=True)
        write_archive(self.checkpoint, content)
        self.kept = time.monotonic()

    def _load_checkpoint(self) -> None:
        content, _ = read_archive(self.checkpoint, _CHECKPOINT, self.device)
        for name in ("settings", "model", "training"):
            if not isinstance(content.get(name), dict):
                raise _exceptions.FileFormatError(
                    f"{self.checkpoint} is not {_CHECKPOINT}: missing entry {name!r}."
                )
        settings = content["settings"]
        for name, value in dataclasses.asdict(self.settings).items():
            if settings.get(name) != value:
                raise _exceptions.OptionError(
                    f"{self.checkpoint} was learned with {name} {settings.get(name)}, and this run has "
                    f"{name} {value}: use the same, or another --output."
                )
        try:
            self.model.load_state_dict(content["model"])
        except (RuntimeError, TypeError, AttributeError) as error:
            raise _exceptions.FileFormatError(f"{self.checkpoint} is not {_CHECKPOINT}: {error}") from error
        self.state = content["training"]

    def _make_row(self, **figures: Any) -> Row:
        step = self.state["step"] if self.state else 0
        known = {name: value for name, value in dataclasses.asdict(self.settings).items() if name != "arch"}
        return {
            "arch": self.settings.arch,
            "step": step,
            "epoch": step * self.settings.batch / len(self.train),
            "seconds": self.state["seconds"] if self.state else 0.0,
            **figures,
            "device": self.device.type,
            **known,
        }

    def _run_test(
        self, test: Tensor, samples: int, refine: int = 0, report: Callable[[float], bool] | None = None
    ) -> Row | None:
        """Return the row of a test, which is made in parts; None if ``report`` has stopped it."""
        generator = torch.Generator(self.device).manual_seed(self.settings.seed + 2)
        parts = []
        for begin in range(0, len(test), TEST_PART):
            if report is not None and report(begin / len(test)):
                return None
            images = test[begin : begin + TEST_PART]
            parts.append(
                self.model.log_likelihood(images, samples=samples, refine=refine, generator=generator)
            )
        found = join_tests(parts)
        return self._make_row(
            test_ll=found.mean + self.scaling.nats,
            test_ll_standard_error=found.standard_error,
            test_ll_sampling_error=found.sampling_error,
            effective_samples=float(found.effective_samples.mean()),
            samples=samples,
            refine=refine,
            test_images=len(test),
        )
