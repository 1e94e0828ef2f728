// Runs the program again and again in a child forked from here, so that a hundred thousand runs
// (scripts/mutate.py) do not each load a sanitized program and touch its pages anew.
//
//   fork_server [RUNS]     runs that one child makes [1]; then, or when it died, the next is forked
//
// One run a line of stdin, its fields separated by tabs:
//   FOLDER  CPU_SECONDS  WALL_SECONDS  WORD...
// The child works in FOLDER, reads nothing, prints nowhere and complains into FOLDER/err. Beyond so
// many seconds of a core the system ends it (SIGXCPU), beyond so many of a clock this program does
// (SIGKILL). One line of stdout for each:
//   STATUS CPU_SECONDS WALL_SECONDS MOST_KILOBYTES
// STATUS is the exit code, or the number of the signal below 0. The kilobytes are the child's most
// in memory during the run, with what it shares with this program and what runs before it left.
//
// Nothing here may start a thread or open a file that a child would share: only the child runs a
// verb.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <poll.h>
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
  double core_s = 0;
  double wall_s = 0;
  long kilobytes = 0;
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

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double core_seconds_of(const rusage& usage) {
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

double core_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return core_seconds_of(usage);
}

// From here on; where the system keeps no such mark, since the child began.
void forget_most_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

long most_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    long kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes;
  }
  return 0;
}

// One run in this process. A signal, or a verb that ends the process, tells itself.
Ending run_here(const Run& run) {
  const double before = core_seconds();
  const rlimit cpu{static_cast<rlim_t>(before) + 1 + static_cast<rlim_t>(run.cpu_s), RLIM_INFINITY};
  if (::chdir(run.folder.c_str()) != 0 || ::setrlimit(RLIMIT_CPU, &cpu) != 0) std::_Exit(99);
  send_to(STDERR_FILENO, "err", O_WRONLY | O_CREAT | O_TRUNC);
  forget_most_memory();
  std::vector<std::string> words = run.words;
  words.insert(words.begin(), "ballast");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Ending ending;
  ending.status = ballast::outcome_of(static_cast<int>(words.size()), argv.data());
  std::fflush(nullptr);
  ending.core_s = core_seconds() - before;
  ending.kilobytes = most_kilobytes();
  return ending;
}

std::optional<std::string> line_from(int descriptor) {
  std::string line;
  for (char byte = 0; ::read(descriptor, &byte, 1) == 1; line += byte) {
    if (byte == '\n') return line;
  }
  return std::nullopt;
}

bool send_line(int descriptor, const std::string& line) {
  return ::write(descriptor, line.data(), line.size()) == std::ssize(line);
}

// The runs that come in by a pipe, until it is closed.
[[noreturn]] void work(int runs, int endings, const sigset_t& signals) {
  const rlimit no_core{0, 0};
  if (::setrlimit(RLIMIT_CORE, &no_core) != 0 ||
      ::sigprocmask(SIG_SETMASK, &signals, nullptr) != 0) {
    std::_Exit(99);
  }
  send_to(STDIN_FILENO, "/dev/null", O_RDONLY);
  send_to(STDOUT_FILENO, "/dev/null", O_WRONLY);
  while (const std::optional<std::string> line = line_from(runs)) {
    const Ending ending = run_here(run_of(*line));
    send_line(endings, fmt::format("{} {} {}\n", ending.status, ending.core_s, ending.kilobytes));
  }
  std::exit(0);
}

// A child and the pipes to it and from it.
class Child {
 public:
  explicit Child(const sigset_t& signals) {
    int runs[2], endings[2];
    if (::pipe2(runs, O_CLOEXEC) != 0 || ::pipe2(endings, O_CLOEXEC) != 0) std::_Exit(2);
    pid_ = ::fork();
    if (pid_ < 0) {
      fmt::print(stderr, "fork_server: no child: error {}\n", errno);
      std::_Exit(2);
    }
    ::close(pid_ == 0 ? runs[1] : runs[0]);
    ::close(pid_ == 0 ? endings[0] : endings[1]);
    if (pid_ == 0) work(runs[0], endings[1], signals);
    runs_ = runs[1];
    endings_ = endings[0];
  }
  ~Child() {
    ::close(runs_);
    ::close(endings_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int64_t runs_made() const { return made_; }
  bool is_gone() const { return pid_ < 0; }

  Ending run(const std::string& line, long wall_s) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    ++made_;
    send_line(runs_, line + "\n");
    pollfd told{endings_, POLLIN, 0};
    if (::poll(&told, 1, static_cast<int>(1000 * wall_s)) == 0) ::kill(pid_, SIGKILL);
    Ending ending;
    if (const std::optional<std::string> said = line_from(endings_)) {
      std::istringstream(*said) >> ending.status >> ending.core_s >> ending.kilobytes;
    } else {
      ending = death();
    }
    ending.wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    return ending;
  }

 private:
  // Of the child with all its runs: what the last one took is not known apart.
  Ending death() {
    int status = 0;
    rusage usage{};
    ::wait4(pid_, &status, 0, &usage);
    pid_ = -1;
    return {WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), core_seconds_of(usage),
            0, usage.ru_maxrss};
  }

  pid_t pid_ = -1;
  int runs_ = -1, endings_ = -1;
  int64_t made_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int64_t most_runs = argc > 1 ? std::stol(argv[1]) : 1;
  std::signal(SIGPIPE, SIG_IGN);  // a child that is gone
  sigset_t signals;
  if (::sigprocmask(SIG_BLOCK, nullptr, &signals) != 0) return 2;
  std::unique_ptr<Child> child;
  for (std::string line; std::getline(std::cin, line);) {
    if (!child || child->is_gone() || child->runs_made() >= most_runs) {
      child.reset();  // before the next has the pipes of both
      child = std::make_unique<Child>(signals);
    }
    const Ending ending = child->run(line, run_of(line).wall_s);
    fmt::print("{} {:.3f} {:.3f} {}\n", ending.status, ending.core_s, ending.wall_s,
               ending.kilobytes);
    std::fflush(stdout);
  }
  return 0;
}
