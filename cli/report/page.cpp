#include "cli/report/page.h"

#include <map>
#include <nlohmann/json.hpp>

#include "cli/report/assets.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// JSON inside a script element: '<' would be able to end it.
std::string script_json(const nlohmann::ordered_json& data) {
  // Names of files need not be UTF-8; what is not is shown as a replacement character.
  const std::string json =
      data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string safe;
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

// Every {{name}} of the page by its value, in one pass, so that values are never searched.
std::string filled(const std::string& page, const std::map<std::string, std::string>& values) {
  std::string out;
  size_t at = 0;
  while (true) {
    const size_t open = page.find("{{", at);
    out.append(page, at, open - at);
    if (open == std::string::npos) return out;
    const size_t close = page.find("}}", open);
    CHECK(close != std::string::npos);
    out += values.at(page.substr(open + 2, close - open - 2));
    at = close + 2;
  }
}

}  // namespace

std::string escaped_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string report_page(const ReportText& text, const nlohmann::ordered_json& data) {
  return filled(kReportPage, {{"title", escaped_html(text.title)},
                              {"footer", escaped_html(text.footer)},
                              {"style", kReportStyle},
                              {"data", script_json(data)},
                              {"chart", kReportCharts},
                              {"script", kReportScript}});
}

}  // namespace ballast
