// Threads that wait for work with open eyes. Decoding hands out a piece every few dozen microseconds, and waking a
// sleeping thread takes as long as the piece: so each looks for the next one for a while before it goes to sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "platform.hpp"

namespace fledge {

class Team {
  public:
    // Of `wanted` threads as many as the system gives, this one among them.
    explicit Team(unsigned wanted) : wanted_(wanted) {
        helpers_.reserve(wanted);
        try {
            for (unsigned part = 1; part < wanted; ++part) helpers_.emplace_back([this, part] { serve(part); });
        } catch (const std::system_error&) {  // a limit on processes, or on memory for their stacks
        }
    }

    ~Team() {
        {
            const std::lock_guard guard(lock_);
            ended_ = true;
            round_.fetch_add(1);
        }
        awake_.notify_all();
        for (std::thread& helper : helpers_) helper.join();
    }

    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    unsigned wanted() const { return wanted_; }
    unsigned size() const { return static_cast<unsigned>(helpers_.size()) + 1; }

    // Calls work(part) once for every part of the team, part 0 on this thread; returns when all are done.
    template <typename Work>
    void run(const Work& work) {
        call_ = [](const void* what, unsigned part) { (*static_cast<const Work*>(what))(part); };
        what_ = &work;
        left_.store(size() - 1, std::memory_order_relaxed);
        round_.fetch_add(1);
        if (sleepers_.load() > 0) {
            { const std::lock_guard guard(lock_); }
            awake_.notify_all();
        }
        work(0);
        for (unsigned looks = 0; left_.load(std::memory_order_acquire) > 0; ++looks) {
            looks < patience ? rest_briefly() : std::this_thread::yield();
        }
    }

  private:
    static constexpr unsigned patience = 10'000;  // looks, some hundred microseconds

    void serve(unsigned part) {
        for (unsigned seen = 0;; ++seen) {
            unsigned looks = 0;
            while (round_.load(std::memory_order_acquire) == seen) {
                if (++looks < patience) {
                    rest_briefly();
                } else {
                    std::unique_lock guard(lock_);
                    sleepers_.fetch_add(1);
                    awake_.wait(guard, [&] { return round_.load() != seen; });
                    sleepers_.fetch_sub(1);
                }
            }
            if (ended_) return;
            call_(what_, part);
            left_.fetch_sub(1, std::memory_order_release);
        }
    }

    unsigned wanted_;
    void (*call_)(const void*, unsigned) = nullptr;
    const void* what_ = nullptr;
    std::atomic<unsigned> round_{0}, left_{0}, sleepers_{0};
    bool ended_ = false;
    std::mutex lock_;
    std::condition_variable awake_;
    std::vector<std::thread> helpers_;
};

struct SharedTeam {
    std::mutex one_at_a_time;
    std::unique_ptr<Team> team;
    std::uint64_t owner = 0;
};

inline SharedTeam& shared_team() {
    static auto* shared = new SharedTeam;  // never taken down: at the end of the process its threads are asleep
    return *shared;
}

// Runs work(part, parts) on the process's team of `threads`; alone where another thread has the team just now. A child
// of fork has none of its parent's threads: it gets a team of its own.
template <typename Work>
void run_on_team(unsigned threads, const Work& work) {
    SharedTeam& shared = shared_team();
    std::unique_lock turn(shared.one_at_a_time, std::defer_lock);
    if (threads < 2 || !turn.try_lock()) {
        work(0U, 1U);
        return;
    }
    if (shared.owner != process_number()) {
        static_cast<void>(shared.team.release());  // its threads stayed behind with the parent
        shared.owner = process_number();
    }
    if (!shared.team || shared.team->wanted() != threads) shared.team = std::make_unique<Team>(threads);
    shared.team->run([&](unsigned part) { work(part, shared.team->size()); });
}

}  // namespace fledge
