// What Python sees of the corpus: checksums, separators, and copies.
#include "common.hpp"

#include <cstring>

#include "checksum.hpp"
#include "documents.hpp"
#include "near_copies.hpp"
#include "passages.hpp"

namespace fledge::python {

namespace {

// The CRC-32 of each document of a block of text, into `sums`.
void checksums(nb::handle text, const Numbers& starts, const Numbers& ends, const Places& sums) {
    const View view(text);
    const auto bytes = view.bytes();
    if (starts.size() != ends.size() || starts.size() != sums.size()) throw nb::value_error("as many starts as ends");
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < starts.size(); ++i) {
        const auto start = static_cast<std::size_t>(starts.data()[i]), end = static_cast<std::size_t>(ends.data()[i]);
        if (start > end || end > bytes.size()) throw std::out_of_range("a document lies outside the text");
        sums.data()[i] = fledge::checksum({reinterpret_cast<const unsigned char*>(bytes.data()) + start, end - start});
    }
}

std::uint32_t checksum(nb::handle bytes, std::uint32_t before) {
    const View view(bytes);
    nb::gil_scoped_release release;
    return fledge::checksum(view.bytes(), before);
}

nb::object find_marks(nb::handle text, nb::handle mark) {
    const View view(text), sought(mark);
    fledge::Buffer<std::int64_t> places;
    {
        nb::gil_scoped_release release;
        places = fledge::find_marks(view.bytes(), sought.bytes());
    }
    return to_array(std::move(places));
}

using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void divide(nb::handle documents, const Bounds& bounds, const Flags& held_out, const Bytes& out) {
    const View view(documents);
    const auto places = checked(bounds, view.bytes().size());
    if (places.size() != held_out.size() + 1) throw nb::value_error("a flag for each document");
    nb::gil_scoped_release release;
    // A flag is a byte: what numpy takes for true need not be the 1 that C++ does.
    const std::span flags(reinterpret_cast<const unsigned char*>(held_out.data()), held_out.size());
    fledge::divide(view.bytes(), places, flags, span_of(out));
}

// A hash as Python keeps it: 16 bytes.
fledge::Hash128 key_of(const nb::bytes& key) {
    if (key.size() != 16) throw nb::value_error("a key has 16 bytes");
    fledge::Hash128 found;
    std::memcpy(&found, key.c_str(), 16);
    return found;
}

class PythonNearCopies {
public:
    PythonNearCopies(double threshold, unsigned words, unsigned threads, const nb::bytes& key)
        : copies_(threshold, words, (check_threads(threads), threads), key_of(key)) {}

    void add(nb::handle text, const Numbers& starts, const Numbers& ends) {
        const Turn turn(at_work_);
        const View view(text);
        nb::gil_scoped_release release;
        copies_.add(view.bytes(), span_of(starts), span_of(ends));
    }
    nb::object exact() { return without_lock([&] { return copies_.exact(); }); }
    nb::object groups() { return without_lock([&] { return copies_.groups(); }); }
    nb::bytes hash(std::size_t document) {
        const Turn turn(at_work_);
        if (document >= copies_.size()) throw nb::index_error("there is no such document");
        return nb::bytes(reinterpret_cast<const char*>(&copies_.hash(document)), 16);
    }
    double similarity(std::size_t left, std::size_t right) {
        const Turn turn(at_work_);
        return copies_.similarity(left, right);
    }
    std::size_t size() {
        const Turn turn(at_work_);
        return copies_.size();
    }

private:
    template <typename Work>
    nb::object without_lock(const Work& work) {
        const Turn turn(at_work_);
        fledge::Buffer<std::uint32_t> out;
        {
            nb::gil_scoped_release release;
            const auto found = work();
            out.append(found.data(), found.size());
        }
        return to_array(std::move(out));
    }

    fledge::NearCopies copies_;
    std::atomic<bool> at_work_{false};
};

// Three numbers for each stretch: where it starts, where it stands too, and its length.
nb::object find_stretches(nb::handle text, const Bounds& bounds, std::size_t minimum, std::uint64_t queries,
                          unsigned threads) {
    const View view(text);
    const auto documents = checked(bounds, view.bytes().size());
    check_threads(threads);
    fledge::Buffer<std::uint64_t> out;
    {
        nb::gil_scoped_release release;
        for (const auto& [start, source, length] : fledge::find_stretches(view.bytes(), documents, minimum, queries, threads)) {
            const std::uint64_t facts[] = {start, source, length};
            out.append(facts, 3);
        }
    }
    return to_array(std::move(out));
}

}  // namespace

void bind_corpus(nb::module_& m) {
    m.def("checksums", &checksums, "text"_a, "starts"_a, "ends"_a, "sums"_a,
          "The CRC-32 of every document of a block of text.");
    m.def("checksum", &checksum, "bytes"_a, "before"_a = 0,
          "The CRC-32 of bytes that follow others whose CRC-32 is `before`.");
    m.def("find_marks", &find_marks, "text"_a, "mark"_a, "Where a mark begins, from left to right without overlap.");
    m.def("divide", &divide, "documents"_a, "bounds"_a, "held_out"_a, "out"_a,
          "Documents side by side: first those that are not held out, then those that are.");

    m.def("document_hash", [](nb::handle text, const nb::bytes& key) {
        const View view(text);
        const auto [low, high] = key_of(key);
        const fledge::Hash128 found = fledge::siphash(view.bytes(), low, high);
        return nb::bytes(reinterpret_cast<const char*>(&found), 16);
    }, "text"_a, "key"_a, "A hash of 128 bits under a key of 16 bytes: SipHash-2-4.");
    m.def("find_stretches", &find_stretches, "text"_a, "bounds"_a, "minimum"_a, "queries"_a, "threads"_a,
          "Stretches of documents that stand elsewhere too: start, source and length of each, one after the other.");
    nb::class_<PythonNearCopies>(m, "NearCopies")
        .def(nb::init<double, unsigned, unsigned, const nb::bytes&>(), "threshold"_a, "words"_a, "threads"_a, "key"_a)
        .def("add", &PythonNearCopies::add, "text"_a, "starts"_a, "ends"_a)
        .def("exact", &PythonNearCopies::exact)
        .def("groups", &PythonNearCopies::groups)
        .def("hash", &PythonNearCopies::hash, "document"_a)
        .def("similarity", &PythonNearCopies::similarity, "left"_a, "right"_a)
        .def("__len__", &PythonNearCopies::size);
}

}  // namespace fledge::python
