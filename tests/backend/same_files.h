// For tests: the files of the system, of which those that derive from it change what they like.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/files.h"

namespace ballast {

class SameFiles : public Files {
 public:
  int open(const std::string& path, int flags, mode_t mode) override {
    return inner_.open(path, flags, mode);
  }
  int duplicate(int descriptor) override { return inner_.duplicate(descriptor); }
  int close(int descriptor) override { return inner_.close(descriptor); }
  ssize_t write(int descriptor, std::span<const std::byte> data) override {
    return inner_.write(descriptor, data);
  }
  ssize_t write_at(int descriptor, int64_t first_byte, std::span<const std::byte> data) override {
    return inner_.write_at(descriptor, first_byte, data);
  }
  ssize_t read_at(int descriptor, int64_t first_byte, std::span<std::byte> out) override {
    return inner_.read_at(descriptor, first_byte, out);
  }
  int set_direct(int descriptor, bool direct) override {
    return inner_.set_direct(descriptor, direct);
  }
  int truncate(int descriptor, int64_t bytes) override {
    return inner_.truncate(descriptor, bytes);
  }
  int synchronise(int descriptor) override { return inner_.synchronise(descriptor); }
  int lock(int descriptor) override { return inner_.lock(descriptor); }
  int set_mode(int descriptor, mode_t mode) override { return inner_.set_mode(descriptor, mode); }
  int status(int descriptor, struct stat& found) override {
    return inner_.status(descriptor, found);
  }
  int status(const std::string& path, struct stat& found) override {
    return inner_.status(path, found);
  }
  int rename(const std::string& from, const std::string& to) override {
    return inner_.rename(from, to);
  }
  int remove(const std::string& path) override { return inner_.remove(path); }
  int make_folder(const std::string& path) override { return inner_.make_folder(path); }
  std::string resolved(const std::string& path) override { return inner_.resolved(path); }
  std::vector<std::string> names_in(const std::string& folder) override {
    return inner_.names_in(folder);
  }
  std::optional<double> free_bytes(const std::string& folder) override {
    return inner_.free_bytes(folder);
  }

 private:
  Files& inner_ = system_files();
};

}  // namespace ballast
