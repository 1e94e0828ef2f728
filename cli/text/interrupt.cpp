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

// SIGHUP is what a program gets whose terminal is closed, where what it did is worth as much.
InterruptWatch::InterruptWatch() {
  g_interrupted = 0;
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) watch(signal_number);
}

InterruptWatch::~InterruptWatch() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) restore(signal_number);
}

bool InterruptWatch::interrupted() const { return g_interrupted != 0; }

}  // namespace ballast
