#include "platform.hpp"

#include <cerrno>
#include <cstdlib>
#include <new>

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <fcntl.h>
#include <intrin.h>
#include <io.h>
#include <sys/stat.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace fledge {

#ifdef _WIN32

namespace {

// What `errno` calls the last error of the system.
int last_error() {
    switch (::GetLastError()) {
        case ERROR_ACCESS_DENIED:
        case ERROR_SHARING_VIOLATION:
        case ERROR_LOCK_VIOLATION: return EACCES;
        case ERROR_INVALID_HANDLE: return EBADF;
        case ERROR_DISK_FULL:
        case ERROR_HANDLE_DISK_FULL: return ENOSPC;
        case ERROR_NOT_ENOUGH_MEMORY: return ENOMEM;
        case ERROR_FILE_NOT_FOUND:
        case ERROR_PATH_NOT_FOUND: return ENOENT;
        default: return EIO;
    }
}

std::wstring wide(const std::string& path) {
    const int bytes = static_cast<int>(path.size());
    std::wstring text(static_cast<std::size_t>(::MultiByteToWideChar(CP_UTF8, 0, path.data(), bytes, nullptr, 0)), L'\0');
    ::MultiByteToWideChar(CP_UTF8, 0, path.data(), bytes, text.data(), static_cast<int>(text.size()));
    return text;
}

HANDLE handle_of(int file) { return reinterpret_cast<HANDLE>(::_get_osfhandle(file)); }

OVERLAPPED at_place(std::uint64_t place) {
    OVERLAPPED where{};
    where.Offset = static_cast<DWORD>(place);
    where.OffsetHigh = static_cast<DWORD>(place >> 32);
    return where;
}

constexpr std::size_t most_at_once = std::size_t{1} << 30;

int file_of(HANDLE handle, int flags) {
    const int file = ::_open_osfhandle(reinterpret_cast<std::intptr_t>(handle), flags | _O_BINARY | _O_NOINHERIT);
    if (file < 0) ::CloseHandle(handle);
    return file;
}

}  // namespace

int open_to_read(const std::string& path) {
    // Others may rename and remove the file meanwhile, as they may on other systems.
    const HANDLE handle = ::CreateFileW(wide(path).c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                        nullptr, OPEN_EXISTING, FILE_FLAG_SEQUENTIAL_SCAN | FILE_FLAG_BACKUP_SEMANTICS, nullptr);
    if (handle != INVALID_HANDLE_VALUE) return file_of(handle, _O_RDONLY);
    errno = last_error();
    return -1;
}

void close_file(int file) { ::_close(file); }

std::ptrdiff_t read_at(int file, void* to, std::size_t size, std::uint64_t place) {
    OVERLAPPED where = at_place(place);
    DWORD done = 0;
    if (::ReadFile(handle_of(file), to, static_cast<DWORD>(size < most_at_once ? size : most_at_once), &done, &where)) return done;
    if (::GetLastError() == ERROR_HANDLE_EOF) return 0;
    errno = last_error();
    return -1;
}

std::ptrdiff_t write_at(int file, const void* from, std::size_t size, std::uint64_t place) {
    OVERLAPPED where = at_place(place);
    DWORD done = 0;
    if (::WriteFile(handle_of(file), from, static_cast<DWORD>(size < most_at_once ? size : most_at_once), &done, &where)) return done;
    errno = last_error();
    return -1;
}

int look_at(int file, FileFacts& facts) {
    BY_HANDLE_FILE_INFORMATION found{};
    if (!::GetFileInformationByHandle(handle_of(file), &found)) return last_error();
    if (found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) return EISDIR;
    facts.size = std::uint64_t{found.nFileSizeHigh} << 32 | found.nFileSizeLow;
    facts.changed = static_cast<long long>(std::uint64_t{found.ftLastWriteTime.dwHighDateTime} << 32 | found.ftLastWriteTime.dwLowDateTime);
    return 0;
}

int open_scratch(std::string& place) {
    place = "the temporary folder";
    wchar_t folder[MAX_PATH + 1], name[MAX_PATH + 1];
    if (::GetTempPathW(MAX_PATH + 1, folder) == 0 || ::GetTempFileNameW(folder, L"flg", 0, name) == 0) {
        errno = last_error();
        return -1;
    }
    const HANDLE handle = ::CreateFileW(name, GENERIC_READ | GENERIC_WRITE | DELETE, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                                        CREATE_ALWAYS, FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE, nullptr);
    if (handle != INVALID_HANDLE_VALUE) return file_of(handle, _O_RDWR);
    errno = last_error();
    return -1;
}

void keep_freed_memory() {}

void* zeroed_memory(std::size_t bytes) {
    return ::VirtualAlloc(nullptr, bytes > 0 ? bytes : 1, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void return_zeroed_memory(void* memory, std::size_t) { ::VirtualFree(memory, 0, MEM_RELEASE); }

void* large_memory(std::size_t bytes) { return std::malloc(bytes); }  // what is aligned is not for std::free

std::uint64_t process_number() { return ::GetCurrentProcessId(); }

#ifdef FLEDGE_X86_64
bool has_avx2() {
#ifdef FLEDGE_GNU
    return ::IsProcessorFeaturePresent(40) != 0;  // PF_AVX2_INSTRUCTIONS_AVAILABLE, which older headers lack
#else
    return false;  // what is written in plain loops is not made wider for some processors alone
#endif
}

bool has_clmul() {
    int words[4];
    ::__cpuid(words, 1);
    return (words[2] & 2) != 0;
}
#endif

#else  // Linux, macOS

namespace {

constexpr std::size_t large_page = std::size_t{2} << 20;

void use_large_pages(void* memory, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
    ::madvise(memory, bytes, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

}  // namespace

int open_to_read(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
#ifdef POSIX_FADV_SEQUENTIAL
    if (file >= 0) ::posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
    return file;
}

void close_file(int file) { ::close(file); }

std::ptrdiff_t read_at(int file, void* to, std::size_t size, std::uint64_t place) {
    while (true) {
        const ssize_t done = ::pread(file, to, size, static_cast<off_t>(place));
        if (done >= 0 || errno != EINTR) return done;
    }
}

std::ptrdiff_t write_at(int file, const void* from, std::size_t size, std::uint64_t place) {
    while (true) {
        const ssize_t done = ::pwrite(file, from, size, static_cast<off_t>(place));
        if (done >= 0 || errno != EINTR) return done;
    }
}

int look_at(int file, FileFacts& facts) {
    struct stat found {};
    if (::fstat(file, &found) != 0) return errno;
    if (S_ISDIR(found.st_mode)) return EISDIR;
#ifdef __APPLE__
    const struct timespec& changed = found.st_mtimespec;
#else
    const struct timespec& changed = found.st_mtim;
#endif
    facts = {static_cast<std::uint64_t>(found.st_size), changed.tv_sec * 1'000'000'000LL + changed.tv_nsec};
    return 0;
}

int open_scratch(std::string& place) {
    const char* folder = std::getenv("TMPDIR");
    place = std::string(folder != nullptr && *folder != '\0' ? folder : "/tmp") + "/fledge-XXXXXX";
    const int file = ::mkstemp(place.data());
    if (file >= 0) ::unlink(place.c_str());
    return file;
}

void keep_freed_memory() {
#ifdef __GLIBC__
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);  // bytes that lie free before any go back
    ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that is allowed: what is larger comes from the system each time
#endif
}

void* zeroed_memory(std::size_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    use_large_pages(memory, bytes);
    return memory;
}

void return_zeroed_memory(void* memory, std::size_t bytes) { ::munmap(memory, bytes); }

void* large_memory(std::size_t bytes) {
    const std::size_t rounded = (bytes + large_page - 1) / large_page * large_page;
    void* memory = std::aligned_alloc(large_page, rounded);  // large pages are used only where a whole one fits
    if (memory != nullptr) use_large_pages(memory, rounded);
    return memory;
}

std::uint64_t process_number() { return static_cast<std::uint64_t>(::getpid()); }

#ifdef FLEDGE_X86_64
bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }
bool has_clmul() { return __builtin_cpu_supports("pclmul") != 0; }
#endif

#endif

}  // namespace fledge
