"""An LSTM and a linear dynamical system, learned together: airline passengers."""

# %% [markdown]
# # A network that emits a state space model
#
# The series is the sum of what an LSTM says, and of a linear dynamical system whose variances the LSTM emits
# as well:
#
# $$y_t = f_t + h_t + \mathcal N(0, r_t), \quad h_{t+1} = h_t + s_t + \mathcal N(0, q_t), \quad
#   s_{t+1} = s_t + \mathcal N(0, q')$$
#
# with $f_t$, $q_t$, $r_t$ out of the network. The states are integrated out by the Kalman filter, and the
# gradient of the exact likelihood flows through the filter into the weights. So forecasts come with honest
# bands, which a network alone does not have.
#
# The series: logarithms of monthly airline passengers, 1949 to 1960 (`airline_passengers.csv`; without the
# file one is simulated). The last two years are held out.

# %%
import argparse
import csv
import math
import os
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from lapgrad.models import LinearGaussianSSM
from lapgrad.models.components import Block, Emitted, LocalLinearTrend

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
parser.add_argument("--data-dir", type=Path, help="folder with airline_passengers.csv [$LAPGRAD_DATA]")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %%
file = (options.data_dir or Path(os.environ.get("LAPGRAD_DATA", "."))) / "airline_passengers.csv"
months = torch.arange(144, dtype=torch.float64)
if file.is_file():
    with file.open() as lines:
        passengers = [float(row["passengers_thousands"]) for row in csv.DictReader(lines)]
    y = torch.tensor(passengers, dtype=torch.float64).log()
else:
    print(f"{file} is not there (it is among the data sets of R): a simulated series")
    generator = torch.Generator().manual_seed(0)
    walk = (0.01 + 0.03 * torch.randn(144, dtype=torch.float64, generator=generator)).cumsum(0)
    season = 0.15 * torch.sin(math.pi * months / 6) + 0.08 * torch.cos(math.pi * months / 3)
    y = 4.8 + walk + season
horizon = 24
train, test = y[:-horizon], y[-horizon:]

# %% [markdown]
# The network sees the month of the year, also that of the future. It returns a `Block`: the matrices of a
# component of the model, here one state without meaning of its own, an offset, and variances that vary with
# time.


# %%
class SeasonalNetwork(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, hidden, batch_first=True)
        self.offset = nn.Linear(hidden, 1)
        self.variances = nn.Linear(hidden, 2)
        # Variances of the order of 1e-3 to begin with.
        nn.init.constant_(self.variances.bias, -7.0)

    def forward(self, inputs: Tensor) -> Block:
        found = self.lstm(inputs[None])[0][0]
        q, r = self.variances(found).exp().unbind(-1)
        one = inputs.new_ones(1, 1, 1)
        return Block(
            A=one,
            B=one,
            Q=q[:, None, None],
            m=inputs.new_zeros(1),
            P=1e-6 * inputs.new_ones(1, 1),
            observation_offset=self.offset(found),
            R=r[:, None, None],
        )


torch.manual_seed(0)
inputs = nn.functional.one_hot(months.long() % 12, 12).double()
network = SeasonalNetwork().double()
trend = LocalLinearTrend(1e-4, 1e-6)
model = LinearGaussianSSM(train, Emitted(network, inputs, states=1) + trend, noise_var=0.0)
result = model.fit("adam", steps=40 if options.quick else 600, lr=0.02)
print(f"log likelihood {-result.loss:.1f} after {result.steps} steps in {result.seconds:.1f} s")

# %%
forecast = model.forecast(horizon)
error = (forecast.mean - test).square().mean().sqrt()
inside = ((forecast.mean - test).abs() < 1.96 * forecast.variance.sqrt()).double().mean()
naive = (y[-2 * horizon : -horizon] - test).square().mean().sqrt()
print(f"two years ahead: RMSE {error:.3f} (the same months two years before: {naive:.3f})")
print(f"{100 * inside:.0f}% of them lie in the 95% band")

figure, axes = plt.subplots(1, 2, figsize=(14, 4.5), layout="constrained")
years = 1949 + months / 12
model.plot(horizon, times=years, axes=axes[0])
axes[0].scatter(years[-horizon:], test, s=14, facecolors="none", edgecolors="0.3", label="held out", zorder=3)
axes[0].set(title="log passengers", xlabel="year")
axes[0].legend(frameon=False)
with torch.no_grad():
    block, R = model.matrices(len(months))
axes[1].plot(years, block.observation_offset[:, 0], color="#1f5a99", label="offset")
axes[1].plot(years, R[:, 0, 0].sqrt(), color="#d1495b", label="deviation of the noise")
axes[1].set(title="what the LSTM emits", xlabel="year")
axes[1].legend(frameon=False)
figure.savefig(options.output / "lstm_plus_lds.png", dpi=120)
