"""The watch over the memory of emulated kernels finds each fault, and accepts correct kernels."""

from __future__ import annotations

import emulated
import pytest
import torch

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(emulated.COMPILER is None, reason="needs g++ to emulate kernels"),
]

FAULTS = {
    # kind: (number, lanes that exchange are this far apart, what is said)
    "read across a warp": (0, 5, "without a barrier|that nobody has written"),  # depends on the order
    "read across warps": (1, 40, "without a barrier|that nobody has written"),
    "write of what others read": (2, 3, "without a barrier"),
    "vote for a barrier": (3, 3, "write after a read without a barrier"),
    "two writers": (4, 1, "two writes without a barrier"),
    "padding": (5, 1, "that nobody has written"),
    "past the end": (6, 1, "past the end"),
}


def exchange(kind: int, mask: int, *, is_right: bool, reverse_order: bool) -> torch.Tensor:
    source = torch.arange(64.0, dtype=torch.float64)
    target = torch.empty_like(source)
    name = f"exchange<{{T}}, {kind}, {str(is_right).lower()}>"
    arguments = target.data_ptr(), source.data_ptr(), mask
    plan = (str(emulated.EMULATION / "faults"), name, source, (2,), 64, 64 * 8, *arguments)
    emulated.launch(*plan, reverse_order=reverse_order)
    return target


@pytest.mark.parametrize("reverse_order", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_in_either_order(fault: str, reverse_order: bool) -> None:
    kind, mask, message = FAULTS[fault]
    with pytest.raises(emulated.FaultyKernelError, match=message):
        exchange(kind, mask, is_right=False, reverse_order=reverse_order)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_right_is_let_pass(fault: str) -> None:
    kind, mask, _ = FAULTS[fault]
    target = exchange(kind, mask, is_right=True, reverse_order=False)
    assert target.tolist() == [float(i ^ mask) for i in range(64)]
