"""Distributions of observations given functions, for ``VariationalGP`` and ``GPClassification``."""

from lapgrad.models.likelihoods.base import Likelihood, likelihood_from_config
from lapgrad.models.likelihoods.bernoulli import Bernoulli
from lapgrad.models.likelihoods.categorical import Categorical
from lapgrad.models.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from lapgrad.models.likelihoods.poisson import Poisson
from lapgrad.models.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Poisson",
    "StudentT",
    "likelihood_from_config",
]
