#include "tests/cli/report_browser.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "sim/base/error.h"

namespace ballast {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kPatienceMs = 60'000;  // a start on a busy machine
constexpr int kSettleTries = 300;    // of 50 ms

// DevTools reads commands from descriptor 3 and writes to 4.
void become_browser(const std::string& program, const std::string& folder, int commands,
                    int answers) {
  setpgid(0, 0);
  // The ends may be 3 or 4 themselves.
  const int in = fcntl(commands, F_DUPFD, 10);
  const int out = fcntl(answers, F_DUPFD, 10);
  const int nowhere = open("/dev/null", O_RDWR);
  dup2(nowhere, 0);
  dup2(nowhere, 1);
  dup2(nowhere, 2);
  dup2(in, 3);
  dup2(out, 4);
  const std::string profile = "--user-data-dir=" + folder;
  // Without its sandbox, which containers and root lack: it opens only pages that we wrote. Without
  // a GPU process, for which a page with canvases sometimes waits half a minute in vain.
  execl(program.c_str(), program.c_str(), "--headless", "--no-sandbox", "--disable-gpu",
        "--in-process-gpu", "--disable-accelerated-2d-canvas", "--remote-debugging-pipe",
        "--no-first-run", "--disable-extensions", "--disable-dev-shm-usage",
        "--disable-background-networking", "--hide-scrollbars", profile.c_str(),
        static_cast<char*>(nullptr));
  _exit(127);
}

std::string from_base64(const std::string& text) {
  static const std::string letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const size_t value = letters.find(c);
    if (value == std::string::npos) break;
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xFF);
  }
  return bytes;
}

}  // namespace

std::optional<std::string> installed_browser() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::string program = folder + "/" + name;
      if (access(program.c_str(), X_OK) == 0) return program;
    }
  }
  return std::nullopt;
}

Browser::Browser(const std::string& program, const std::string& folder) {
  std::array<int, 2> commands{};
  std::array<int, 2> answers{};
  CHECK(pipe2(commands.data(), O_CLOEXEC) == 0);
  CHECK(pipe2(answers.data(), O_CLOEXEC) == 0);
  // A browser that died is an error of the next command, not of this process.
  before_ = std::signal(SIGPIPE, SIG_IGN);
  process_ = fork();
  CHECK(process_ >= 0);
  if (process_ == 0) become_browser(program, folder, commands[0], answers[1]);
  close(commands[0]);
  close(answers[1]);
  to_ = commands[1];
  from_ = answers[0];
  const Json target = request("Target.createTarget", {{"url", "about:blank"}});
  session_ = request("Target.attachToTarget",
                     {{"targetId", target["targetId"]}, {"flatten", true}})["sessionId"];
  for (const char* domain : {"Page", "Runtime", "Log", "Network"}) {
    call(std::string(domain) + ".enable");
  }
}

Browser::~Browser() {
  std::signal(SIGPIPE, before_);
  close(to_);  // which ends it
  close(from_);
  for (int i = 0; i < kSettleTries; ++i) {
    if (waitpid(process_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  kill(-process_, SIGKILL);
  waitpid(process_, nullptr, 0);
}

Json Browser::receive() {
  while (true) {
    const size_t end = received_.find('\0');
    if (end != std::string::npos) {
      Json message = Json::parse(received_.substr(0, end));
      received_.erase(0, end + 1);
      return message;
    }
    pollfd waiting{from_, POLLIN, 0};
    if (poll(&waiting, 1, kPatienceMs) <= 0) throw Error("browser", "is silent", "start it again");
    std::array<char, 1 << 16> part{};
    const ssize_t size = ::read(from_, part.data(), part.size());
    if (size <= 0) throw Error("browser", "has ended", "start it again");
    received_.append(part.data(), static_cast<size_t>(size));
  }
}

Json Browser::request(const std::string& method, const Json& parameters) {
  Json message = {{"id", ++next_}, {"method", method}};
  message["params"] = parameters.is_null() ? Json::object() : parameters;
  if (!session_.empty()) message["sessionId"] = session_;
  const std::string text = message.dump() + '\0';
  if (::write(to_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error("browser", "has ended", "start it again");
  }
  while (true) {
    const Json answer = receive();
    if (answer.contains("method")) heed(answer);
    if (answer.value("id", 0) != next_) continue;
    if (answer.contains("error")) throw Error(method, answer["error"].dump(), "see DevTools");
    return answer["result"];
  }
}

Json Browser::call(const std::string& method, const Json& parameters) {
  return request(method, parameters);
}

void Browser::heed(const Json& event) {
  const std::string method = event["method"];
  const Json& about = event["params"];
  if (method == "Runtime.exceptionThrown") {
    complaints_.push_back("exception: " + about["exceptionDetails"].dump());
  }
  if (method == "Runtime.consoleAPICalled" &&
      (about["type"] == "error" || about["type"] == "warning" || about["type"] == "assert")) {
    complaints_.push_back("console: " + about["args"].dump());
  }
  if (method == "Log.entryAdded") complaints_.push_back("log: " + about["entry"].dump());
  if (method == "Network.requestWillBeSent") {
    const std::string url = about["request"]["url"];
    if (url != url_ && !url.starts_with("data:")) complaints_.push_back("request: " + url);
  }
}

void Browser::open(const std::string& path, const Screen& screen) {
  call("Emulation.setDeviceMetricsOverride", {{"width", screen.width},
                                              {"height", 900},
                                              {"deviceScaleFactor", 1},
                                              {"mobile", screen.width < 500}});
  call("Emulation.setEmulatedMedia",
       {{"features",
         {{{"name", "prefers-color-scheme"}, {"value", screen.dark ? "dark" : "light"}}}}});
  complaints_.clear();
  url_ = "file://" + fs::absolute(path).string();
  call("Page.navigate", {{"url", url_}});
  if (!becomes_true("document.readyState === 'complete'")) {
    throw Error(path, "does not load", "see DevTools");
  }
  settle();
}

// Two frames: what a resize draws again is drawn, and what a scroll sets off has happened. A page
// in which nothing changes may be given no frame at all.
void Browser::settle() {
  evaluate(
      "new Promise(done => { requestAnimationFrame(() => requestAnimationFrame(done));"
      " setTimeout(done, 500); })");
}

Json Browser::evaluate(const std::string& expression) {
  const Json result =
      call("Runtime.evaluate",
           {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
  if (result.contains("exceptionDetails")) {
    throw Error("page", result["exceptionDetails"].dump(), "see " + expression);
  }
  return result["result"].value("value", Json());
}

bool Browser::becomes_true(const std::string& expression) {
  for (int i = 0; i < kSettleTries; ++i) {
    try {
      if (evaluate("Boolean(" + expression + ")") == true) return true;
    } catch (const Error&) {
      // While one page gives way to another there is none to ask.
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

void Browser::point_at(const Json& place) {
  settle();
  call("Input.dispatchMouseEvent", {{"type", "mouseMoved"}, {"x", place["x"]}, {"y", place["y"]}});
}

void Browser::press(const std::string& key) {
  Json event = {{"type", "keyDown"}, {"key", key}, {"code", key}};
  if (key == "Enter") event.update({{"windowsVirtualKeyCode", 13}, {"text", "\r"}});
  if (key == "Tab") event["windowsVirtualKeyCode"] = 9;
  call("Input.dispatchKeyEvent", event);
  event["type"] = "keyUp";
  event.erase("text");
  call("Input.dispatchKeyEvent", event);
}

std::string Browser::screenshot() {
  const Json size = evaluate(
      "({width: innerWidth, height: document.documentElement.scrollHeight, x: 0, y: 0, scale: 1})");
  return from_base64(
      call("Page.captureScreenshot",
           {{"format", "png"}, {"captureBeyondViewport", true}, {"clip", size}})["data"]);
}

std::string Browser::print() {
  return from_base64(call("Page.printToPDF", {{"printBackground", true}})["data"]);
}

}  // namespace ballast
