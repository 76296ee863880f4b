// What Python sees of decoding and of the loss on a CPU. Tensors come as addresses, which nobody can check.
#include "common.hpp"

#include <algorithm>
#include <initializer_list>

#include "decode.hpp"
#include "slope.hpp"

namespace fledge::python {

namespace {

float* places(std::uintptr_t address) {
    if (address == 0 || address % sizeof(float) != 0) throw nb::value_error("no tensor of 32-bit numbers is at this address");
    return reinterpret_cast<float*>(address);
}
const float* floats(std::uintptr_t address) { return places(address); }
const float* floats_or_none(std::uintptr_t address) { return address == 0 ? nullptr : places(address); }

// The sizes of a tensor: none of them zero, and together not more than any memory holds.
void check_sizes(std::initializer_list<std::size_t> sizes) {
    std::size_t room = std::size_t{1} << 48;
    for (const std::size_t size : sizes) {
        if (size < 1 || size > room) throw nb::value_error("a size of a tensor is zero, or too large");
        room /= size;
    }
}

// One of the types of number that logits have; every target is looked at, for it becomes a place in memory.
double softmax_slope(std::uintptr_t logits, bool wide, const Numbers& targets, std::size_t columns, float smoothing,
                     float z_loss, bool wanted, unsigned threads) {
    const std::size_t rows = targets.size();
    check_sizes({std::max<std::size_t>(rows, 1), columns});
    check_threads(threads);
    if (logits == 0 || logits % (wide ? sizeof(float) : sizeof(std::uint16_t)) != 0) {
        throw nb::value_error("no tensor of such numbers is at this address");
    }
    for (std::size_t row = 0; row < rows; ++row) {
        const std::int64_t target = targets.data()[row];
        if (target != fledge::masked && (target < 0 || static_cast<std::uint64_t>(target) >= columns)) {
            throw nb::index_error("a target is not an id of the vocabulary");
        }
    }
    const fledge::Slope slope{columns, smoothing, z_loss, wanted};
    nb::gil_scoped_release release;
    if (wide) return slope(reinterpret_cast<float*>(logits), targets.data(), rows, threads);
    return slope(reinterpret_cast<std::uint16_t*>(logits), targets.data(), rows, threads);
}

}  // namespace

void bind_model(nb::module_& m) {
    m.def("softmax_slope", &softmax_slope, "logits"_a, "wide"_a, "targets"_a, "columns"_a, "smoothing"_a, "z_loss"_a,
          "wanted"_a, "threads"_a, "The sum of the rows' cross-entropies; the slope takes the place of the logits.");
    m.def("keep_freed_memory", &fledge::keep_freed_memory,
          "Memory that is given back stays with the process, for whoever asks for as much next.");

    // Tensors come as addresses: a call for every product of every token has no time for more.
    nb::class_<fledge::Product>(m, "Product")
        .def("__init__", [](fledge::Product* self, std::uintptr_t weight, std::uintptr_t bias, std::size_t outputs,
                            std::size_t inputs) {
            check_sizes({outputs, inputs, fledge::most_rows});
            new (self) fledge::Product{floats(weight), floats_or_none(bias), outputs, inputs};
        }, "weight"_a, "bias"_a, "outputs"_a, "inputs"_a)
        .def("__call__", [](const fledge::Product& self, std::uintptr_t x, std::uintptr_t residual, std::uintptr_t out,
                            std::size_t rows, unsigned threads) {
            if (rows < 1 || rows > fledge::most_rows) throw nb::value_error("a product of decoding takes 1 to 8 rows");
            check_threads(threads);
            const float *from = floats(x), *added = floats_or_none(residual);
            float* to = places(out);
            nb::gil_scoped_release release;
            self(from, added, to, rows, threads);
        }, "x"_a, "residual"_a, "out"_a, "rows"_a, "threads"_a);
    nb::class_<fledge::Attention>(m, "Attention")
        .def("__init__", [](fledge::Attention* self, std::size_t heads, std::size_t key_heads, std::size_t size,
                            std::size_t capacity, float scale) {
            check_sizes({heads, size, capacity});
            check_sizes({key_heads, size, capacity});
            if (heads % key_heads != 0) throw nb::value_error("key_heads does not divide heads");
            new (self) fledge::Attention{heads, key_heads, size, capacity, scale};
        }, "heads"_a, "key_heads"_a, "size"_a, "capacity"_a, "scale"_a)
        .def("__call__", [](const fledge::Attention& self, std::uintptr_t queries, std::size_t query_stride,
                            std::uintptr_t keys, std::uintptr_t values, std::size_t used, std::uintptr_t out,
                            std::size_t rows, unsigned threads) {
            check_sizes({rows, self.heads, self.size, self.capacity});
            check_sizes({rows, query_stride});
            check_threads(threads);
            if (used < 1 || used > self.capacity) throw nb::value_error("used must be from 1 to the capacity");
            const float *asked = floats(queries), *known = floats(keys), *read = floats(values);
            float* to = places(out);
            nb::gil_scoped_release release;
            self(asked, query_stride, known, read, used, to, rows, threads);
        }, "queries"_a, "query_stride"_a, "keys"_a, "values"_a, "used"_a, "out"_a, "rows"_a, "threads"_a);
    nb::class_<fledge::Synapses>(m, "Synapses")
        .def("__init__", [](fledge::Synapses* self, std::size_t heads, std::size_t neurons, std::size_t width) {
            check_sizes({heads, neurons, width});
            new (self) fledge::Synapses{heads, neurons, width};
        }, "heads"_a, "neurons"_a, "width"_a)
        .def("__call__", [](const fledge::Synapses& self, std::uintptr_t keys, std::uintptr_t x, std::uintptr_t synapses,
                            std::uintptr_t read, std::size_t rows, unsigned threads) {
            check_sizes({rows, self.heads, self.neurons, self.width});
            check_threads(threads);
            const float *fired = floats(keys), *from = floats(x);
            float *kept = places(synapses), *to = places(read);
            nb::gil_scoped_release release;
            self(fired, from, kept, to, rows, threads);
        }, "keys"_a, "x"_a, "synapses"_a, "read"_a, "rows"_a, "threads"_a);
    nb::class_<fledge::GatedSum>(m, "GatedSum")
        .def("__init__", [](fledge::GatedSum* self, std::uintptr_t inner, std::uintptr_t outer, std::size_t heads,
                            std::size_t neurons, std::size_t width) {
            check_sizes({heads, neurons, width});
            new (self) fledge::GatedSum{floats(inner), floats(outer), heads, neurons, width};
        }, "inner"_a, "outer"_a, "heads"_a, "neurons"_a, "width"_a)
        .def("__call__", [](const fledge::GatedSum& self, std::uintptr_t gates, std::uintptr_t x, std::uintptr_t out,
                            std::size_t rows, unsigned threads) {
            check_sizes({rows, self.heads, self.neurons, self.width});
            check_threads(threads);
            const float *open = floats(gates), *from = floats(x);
            float* to = places(out);
            nb::gil_scoped_release release;
            self(open, from, to, rows, threads);
        }, "gates"_a, "x"_a, "out"_a, "rows"_a, "threads"_a);
}

}  // namespace fledge::python
