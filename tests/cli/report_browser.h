// A headless Chromium that tests drive over its DevTools protocol, by a pipe: no port, no network,
// no further library.
//
// Will not do: anything but one page at a time.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace ballast {

// The path of a Chromium on this machine, or nothing.
std::optional<std::string> installed_browser();

struct Screen {
  int width = 1240;  // pixels
  bool dark = false;
};

class Browser {
 public:
  // Starts `program`; its profile is kept in `folder`, which must exist. CHECKs that it answers.
  Browser(const std::string& program, const std::string& folder);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // Shows a file and waits until it is loaded and drawn.
  void open(const std::string& path, const Screen& screen);
  // What the open page said since then: errors and warnings of its console, exceptions, and every
  // request for anything but itself.
  const std::vector<std::string>& complaints() const { return complaints_; }

  // The value of an expression on the page; promises are awaited. CHECKs that it does not throw.
  nlohmann::json evaluate(const std::string& expression);
  // Whether an expression becomes true within 15 seconds.
  bool becomes_true(const std::string& expression);
  // A move of the mouse, to {x, y} in the window in pixels, once what was scrolled is at rest.
  void point_at(const nlohmann::json& place);
  // A key pressed and let go: "Enter", "Tab".
  void press(const std::string& key);

  std::string screenshot();  // PNG, of the whole page
  std::string print();       // PDF

  // A command of the protocol to the page; its result.
  nlohmann::json call(const std::string& method, const nlohmann::json& parameters = {});

 private:
  nlohmann::json request(const std::string& method, const nlohmann::json& parameters);
  void settle();
  void heed(const nlohmann::json& event);
  nlohmann::json receive();

  pid_t process_ = -1;
  int to_ = -1;
  int from_ = -1;
  int next_ = 0;
  std::string received_;
  std::string session_;
  std::string url_;
  void (*before_)(int) = nullptr;  // what SIGPIPE did
  std::vector<std::string> complaints_;
};

}  // namespace ballast
