// Files that are mapped. Where one becomes shorter, its last pages are gone, and the system ends whoever reads there with
// SIGBUS and without a word. Here they read as zeros instead, and a refusal that names the file follows at once: as an
// exception where the main thread of Python was reading, which nothing else can interrupt, and elsewhere as the last
// sentence of the process.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

namespace fledge {

class MappedFiles {
public:
    static constexpr std::size_t most = 256;  // files watched at a time; others end the process as they always did
    using Refuse = int (*)(void* path);       // of Py_AddPendingCall
    using Ask = int (*)(Refuse, void*);

    static MappedFiles& all() {
        static MappedFiles files;
        return files;
    }

    // From now on until `forget`; the number to forget it by. `main` is the thread that `ask` interrupts.
    std::size_t watch(const void* memory, std::size_t size, const std::string& path, pthread_t main, Ask ask, Refuse refuse) {
        const std::lock_guard guard(lock_);
        if (!installed_) install();
        main_ = main, ask_ = ask, refuse_ = refuse;
        std::size_t number = 0;
        while (number < most && files_[number].end.load() != 0) ++number;
        if (number == most || size == 0) return most;
        File& file = files_[number];
        const std::size_t kept = std::min(path.size(), file.path.size() - 1);  // the end of a long one
        std::memcpy(file.path.data(), path.data() + path.size() - kept, kept);
        file.path[kept] = 0;
        file.told.store(false);
        const auto start = reinterpret_cast<std::uintptr_t>(memory);
        file.begin.store(start);
        file.end.store((start + size + page_ - 1) / page_ * page_);
        return number;
    }

    void forget(std::size_t number) {
        const std::lock_guard guard(lock_);
        if (number < most) files_[number].end.store(0);
    }

private:
    struct File {
        std::atomic<std::uintptr_t> begin{0}, end{0};
        std::atomic<bool> told{false};
        std::array<char, 1024> path{};
    };

    void install() {
        page_ = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
        struct sigaction action {};
        action.sa_sigaction = [](int, siginfo_t* facts, void*) { all().lost(reinterpret_cast<std::uintptr_t>(facts->si_addr)); };
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        ::sigemptyset(&action.sa_mask);
        installed_ = ::sigaction(SIGBUS, &action, &former_) == 0;
    }

    // In the handler of the signal: nothing is allocated, and no lock of ours taken.
    void lost(std::uintptr_t at) {
        for (File& file : files_) {
            const std::uintptr_t end = file.end.load();
            if (at < file.begin.load() || at >= end) continue;
            void* page = reinterpret_cast<void*>(at / page_ * page_);  // what follows is gone as well
            const std::size_t size = end - at / page_ * page_;
            if (::mmap(page, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page) break;
            if (file.told.exchange(true)) return;
            if (::pthread_equal(::pthread_self(), main_) == 0 || ask_(refuse_, file.path.data()) != 0) end_with(file);
            return;
        }
        ::sigaction(SIGBUS, &former_, nullptr);  // not ours: the same read comes again, and ends as it would have
    }

    [[noreturn]] static void end_with(const File& file) {
        for (const std::string_view part : {std::string_view("fledge: "), std::string_view(file.path.data()),
                                            std::string_view(" became shorter while it was read. Give the command again "
                                                             "when nothing writes to it any more.\n")}) {
            if (::write(STDERR_FILENO, part.data(), part.size()) < 0) break;
        }
        ::_exit(2);
    }

    std::array<File, most> files_;
    std::mutex lock_;
    bool installed_ = false;
    std::uintptr_t page_ = 4096;
    struct sigaction former_ {};
    pthread_t main_{};
    Ask ask_ = nullptr;
    Refuse refuse_ = nullptr;
};

}  // namespace fledge
