// What all bindings share: views of Python's memory, arrays that go out without a copy, and checks of what comes in.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "key.hpp"
#include "memory.hpp"

namespace fledge::python {

namespace nb = nanobind;
using namespace nb::literals;

// The bytes of a `bytes`, `bytearray`, `memoryview` or array, held for as long as this lives.
class View {
public:
    explicit View(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~View() { PyBuffer_Release(&buffer_); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    std::span<const Byte> bytes() const { return {static_cast<const Byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)}; }

private:
    Py_buffer buffer_;
};

using Bounds = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Array>
auto span_of(const Array& array) {
    return std::span(array.data(), array.is_valid() ? array.size() : 0);
}

inline std::span<const std::uint64_t> checked(const Bounds& bounds, std::size_t size) {
    const std::span<const std::uint64_t> span(bounds.data(), bounds.size());
    if (span.empty()) throw nb::value_error("offsets need at least one entry");
    for (std::size_t i = 0; i + 1 < span.size(); ++i) {
        if (span[i] > span[i + 1]) throw nb::value_error("offsets must not fall");
    }
    if (span.back() > size) throw nb::value_error("offsets reach past the buffer");
    return span;
}

constexpr unsigned most_threads = 4096;

inline void check_threads(unsigned threads) {
    if (threads < 1 || threads > most_threads) throw nb::value_error("threads must be from 1 to 4096");
}

// Only one at a time: another thread, or the progress of a training, finds an object at work.
class Turn {
public:
    explicit Turn(std::atomic<bool>& at_work) : at_work_(at_work) {
        if (at_work_.exchange(true)) throw std::runtime_error("this object is at work already");
    }
    ~Turn() { at_work_ = false; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

private:
    std::atomic<bool>& at_work_;
};

struct MissingToken : std::runtime_error {
    explicit MissingToken(std::string_view token) : std::runtime_error("a token is missing"), token(token) {}
    std::string token;
};

template <typename Id>
nb::object to_array(fledge::Buffer<Id> ids) {
    const std::size_t size = ids.size();
    Id* data = ids.release();
    nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
    return nb::cast(nb::ndarray<nb::numpy, Id, nb::ndim<1>>(data, {size}, owner));
}

inline nb::object path_of(const std::string& name) {
    return nb::steal(PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
}

// Of each room, what it adds to the module.
void bind_tokenizer(nb::module_& m);
void bind_corpus(nb::module_& m);
void bind_tokens(nb::module_& m);
void bind_model(nb::module_& m);

}  // namespace fledge::python
