#pragma once
#include <cstdint>

namespace jev {

// Run task(context, i) for i in 0..tasks-1 on up to `threads` threads, this one among them. Tasks are taken one
// by one, so a thread that another process holds up delays nobody. Waiting threads sleep.
void run_tasks(int threads, int64_t tasks, void (*task)(void*, int64_t), void* context);

template <class F>
void parallel(int threads, int64_t tasks, const F& f) {
    run_tasks(
        threads, tasks, [](void* context, int64_t i) { (*static_cast<const F*>(context))(i); },
        const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace jev
