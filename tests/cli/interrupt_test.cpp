// Whatever asks a program to end is noted while a job watches, unless the program ignores it.
#include "cli/terminal/interrupt.h"

#include <csignal>
#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(Interrupt, every_signal_that_ends_a_program_is_noted) {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    const InterruptWatch watch;
    EXPECT_FALSE(watch.interrupted());
    std::raise(signal_number);
    EXPECT_TRUE(watch.interrupted()) << signal_number;
  }
}

TEST(Interrupt, what_nohup_ignores_stays_ignored_during_a_job_and_after_it) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const InterruptWatch watch;
    std::raise(SIGHUP);
    EXPECT_FALSE(watch.interrupted());
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

}  // namespace
}  // namespace ballast
