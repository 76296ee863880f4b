// For functions that gain from wide vectors: the compiler makes a version for each generation of processors, and the
// loader chooses one. The sanitizers can't follow that choice, and only GCC on Linux makes it for any function.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FLEDGE_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FLEDGE_EACH_PROCESSOR
#endif
