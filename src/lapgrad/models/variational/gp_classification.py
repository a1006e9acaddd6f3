"""Classification with Gaussian processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models import _checks
from lapgrad.models._deep.start import Covariance
from lapgrad.models._storage.entries import Entry, check_entries
from lapgrad.models.kernels.base import Kernel
from lapgrad.models.likelihoods.bernoulli import Bernoulli
from lapgrad.models.likelihoods.categorical import Categorical
from lapgrad.models.variational.layered_model import LayeredModel, LayerOptions


def _are_labels(value: object) -> bool:
    """Whether a value of a file is a list of distinct labels of one type, finite if they are numbers."""
    if not isinstance(value, list) or len(value) < 2 or len({type(label) for label in value}) > 1:
        return False
    if not isinstance(value[0], str | int | float):  # true and false are int, too
        return False
    is_finite = isinstance(value[0], str) or all(math.isfinite(label) for label in value)
    return is_finite and len(set(value)) == len(value)


_LABELS = Entry("a list of at least two different labels of one type", _are_labels)


class ClassPrediction(NamedTuple):
    """The distribution over classes at m new inputs.

    Attributes:
        labels: (m,), the most probable class of each: a NumPy array of labels as they were given.
        probabilities: (m, classes), in the order of ``classes``.
    """

    labels: NDArray[Any]
    probabilities: Tensor


class GPClassification(LayeredModel):
    """Classes y given inputs x: p(y = c | x) from Gaussian processes with inducing inputs.

    Two classes are one function with the logistic ``Bernoulli`` likelihood; more are one function each with
    the softmax of ``Categorical``. Everything is learned by a bound of the log likelihood, as
    ``VariationalGP`` does. With ``widths`` there are layers of functions below.

    Args:
        X: (n, d) or (n,), float32 or float64. The model has its device and dtype.
        labels: (n,), the classes: a tensor, an array or a list of whole numbers, text, or true and false.
        kernel, widths, inducing, init, mean, whiten, covariance, start, jitter, generator: As in
            ``VariationalGP``.
        normalise: Shift and scale each column of X to mean 0 and variance 1.

    Attributes:
        classes: The classes in sorted order, a NumPy array.
        likelihood, layers, constant: As in ``VariationalGP``.

    Raises:
        DTypeError, DeviceError, ShapeError: X is not a float32 or float64 matrix, or ``labels`` has another
            length.
        NonFiniteError: X has a NaN or an infinity; the rows are named.
        OptionError: An option is not one of those of ``VariationalGP``, there are fewer than two classes, or
            labels are numbers with a fraction.

    Example:
        >>> import torch
        >>> from lapgrad.models import GPClassification
        >>> x = torch.linspace(-3, 3, 100, dtype=torch.float64)
        >>> labels = ["left" if value < 0 else "right" for value in x]
        >>> model = GPClassification(x, labels, inducing=10, generator=0)
        >>> result = model.fit(steps=50, generator=0)
        >>> model.predict(torch.tensor([-1.0, 2.0], dtype=torch.float64)).labels.tolist()
        ['left', 'right']
    """

    def __init__(
        self,
        X: Tensor,
        labels: Tensor | ArrayLike,
        kernel: Kernel | Sequence[Kernel] | None = None,
        *,
        widths: Sequence[int] = (),
        inducing: int | Tensor = 100,
        init: str = "greedy",
        mean: str = "linear",
        whiten: bool = True,
        covariance: Covariance | None = None,
        normalise: bool = True,
        start: str = "data",
        jitter: float = 1e-6,
        generator: torch.Generator | int | None = None,
    ) -> None:
        who = type(self).__name__
        array = _as_labels(who, labels)
        classes, numbers = np.unique(array, return_inverse=True)
        if len(classes) < 2:
            raise _exceptions.OptionError(
                f"{who}: labels must have at least two classes, got {classes.tolist()}."
            )
        X = _checks.check_inputs(who, X)
        if len(array) != len(X):
            raise _exceptions.ShapeError(f"{who}: there are {len(X)} rows of X, got {len(array)} labels.")
        y = torch.as_tensor(numbers, device=X.device).to(X.dtype)
        likelihood = Bernoulli() if len(classes) == 2 else Categorical(len(classes))
        options = LayerOptions(
            widths, inducing, init, mean, whiten, covariance, normalise, start, jitter, generator
        )
        super().__init__(X, y, likelihood, kernel, options)
        self.classes: NDArray[Any] = classes

    def predict(
        self,
        X_new: Tensor,
        *,
        samples: int = 100,
        chunk: int | None = None,
        generator: torch.Generator | int | None = 0,
    ) -> ClassPrediction:
        """Return the most probable classes, and the probabilities of all classes, at new inputs.

        The probabilities are differentiable with respect to ``X_new``; the parameters count as constants.

        Args:
            X_new: (m, d) or (m,).
            samples: How many samples of the inner layers.
            chunk: Inputs per chunk, to limit the memory; None: chosen by size.
            generator: Source of random numbers, or a seed: by default the same ones in every call. None:
                torch's own.

        Raises:
            DTypeError, DeviceError, ShapeError, NonFiniteError: X_new does not fit, or has a NaN.
        """
        X_new = self._check_new_inputs("predict", X_new)
        with self._hold_parameters(X_new):
            parts = self._predict_functions("predict", X_new, samples, chunk, generator)
            p = self._average(parts, self.likelihood.predict_observations)[0]
        if len(self.classes) == 2:
            p = torch.cat((1.0 - p, p), -1)
        return ClassPrediction(self.classes[p.detach().argmax(-1).cpu().numpy()], p)

    def predict_proba(self, X_new: Tensor, **options: Any) -> Tensor:
        """Return the probabilities (m, classes) at new inputs; options as in ``predict``."""
        return self.predict(X_new, **options).probabilities

    @torch.no_grad()
    def sample(
        self, X_new: Tensor, count: int = 1, *, generator: torch.Generator | int | None = None
    ) -> NDArray[Any]:
        """Return draws of labels (count, m), each of one function at all new inputs.

        Args:
            X_new: (m, d) or (m,).
            count: How many draws.
            generator: Source of randomness, or a seed; None: torch's own.
        """
        inputs = self._scale_inputs(self._check_new_inputs("sample", X_new))
        source = _checks.make_generator(f"{type(self).__name__}.sample", generator, inputs.device)
        drawn = self.likelihood.draw_observations(self._draw_functions(inputs, count, source), source)
        return self.classes[drawn[..., 0].long().cpu().numpy()]

    def number_observations(self, who: str, y: Any, X: Tensor, name: str) -> Any:
        """Return the class numbers (n,) of labels; labels as they are before ``classes`` is set."""
        if not hasattr(self, "classes"):
            return y
        array = _as_labels(who, y)
        known = np.isin(array, self.classes)
        if not known.all():
            unknown = np.unique(array[~known]).tolist()[:5]
            raise _exceptions.OptionError(
                f"{who}: {name} has labels that are not classes of the model: {unknown}."
            )
        return torch.as_tensor(np.searchsorted(self.classes, array), device=X.device)

    # Files.

    def config(self) -> dict[str, Any]:
        """Return options, classes, and the descriptions of likelihood and kernels."""
        return {**super().config(), "classes": self.classes.tolist()}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a model of this description with the data that were saved."""
        check_entries(config, {"classes": _LABELS})
        y, _, kernels, options = cls._read_parts(config, tensors, modules)
        classes = np.asarray(options.pop("classes"))
        if not bool(((y >= 0) & (y < len(classes)) & (y == y.floor())).all()):
            raise _exceptions.OptionError(
                f"{cls.__name__}: y must be finite whole numbers below {len(classes)}, the number of classes."
            )
        return cls(tensors["X"], classes[y.long().cpu().numpy()], kernels, **options)

    def extra_repr(self) -> str:
        """Size of the data, layers, inducing inputs, and the classes."""
        return f"{super().extra_repr()}, classes={self.classes.tolist()}"


def _as_labels(who: str, labels: Any) -> NDArray[Any]:
    """Return labels as an array (n,)."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1:
        raise _exceptions.ShapeError(f"{who}: labels must have shape (n,), got {array.shape}.")
    if array.dtype == object:
        array = array.astype(str)
    if array.dtype.kind not in "biufU":
        raise _exceptions.DTypeError(f"{who}: labels must be numbers or text, got {array.dtype}.")
    if array.dtype.kind == "f" and not np.array_equal(array, np.floor(array)):
        first = float(array[array != np.floor(array)][0])
        raise _exceptions.OptionError(
            f"{who}: labels must be classes (whole numbers or text), got {first!r}. "
            f"For continuous observations use GPRegression or VariationalGP."
        )
    return array
