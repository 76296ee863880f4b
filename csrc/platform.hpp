// What compilers and operating systems do differently, in one place; all other sources are plain C++20. GCC, clang and
// MSVC; Linux, macOS and Windows. What needs the system's own headers is in platform.cpp, for those of Windows define
// words that others use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#if defined(__x86_64__) || defined(_M_X64)
#define FLEDGE_X86_64
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#define FLEDGE_INLINE __forceinline
#define FLEDGE_TARGET(features)  // its intrinsics need none
#else
#define FLEDGE_GNU
#define FLEDGE_INLINE inline __attribute__((always_inline))
#define FLEDGE_TARGET(features) __attribute__((target(features)))
#endif

// For functions that gain from wide vectors: the compiler makes a version for each generation of processors, and the
// loader chooses one. The sanitizers can't follow that choice, and only GCC on Linux makes it for any function.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FLEDGE_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FLEDGE_EACH_PROCESSOR
#endif

namespace fledge {

FLEDGE_INLINE void prefetch(const void* place) {
#if defined(FLEDGE_GNU)
    __builtin_prefetch(place);
#elif defined(FLEDGE_X86_64)
    _mm_prefetch(static_cast<const char*>(place), _MM_HINT_T0);
#else
    __prefetch(place);
#endif
}

FLEDGE_INLINE void prefetch_to_write(const void* place) {
#if defined(FLEDGE_GNU)
    __builtin_prefetch(place, 1);
#else
    prefetch(place);
#endif
}

// A thread that waits for another without sleeping does this between two looks.
FLEDGE_INLINE void rest_briefly() {
#if defined(FLEDGE_GNU) && defined(FLEDGE_X86_64)
    __builtin_ia32_pause();
#elif defined(FLEDGE_GNU) && defined(__aarch64__)
    asm volatile("yield");
#elif defined(FLEDGE_X86_64)
    _mm_pause();
#elif defined(_M_ARM64)
    __yield();
#endif
}

FLEDGE_INLINE std::uint64_t reverse_bytes(std::uint64_t value) {
#if defined(FLEDGE_GNU)
    return __builtin_bswap64(value);
#else
    return _byteswap_uint64(value);
#endif
}

// The two halves of a 128-bit product, by exclusive or.
FLEDGE_INLINE std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
#if defined(FLEDGE_GNU)
    __extension__ typedef unsigned __int128 Wide;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#else
    return a * b ^ __umulh(a, b);
#endif
}

#if defined(FLEDGE_X86_64)
bool has_avx2();   // with a system that keeps its registers
bool has_clmul();  // multiplies without carries
#endif

// Files are numbers, as Python has them; paths are bytes as os.fsencode gives them, which is UTF-8 on Windows. A size of
// -1 and a number that is not 0 mean a failure: `errno` says which.
int open_to_read(const std::string& path);
void close_file(int file);
std::ptrdiff_t read_at(int file, void* to, std::size_t size, std::uint64_t place);
std::ptrdiff_t write_at(int file, const void* from, std::size_t size, std::uint64_t place);

struct FileFacts {
    std::uint64_t size = 0;
    long long changed = 0;  // when, in the smallest unit of the system
};
int look_at(int file, FileFacts& facts);  // 0, or the number of the error

// A temporary file that goes with the process, however that ends; `place` is where, for a refusal.
int open_scratch(std::string& place);

// Memory full of zeros, on large pages where the system has them: a table is read at random, and each of its pages would
// need its own entry in the processor's map. Null where there is none.
void* zeroed_memory(std::size_t bytes);
void return_zeroed_memory(void* memory, std::size_t bytes);

// What is freed stays with the process where the C library can be told so, and is there at once for who asks for as much
// next: a training step that got its activations anew from the system would wait for each page of them.
void keep_freed_memory();

// Memory that std::free takes back, of at least a large page: filling it fresh costs a hundredth of the interruptions.
void* large_memory(std::size_t bytes);

std::uint64_t process_number();  // a child of fork has another than its parent

}  // namespace fledge
