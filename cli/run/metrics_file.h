// The metrics of a training as JSON lines, one a step. Each is on its way to the disk when its step
// is shown.
//
// What cannot be written is known before the first step; what fails later costs the metrics, not
// the run. A resumed run takes the lines of the steps that it does again out of the file first.
// Will not do: know what a line says but its "step" (cli/verbs/train.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "sim/base/files.h"

namespace ballast {

class MetricsFile {
 public:
  enum class Mode : uint8_t { kNew, kContinue };
  // No path: nothing is written. Throws Error where the file cannot be written, or, to continue,
  // holds something else than metrics. `files` must outlive this object.
  MetricsFile(const std::optional<std::string>& path, Mode mode, int64_t first_step,
              Files& files = system_files());
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // One line, without its end. Nothing after the first that fails, which is said on the error
  // output; no part of a line stays.
  void add(int64_t step, const std::string& line);

  // Throws Error where steps are missing.
  void require_whole() const;

 private:
  [[noreturn]] void fail(int code) const;
  void try_to_grow();
  std::string content() const;
  void tell_that_it_replaces() const;
  void replace();
  void cut_from(int64_t first_step);
  int put(const std::string& text);  // 0, or the error's number

  Files& files_;
  std::string path_;
  int descriptor_ = -1;
  bool is_regular_ = false;
  int64_t bytes_ = 0;  // of whole lines
  struct Failure {
    int64_t step = 0;
    int code = 0;  // of errno
  };
  std::optional<Failure> failure_;
};

}  // namespace ballast
