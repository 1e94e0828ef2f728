#include "tests/cli/support.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/wait.h>

#include "profiles/load.h"
#include "profiles/store.h"
#include "sim/base/error.h"

namespace ballast {

namespace fs = std::filesystem;

int Outcome::lines() const {
  return static_cast<int>(std::count(output.begin(), output.end(), '\n'));
}

Workbench::Workbench() {
  std::string pattern = (fs::temp_directory_path() / "ballast-cli-XXXXXX").string();
  CHECK(mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
}

Workbench::~Workbench() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

Outcome Workbench::run(const std::string& arguments) const {
  return shell("$BALLAST " + arguments);
}

Outcome Workbench::interrupt(const std::string& arguments, const std::string& pattern) const {
  // What an earlier call wrote would be seen before this one listens.
  return shell("rm -f progress.txt; $BALLAST " + arguments +
               " 2> progress.txt & pid=$!\n"
               "for i in $(seq 900); do grep -qs '" +
               pattern +
               "' progress.txt && break; sleep 0.1; done\n"
               "kill -INT $pid; wait $pid");
}

Outcome Workbench::shell(const std::string& line) const {
  const std::string command = "cd '" + folder_ +
                              "' && BALLAST=" BALLAST_BINARY_DIR
                              "/ballast; export XDG_DATA_HOME=$PWD; { " +
                              line + "\n} 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  Outcome outcome;
  std::array<char, 4096> part{};
  for (size_t n = 0; (n = fread(part.data(), 1, part.size(), pipe)) > 0;) {
    outcome.output.append(part.data(), n);
  }
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

void Workbench::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name)) << content;
}

std::string Workbench::read(const std::string& name) const {
  std::ifstream file(path(name));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Workbench::exists(const std::string& name) const { return fs::exists(path(name)); }

void Workbench::write_tiny_model() const {
  write("tiny.json", R"({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2,
    "n_positions": 64, "vocab_size": 256, "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
    "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0})");
}

void Workbench::write_store() const {
  Machine machine = load_machine("rtx-4090-pcie");
  machine.name = "here";
  machine.gpu.is_host_thread = true;
  machine.cpu.cores = 2;
  machine.cpu.optimizer_threads = 1;
  Store(path("here.db"), {"test", ""}).append(machine);
}

}  // namespace ballast
