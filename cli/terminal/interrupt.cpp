#include "cli/terminal/interrupt.h"

#include <csignal>

namespace ballast {
namespace {

// A signal handler can reach nothing else: the one mutable global of the program.
volatile std::sig_atomic_t g_interrupted = 0;

void note(int signal_number) {
  g_interrupted = 1;
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
  for (const int signal_number : kSignals) set_handler(signal_number, note);
}

InterruptWatch::~InterruptWatch() {
  for (const int signal_number : kSignals) set_handler(signal_number, SIG_DFL);
}

bool InterruptWatch::interrupted() const { return g_interrupted != 0; }

void ignore_broken_pipes() { std::signal(SIGPIPE, SIG_IGN); }

void ignore_file_size_limit() { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace ballast
