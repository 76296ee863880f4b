// Fuzzing of the scanner, the cuts and the encoder. Built with libFuzzer where clang has it; else it drives itself:
//   fuzz SECONDS [SEED]
#include "checks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fledge_test::check_all(std::string(reinterpret_cast<const char*>(data), size));
    return 0;
}

#ifndef FLEDGE_LIBFUZZER
#include <chrono>

#include "random_text.hpp"

int main(int count, char** arguments) {
    const double seconds = count > 1 ? std::atof(arguments[1]) : 30;
    std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : std::random_device{}();
    std::printf("fuzzing for %.0f s from seed %llu\n", seconds, static_cast<unsigned long long>(seed));
    const auto stop = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::uint64_t rounds = 0;
    for (; std::chrono::steady_clock::now() < stop; ++rounds) {
        std::mt19937_64 random(seed + rounds);
        std::string text = fledge_test::random_text(random, 1 + random() % (rounds % 50 ? 40 : 4000));
        for (std::uint64_t i = random() % 4; i > 0 && !text.empty(); --i) text[random() % text.size()] = static_cast<char>(random());
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    }
    std::printf("%llu texts, no fact broken\n", static_cast<unsigned long long>(rounds));
}
#endif
