// Notices that other programs use the cores, and says how many threads a call should have then.
//
// A parallel loop ends when its last thread has reported. If a thread is waiting for a core that another program uses, the loop
// waits for it, often for a whole time slice of the scheduler (milliseconds) when its own share of the work takes microseconds.
// On one thread the same call does not have to wait.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/plan.h"

namespace lapgrad::contention {

using nanoseconds = std::int64_t;
constexpr nanoseconds millisecond = 1'000'000;

// A join counts as late if it took at least this long, and so many times as long as the caller's own share of the loop: a thread on
// one of the slower cores of a laptop takes two or three times as long for the same work.
constexpr nanoseconds late_join = millisecond / 2;
constexpr nanoseconds late_join_factor = 3;
// Two late joins within this time are contention, if the second one took at least this part (one over it) of the time since the first. One
// may be a thread that had to be woken up, and two far apart a program that ran for a moment.
constexpr nanoseconds late_join_memory = 100 * millisecond, late_join_share = 20;
// A thread that was taken off its core at least `fewest_preemptions` times, and once per `preemption_period` of the time that it
// ran, shares the core with another program. The kernel's own work interrupts a thread a few times per second.
constexpr std::int64_t fewest_preemptions = 2;
constexpr nanoseconds preemption_period = 25 * millisecond;
// Preemptions count if the thread waited for a core for at least this part (one over it) of the time that it ran. Another program
// that computes takes half of a core; what the kernel and programs that sleep most of the time take is a few per cent.
constexpr nanoseconds shortest_wait_share = 4;
// How long a retreat lasts at first, and at most. It gets twice as long each time that contention is found again within
// `probation` after its end.
constexpr nanoseconds shortest_retreat = 100 * millisecond, longest_retreat = 3200 * millisecond, probation = 100 * millisecond;

// Decides from reported observations. It reads no clock: times are arguments. Threads may call it at the same time; a report that gets lost
// is repeated later.
class Governor {
  public:
    // Returns how many of `team` threads a call at time `now` should use: in a retreat one if there are few, else a part of them.
    int limit(int team, nanoseconds now) const {
        if (!is_retreating(now)) return team;
        if (plan::is_few(team)) return 1;
        const int fewer = team >> halvings_.load(std::memory_order_relaxed);
        return fewer > 1 ? fewer : 1;
    }

    bool is_retreating(nanoseconds now) const { return now < until_.load(std::memory_order_relaxed); }

    // Reports a parallel loop: the caller had worked for `work` when it began to wait for the others, and waited for `wait`.
    void report_join(nanoseconds now, nanoseconds work, nanoseconds wait) {
        if (wait < late_join || wait < late_join_factor * work) return;
        const nanoseconds before = last_late_join_.exchange(now, std::memory_order_relaxed);
        if (before != never && now - before <= late_join_memory && wait * late_join_share >= now - before) retreat(now);
    }

    // Reports that a thread was taken off its core `preemptions` times while it ran for `running`.
    void report_preemptions(nanoseconds now, std::int64_t preemptions, nanoseconds running) {
        if (preemptions >= fewest_preemptions && running < preemptions * preemption_period) retreat(now);
    }

  private:
    static constexpr nanoseconds never = -1;

    void retreat(nanoseconds now) {
        const nanoseconds until = until_.load(std::memory_order_relaxed);
        nanoseconds length = length_.load(std::memory_order_relaxed);
        if (now < until) {  // Still contended on fewer threads.
            if (halvings_.load(std::memory_order_relaxed) < most_halvings) halvings_.fetch_add(1, std::memory_order_relaxed);
        } else {
            const bool is_again = until != never && now - until <= probation;
            length = !is_again ? shortest_retreat : length < longest_retreat ? 2 * length : longest_retreat;
            length_.store(length, std::memory_order_relaxed);
            halvings_.store(1, std::memory_order_relaxed);
        }
        until_.store(now + length, std::memory_order_relaxed);
    }

    static constexpr int most_halvings = 16;
    std::atomic<nanoseconds> until_{never}, length_{shortest_retreat}, last_late_join_{never};
    std::atomic<int> halvings_{0};
};

// The governor of the process.
Governor& governor();

// Whether the process retreats at all, and the number of threads that it never exceeds (0: no limit), such as a container's share.
void configure(bool retreats, int most_threads);

// Returns the time of a clock that only goes forward.
nanoseconds read_clock();

// Returns how many of `team` threads a call should use now. At intervals it reads how often this thread was preempted.
int limit_threads(int team);

// Whether the process is in a retreat now: other programs use the cores.
bool is_retreating();

// While alive and `is_long`, calls of this thread keep all threads in a retreat too. It is for loops with a single join and much work:
// the join costs a time slice of the scheduler at most, and two threads get a larger share of cores that others use than one does.
class LongLoop {
  public:
    explicit LongLoop(bool is_long);
    ~LongLoop();
    LongLoop(const LongLoop&) = delete;
    LongLoop& operator=(const LongLoop&) = delete;

  private:
    bool before_;
};

// While alive, loops of this thread get as many threads as without a LongLoop. It is for short steps of a long call, such as a copy:
// the join of each would cost a time slice of the scheduler.
class ShortLoop {
  public:
    ShortLoop();
    ~ShortLoop();
    ShortLoop(const ShortLoop&) = delete;
    ShortLoop& operator=(const ShortLoop&) = delete;

  private:
    bool before_;
};

}  // namespace lapgrad::contention
