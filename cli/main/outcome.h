// A run of the program up to its exit code: what main() is, and what a program that forks for each
// of many runs calls in every child (tests/cli/mutation/fork_server.cpp).
#pragma once

namespace ballast {

// Runs one verb; whatever goes wrong is one line on stderr and an exit code of cli/verbs/verbs.h.
int outcome_of(int argc, char** argv);

}  // namespace ballast
