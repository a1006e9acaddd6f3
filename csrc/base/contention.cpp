#include "base/contention.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

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
// The file in which the kernel counts how long the calling thread was ready to run and had no core. It is kept open.
class WaitingTime {
  public:
    ~WaitingTime() {
        if (file_ >= 0) close(file_);
    }
    // Returns the time since the thread began, or -1 if this kernel does not count it.
    nanoseconds read() const {
        char text[96];
        const ssize_t length = file_ < 0 ? -1 : pread(file_, text, sizeof text - 1, 0);
        if (length <= 0) return -1;
        text[length] = 0;
        long long running = 0, waiting = 0;
        return std::sscanf(text, "%lld %lld", &running, &waiting) == 2 ? waiting : -1;
    }

  private:
    int file_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
};

// Preemptions, running and waiting time of the calling thread, as counted by the operating system.
struct Reading {
    nanoseconds time = 0, running = 0, waiting = -1;
    std::int64_t preemptions = 0;

    static Reading take(nanoseconds now) {
        thread_local const WaitingTime waiting;
        rusage usage{};
        getrusage(RUSAGE_THREAD, &usage);
        const auto convert = [](const timeval& t) { return (t.tv_sec * 1'000'000LL + t.tv_usec) * 1000LL; };
        return {now, convert(usage.ru_utime) + convert(usage.ru_stime), waiting.read(), usage.ru_nivcsw};
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
        // The kernel's own work, and programs that wake up for a moment, preempt a thread as often as another program that
        // computes, but for microseconds.
        const bool is_short = here.waiting >= 0 && here.waiting - last.waiting < (here.running - last.running) / shortest_wait_share;
        governor().report_preemptions(now, is_short ? 0 : preemptions, here.running - last.running);
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
