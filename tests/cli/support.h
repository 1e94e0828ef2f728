// Runs the built program as a user would, in a folder that goes away.
#pragma once

#include <string>

namespace ballast {

struct Outcome {
  int code = -1;
  std::string output;  // of both streams
  bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
  int lines() const;
};

// A folder of its own for a test, which is the working folder of what it runs.
class Workbench {
 public:
  Workbench();
  ~Workbench();
  Workbench(const Workbench&) = delete;
  Workbench& operator=(const Workbench&) = delete;

  // `ballast` with these arguments, as a shell line.
  Outcome run(const std::string& arguments) const;
  // The same, stopped by Ctrl-C once a line of its progress, which is in progress.txt, matches this
  // pattern of grep; output is that of the other stream.
  Outcome interrupt(const std::string& arguments, const std::string& pattern) const;
  // Any shell line; $BALLAST is the program.
  Outcome shell(const std::string& line) const;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const;
  std::string read(const std::string& name) const;
  bool exists(const std::string& name) const;

  // tiny.json: a gpt2 of 2 layers of 32 with a vocabulary of 256.
  void write_tiny_model() const;
  // here.db: a store with a profile of "this machine", made up.
  void write_store() const;

 private:
  std::string folder_;
};

}  // namespace ballast
