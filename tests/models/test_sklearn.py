"""The estimators for scikit-learn: its own checks, and agreement with the models behind them."""

from __future__ import annotations

import fresh_process
import numpy as np
import pytest
import torch
from torch import nn

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from lapgrad import OptionError, models  # noqa: E402
from lapgrad.models.kernels import RBF  # noqa: E402
from lapgrad.sklearn import BayesianLinearRegressor, GPClassifier, GPRegressor, SparseGPRegressor  # noqa: E402

ESTIMATORS = {
    "linear": BayesianLinearRegressor(steps=20),
    "fourier": BayesianLinearRegressor("fourier", frequencies=15, steps=20, random_state=0),
    "gp": GPRegressor(steps=20),
    "sparse gp": SparseGPRegressor(inducing=30, steps=30, random_state=0),
}


CLASSIFIER = GPClassifier(inducing=20, steps=10, random_state=0)


# The checks also fit estimators to noise, which explains nothing.
@pytest.mark.filterwarnings("ignore::lapgrad.FitWarning")
@parametrize_with_checks([*(ESTIMATORS[name] for name in ("linear", "gp", "sparse gp")), CLASSIFIER])
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def curve(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.RandomState(0)
    X = np.column_stack([generator.uniform(-3, 3, n), 100 * generator.uniform(size=n)])
    return X, 50 + 7 * np.sin(X[:, 0]) + 0.02 * X[:, 1] + 0.3 * generator.randn(n)


@pytest.mark.parametrize("name", ["fourier", "gp", "sparse gp"])
def test_learns_a_curve_and_knows_how_sure_it_is(name):
    X, y = curve()
    X_new, y_new = curve(80)[0][60:], curve(80)[1][60:]
    estimator = clone(ESTIMATORS[name]).set_params(steps=100).fit(X, y)
    mean, deviation = estimator.predict(X_new, return_std=True)
    assert estimator.score(X_new, y_new) > 0.97
    assert (np.abs(y_new - mean) < 3 * deviation).mean() > 0.85
    _, covariance = estimator.predict(X_new, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), deviation)
    draws = estimator.sample_y(X_new, 400, random_state=1)
    assert draws.shape == (20, 400)
    assert (np.abs(draws.mean(1) - mean) < deviation).all()
    np.testing.assert_array_equal(draws, estimator.sample_y(X_new, 400, random_state=1))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_units_do_not_matter(name):
    X, y = curve(30)
    units, shift = np.array([1e-3, 1e4]), np.array([5.0, -2.0])
    plain, other = (clone(ESTIMATORS[name]) for _ in range(2))
    plain.fit(X, y)
    other.fit(X * units + shift, 1e3 * y - 7)
    np.testing.assert_allclose(other.predict(X * units + shift), 1e3 * plain.predict(X) - 7, rtol=1e-4)
    difference = plain.log_marginal_likelihood_ - other.log_marginal_likelihood_
    assert abs(difference - 30 * np.log(1e3)) < 0.01


def test_without_normalisation_it_is_the_model():
    X, y = curve(30)
    estimator = GPRegressor(RBF(lengthscale=2.0), normalise=False, steps=10).fit(X, y)
    model = models.GPRegression(torch.tensor(X), torch.tensor(y), RBF(lengthscale=2.0), normalise=False)
    model.fit(steps=10)
    mean, variance = model.predict(torch.tensor(X), noise=True)
    found, deviation = estimator.predict(X, return_std=True)
    np.testing.assert_array_equal(found, mean.numpy())
    # Roots by NumPy as in the estimator: those of torch may differ in the last bit.
    np.testing.assert_array_equal(deviation, np.sqrt(variance.numpy()))
    assert estimator.log_marginal_likelihood_ == -estimator.fit_result_.loss


@pytest.mark.parametrize("name", ["gp", "sparse gp"])
@pytest.mark.parametrize("has_prior", [False, True])
def test_priors_are_no_part_of_the_likelihood(name, has_prior):
    X, y = curve(30)
    kernel = RBF(lengthscale=[1.0, 1.0])
    if has_prior:
        kernel.set_prior("lengthscale", torch.distributions.LogNormal(0.0, 1.0))
    estimator = clone(ESTIMATORS[name]).set_params(kernel=kernel, steps=50).fit(X, y)
    expected = -estimator.model_.loss().item() - len(y) * np.log(y.std())
    assert estimator.log_marginal_likelihood_ == pytest.approx(expected, abs=1e-8)


def test_several_targets():
    X, y = curve(30)
    Y = np.column_stack([y, -3 * y])
    estimator = GPRegressor(steps=20).fit(X, Y)
    mean, deviation = estimator.predict(X[:5], return_std=True)
    assert mean.shape == (5, 2)
    assert deviation.shape == (5,)
    assert estimator.sample_y(X[:5], 3).shape == (5, 2, 3)


def test_arguments_stay_as_they_are():
    X, y = curve(30)
    kernel, network = RBF(lengthscale=2.0), nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    before = network[0].weight.detach().clone()
    GPRegressor(kernel, steps=10).fit(X, y)
    BayesianLinearRegressor(network, steps=10).fit(X, y)
    assert kernel.lengthscale.item() == pytest.approx(2.0)
    assert torch.equal(network[0].weight, before)


def test_restarts_are_starts_of_the_model():
    X, y = curve(30)
    found = GPRegressor(n_restarts_optimizer=3).fit(X, y)
    assert found.fit_result_.loss <= GPRegressor(n_restarts_optimizer=0).fit(X, y).fit_result_.loss + 1e-3


def test_draws_are_those_of_the_prediction():
    X, y = curve(30)
    estimator = GPRegressor(steps=10).fit(X, y)
    _, deviation = estimator.predict(X[:2], return_std=True)
    drawn = estimator.sample_y(X[:2], 5000)
    np.testing.assert_allclose(drawn.std(1), deviation, rtol=0.06)


def test_in_a_pipeline_and_a_search():
    X, y = curve()
    pipeline = make_pipeline(StandardScaler(), BayesianLinearRegressor("polynomial", steps=20))
    grid = {"bayesianlinearregressor__degree": [1, 3]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_params_ == {"bayesianlinearregressor__degree": 3}
    assert cross_val_score(GPRegressor(steps=20), X, y, cv=3).min() > 0.9


def test_mistakes_are_named():
    X, y = curve(10)
    with pytest.raises(OptionError, match="features must be one of 'polynomial', 'fourier', got 'spline'"):
        BayesianLinearRegressor("spline").fit(X, y)
    with pytest.raises(ValueError, match="exclude each other"):
        GPRegressor(steps=2).fit(X, y).predict(X, return_std=True, return_cov=True)


def test_says_what_to_install():
    code = "import sys; sys.modules['sklearn'] = None; import lapgrad; lapgrad.sklearn"
    done = fresh_process.run(code)
    assert done.returncode
    assert "pip install 'lapgrad[sklearn]'" in done.stderr


@pytest.mark.parametrize("classes", [2, 3])
def test_classifier_has_labels_and_probabilities(classes):
    generator = np.random.RandomState(0)
    X = 1000 + 50 * generator.randn(120, 2)
    names = np.array(["low", "middle", "top"])[:classes]
    labels = names[np.digitize(X[:, 0], np.quantile(X[:, 0], np.arange(1, classes) / classes))]
    classifier = GPClassifier(RBF([1.0, 1.0]), inducing=15, steps=60, random_state=1).fit(X, labels)
    assert classifier.classes_.tolist() == sorted(names.tolist())
    assert classifier.score(X, labels) > 0.9
    probabilities = classifier.predict_proba(X)
    assert probabilities.shape == (120, classes)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(1)], classifier.predict(X))
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), probabilities)
    again = clone(classifier).fit(X, labels)
    np.testing.assert_array_equal(again.predict_proba(X), probabilities)
    assert classifier.kernel.lengthscale.tolist() == [1.0, 1.0], "a copy is learned"


@pytest.mark.parametrize(("label", "shown"), [("low", "'low'"), (0.0, "0.0")])
def test_one_class_is_refused(label, shown):
    with pytest.raises(ValueError, match=f"the data have one class, {shown}; at least two are needed"):
        GPClassifier().fit(np.zeros((5, 1)), np.full(5, label))


def test_classifier_in_a_search():
    X = np.linspace(-3, 3, 60)[:, None]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), GPClassifier(steps=5, random_state=0)),
        {"gpclassifier__inducing": [5, 10]},
        scoring="neg_log_loss",
        cv=2,
    ).fit(X, np.sin(X[:, 0]) > 0)
    assert search.best_score_ > -0.7
