#include "cli/terminal/progress.h"

#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/terminal/standard_error.h"

namespace ballast {
namespace {

constexpr auto kTerminalPeriod = std::chrono::milliseconds(100);
constexpr auto kPlainPeriod = std::chrono::seconds(5);
constexpr auto kMoment = std::chrono::seconds(1);
constexpr int kBarWidth = 24;

// A line wider than the terminal would scroll instead of being rewritten.
size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

Progress::Progress(std::string title, Kind kind)
    : title_(std::move(title)),
      kind_(kind),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_(Clock::now() + (kind == Kind::kMoment ? kMoment : std::chrono::seconds(0))) {
  std::fflush(stdout);  // what was printed before comes first where both streams are one file
}

Progress::~Progress() {
  if (line_is_open_) print_to_stderr("{}", kind_ == Kind::kMoment ? "\r\x1b[K" : "\n");
}

void Progress::show(double share, const std::string& text) {
  const Clock::time_point now = Clock::now();
  if (now < next_ || (kind_ == Kind::kMoment && !terminal_)) return;
  next_ = now + (terminal_ ? Clock::duration(kTerminalPeriod) : Clock::duration(kPlainPeriod));
  draw(share, text);
}

void Progress::finish(const std::string& text, double share) {
  draw(share, text);
  if (line_is_open_) print_to_stderr("\n");
  line_is_open_ = false;
}

void Progress::tell(const std::string& line) {
  if (!terminal_) return;
  print_to_stderr("{}{}\n", line_is_open_ ? "\r\x1b[K" : "", line);
  line_is_open_ = false;
  next_ = Clock::now();
}

void Progress::draw(double share, const std::string& text) {
  share = std::clamp(share, 0.0, 1.0);
  if (!terminal_) {
    print_to_stderr("{} {:3.0f} %  {}\n", title_, 100 * share, text);
    return;
  }
  const int filled = static_cast<int>(share * kBarWidth);
  std::string line = fmt::format("{} [{:#<{}}{:.<{}}] {:3.0f} %  {}", title_, "", filled, "",
                                 kBarWidth - filled, 100 * share, text);
  line.resize(std::min(line.size(), terminal_width() - 1));
  print_to_stderr("\r\x1b[K{}", line);
  std::fflush(stderr);
  line_is_open_ = true;
}

}  // namespace ballast
