"""Deep Gaussian processes without inputs: layers of functions from noise to data."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad._torch.synchronisation import without_waiting
from lapgrad.distributed.group import Group, as_group
from lapgrad.models import _checks
from lapgrad.models._deep import bound as _bound
from lapgrad.models._deep import learning as _learning
from lapgrad.models._deep import likelihood as _likelihood
from lapgrad.models._deep.importance import LogLikelihood
from lapgrad.models._deep.latent_layer import ConstantMean, DeepLayer, make_initial_layer
from lapgrad.models._deep.options import check_options
from lapgrad.models._gp.spread_rows import make_shared_generator
from lapgrad.models._model import StoredModel
from lapgrad.models._storage.entries import INTEGER, INTEGERS, PARTS, check_entries
from lapgrad.models._training import minibatches as _minibatches
from lapgrad.models._training.fitting import Callback
from lapgrad.models._training.plan import make_plan
from lapgrad.models._training.result import FitResult
from lapgrad.models._training.shares import share_rows
from lapgrad.models.kernels.base import Kernel, part_of_state

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Rows of data that determine the initial parameters, at most.
_ROWS_AT_THE_START = 10_000

#: The entries of the description in a file.
_ENTRIES = {"widths": INTEGERS, "outputs": INTEGER, "layers": PARTS}


class DeepGP(_minibatches.MinibatchModel, StoredModel):
    """Data as a deep Gaussian process: h_L ~ N(0, I), h_(l-1) = f_l(h_l) + noise, and data y = h_0.

    Each f_l has independent outputs with a Gaussian process prior, one kernel, and a Gaussian q(u) of its
    values at inducing inputs. Each layer has a recognition network for q(h_1 | y), q(h_2 | h_1), ..., so that
    latent variables of one datum depend on each other. All of it is learned together by stochastic
    gradients of the lower bound

        log p(Y) >= Σ_n E_q [Σ_l E_q(f_l) log N(h_(l-1) | f_l(h_l), noise_l) + log p(h_L) - log q(h | y_n)]
                    - Σ_l KL(q(u_l) || p(u_l))

    (M. Seeger et al., 2017, section 5.3: SV-DGP). The model does not hold its data: pass them to ``fit``.

    Args:
        Y: (n, D), float32 or float64: the data, or enough of them for the initial principal components, means
            and inducing inputs. The model has their device and dtype.
        widths: Latent variables per layer, the top layer first: [5, 20, 50] has 50 next to the data.
        inducing: How many inducing inputs each layer has, at most.
        kernels: One per layer, the top layer first; None: ``RBF`` with one lengthscale per input. They become
            parts of the model.
        hidden: Widths of the hidden layers of each recognition network.
        noise_var: Variance of the noise of the data at the start; None: from the data.
        whiten: Parametrise q(u) by whitened variables.
        covariance: "shared": one covariance of q(u) for all outputs of a layer, or "separate".
        jitter: Added to the diagonal of kernel matrices of inducing inputs, in units of its mean.
        generator: Source of random numbers for the start, or a seed; None: torch's own.
        group: Processes that each have their own rows of the data, here and in ``fit``, and learn together
            (``distributed.Group``). None: one process.

    Attributes:
        layers: The layers, that of the data first: ``layers[0].functions``, ``.recognition``, ``.noise_var``.
        widths: As given.

    Raises:
        DTypeError, ShapeError, NonFiniteError: Y is not (n, D), float32 or float64, and finite.
        OptionError: An option is not one of those above.

    Example:
        >>> import torch
        >>> from lapgrad.models import DeepGP
        >>> source = torch.Generator().manual_seed(0)
        >>> angles = 6.3 * torch.rand(500, dtype=torch.float64, generator=source)
        >>> circle = torch.stack([angles.cos(), angles.sin(), 0 * angles], 1)
        >>> model = DeepGP(circle, [1, 2], inducing=20, hidden=[20], generator=0)
        >>> result = model.fit(circle, steps=200, batch=100, generator=0)
        >>> model.sample(3, generator=0).shape
        torch.Size([3, 3])
    """

    def __init__(
        self,
        Y: Tensor,
        widths: Sequence[int],
        *,
        inducing: int = 100,
        kernels: Sequence[Kernel] | None = None,
        hidden: Sequence[int] = (500, 300),
        noise_var: float | None = None,
        whiten: bool = True,
        covariance: str = "shared",
        jitter: float = 1e-6,
        generator: torch.Generator | int | None = None,
        group: Group | ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        self.group = as_group(who, group)
        Y, share = share_rows(self.group, functools.partial(_checks.check_inputs, who, Y, "Y"))
        Y = Y.detach()
        widths, hidden = list(widths), list(hidden)
        check_options(who, widths, hidden, inducing, kernels, noise_var, covariance)
        source = make_shared_generator(who, generator, Y.device, self.group)
        self.widths, self.outputs = widths, Y.shape[1]
        total = share.total
        order = torch.randperm(total, generator=source, device=Y.device)
        lower = share.gather(Y, order[:_ROWS_AT_THE_START])
        options = {"whiten": whiten, "covariance": covariance, "jitter": jitter}
        given: list[Kernel | None] = [None] * len(widths) if kernels is None else list(kernels)
        bottom_up = list(zip(reversed(widths), reversed(given), strict=True))
        layers: list[DeepLayer] = []
        for level, (width, kernel) in enumerate(bottom_up):
            layers.append(
                make_initial_layer(
                    lower,
                    width,
                    total=total,
                    of_data=level == 0,
                    inducing=inducing,
                    kernel=kernel,
                    hidden=hidden,
                    noise_var=noise_var if level == 0 else None,
                    options=options,
                    generator=source,
                )
            )
            with torch.no_grad():
                lower = layers[-1].recognition(lower)[0]
        self.layers = nn.ModuleList(layers)
        if self.group is not None:
            self.group.copy_from_first(list(self.parameters()))

    # Learning.

    def bound(
        self,
        Y: Tensor,
        *,
        total: int | None = None,
        samples: int = 1,
        noise: Sequence[Tensor] | None = None,
        latent_weight: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return an unbiased estimate of the lower bound of the log density of all data, from some of them.

        Args:
            Y: (b, D), a minibatch.
            total: How many data there are; None: those of Y alone.
            samples: Samples of the latent variables per datum.
            noise: (samples, b, w) standard normal numbers for each layer, that of the data first; None:
                drawn.
            latent_weight: Weight of the terms of latent variables: all except the fit to the data and the KL
                divergences of q(u). With less than 1 it is no bound, but training may start better.
            generator: Source of the noise.

        Returns:
            A scalar in float64: the sum over ``total`` data, not the mean.
        """
        if noise is None:
            noise = self._draw_noise(samples, len(Y), generator)
        return _bound.estimate_bound(self._list_layers(), Y, total or len(Y), noise, latent_weight)[0]

    def fit(
        self,
        Y: Tensor,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        seconds: float | None = None,
        batch: int = 1000,
        lr: float = 3e-3,
        final_lr: float = 0.02,
        samples: int = 1,
        annealing: int = 0,
        natural: float | None = None,
        generator: torch.Generator | int | None = None,
        progress: bool = False,
        callback: Callback | None = None,
        every: int = 50,
        resume: dict[str, Any] | None = None,
        graph: bool | None = None,
    ) -> FitResult:
        """Learn kernels, noises, inducing inputs, q(u) and recognition networks from minibatches.

        Data for a model on a GPU should be on the GPU; between two checks of the loss nothing waits for the
        device.

        Args:
            Y: (n, D), the data; with a group, those of this process.
            steps: How many minibatches.
            epochs: How many passes over the data, in place of ``steps``.
            seconds: How long. One of the three must be given; if two are, the first limit reached counts.
            batch: Rows per minibatch. With a group of p processes a step is that of one process with p
                times as many rows, taken from those of all processes.
            lr: Learning rate at the start.
            final_lr: Learning rate at the end, relative to the start; it decreases along half a cosine.
            samples: Samples of latent variables per datum and step.
            annealing: Steps in which the weight of the terms of latent variables rises from 0 to 1, so that
                latent variables are not switched off before the model has learned to use them.
            natural: Length of the first steps of q(u) along the natural gradient, between 0 and 1. They
                follow each step of Adam on the other parameters, decrease with its learning rate, and find
                the optimal q(u) much sooner than Adam. 0: Adam moves q(u) too. None: 0.1, or 0 for "separate"
                covariances, whose natural gradients are expensive. If a parameter of any q(u) does not
                require gradients, all are moved by Adam.
            generator: Source of random numbers, or a seed; None: a new one, with a seed from torch's own.
                With a group the same on all processes.
            progress: Show a progress bar with the loss (needs rich).
            callback: Called every ``every`` steps with the step and the mean loss of the steps before; True
                stops the fit.
            every: Steps between two checks of the loss.
            resume: The result of ``training_state``: that fit is continued, up to these limits.
            graph: Replay each step as one CUDA graph, which takes a fraction of the time of a thousand
                launches and gives the same numbers. Kernels and networks must then do the same in each step.
                None: on a GPU, if a step can be recorded. True: raise an error if it cannot. False: never.

        Returns:
            Losses are estimates of minus the bound, per datum, each the mean over ``every`` steps.

        Raises:
            FitError: The loss is not finite, or a factorisation failed; the parameters are then those of the
                last check of the loss.
            DTypeError, DeviceError, ShapeError, NonFiniteError: Y does not fit, or has a NaN.
            OptionError: An argument is not one of those above.
        """
        who = f"{type(self).__name__}.fit"
        Y, share = share_rows(self.group, functools.partial(self._check_observations, "fit", Y))
        rows = batch * share.group.size
        plan = make_plan(who, share.total, rows, steps, epochs, seconds, lr, final_lr, every)
        if samples < 1 or annealing < 0:
            raise _exceptions.OptionError(
                f"{who}: samples must be positive and annealing not negative, got {samples}, {annealing}."
            )
        layers = self._list_layers()
        length = _learning.choose_natural_length(who, layers, natural)
        source = _minibatches.get_generator(
            make_shared_generator(who, generator, Y.device, self.group), Y.device
        )
        task = _learning.DeepTask(layers, Y, samples, annealing, length, share)
        learned = task.select_for_adam(list(self.parameters()))
        training = _minibatches.TrainingRun(who, self, share, plan, task, source, resume, learned, graph)
        return self._run_training(training, progress, callback)

    # Inference.

    @torch.no_grad()
    def embed(self, Y: Tensor, *, layer: int = 0) -> Tensor:
        """Return the latent variables of data: the means of q(h | y), from layer to layer.

        Args:
            Y: (n, D).
            layer: Index into ``widths``: 0 for the top layer, -1 for the one next to the data.

        Returns:
            (n, widths[layer]).
        """
        H = self._check_observations("embed", Y)
        for part in self._list_layers()[: self._count_levels("embed", layer)]:
            H = part.recognition(H)[0]
        return H

    @torch.no_grad()
    def reconstruct(self, Y: Tensor, *, layer: int = -1) -> Tensor:
        """Return the data reconstructed from their latent variables: the mean of y, (n, D).

        Args:
            Y: (n, D).
            layer: The layer of the latent variables, an index into ``widths``: -1 for the one next to the
                data, 0 for the top.
        """
        H = self.embed(Y, layer=layer)
        with without_waiting():
            for part in reversed(self._list_layers()[: self._count_levels("reconstruct", layer)]):
                H = part.functions(H)[0]
        self._check_layers()
        return H

    @torch.no_grad()
    def sample(
        self, count: int = 1, *, noise: bool = False, generator: torch.Generator | int | None = None
    ) -> Tensor:
        """Return new data (count, D), drawn independently of each other.

        Args:
            count: How many.
            noise: Include the noise of observations; else return the mean of y given h_1.
            generator: Source of randomness, or a seed; None: torch's own.
        """
        who = f"{type(self).__name__}.sample"
        if count < 0:
            raise _exceptions.OptionError(f"{who}: count must not be negative, got {count}.")
        source = _checks.make_generator(who, generator, self._get_like().device)
        H = self._draw_normal((count, self.widths[0]), source)
        for level in reversed(range(len(self.widths))):
            layer = self._list_layers()[level]
            mean, variance = layer.functions(H)
            if level == 0 and not noise:
                H = mean
                break
            H = mean + (variance + layer.noise_var).sqrt() * self._draw_normal(tuple(mean.shape), source)
        self._check_layers()
        return H

    @torch.no_grad()
    def log_likelihood(
        self,
        Y: Tensor,
        *,
        samples: int = 1000,
        refine: int = 0,
        chunk: int | None = None,
        generator: torch.Generator | int | None = None,
    ) -> LogLikelihood:
        """Return log p(y) of each observation, by importance sampling from q(h | y).

        The density of each layer is the predictive one: N(h_(l-1) | E f_l, Var f_l + noise_l) at h_l.

        Args:
            Y: (n, D).
            samples: Samples of the latent variables per observation.
            refine: Steps of Adam on the bound that improve q(h_1 | y) of each observation before sampling.
                Recognition networks are worse on data that they were not trained on. The density does not
                depend on them, but a better q needs fewer samples.
            chunk: Pairs of observation and sample per chunk; None: chosen by size.
            generator: Source of randomness, or a seed; None: torch's own.

        Returns:
            Mean, errors, and one value per observation. The expectation of an estimate is not above log p(y).
        """
        who = f"{type(self).__name__}.log_likelihood"
        Y = self._check_observations("log_likelihood", Y)
        if samples < 1 or refine < 0 or (chunk is not None and chunk < 1):
            raise _exceptions.OptionError(
                f"{who}: samples and chunk must be positive and refine not negative, got {samples}, {chunk}, "
                f"{refine}."
            )
        source = _checks.make_generator(who, generator, Y.device)
        layers = self._list_layers()
        prepared = _bound.prepare_layers(layers)
        self._check_layers()
        with without_waiting():
            return _likelihood.estimate_log_likelihood(
                layers, prepared, Y, samples, refine, chunk, lambda shape: self._draw_normal(shape, source)
            )

    # Files.

    def has_all_data(self) -> bool:
        """Return True: the model does not depend on data, once it is learned."""
        return True

    def config(self) -> dict[str, Any]:
        """Return the widths, and the descriptions of the layers."""
        return {
            "widths": self.widths,
            "outputs": self.outputs,
            "layers": [layer.config() for layer in self._list_layers()],
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description, without initial data."""
        check_entries(config, _ENTRIES)
        model = cls.__new__(cls)
        super().__init__(model)
        model.group = None
        model.widths, model.outputs = config["widths"], config["outputs"]
        layers = []
        for level, description in enumerate(config["layers"]):
            own = part_of_state(tensors, f"layers.{level}.")
            mean = (
                ConstantMean(own["functions.raw_inducing"].new_zeros(model.outputs)) if level == 0 else None
            )
            layers.append(DeepLayer.from_config(description, own, modules, mean))
        model.layers = nn.ModuleList(layers)
        return model

    def extra_repr(self) -> str:
        """Return the architecture."""
        return f"widths={self.widths}, outputs={self.outputs}"

    def _list_layers(self) -> list[DeepLayer]:
        return [layer for layer in self.layers if isinstance(layer, DeepLayer)]

    def _draw_noise(self, samples: int, count: int, generator: torch.Generator | None) -> list[Tensor]:
        """Return standard normal numbers (samples, count, w) for the latent variables, those of h_1 first."""
        return [self._draw_normal((samples, count, width), generator) for width in reversed(self.widths)]

    def _check_layers(self) -> None:
        """Raise if a kernel matrix on a GPU could not be factorised (on a CPU that was raised before)."""
        for layer in self._list_layers():
            layer.functions.check()

    def _draw_normal(self, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        like = self._get_like()
        return torch.randn(*shape, dtype=like.dtype, device=like.device, generator=generator)

    def _get_like(self) -> Tensor:
        return self._list_layers()[0].functions.q_mean

    def _count_levels(self, function: str, layer: int) -> int:
        """Return how many layers there are between the data and ``widths[layer]``, which is included."""
        if isinstance(layer, bool) or not -len(self.widths) <= layer < len(self.widths):
            raise _exceptions.OptionError(
                f"{type(self).__name__}.{function}: layer must be an index into the widths {self.widths}, "
                f"got {layer!r}."
            )
        return len(self.widths) - layer % len(self.widths)

    def _check_observations(self, function: str, Y: Tensor) -> Tensor:
        who = f"{type(self).__name__}.{function}"
        Y = _checks.check_inputs(who, Y, "Y", columns=self.outputs)
        _checks.check_same_kind(who, Y=Y, model=self._get_like())
        return Y
