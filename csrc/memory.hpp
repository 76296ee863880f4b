// Memory that is handed out untouched: room for the worst case costs address space only, and what was not used is given
// back when the result is cut to its size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "platform.hpp"

namespace fledge {

constexpr std::size_t large_bytes = std::size_t{4} << 20;

template <typename T>
class Buffer {
public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    std::size_t size() const { return size_; }
    std::size_t capacity() const { return capacity_; }

    // Room for `more` elements past the end; their values are whatever was there. Grows by half at least.
    void reserve(std::size_t more) {
        if (capacity_ - size_ >= more) return;
        resize_memory(std::max(size_ + more, capacity_ + capacity_ / 2));
    }
    void set_size(std::size_t size) { size_ = size; }

    void push_back(T value) {
        reserve(1);
        data_[size_++] = value;
    }

    template <typename U>
    void append(const U* values, std::size_t count) {
        reserve(count);
        for (std::size_t i = 0; i < count; ++i) data_[size_ + i] = static_cast<T>(values[i]);
        size_ += count;
    }

    void shrink() { resize_memory(size_); }

    // The caller frees what it takes with std::free.
    T* release() {
        size_ = capacity_ = 0;
        return std::exchange(data_, nullptr);
    }

private:
    void swap(Buffer& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
    }

    void resize_memory(std::size_t capacity) {
        const std::size_t bytes = std::max<std::size_t>(capacity, 1) * sizeof(T);
        const bool in_place = bytes < large_bytes || capacity <= capacity_;
        void* moved = in_place ? std::realloc(static_cast<void*>(data_), bytes) : large_copy(bytes);
        if (!moved) throw std::bad_alloc();
        data_ = static_cast<T*>(moved);
        capacity_ = capacity;
    }

    void* large_copy(std::size_t bytes) {
        void* memory = large_memory(bytes);
        if (!memory) return nullptr;
        if (size_ > 0) std::memcpy(memory, data_, size_ * sizeof(T));
        std::free(data_);
        return memory;
    }

    T* data_ = nullptr;
    std::size_t size_ = 0, capacity_ = 0;
};

// A zeroed array of a table's slots.
template <typename T>
class Slots {
public:
    Slots() = default;
    explicit Slots(std::size_t size) : size_(size) {
        data_ = static_cast<T*>(zeroed_memory(bytes()));
        if (!data_) throw std::bad_alloc();
    }
    Slots(Slots&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Slots& operator=(Slots&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Slots() {
        if (data_) return_zeroed_memory(data_, bytes());
    }

    T& operator[](std::size_t i) { return data_[i]; }
    const T& operator[](std::size_t i) const { return data_[i]; }
    T* begin() { return data_; }
    T* end() { return data_ + size_; }
    const T* begin() const { return data_; }
    const T* end() const { return data_ + size_; }
    std::size_t size() const { return size_; }

private:
    std::size_t bytes() const { return size_ * sizeof(T); }
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace fledge
