"""Other programs on the same cores: when threads are given up, when they come back, and quotas of containers.

The times are made up: nothing here depends on how busy this machine is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fresh_process import get_output

from lapgrad import _quota
from lapgrad._kernels import cpu as _cpu

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not _cpu.is_available(), reason="needs the compiled core"),
]

MS = 1_000_000
START = 10**15


def make_contended_governor(now: int = START) -> object:
    """Return a governor that has seen two late joins, the second one at ``now``."""
    governor = _cpu.core.Governor()
    governor.report_join(now - MS, MS // 10, 3 * MS)
    governor.report_join(now, MS // 10, 3 * MS)
    return governor


def test_a_quiet_machine_keeps_all_threads() -> None:
    governor = _cpu.core.Governor()
    for i in range(1000):
        now = START + i * MS
        governor.report_join(now, MS, MS // 5)  # balanced loops
        governor.report_join(now, MS // 20, MS // 10)  # a thread that had to be woken up
        governor.report_join(now, 5 * MS, 3 * MS)  # long tasks that end at different times
        governor.report_join(now, 5 * MS, 12 * MS)  # a slower core
        governor.report_preemptions(now, 1, 100 * MS)  # the kernel's own work
        governor.report_preemptions(now, 0, MS)
        assert governor.limit(2, now) == 2
        assert governor.limit(16, now) == 16


def test_one_late_join_is_no_contention() -> None:
    governor = _cpu.core.Governor()
    for i in range(10):  # far apart
        governor.report_join(START + i * 500 * MS, MS // 10, 3 * MS)
        assert governor.limit(2, START + i * 500 * MS) == 2


def test_late_joins_that_cost_little_are_no_contention() -> None:
    """A program that wakes up for a moment, 25 times per second: two per cent of the time are lost."""
    governor = _cpu.core.Governor()
    for i in range(100):
        now = START + i * 40 * MS
        governor.report_join(now, MS // 10, MS)
        assert governor.limit(2, now + 1) == 2


def test_late_joins_lead_to_one_thread_for_a_while() -> None:
    governor = make_contended_governor()
    assert governor.limit(2, START + 1) == 1
    assert governor.limit(4, START + 99 * MS) == 1
    assert governor.limit(2, START + 101 * MS) == 2


@pytest.mark.parametrize(
    ("preemptions", "running", "expected"), [(2, 10, 1), (2, 60, 2), (1, 1, 2), (40, 900, 1)]
)
def test_preemptions_count_by_the_time_that_a_thread_ran(
    preemptions: int, running: int, expected: int
) -> None:
    governor = _cpu.core.Governor()
    governor.report_preemptions(START, preemptions, running * MS)
    assert governor.limit(2, START + 1) == expected


def test_retreats_get_longer_while_contention_comes_back() -> None:
    governor, now, lengths = make_contended_governor(), START, []
    for _ in range(8):
        length = next(ms for ms in range(10_000) if governor.limit(2, now + ms * MS) == 2)
        lengths.append(length)
        now += (length + 10) * MS
        governor.report_preemptions(now, 3, 10 * MS)  # soon after the pool was tried again
    assert lengths == [100, 200, 400, 800, 1600, 3200, 3200, 3200]


def test_a_quiet_time_makes_the_next_retreat_short_again() -> None:
    governor = make_contended_governor()
    for now in (START + 110 * MS, START + 330 * MS):
        governor.report_preemptions(now, 3, 10 * MS)
    later = START + 5000 * MS
    governor.report_preemptions(later, 3, 10 * MS)
    assert governor.limit(2, later + 99 * MS) == 1
    assert governor.limit(2, later + 101 * MS) == 2


def test_contention_on_fewer_threads_extends_the_retreat() -> None:
    governor = make_contended_governor()
    governor.report_preemptions(START + 90 * MS, 3, 10 * MS)
    assert governor.limit(2, START + 150 * MS) == 1
    assert governor.limit(2, START + 191 * MS) == 2


def test_large_teams_are_halved() -> None:
    governor, found = make_contended_governor(), []
    for i in range(5):
        found.append(governor.limit(16, START + i * MS + 1))
        governor.report_preemptions(START + i * MS + 1, 3, 10 * MS)
    assert found == [8, 4, 2, 1, 1]


def test_the_pool_is_limited_and_results_stay_the_same() -> None:
    """The limits are one thread, and two of three threads."""
    threads = torch.get_num_threads()
    A = torch.randn(300, 300, dtype=torch.float64)
    A = A @ A.mT + 300 * torch.eye(300, dtype=torch.float64)
    from lapgrad import potrf, syevd

    expected = torch.linalg.cholesky(A), torch.linalg.eigvalsh(A)
    try:
        for most, pool in ((1, 2), (2, 3), (2, 2)):
            torch.set_num_threads(pool)
            _cpu.core.configure_contention(False, most)
            assert _cpu.core.threads() == pool
            assert _cpu.core.limited_threads() == most
            torch.testing.assert_close(potrf(A), expected[0], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(syevd(A).eigenvalues, expected[1], rtol=1e-10, atol=1e-10)
    finally:
        torch.set_num_threads(threads)
        _cpu.core.configure_contention(False, 0)


def test_long_solves_and_products_in_a_retreat_are_right() -> None:
    """They keep their threads, and cut the columns into more slices."""
    from lapgrad import trmm, trsm

    threads = torch.get_num_threads()
    L = (torch.randn(940, 940, dtype=torch.float64) / 940).tril() + torch.eye(940, dtype=torch.float64)
    B = torch.randn(940, 951, dtype=torch.float64)
    try:
        torch.set_num_threads(2)
        _cpu.core.configure_contention(True, 0)
        for _ in range(3):
            _cpu.core.retreat_now()
            torch.testing.assert_close(L @ trsm(L, B), B, rtol=1e-12, atol=1e-12)
            _cpu.core.retreat_now()
            torch.testing.assert_close(trmm(L, B), L @ B, rtol=1e-12, atol=1e-12)
    finally:
        torch.set_num_threads(threads)
        _cpu.core.configure_contention(False, 0)


@pytest.fixture
def groups(tmp_path: Path) -> tuple[Path, Path]:
    """A file that names the groups of the process, and a folder in place of /sys/fs/cgroup."""
    (tmp_path / "sys").mkdir()
    return tmp_path / "cgroup", tmp_path / "sys"


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 0), ("100000 100000", 1), ("250000 100000", 3), ("50000 100000", 1), ("broken", 0)],
)
def test_quota_of_version_2(groups: tuple[Path, Path], quota: str, expected: int) -> None:
    names, mount = groups
    names.write_text("0::/user/job\n")
    (mount / "user" / "job").mkdir(parents=True)
    (mount / "user" / "job" / "cpu.max").write_text(f"{quota}\n")
    assert _quota.count_allowed_threads(names, mount) == expected


def test_the_smallest_quota_of_all_groups_around_counts(groups: tuple[Path, Path]) -> None:
    names, mount = groups
    names.write_text("0::/user/job\n")
    (mount / "user" / "job").mkdir(parents=True)
    (mount / "user" / "job" / "cpu.max").write_text("max 100000\n")
    (mount / "user" / "cpu.max").write_text("300000 100000\n")
    (mount / "cpu.max").write_text("800000 100000\n")
    assert _quota.count_allowed_threads(names, mount) == 3


def test_quota_of_version_1(groups: tuple[Path, Path]) -> None:
    names, mount = groups
    names.write_text("5:memory:/job\n4:cpu,cpuacct:/job\n")
    (mount / "cpu" / "job").mkdir(parents=True)
    (mount / "cpu" / "job" / "cpu.cfs_quota_us").write_text("200000\n")
    (mount / "cpu" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    (mount / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (mount / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert _quota.count_allowed_threads(names, mount) == 2


def test_no_groups_at_all(tmp_path: Path) -> None:
    assert _quota.count_allowed_threads(tmp_path / "none", tmp_path) == 0


def test_retreats_can_be_switched_off() -> None:
    """Then preemptions that are reported to the governor of the process change nothing."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        _cpu.core.configure_contention(True, 0)
        _cpu.core.retreat_now()
        assert _cpu.core.limited_threads() == 1
        _cpu.core.configure_contention(False, 0)
        assert _cpu.core.limited_threads() == 2
    finally:
        torch.set_num_threads(threads)
        _cpu.core.configure_contention(False, 0)


def test_the_environment_switches_retreats_off() -> None:
    program = (
        "import torch; torch.set_num_threads(2)\n"
        "from lapgrad._kernels.cpu import core\n"
        "core.retreat_now()\n"
        "print(core.limited_threads())\n"
    )
    assert get_output(program, LAPGRAD_CONTENTION="off").strip() == "2"
