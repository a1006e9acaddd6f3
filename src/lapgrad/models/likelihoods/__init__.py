"""Distributions of observations given functions, for ``VariationalGP`` and ``GPClassification``.

A likelihood of your own is a subclass of ``Likelihood``; of ``ElementwiseLikelihood`` if each observed number
has a function of its own.
"""

from lapgrad.models.likelihoods.base import ElementwiseLikelihood, Likelihood, likelihood_from_config
from lapgrad.models.likelihoods.bernoulli import Bernoulli
from lapgrad.models.likelihoods.categorical import Categorical
from lapgrad.models.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from lapgrad.models.likelihoods.poisson import Poisson
from lapgrad.models.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "ElementwiseLikelihood",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Poisson",
    "StudentT",
    "likelihood_from_config",
]


def __dir__() -> list[str]:
    return sorted(__all__)
