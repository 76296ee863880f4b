// A file as memory, read-only. Its pages are the system's to take back: they are no memory of ours.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <string>
#include <system_error>

#include "key.hpp"

namespace fledge {

struct FileError : std::system_error {
    FileError(int error, const std::string& path) : std::system_error(error, std::generic_category()), path(path) {}
    std::string path;
};

class MappedFile {
public:
    explicit MappedFile(const std::string& path) {
        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) throw FileError(errno, path);
        struct stat facts {};
        if (::fstat(file, &facts) != 0) {
            const int error = errno;
            ::close(file);
            throw FileError(error, path);
        }
        size_ = static_cast<std::size_t>(facts.st_size);
        if (size_ > 0) {
            data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
            if (data_ == MAP_FAILED) {
                const int error = errno;
                ::close(file);
                throw FileError(error, path);
            }
            ::madvise(data_, size_, MADV_SEQUENTIAL);
        }
        ::close(file);
    }
    ~MappedFile() {
        if (size_ > 0) ::munmap(data_, size_);
    }
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const Byte> bytes() const { return {static_cast<const Byte*>(data_), size_}; }

    // Says that a part has been read: its pages need not stay resident.
    void done_with(std::span<const Byte> part) const {
        const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        const auto start = static_cast<std::size_t>(part.data() - static_cast<const Byte*>(data_));
        const std::size_t first = (start + page - 1) / page * page, last = (start + part.size()) / page * page;
        if (first < last) ::madvise(static_cast<char*>(data_) + first, last - first, MADV_DONTNEED);
    }

private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace fledge
