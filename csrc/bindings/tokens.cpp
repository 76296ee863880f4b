// What Python sees of tokens on disk: batches, mapped files, and the order of suffixes.
#include "common.hpp"

#include <algorithm>
#include <cstring>

#include "file_parts.hpp"
#include "gather.hpp"
#include "parallel.hpp"
#include "suffixes.hpp"
#ifndef _WIN32
#include "mapped.hpp"  // Windows lets nobody shorten a file that is mapped
#endif

namespace fledge::python {

namespace {

void gather(int file, int width, const Numbers& begins, const Numbers& sources, const Numbers& lengths,
            const Numbers& positions, const Numbers& documents, std::int64_t opening, std::int64_t padding,
            const Places& inputs, const Places& targets, const Places& position_places, const Places& document_places) {
    const fledge::Stretches stretches{span_of(begins), span_of(sources), span_of(lengths), span_of(positions),
                                      span_of(documents)};
    const fledge::Rows rows{span_of(inputs), span_of(targets), span_of(position_places), span_of(document_places)};
    if (width != 2 && width != 4) throw nb::value_error("an id has 2 or 4 bytes");
    const std::size_t count = stretches.begins.size(), size = rows.inputs.size();
    const auto either = [](std::size_t found, std::size_t wanted) { return found == 0 || found == wanted; };
    if (stretches.sources.size() != count || stretches.lengths.size() != count || rows.targets.size() != size ||
        !either(rows.positions.size(), size) || rows.documents.size() != rows.positions.size() ||
        (!rows.positions.empty() && (stretches.positions.size() != count || stretches.documents.size() != count))) {
        throw nb::value_error("arrays of a batch differ in size");
    }
    nb::gil_scoped_release release;
    if (width == 2) {
        fledge::gather<std::uint16_t>(file, stretches, opening, padding, rows);
    } else {
        fledge::gather<std::uint32_t>(file, stretches, opening, padding, rows);
    }
}

void find_places(const Numbers& numbers, const Numbers& rungs, std::size_t step, const Numbers& values,
                 const Places& places) {
    if (values.size() != places.size()) throw nb::value_error("a place for each value");
    if (step < 1) throw nb::value_error("a step is 1 or more");
    if (rungs.size() != numbers.size() / step + (numbers.size() % step != 0)) throw nb::value_error("a rung for each step");
    nb::gil_scoped_release release;
    fledge::find_places(span_of(numbers), span_of(rungs), step, span_of(values), span_of(places));
}

#ifndef _WIN32
// Called by Python in its main thread, soon after the read that met the end of the file.
int refuse_shortened(void* path) {
    try {
        nb::object refusal = nb::module_::import_("fledge.errors").attr("changed")(path_of(static_cast<const char*>(path)),
                                                                                 "became shorter");
        PyErr_SetObject(refusal.type().ptr(), refusal.ptr());
    } catch (nb::python_error& error) {
        error.restore();
    }
    return -1;
}

std::size_t watch_mapping(nb::handle array, const nb::bytes& path) {
    const View memory(array);
    const auto main = nb::cast<std::uintptr_t>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    pthread_t thread{};
    static_assert(sizeof(thread) <= sizeof(main));
    std::memcpy(&thread, &main, sizeof(thread));
    return fledge::MappedFiles::all().watch(memory.bytes().data(), memory.bytes().size(), std::string(path.c_str(), path.size()),
                                            thread, &Py_AddPendingCall, &refuse_shortened);
}

void forget_mapping(std::size_t number) { fledge::MappedFiles::all().forget(number); }
#endif

template <typename Id>
using Tokens = nb::ndarray<const Id, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The order of the suffixes that start at the first tokens, as many as `out` has room for.
template <typename Id>
void sort_suffixes(const Tokens<Id>& tokens, const Order& out, std::size_t limit, unsigned threads) {
    if (out.size() > tokens.size() || tokens.size() >= ~0u) throw nb::value_error("more suffixes than tokens");
    if (limit < 1) throw nb::value_error("suffixes are compared by one token at least");
    check_threads(threads);
    nb::gil_scoped_release release;
    fledge::sort_suffixes<Id>(span_of(tokens), span_of(out), limit, threads);
}

// For each place of what is sought, how long the longest stretch is that starts there and stands in the tokens, and
// where it stands: `offset` more than in these tokens. Only what is longer than is known already is written.
template <typename Id>
void longest_matches(const Tokens<Id>& tokens, const Tokens<std::uint32_t>& suffixes, std::size_t limit,
                     const Tokens<Id>& sought, std::int64_t offset, const Places& lengths, const Places& places,
                     unsigned threads) {
    if (lengths.size() != sought.size() || places.size() != sought.size()) throw nb::value_error("a length and a place for each token");
    if (limit < 1) throw nb::value_error("suffixes are compared by one token at least");
    check_threads(threads);
    nb::gil_scoped_release release;
    constexpr std::size_t step = std::size_t{1} << 14;
    fledge::run_parallel((sought.size() + step - 1) / step, threads, [&] {
        return [&](std::size_t part) {
            fledge::Match found;
            for (std::size_t i = part * step; i < std::min(sought.size(), (part + 1) * step); ++i) {
                if (found.length / 4 > limit) {  // far beyond what the order tells: following each from its start is quadratic
                    found = {found.place + 1, found.length - 1};
                } else {
                    found = fledge::longest_match<Id>(span_of(tokens), span_of(suffixes), limit, span_of(sought).subspan(i));
                }
                if (static_cast<std::int64_t>(found.length) <= lengths.data()[i]) continue;
                lengths.data()[i] = static_cast<std::int64_t>(found.length);
                places.data()[i] = static_cast<std::int64_t>(found.place) + offset;
            }
        };
    });
}

}  // namespace

void bind_tokens(nb::module_& m) {
    m.def("gather", &gather, "file"_a, "width"_a, "begins"_a, "sources"_a, "lengths"_a, "positions"_a.none(),
          "documents"_a.none(), "opening"_a, "padding"_a, "inputs"_a, "targets"_a, "position_places"_a.none(),
          "document_places"_a.none(), "Fill the rows of a batch with stretches of a token file.");
    m.def("find_places", &find_places, "numbers"_a, "rungs"_a, "step"_a, "values"_a, "places"_a,
          "For each value the last place of ascending numbers whose number is not greater.");

#ifndef _WIN32
    m.def("watch_mapping", &watch_mapping, "array"_a, "path"_a,
          "Name a mapped file where it becomes shorter while it is read; the number to forget it by.");
    m.def("forget_mapping", &forget_mapping, "number"_a, "Its memory is no longer mapped.");
#endif

    m.def("sort_suffixes", &sort_suffixes<std::uint16_t>, "tokens"_a, "out"_a, "limit"_a, "threads"_a,
          "The order of the suffixes of some tokens.");
    m.def("sort_suffixes", &sort_suffixes<std::uint32_t>, "tokens"_a, "out"_a, "limit"_a, "threads"_a);
    m.def("longest_matches", &longest_matches<std::uint16_t>, "tokens"_a, "suffixes"_a, "limit"_a, "sought"_a, "offset"_a,
          "lengths"_a, "places"_a, "threads"_a, "The longest stretch that starts at each place and stands in the tokens.");
    m.def("longest_matches", &longest_matches<std::uint32_t>, "tokens"_a, "suffixes"_a, "limit"_a, "sought"_a, "offset"_a,
          "lengths"_a, "places"_a, "threads"_a);
}

}  // namespace fledge::python
