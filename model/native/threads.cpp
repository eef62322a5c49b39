// A small pool of threads that sleep while there is nothing to do.
#include "threads.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include <unistd.h>

namespace jev {
namespace {

struct Pool {
    const pid_t owner = getpid();
    std::mutex busy;  // one job at a time
    std::mutex mutex;
    std::condition_variable work, done;
    int workers = 0;

    // The job; changed under `mutex` only while no worker is in it.
    uint64_t job = 0;
    int wanted = 0;   // workers that may still join
    int running = 0;  // workers in it
    void (*task)(void*, int64_t) = nullptr;
    void* context = nullptr;
    int64_t tasks = 0;
    std::atomic<int64_t> next{0};

    void drain() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) task(context, i);
    }

    void worker() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            work.wait(lock, [&] { return job != seen; });
            seen = job;
            if (wanted == 0) continue;
            --wanted;
            ++running;
            lock.unlock();
            drain();
            lock.lock();
            if (--running == 0) done.notify_one();
        }
    }

    void run(int threads, int64_t count, void (*f)(void*, int64_t), void* with) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            try {
                for (; workers < threads - 1; ++workers) std::thread([this] { worker(); }).detach();
            } catch (const std::system_error&) {
                // No more threads to be had: those there are do it.
            }
            task = f;
            context = with;
            tasks = count;
            next.store(0, std::memory_order_relaxed);
            wanted = threads - 1 < workers ? threads - 1 : workers;
            ++job;
        }
        work.notify_all();
        drain();
        std::unique_lock<std::mutex> lock(mutex);
        wanted = 0;  // who has not woken up yet is not needed any more
        done.wait(lock, [&] { return running == 0; });
    }
};

// Never freed: its threads may outlive static destructors. A forked child has none of them and begins anew.
Pool* pool() {
    static std::atomic<Pool*> made{nullptr};
    Pool* current = made.load();
    while (current == nullptr || current->owner != getpid()) {
        Pool* fresh = new Pool;
        if (made.compare_exchange_strong(current, fresh)) return fresh;
        delete fresh;
    }
    return current;
}

}  // namespace

void run_tasks(int threads, int64_t tasks, void (*task)(void*, int64_t), void* context) {
    if (threads > tasks) threads = static_cast<int>(tasks);
    if (threads > 1) {
        Pool* p = pool();
        std::unique_lock<std::mutex> alone(p->busy, std::try_to_lock);
        if (alone.owns_lock()) return p->run(threads, tasks, task, context);
    }
    for (int64_t i = 0; i < tasks; ++i) task(context, i);
}

}  // namespace jev
