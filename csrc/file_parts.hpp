// A file in parts of about a megabyte, each read by the thread that wants it. Nothing is mapped: a file that becomes
// shorter while it is read would end the process. Threads share the place where the next part begins, and only to find
// where it may end does one wait for another: that takes a few kilobytes of the file.
#pragma once

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "cuts.hpp"
#include "platform.hpp"

namespace fledge {

struct FileError : std::system_error {
    FileError(int error, const std::string& path) : std::system_error(error, std::generic_category()), path(path) {}
    std::string path;
};

struct FileChanged : std::runtime_error {
    FileChanged(const std::string& path, const char* how) : std::runtime_error(how), path(path) {}
    std::string path;
};

class FileParts {
public:
    FileParts(const std::string& path, std::size_t part_size, const Specials& specials)
        : path_(path), part_size_(part_size), specials_(specials), file_(open_to_read(path)) {
        if (file_ < 0) throw FileError(errno, path_);
        if (const int error = look_at(file_, found_)) {
            close_file(file_);
            throw FileError(error, path_);
        }
    }
    ~FileParts() { close_file(file_); }
    FileParts(const FileParts&) = delete;
    FileParts& operator=(const FileParts&) = delete;

    std::size_t size() const { return found_.size; }

    // The next part, in `room`; empty at the end. Parts are cut where a cut changes no pre-token.
    std::span<const Byte> next(std::vector<Byte>& room) {
        std::size_t start, end;
        {
            const std::lock_guard guard(lock_);
            start = position_;
            end = position_ = find_end(start);
        }
        if (room.size() < end - start) room.resize(end - start);
        read(start, end - start, room.data());
        return {room.data(), end - start};
    }

    // Nobody gets another part.
    void stop() {
        const std::lock_guard guard(lock_);
        position_ = found_.size;
    }

    // After the last part: nobody wrote to the file meanwhile.
    void require_unchanged() const {
        FileFacts now;
        if (const int error = look_at(file_, now)) throw FileError(error, path_);
        if (now.size != found_.size || now.changed != found_.changed) {
            throw FileChanged(path_, now.size < found_.size ? "became shorter" : "was changed");
        }
    }

private:
    // The end of the part that starts at `start`: the first safe cut a part's size on.
    std::size_t find_end(std::size_t start) {
        if (found_.size - start <= part_size_ + part_size_ / 2) return found_.size;
        const std::size_t reserve = std::max<std::size_t>(16, specials_.longest());  // on both sides of a cut
        std::size_t at = start + part_size_;
        for (std::size_t look_on = 4096;; look_on = std::min(look_on * 4, part_size_)) {
            const std::size_t first = at - std::min(at, reserve), last = std::min(found_.size, at + look_on + reserve);
            around_.resize(last - first);
            read(first, around_.size(), around_.data());
            const Byte *text = around_.data(), *end = text + around_.size();
            const Byte* limit = last == found_.size ? end : end - reserve;
            for (const Byte* here = text + (at - first); here < limit; ++here) {
                if (is_safe_cut(text, here, end) && !specials_.spans(text, here, end)) {
                    return first + static_cast<std::size_t>(here - text);
                }
            }
            if (last == found_.size) return last;
            at = last - reserve;
        }
    }

    void read(std::size_t start, std::size_t size, Byte* to) const {
        while (size > 0) {
            const std::ptrdiff_t got = read_at(file_, to, size, start);
            if (got < 0) throw FileError(errno, path_);
            if (got == 0) throw FileChanged(path_, "became shorter");
            to += got;
            start += static_cast<std::size_t>(got);
            size -= static_cast<std::size_t>(got);
        }
    }

    std::string path_;
    std::size_t part_size_;
    const Specials& specials_;
    int file_;
    FileFacts found_;
    std::mutex lock_;
    std::size_t position_ = 0;
    std::vector<Byte> around_;
};

}  // namespace fledge
