#include "base/contention.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

namespace lapgrad::contention {

namespace {

// Time between two readings of a thread's preemptions: the reading is a system call of 0.3 microseconds.
constexpr nanoseconds reading_pause = 5 * millisecond;
// An older reading says nothing about the present. The limit is long, because a call of torch or LAPACK between two readings takes seconds
// if its threads wait for cores that others use.
constexpr nanoseconds oldest_reading = 30'000 * millisecond;

std::atomic<bool> is_on{true};
std::atomic<int> most{0};
// Whether a LongLoop of this thread is alive. It is a thread-local because loops ask for threads many calls below the one that knows how
// long the work takes.
thread_local bool keeps_threads = false;

#ifdef RUSAGE_THREAD
// Preemptions and running time of the calling thread, as counted by the operating system.
struct Reading {
    nanoseconds time = 0, running = 0;
    std::int64_t preemptions = 0;

    static Reading take(nanoseconds now) {
        rusage usage{};
        getrusage(RUSAGE_THREAD, &usage);
        const auto convert = [](const timeval& t) { return (t.tv_sec * 1'000'000LL + t.tv_usec) * 1000LL; };
        return {now, convert(usage.ru_utime) + convert(usage.ru_stime), usage.ru_nivcsw};
    }
};

void look_for_preemptions(nanoseconds now) {
    thread_local Reading last;
    if (now - last.time < reading_pause) return;
    const Reading here = Reading::take(now);
    if (now - last.time <= oldest_reading) {
        const std::int64_t preemptions = here.preemptions - last.preemptions;
        // Few preemptions in a short time say little: they are counted together with those of the next reading.
        if (preemptions > 0 && preemptions < fewest_preemptions && here.running - last.running < preemption_period) return;
        governor().report_preemptions(now, preemptions, here.running - last.running);
    }
    last = here;
}
#else
void look_for_preemptions(nanoseconds) {}  // This system does not count them by thread; late joins are noticed all the same.
#endif

}  // namespace

Governor& governor() {
    static Governor of_process;
    return of_process;
}

void configure(bool retreats, int most_threads) {
    is_on = retreats;
    most = most_threads;
}

nanoseconds read_clock() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int limit_threads(int team) {
    if (const int cap = most.load(std::memory_order_relaxed)) team = std::min(team, cap);
    if (team <= 1 || !is_on.load(std::memory_order_relaxed)) return team;
    const nanoseconds now = read_clock();
    look_for_preemptions(now);
    return keeps_threads ? team : governor().limit(team, now);
}

bool is_retreating() { return is_on.load(std::memory_order_relaxed) && governor().is_retreating(read_clock()); }

LongLoop::LongLoop(bool is_long) : before_(keeps_threads) { keeps_threads = before_ || is_long; }

LongLoop::~LongLoop() { keeps_threads = before_; }

ShortLoop::ShortLoop() : before_(keeps_threads) { keeps_threads = false; }

ShortLoop::~ShortLoop() { keeps_threads = before_; }

}  // namespace lapgrad::contention
