// What is beyond the numbers that the core counts in. Its words are a sentence for the person who gave it.
#pragma once

#include <stdexcept>

namespace fledge {

struct TooLarge : std::length_error {
    using std::length_error::length_error;
};

// Apart from the code that finds it, which is to stay small.
[[noreturn, gnu::cold, gnu::noinline]] inline void refuse_as_too_large(const char* sentence) { throw TooLarge(sentence); }

}  // namespace fledge
