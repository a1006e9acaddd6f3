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
# with $f_t$, $q_t$, $r_t$ out of the network, which sees the last twelve months of the calendar. The states
# are integrated out by the Kalman filter, and the
# gradient of the exact likelihood flows through the filter into the weights. So forecasts come with honest
# bands, which a network alone does not have.
#
# The series: logarithms of monthly airline passengers, 1949 to 1960. The last two years are held out.

# %%
import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from lapgrad.demo.series import load_airline_passengers
from lapgrad.models import LinearGaussianSSM
from lapgrad.models.components import Block, Emitted, LocalLinearTrend

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %%
months, passengers = load_airline_passengers()
y = torch.from_numpy(passengers).log()
horizon = 24
train, test = y[:-horizon], y[-horizon:]

# %% [markdown]
# The network reads the twelve months of the calendar up to the present one, also in the future: it can learn
# a season,
# but not the past by heart. It returns a `Block`: the matrices of a component of the model, here one state
# without
# meaning of its own, an offset, and variances that vary with time.


# %%
class SeasonalNetwork(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, hidden, batch_first=True)
        self.offset = nn.Linear(hidden, 1)
        self.variances = nn.Linear(hidden, 2)
        # Variances of the order of 1e-3 to begin with, the same in all months.
        nn.init.constant_(self.variances.bias, -7.0)
        nn.init.zeros_(self.variances.weight)

    def forward(self, inputs: Tensor) -> Block:
        month = inputs[:, 0].long()
        # One window for each month of the year: that month is the last row.
        windows = (torch.arange(12)[:, None] + torch.arange(1, 13)) % 12
        read = self.lstm(nn.functional.one_hot(windows, 12).to(inputs.dtype))[0][:, -1]
        found = read[month]
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
inputs = (torch.arange(len(months)) % 12).double()[:, None]
network = SeasonalNetwork().double()
trend = LocalLinearTrend(1e-3, 1e-6)
model = LinearGaussianSSM(train, Emitted(network, inputs, states=1) + trend, noise_var=0.0)
result = model.fit("adam", steps=80 if options.quick else 400, lr=0.05 if options.quick else 0.03)
print(f"log likelihood {-result.loss:.1f} after {result.steps} steps in {result.seconds:.1f} s")

# %%
forecast = model.forecast(horizon, noise=True)
error = (forecast.mean - test).square().mean().sqrt()
inside = ((forecast.mean - test).abs() < 1.96 * forecast.variance.sqrt()).double().mean()
last, before = train[-12:], train[-24:-12]
repeated = torch.cat((last, last + (last - before).mean())) + (last - before).mean()
naive = (repeated - test).square().mean().sqrt()
print(f"two years ahead: RMSE {error:.3f} (the last year repeated, with its growth: {naive:.3f})")
print(f"{100 * inside:.0f}% of them lie in the 95% band")

figure, axes = plt.subplots(1, 2, figsize=(14, 4.5), layout="constrained")
x = torch.arange(len(y))
model.plot(horizon, times=x, axes=axes[0])
axes[0].scatter(x[-horizon:], test, s=14, facecolors="none", edgecolors="0.3", label="held out", zorder=3)
axes[0].set(title="airline passengers", xlabel="year", ylabel="logarithm of thousands per month")
axes[0].legend(frameon=False)
with torch.no_grad():
    block, R = model.matrices(len(months))
axes[1].plot(x, block.observation_offset[:, 0], color="#1f5a99", label="offset: the season")
axes[1].plot(x, R[:, 0, 0].sqrt(), color="#d1495b", label="standard deviation of the noise")
axes[1].set(title="what the LSTM emits", xlabel="year", ylabel="logarithm of passengers")
axes[1].set_ylim(-0.3, 0.3)
axes[1].legend(frameon=False, loc="upper left", ncols=2)
for one in axes:
    one.set_xticks(np.arange(0, len(y) + 1, 24), [str(1949 + year) for year in range(0, 13, 2)])
figure.savefig(options.output / "lstm_plus_lds.png", dpi=120)
