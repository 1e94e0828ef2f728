#include "cli/text/interrupt.h"

#include <csignal>

namespace ballast {
namespace {

// A signal handler can reach nothing else: the one mutable global of the program.
volatile std::sig_atomic_t g_interrupted = 0;

void note(int signal_number) {
  g_interrupted = 1;
  std::signal(signal_number, SIG_DFL);
}

}  // namespace

InterruptWatch::InterruptWatch() {
  g_interrupted = 0;
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

InterruptWatch::~InterruptWatch() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptWatch::interrupted() const { return g_interrupted != 0; }

}  // namespace ballast
