// Runs the program again and again, each time in a child forked from here, so that a hundred
// thousand runs (scripts/mutate.py) do not each load and set up a sanitized program anew.
//
// One run a line of stdin, its fields separated by tabs:
//   FOLDER  CPU_SECONDS  WALL_SECONDS  WORD...
// The child works in FOLDER, reads nothing, prints nowhere and complains into FOLDER/err. Beyond so
// many seconds of a core the system ends it (SIGXCPU), beyond so many of a clock this program does
// (SIGKILL). One line of stdout for each:
//   STATUS CPU_SECONDS WALL_SECONDS MOST_KILOBYTES
// STATUS is the exit code, or the number of the signal below 0. The kilobytes are the child's most
// in memory, with what it shares with this program.
//
// Nothing here may start a thread or open a file that a child would share: only the child runs a
// verb.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <fmt/format.h>
#include <iostream>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "cli/main/outcome.h"

namespace {

struct Run {
  std::string folder;
  long cpu_s = 10;
  long wall_s = 60;
  std::vector<std::string> words;
};

struct Ending {
  int status = 0;
  double wall_s = 0;
  rusage usage{};
};

Run run_of(const std::string& line) {
  Run run;
  std::istringstream fields(line);
  std::string field;
  std::getline(fields, run.folder, '\t');
  std::getline(fields, field, '\t');
  run.cpu_s = std::stol(field);
  std::getline(fields, field, '\t');
  run.wall_s = std::stol(field);
  while (std::getline(fields, field, '\t')) run.words.push_back(field);
  return run;
}

void send_to(int descriptor, const char* path, int flags) {
  const int opened = ::open(path, flags, 0644);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) std::_Exit(99);
  ::close(opened);
}

[[noreturn]] void run_here(const Run& run, const sigset_t& signals) {
  const auto most = static_cast<rlim_t>(run.cpu_s);
  const rlimit cpu{most, most + 1};
  const rlimit no_core{0, 0};
  const bool ready = ::chdir(run.folder.c_str()) == 0 && ::setrlimit(RLIMIT_CPU, &cpu) == 0 &&
                     ::setrlimit(RLIMIT_CORE, &no_core) == 0 &&
                     ::sigprocmask(SIG_SETMASK, &signals, nullptr) == 0;
  if (!ready) std::_Exit(99);
  send_to(STDIN_FILENO, "/dev/null", O_RDONLY);
  send_to(STDOUT_FILENO, "/dev/null", O_WRONLY);
  send_to(STDERR_FILENO, "err", O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<std::string> words = run.words;
  words.insert(words.begin(), "ballast");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::exit(ballast::outcome_of(static_cast<int>(words.size()), argv.data()));
}

// SIGCHLD is blocked, so that it can be waited for with a limit.
Ending wait_for(pid_t child, long wall_s, const sigset_t& of_child) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  Ending ending;
  while (::wait4(child, &ending.status, WNOHANG, &ending.usage) == 0) {
    const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
    if (spent >= static_cast<double>(wall_s)) ::kill(child, SIGKILL);
    const timespec a_while{0, 200'000'000};
    ::sigtimedwait(&of_child, nullptr, &a_while);
  }
  ending.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
  return ending;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

int main() {
  sigset_t of_child, signals;
  sigemptyset(&of_child);
  sigaddset(&of_child, SIGCHLD);
  if (::sigprocmask(SIG_BLOCK, &of_child, &signals) != 0) return 2;
  for (std::string line; std::getline(std::cin, line);) {
    const Run run = run_of(line);
    const pid_t child = ::fork();
    if (child < 0) {
      fmt::print(stderr, "fork_server: no child: error {}\n", errno);
      return 2;
    }
    if (child == 0) run_here(run, signals);
    const Ending ending = wait_for(child, run.wall_s, of_child);
    const int code =
        WIFSIGNALED(ending.status) ? -WTERMSIG(ending.status) : WEXITSTATUS(ending.status);
    fmt::print("{} {:.3f} {:.3f} {}\n", code,
               seconds_of(ending.usage.ru_utime) + seconds_of(ending.usage.ru_stime), ending.wall_s,
               ending.usage.ru_maxrss);
    std::fflush(stdout);
  }
  return 0;
}
