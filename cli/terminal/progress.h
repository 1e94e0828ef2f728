// One line that says how far a long job is: rewritten in place on a terminal, a plain line every
// few seconds elsewhere. Goes to the error stream, so that --json output stays clean.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ballast {

class Progress {
 public:
  enum class Kind : uint8_t {
    kJob,
    kMoment,  // mostly no time to speak of: on a terminal alone, from a second on, and then erased
  };
  explicit Progress(std::string title, Kind kind = Kind::kJob);
  ~Progress();  // leaves the terminal on a line of its own
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // share: of the job that is done, 0 to 1. Draws at most several times a second.
  void show(double share, const std::string& text);
  // The same, drawn at once: for the last state.
  void finish(const std::string& text, double share = 1);
  // On a terminal, a line of its own above that one, which stays; elsewhere nothing.
  void tell(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(double share, const std::string& text);

  std::string title_;
  Kind kind_;
  bool terminal_;
  bool line_is_open_ = false;
  Clock::time_point next_;
};

}  // namespace ballast
