#include "cli/terminal/interrupt.h"

#include <cerrno>
#include <csignal>
#include <string_view>
#include <unistd.h>

namespace ballast {
namespace {

// A signal handler can reach nothing else: the only mutable globals of the program.
volatile std::sig_atomic_t g_interrupted = 0;
// Whether somebody watches.
volatile std::sig_atomic_t g_tells = 0;

constexpr std::string_view kFirst = "\nending; a second time ends at once, and keeps nothing\n";

void note(int signal_number) {
  g_interrupted = 1;
  const int code = errno;
  if (g_tells != 0 && ::write(STDERR_FILENO, kFirst.data(), kFirst.size()) < 0) g_tells = 0;
  errno = code;
  std::signal(signal_number, SIG_DFL);
}

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// A terminal that is closed asks the same, unless the program was told to go on without it (nohup).
void set_handler(int signal_number, void (*handler)(int)) {
  const bool ignored = std::signal(signal_number, handler) == SIG_IGN;
  if (ignored && signal_number == SIGHUP) std::signal(signal_number, SIG_IGN);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  g_interrupted = 0;
  g_tells = ::isatty(STDERR_FILENO);
  for (const int signal_number : kSignals) set_handler(signal_number, note);
}

InterruptWatch::~InterruptWatch() {
  for (const int signal_number : kSignals) set_handler(signal_number, SIG_DFL);
}

bool InterruptWatch::interrupted() const { return g_interrupted != 0; }

void ignore_broken_pipes() { std::signal(SIGPIPE, SIG_IGN); }

void ignore_file_size_limit() { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace ballast
