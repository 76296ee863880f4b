// The results of numbered parts, put one after the other while other parts are still worked on. A part's place is known
// when all before it are done; the thread that learns it copies it there, and its buffer serves for a later part.
#pragma once

#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace fledge {

template <typename T>
class Ordered {
public:
    // The parts go to the end of `out`, which has room for all of them.
    Ordered(Buffer<T>& out, std::size_t parts) : out_(out), parts_(parts) {}

    // An empty buffer for the next part.
    Buffer<T> borrow() {
        const std::lock_guard guard(lock_);
        if (idle_.empty()) return {};
        Buffer<T> buffer = std::move(idle_.back());
        idle_.pop_back();
        buffer.set_size(0);
        return buffer;
    }

    // Part `number` is done; placed(number, start) is called for every part whose start in `out` is known now.
    template <typename Placed>
    void hand_in(std::size_t number, Buffer<T> values, const Placed& placed) {
        std::size_t first, end, start;
        {
            const std::lock_guard guard(lock_);
            parts_[number] = {std::move(values), true};
            first = placed_;
            start = out_.size();
            std::size_t size = start;
            for (; placed_ < parts_.size() && parts_[placed_].done; ++placed_) size += parts_[placed_].values.size();
            end = placed_;
            out_.set_size(size);
        }
        for (std::size_t i = first; i < end; ++i) {
            Buffer<T>& part = parts_[i].values;
            placed(i, start);
            if (part.size() > 0) std::memcpy(out_.data() + start, part.data(), part.size() * sizeof(T));
            start += part.size();
            const std::lock_guard guard(lock_);
            idle_.push_back(std::move(part));
        }
    }

private:
    struct Part {
        Buffer<T> values;
        bool done = false;
    };

    Buffer<T>& out_;
    std::vector<Part> parts_;
    std::size_t placed_ = 0;
    std::mutex lock_;
    std::vector<Buffer<T>> idle_;
};

}  // namespace fledge
