// Runs numbered pieces of work on some threads, the next free thread taking the next number. The first exception ends
// the work and is thrown where it was asked for. Where the system gives fewer threads, these do all of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fledge {

// make_worker() is called once on each thread; what it returns is called with the numbers 0..count-1, each once.
template <typename MakeWorker>
void run_parallel(std::size_t count, unsigned threads, MakeWorker make_worker) {
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex lock;
    const auto work = [&] {
        try {
            auto worker = make_worker();
            for (std::size_t i = next++; i < count; i = next++) worker(i);
        } catch (...) {
            next = count;
            const std::lock_guard guard(lock);
            if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::thread> helpers;
    helpers.reserve(std::min<std::size_t>(threads, count));
    try {
        for (unsigned i = 1; i < threads && i < count; ++i) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // a limit on processes, or on memory for their stacks
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace fledge
